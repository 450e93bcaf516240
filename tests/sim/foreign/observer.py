"""How a broker of Apache Kafka 3.7 follows the metadata log: the model of its voter, which never stands for
election, and fetches from any voter while it knows no leader or gets no answer from it."""

from __future__ import annotations

from metaquorum.metadata.replay import ReplayState
from tests.raft.kafka_voter import ELECTION_TIMEOUT_MS, FOLLOWER, UNATTACHED, KafkaVoter
from tests.sim.foreign.applied import Applied


class KafkaObserver(KafkaVoter):
    """`state`: what it has applied, which is never more than what it knows to be committed."""

    applied: Applied

    @property
    def state(self) -> ReplayState:
        return self.applied.state

    def start(self) -> None:
        super().start()
        self.applied = Applied(self.disk)
        self.high_watermark = max(self.high_watermark, self.state.end_offset or -1)

    def _candidate(self) -> None:
        """The time of an election means to it that it looks for a leader elsewhere."""
        if self.role != FOLLOWER:
            self._enter(UNATTACHED, self._drawn(ELECTION_TIMEOUT_MS))

    def _send_all(self) -> None:
        to = self.leader_id
        if self.role != FOLLOWER or to is None or self.now >= self.deadline:
            if self.asked:
                return
            to = self.rng.choice(self.voters)
        self._send(to, self._fetch() if self.snapshot is None else self._fetch_snapshot())

    def tick(self, now: int) -> None:
        super().tick(now)
        self.applied.up_to(self.high_watermark)

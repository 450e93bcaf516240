"""How a broker of Apache Kafka 3.7 follows the metadata log: the model of its voter, which never stands for
election, and fetches from any voter while it knows no leader or gets no answer from it."""

from __future__ import annotations

from metaquorum.metadata.replay import ReplayState, replay
from metaquorum.metadata.snapshot import load_snapshot
from metaquorum.storage.batches.batch import iter_batches
from tests.raft.kafka_voter import ELECTION_TIMEOUT_MS, FOLLOWER, UNATTACHED, KafkaVoter


class KafkaObserver(KafkaVoter):
    """`state`: what it has applied, which is never more than what it knows to be committed."""

    state: ReplayState

    def start(self) -> None:
        self.state = ReplayState()
        super().start()
        if self.disk.start:
            self._load()

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
        self.apply()

    def apply(self) -> None:
        """Replays what is committed."""
        if self.state.end_offset < self.disk.start:
            self._load()
        for base, end, _, data in self.disk.batches:
            if base >= self.state.end_offset and end <= self.high_watermark:
                self.state = replay(self.state, next(iter(iter_batches(data))))

    def _load(self) -> None:
        (position,) = [each for each in self.disk.snapshots if each.offset == self.disk.start]
        data = self.disk.snapshots[position]
        self.state = ReplayState(load_snapshot(iter_batches(data), position=position))
        self.high_watermark = max(self.high_watermark, position.offset)

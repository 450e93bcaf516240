"""A coordinator's state machine without a log, driven by a script: answers, records, effects, timers, state.

Records are replayed at once and kept, so that `again` can be another broker that finds them in the log. What
a kind of coordinator is asked, and what it knows, is in `groups_player` and `transactions_player`.
"""

from __future__ import annotations

import re
from typing import Any

from metaquorum.broker.coordinator.state import Ask, BatchOrigin, CoordinatorState, Decision, Now
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.data import CoordinatorRequest
from metaquorum.wire.stored import StoredRecord, decode_stored, encode_stored
from tests.scripts.player import Player, show
from tests.scripts.stored import START_MS, timed
from tests.unit.broker.manager_world import Cluster, key_of

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ALIAS = re.compile(r"#\d+")


class CoordinatorPlayer(Player):
    """Callers are k1, k2 and so on, made-up ids #1, #2 and so on, times T+ms. Requests take `refuse=CODE`
    (the log takes no record), `unsettled=yes` (nobody knows whether they will be committed), `version=N` and
    `client=NAME`."""

    def __init__(self, internal_topic: str) -> None:
        super().__init__()
        self.now_ms = 0
        self.cluster = Cluster()
        self.image = MetadataImage()
        self.log: list[tuple[StoredRecord, BatchOrigin]] = []
        self.state: CoordinatorState = self.new_state()
        self._internal_topic = internal_topic
        self._callers = 0
        self._ids: dict[str, str] = {}
        self._how: dict[str, str] = {}
        self._client = "client"

    # ---- of each kind ----------------------------------------------------------------------------

    def new_state(self) -> CoordinatorState:
        raise NotImplementedError

    def facts(self) -> dict[str, str]:
        raise NotImplementedError

    # ---- what is shown ---------------------------------------------------------------------------

    def say(self, line: str) -> None:
        for full in _UUID.findall(line):
            self._ids.setdefault(full, f"#{len(self._ids) + 1}")
        super().say(timed(_UUID.sub(lambda found: self._ids[found[0]], line)))

    def run(self, command: str) -> list[str]:
        full = {alias: known for known, alias in self._ids.items()}
        words = []
        for word in command.split(" "):
            how = re.fullmatch(r"(refuse|unsettled|version|client)=(\S+)", word)
            if how is None:
                words.append(_ALIAS.sub(lambda found: full.get(found[0], found[0]), word))
            else:
                self._how[how[1]] = how[2]
        super().run(" ".join(words))
        self._how = {}
        self.say_changed(self.facts())
        return self.lines

    # ---- what happens ----------------------------------------------------------------------------

    @property
    def now(self) -> Now:
        return Now(self.now_ms, START_MS + self.now_ms)

    def ask(self, body: Any) -> None:
        self._callers += 1
        key = f"k{self._callers}"
        request = CoordinatorRequest(
            topic=self._internal_topic,
            partition=3,
            body=body,
            version=int(self._how.get("version", "3")),
            client_id=self._how.get("client", "client"),
            client_host="/h",
        )
        if self.state.only_reads(body):
            self.say("only reads")
        self.take(self.state.decide(Ask(key, request), self.now))

    def take(self, decision: Decision) -> None:
        refuse = self._how.get("refuse")
        if refuse is not None and decision.records:
            self.say(f"refused: {len(decision.records)} records")
            if decision.if_refused is None:
                return self.say(f"who waits hears {refuse}: {show([each.key for each in decision.replies])}")
            decision = decision.if_refused(ErrorCode[refuse])
        for record in decision.records:
            self._keep(record, decision.origin)
        for reply in decision.replies:
            self.say(f"{reply.key}: {show(reply.body)}{' at once' if decision.at_once else ''}")
        if self._how.get("unsettled") is None:
            self.say_all(decision.effects)
        elif decision.if_unsettled is not None:
            decision.if_unsettled()
            self.say(f"not sent: {len(decision.effects)}")

    def _keep(self, record: StoredRecord, given: BatchOrigin) -> None:
        assert decode_stored(self._internal_topic, *encode_stored(record)) == record
        origin = BatchOrigin(len(self.log), given.producer_id, given.producer_epoch)
        producer = f" of {show(given)}" if given != BatchOrigin() else ""
        versions = f"v{record.key_version}/{record.value_version}"
        self.say(f"+ {show(record.key)} {versions} -> {show(record.value)}{producer}")
        self.log.append((record, origin))
        self.state.replay(record, origin)

    def do_wait(self, ms: str) -> None:
        """Time passes, and everything that is due happens in its order."""
        end = self.now_ms + int(ms)
        while (due_ms := self.state.next_deadline_ms()) is not None and due_ms <= end:
            self.now_ms = max(self.now_ms, due_ms)
            self.say(f"at {START_MS + self.now_ms}:")
            self.take(self.state.tick(self.now))
            if "refuse" in self._how:
                break
        self.now_ms = end

    def do_late(self, ms: str) -> None:
        """Time passes, and nothing happens."""
        self.now_ms += int(ms)

    def do_again(self) -> None:
        """Another broker finds the records in the log."""
        self.state = self.new_state()
        for record, origin in self.log:
            self.state.replay(record, origin)
        self.take(self.state.loaded(self.image, self.now))

    def do_marker(self, producer: str, word: str) -> None:
        """marker 7 commit"""
        origin = BatchOrigin(len(self.log), int(producer), 0)
        self.state.replay_marker(origin, committed=word == "commit")

    def do_topics(self, *gone: str, **partitions: str) -> None:
        """topics t=3 u=1: these are created; topics t u: these are deleted."""
        for name in gone:
            self.cluster.delete(key_of(name))
        for name, count in partitions.items():
            self.cluster.topic(name, partitions=int(count))
        previous, self.image = self.image, self.cluster.image()
        self.take(self.state.image_moved(self.image, previous, self.now))


def parts_of(word: str) -> dict[str, list[int]]:
    """`t.0.1+u.2`: partitions by topic."""
    split = [each.split(".") for each in word.split("+") if each]
    return {name: [int(index) for index in indexes] for name, *indexes in split}

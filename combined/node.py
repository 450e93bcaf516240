"""A controller node and a broker node as one pure state machine, with one Raft core between them."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from metaquorum.broker.node import BrokerNode
from metaquorum.broker.replica.events import DataEvent
from metaquorum.controller.node import ControllerNode
from metaquorum.raft.effects import WriteSnapshotChunk
from metaquorum.raft.events import RaftResponseArrived, ShutdownRequested, Stop
from metaquorum.raft.messages import FetchResponse, RaftError

LEADERLESS_MS = 1_000
"""How long a stopping broker waits for a quorum without a leader, which can grant nothing."""

_OF_BROKER = frozenset(get_args(DataEvent))


class BrokerStopped(msgspec.Struct, frozen=True, kw_only=True):
    """The broker has shut down cleanly and the controller has not: no client may still wait for the
    broker."""

    reason: str


class CombinedNode:
    """`broker` shares the replica of `controller`. Its `Stop` comes out as `BrokerStopped`, unless it failed;
    the `Stop` of either part that failed, and that of the controller, ends both."""

    def __init__(self, controller: ControllerNode, broker: BrokerNode) -> None:
        self.controller = controller
        self.broker = broker
        self._answered_epoch: int | None = None
        self._stopping = False
        self._leaderless_ms: int | None = None
        self._stopped = False
        self._dues_ms: tuple[int | None, int | None] = (None, None)

    # ---- driven by the shell

    def start(self, *, now_ms: int, wall_ms: int) -> list[Any]:
        """The first input."""
        effects: list[Any] = [*self.broker.start(now_ms=now_ms, wall_ms=wall_ms)]
        return self._settle(effects, self.controller.start(now_ms=now_ms, wall_ms=wall_ms), now_ms, wall_ms)

    def handle(self, event: Any, *, now_ms: int, wall_ms: int) -> list[Any]:
        """One input, in the order of arrival."""
        if self._stopped:
            return []
        if type(event) in _OF_BROKER:
            effects: list[Any] = self.broker.handle(event, now_ms=now_ms, wall_ms=wall_ms)
            if not self.broker.stopped:
                return effects
            return self._settle(effects, [], now_ms, wall_ms)
        if type(event) is ShutdownRequested:
            self._stopping = True
            effects = [*self.broker.handle(event, now_ms=now_ms, wall_ms=wall_ms)]
            return self._settle(effects, [], now_ms, wall_ms)
        heard = self.controller.handle(event, now_ms=now_ms, wall_ms=wall_ms)
        if type(event) is RaftResponseArrived:
            self._note_answer(event)
        return self._settle([], heard, now_ms, wall_ms)

    def must_wait(self, event: Any) -> bool:
        """Whether this input comes later (`ControllerNode.must_wait`)."""
        return not self._stopped and self.controller.must_wait(event)

    def settle(self, *, now_ms: int, wall_ms: int) -> list[Any]:
        """After the inputs of a step."""
        if self._stopped:
            return []
        effects: list[Any] = self.broker.settle(now_ms=now_ms, wall_ms=wall_ms)
        heard = self.controller.settle(now_ms=now_ms, wall_ms=wall_ms)
        return self._settle(effects, heard, now_ms, wall_ms) if heard or self.broker.stopped else effects

    def tick(self, *, now_ms: int, wall_ms: int, drained: bool) -> list[Any]:
        """Time passed, for the part that waited for it."""
        if self._stopped:
            return []
        controller_ms, broker_ms = self._dues_ms
        heard: list[Any] = []
        effects: list[Any] = []
        if controller_ms is not None and controller_ms <= now_ms:
            heard = self.controller.tick(now_ms=now_ms, wall_ms=wall_ms, drained=drained)
        if broker_ms is not None and broker_ms <= now_ms:
            effects = [*self.broker.tick(now_ms=now_ms, wall_ms=wall_ms)]
        return self._settle(effects, heard, now_ms, wall_ms)

    def note_gap(self, until_ms: int) -> None:
        """The process was paused."""
        self.controller.note_gap(until_ms)

    def next_deadline_ms(self) -> int | None:
        """The time by which `tick` must be called."""
        self._dues_ms = dues_ms = self.controller.next_deadline_ms(), self.broker.next_deadline_ms()
        give_up_ms = None if self._leaderless_ms is None else self._leaderless_ms + LEADERLESS_MS
        return min([each for each in (*dues_ms, give_up_ms) if each is not None], default=None)

    # ---- effects

    def _settle(self, effects: list[Any], heard: list[Any], now_ms: int, wall_ms: int) -> list[Any]:
        """All effects in order: the broker's, the controller's, and the broker's in answer to those."""
        effects += heard
        fetches = any(type(each) is WriteSnapshotChunk for each in heard)
        effects += self.broker.follow(
            self._known_end(), fetches_snapshot=fetches, now_ms=now_ms, wall_ms=wall_ms
        )
        if self._stopping and not self.broker.stopped:
            effects += self._give_up_without_quorum(now_ms, wall_ms)
        if self.broker.stopped or self.controller.stopped:
            return self._end(effects, now_ms, wall_ms)
        return effects

    def _known_end(self) -> int | None:
        """The high watermark, once the current leader has reported it: this node itself, or in an answer."""
        raft = self.controller.raft
        known = self.controller.active is not None or self._answered_epoch == raft.epoch
        return raft.high_watermark if known and raft.leader_id is not None else None

    def _note_answer(self, event: RaftResponseArrived) -> None:
        raft, response = self.controller.raft, event.response
        if isinstance(response, FetchResponse) and response.error is RaftError.NONE:
            current = event.source == raft.leader_id and response.epoch == raft.epoch
            if current and response.high_watermark >= 0:
                self._answered_epoch = raft.epoch

    def _give_up_without_quorum(self, now_ms: int, wall_ms: int) -> list[Any]:
        """When all nodes of a cluster stop at once, the last ones find no majority that could let them
        stop."""
        if self.controller.raft.leader_id is not None:
            self._leaderless_ms = None
        elif self._leaderless_ms is None:
            self._leaderless_ms = now_ms
        elif now_ms >= self._leaderless_ms + LEADERLESS_MS:
            return self._without_failure(
                self.broker.give_up(
                    "stopped: the quorum has no leader to grant the shutdown",
                    now_ms=now_ms,
                    wall_ms=wall_ms,
                )
            )
        return []

    def _without_failure(self, effects: list[Any]) -> list[Any]:
        return [Stop(reason=each.reason, failed=False) if type(each) is Stop else each for each in effects]

    def _end(self, effects: list[Any], now_ms: int, wall_ms: int) -> list[Any]:
        """One of the two has stopped: what that means for the other."""
        ending: Stop | None = None
        left: list[Any] = []
        for effect in effects:
            if type(effect) is not Stop:
                left.append(effect)
            elif effect.failed or self.controller.stopped:
                ending = ending or effect
            else:
                self._leaderless_ms = None
                left.append(BrokerStopped(reason=effect.reason))
                asked = self.controller.handle(ShutdownRequested(), now_ms=now_ms, wall_ms=wall_ms)
                left += [each for each in asked if type(each) is not Stop]
                ending = next((each for each in asked if type(each) is Stop), ending)
        if ending is not None:
            self._stopped = True
            last = self.broker.give_up(ending.reason, now_ms=now_ms, wall_ms=wall_ms)
            left += [each for each in last if type(each) is not Stop]
            left.append(ending)
        return left

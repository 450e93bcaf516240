"""Holds back events of a fence that spans several batches until the last one explains them.

Owns the wait. Does not know which events a fence may explain: its caller names them. A controller splits the
fence (or shutdown) of a broker with thousands of partitions, and only the last batch holds the broker's own
record. Until then the first batches look like leaders that resigned and followers that lagged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from metaquorum.metadata.inspect.causes.cause_types import SPLIT_MS
from metaquorum.metadata.inspect.changes.change_steps import BatchChanges

LIKE_A_SPLIT_FENCE = ("unexplained", "replica-lagged", "lagged-or-stopping", "stopping-or-fenced")
"""Rules that match a split fence before its own record arrives."""

E = TypeVar("E", bound=msgspec.Struct)


class HeldEvents(Generic[E]):
    """Takes each batch's events in order and returns those that are final. Waits for at most one
    second of the log's time."""

    def __init__(self) -> None:
        self._held: list[tuple[E, int | None]] = []
        self._since_ms = 0

    def through(self, told: Sequence[E], suspects: Mapping[E, int], batch: BatchChanges) -> list[E]:
        """`suspects` maps events of `told` to the broker whose fence may explain them."""
        if not self._held and not suspects:
            return list(told)
        if not self._held:
            self._since_ms = batch.time_ms
        if not 0 <= batch.time_ms - self._since_ms <= SPLIT_MS:
            return [*self.rest(), *self.through(told, suspects, batch)]
        gone = {
            step.broker_id: "broker-fenced" if step.was_fenced else "controlled-shutdown"
            for step in batch.brokers
            if step.was_fenced or step.began_shutdown
        }
        self._held = [
            (event if who is None else _explained(event, gone.get(who)), who) for event, who in self._held
        ]
        self._held += [(event, suspects.get(event)) for event in told]
        return self.rest() if gone else []

    def rest(self) -> list[E]:
        """The events still held back, unchanged."""
        held, self._held = self._held, []
        return [event for event, _ in held]


def _explained(event: E, rule: str | None) -> E:
    if rule is None:
        return event
    quiet = {"severity": "detail"} if getattr(event, "kind", "") == "isr shrank" else {}
    return msgspec.structs.replace(event, rule=rule, **quiet)

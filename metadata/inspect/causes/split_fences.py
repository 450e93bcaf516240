"""Holds back events of a fence that spans several batches until the last one explains them.

A controller splits the fence (or shutdown) of a broker with thousands of partitions, and only the last batch
holds the broker's own record. Until then the first batches look like leaders that resigned and followers
that lagged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from metaquorum.metadata.inspect.causes.rule import SPLIT_MS
from metaquorum.metadata.inspect.changes.change_steps import BatchChanges, BrokerStep

E = TypeVar("E", bound=msgspec.Struct)


def late_rule(step: BrokerStep) -> str | None:
    """The rule by which a broker's own record explains what earlier batches took from it; None for other
    records."""
    if step.was_fenced:
        return "broker-fenced"
    return "controlled-shutdown" if step.began_shutdown else None


class _HeldEvent(NamedTuple, Generic[E]):
    """An event that waits: because of a broker whose fence may explain it, or because others before it
    wait."""

    event: E
    who: int | None
    time_ms: int

    def waits(self, now_ms: int) -> bool:
        """Whether a fence may still explain it."""
        return self.who is not None and now_ms - self.time_ms <= SPLIT_MS


class HeldEvents(Generic[E]):
    """Takes each batch's events in order and returns those that are final. Waits for at most one
    second of the log's time."""

    def __init__(self) -> None:
        self._held: deque[_HeldEvent[E]] = deque()

    def through(self, events: Sequence[E], suspects: Mapping[E, int], batch: BatchChanges) -> list[E]:
        """`suspects` maps events to the broker whose fence may explain them."""
        if not self._held and not suspects:
            return list(events)
        now_ms, final = batch.time_ms, list[E]()
        if self._held and now_ms < self._held[-1].time_ms:
            final = self.rest()  # the clock ran backwards
        while self._held and not self._held[0].waits(now_ms):
            final.append(self._held.popleft().event)
        gone = {step.broker_id: rule for step in batch.brokers if (rule := late_rule(step)) is not None}
        if gone:
            final += [
                _explained(one.event, gone.get(-1 if one.who is None else one.who)) for one in self._held
            ]
            self._held.clear()
            return [*final, *events]
        self._held += [_HeldEvent(event, suspects.get(event), now_ms) for event in events]
        while self._held and not self._held[0].waits(now_ms):
            final.append(self._held.popleft().event)
        return final

    @property
    def waits(self) -> bool:
        """Whether events are held back."""
        return bool(self._held)

    def rest(self) -> list[E]:
        """The events still held back, unchanged."""
        held, self._held = self._held, deque()
        return [one.event for one in held]


def _explained(event: E, rule: str | None) -> E:
    if rule is None:
        return event
    quiet = {"severity": "detail"} if getattr(event, "kind", "") == "isr shrank" else {}
    return msgspec.structs.replace(event, rule=rule, **quiet)

"""Holds back events of an open metadata transaction (KIP-868) until its end: aborted records have no effect.

The wait, and which events are about the log instead of the cluster: an election or a jump of the clock
happened regardless of the transaction's outcome.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from metaquorum.metadata.inspect.changes.change_steps import BatchChanges
from metaquorum.metadata.records.types import BeginTransactionRecord


class HeldBack(Protocol):
    """What an event provides."""

    @property
    def offset(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def entity(self) -> str: ...


E = TypeVar("E", bound=HeldBack)

OF_THE_LOG = ("quorum", "transaction")
"""Entities of events that are about the log and not about the cluster; elections are, too."""


class HeldTransaction(Generic[E]):
    """Mark where a transaction begins and ends, then pass each batch's events to `through`; it returns
    those that are final."""

    def __init__(self) -> None:
        self.begun: int | None = None
        """Where the open transaction began."""
        self._name: str  # the name of the open one
        self._held: list[E] = []
        self._marks: list[tuple[int, bool | None]] = []

    def begin(self, offset: int, name: str) -> None:
        self.begun, self._name = offset, name
        self._marks.append((offset, None))

    def end(self, offset: int, *, takes_effect: bool) -> None:
        self.begun = None
        self._marks.append((offset, takes_effect))

    @property
    def still_open(self) -> str:
        return f"{self._name}, since {self.begun}; its records have no effect yet"

    @property
    def unclear(self) -> str:
        return (
            f"{self._name}, since {self.begun}; its end is lost: whether later events took effect is unknown"
        )

    def through(self, events: list[E]) -> list[E]:
        """`events` is ordered by offset, and so is the result."""
        marks, self._marks = self._marks, []
        if self.begun is None and not marks and not self._held:
            return events
        is_open = (self.begun is not None) if not marks else marks[0][1] is not None
        happened: list[E] = []
        for event in events:
            while marks and marks[0][0] <= event.offset:
                is_open = self._pass(marks.pop(0), happened)
            (self._held if is_open else happened).append(event)
        for mark in marks:
            self._pass(mark, happened)
        return happened

    def _pass(self, mark: tuple[int, bool | None], happened: list[E]) -> bool:
        """Whether a transaction is open after the mark."""
        takes_effect = mark[1]
        if takes_effect is None:
            return True
        held, self._held = self._held, []
        happened += held if takes_effect else _of_the_log(held)
        return False

    def rest(self) -> list[E]:
        """What must be reported of a transaction that is still open at the end."""
        held, self._held = self._held, []
        return _of_the_log(held)


def begins_transaction(batch: BatchChanges) -> bool:
    return any(isinstance(record, BeginTransactionRecord) for _, record in batch.records)


def _of_the_log(events: list[E]) -> list[E]:
    return [event for event in events if event.entity in OF_THE_LOG or event.kind == "election"]

"""Requests that wait until a rising offset of a log reaches theirs: the end of what is written, or held by
every replica in sync, or the start of what is left.

Owns the order in which they complete and their deadlines. Knows offsets and tickets, no log and no ISR.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from metaquorum.broker.replica.partition.values import Ticket

Result = TypeVar("Result")
"""What is known of the answer before the offset is reached."""


@dataclass(slots=True)
class Waiting(Generic[Result]):
    """`result`: the answer once `offset` is reached."""

    ticket: Ticket[Any]
    offset: int
    result: Result


class WaitingTickets(Generic[Result]):
    """Those that wait for one offset. `requests.partitioned` bounds their number."""

    __slots__ = ("_count", "_deadline_ms", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Waiting[Result]]] = []
        self._count = 0
        self._deadline_ms: int | None = None

    def __len__(self) -> int:
        return len(self.heap)

    @property
    def deadline_ms(self) -> int | None:
        """Not after the first deadline of the waiting requests; None if none waits."""
        return self._deadline_ms if self.heap else None

    def add(self, waiting: Waiting[Result]) -> None:
        deadline = waiting.ticket.deadline_ms
        if not self.heap or self._deadline_ms is None or deadline < self._deadline_ms:
            self._deadline_ms = deadline
        self._count += 1
        heappush(self.heap, (waiting.offset, self._count, waiting))

    def reached(self, offset: int) -> list[Waiting[Result]]:
        """Removes and returns those that waited for `offset` or less, by the offset and then by arrival."""
        heap = self.heap
        done: list[Waiting[Result]] = []
        while heap and heap[0][0] <= offset:
            done.append(heappop(heap)[2])
        return done

    def overdue(self, now_ms: int) -> list[Waiting[Result]]:
        """Removes and returns those whose deadline has passed."""
        if self._deadline_ms is None or now_ms < self._deadline_ms:
            return []
        return self._take(lambda waiting: waiting.ticket.deadline_ms <= now_ms)

    def cancel(self, ticket: Ticket[Any]) -> None:
        self._take(lambda waiting: waiting.ticket is ticket)

    def all(self) -> list[Waiting[Result]]:
        """Removes and returns all."""
        return self._take(lambda waiting: True)

    def _take(self, chosen: Callable[[Waiting[Result]], bool]) -> list[Waiting[Result]]:
        taken = sorted(entry for entry in self.heap if chosen(entry[2]))
        if taken:
            gone = {entry[1] for entry in taken}
            self.heap = [entry for entry in self.heap if entry[1] not in gone]
            heapify(self.heap)
        self._deadline_ms = min((entry[2].ticket.deadline_ms for entry in self.heap), default=None)
        return [entry[2] for entry in taken]

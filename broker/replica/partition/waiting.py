"""Produce requests that wait for their records to be written here, or to be held by every replica in sync.

Owns the order in which they complete and their deadlines. Knows offsets and tickets, no log and no ISR.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from metaquorum.broker.replica.partition.values import ProduceTicket
from metaquorum.metadata.requests.data import ProduceResult


@dataclass(slots=True)
class Waiting:
    """`result`: the answer once `end_offset` (exclusive) is reached."""

    ticket: ProduceTicket
    end_offset: int
    result: ProduceResult


class WaitingProduces:
    """Requests that wait for one rising offset. The manager's purgatory bounds their number."""

    __slots__ = ("_count", "_deadline_ms", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Waiting]] = []
        self._count = 0
        self._deadline_ms: int | None = None

    def __len__(self) -> int:
        return len(self.heap)

    @property
    def deadline_ms(self) -> int | None:
        """Not after the first deadline of the waiting requests; None if none waits."""
        return self._deadline_ms if self.heap else None

    def add(self, waiting: Waiting) -> None:
        deadline = waiting.ticket.deadline_ms
        if not self.heap or self._deadline_ms is None or deadline < self._deadline_ms:
            self._deadline_ms = deadline
        self._count += 1
        heappush(self.heap, (waiting.end_offset, self._count, waiting))

    def reached(self, offset: int) -> list[Waiting]:
        """Removes and returns those that waited for `offset` or less, by the offset and then by arrival."""
        heap = self.heap
        done: list[Waiting] = []
        while heap and heap[0][0] <= offset:
            done.append(heappop(heap)[2])
        return done

    def overdue(self, now_ms: int) -> list[Waiting]:
        """Removes and returns those whose deadline has passed."""
        if self._deadline_ms is None or now_ms < self._deadline_ms:
            return []
        return self._take(lambda waiting: waiting.ticket.deadline_ms <= now_ms)

    def cancel(self, ticket: ProduceTicket) -> None:
        self._take(lambda waiting: waiting.ticket is ticket)

    def all(self) -> list[Waiting]:
        """Removes and returns all."""
        return self._take(lambda waiting: True)

    def _take(self, chosen: Callable[[Waiting], bool]) -> list[Waiting]:
        taken = sorted(entry for entry in self.heap if chosen(entry[2]))
        if taken:
            gone = {entry[1] for entry in taken}
            self.heap = [entry for entry in self.heap if entry[1] not in gone]
            heapify(self.heap)
        self._deadline_ms = min((entry[2].ticket.deadline_ms for entry in self.heap), default=None)
        return [entry[2] for entry in taken]

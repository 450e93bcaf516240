"""Deadlines: one heap for many items, each with one time.

Nothing here is linear in the number of items.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


def earliest(*dues_ms: int | None) -> int | None:
    """The earliest of these times; None if nothing is due."""
    first: int | None = None
    for due_ms in dues_ms:
        if due_ms is not None and (first is None or due_ms < first):
            first = due_ms
    return first


class Deadlines(Generic[T]):
    """Items with the time at which each is due, in ms. Arming an item again moves it. `when`: the armed
    items; read only."""

    __slots__ = ("_heap", "_serial", "when")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self.when: dict[T, int] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self.when)

    def __contains__(self, item: object) -> bool:
        return item in self.when

    def arm(self, item: T, when_ms: int) -> None:
        """`item` is due at `when_ms`, which replaces any earlier time."""
        if self.when.get(item) == when_ms:
            return
        self.when[item] = when_ms
        self._serial += 1
        heapq.heappush(self._heap, (when_ms, self._serial, item))

    def arm_earlier(self, item: T, when_ms: int) -> None:
        """`item` is due at `when_ms` or earlier."""
        known = self.when.get(item)
        if known is None or when_ms < known:
            self.arm(item, when_ms)

    def disarm(self, item: T) -> None:
        self.when.pop(item, None)
        if len(self._heap) > 64 + 4 * len(self.when):
            self._heap = [each for each in self._heap if self.when.get(each[2]) == each[0]]
            heapq.heapify(self._heap)

    def next_ms(self) -> int | None:
        """When the first item is due; None if there is none."""
        heap, when = self._heap, self.when
        if not when:
            heap.clear()
            return None
        while when.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0]

    def take_due(self, now_ms: int, limit: int | None = None) -> list[T]:
        """The items that are due, earliest first, at most `limit`; they are no longer armed."""
        due: list[T] = []
        while limit is None or len(due) < limit:
            when_ms = self.next_ms()
            if when_ms is None or when_ms > now_ms:
                break
            item = heapq.heappop(self._heap)[2]
            del self.when[item]
            due.append(item)
        return due

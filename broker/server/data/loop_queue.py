"""Items that threads hand to the loop, in bunches: one wake-up for all items since the last one.

Owns the order and the wake-up. Knows no item: `directory` does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class LoopQueue(Generic[T]):
    """`put` from any thread; `take` is called on the loop with each item, in order.

    Its length is bounded by the work that the threads were given: they report, and start nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[T], None]) -> None:
        self._loop = loop
        self._take = take
        self._items: deque[T] = deque()
        self._awaited = False

    def put(self, items: Iterable[T]) -> None:
        self._items.extend(items)
        if not self._awaited:
            self._awaited = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                self._items.clear()  # the loop is closed: no one is left to receive it

    def _drain(self) -> None:
        # First this, then the items: a `put` from now on requests the next round.
        self._awaited = False
        items, take = self._items, self._take
        while items:
            take(items.popleft())

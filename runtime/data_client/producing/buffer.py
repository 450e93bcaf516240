"""The bytes that a producer has taken and that are not settled: how many, and who waits for them to go.

Owns the count and those who wait. Who goes first is `turns`' business.
"""

from __future__ import annotations

import asyncio


class Buffer:
    """Has room while less than `limit_bytes` are used: the last message may go beyond."""

    __slots__ = ("_idle", "_limit_bytes", "_waiters", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._waiters: list[asyncio.Future[None]] = []
        self._idle: list[asyncio.Future[None]] = []

    @property
    def has_room(self) -> bool:
        return self.used_bytes < self._limit_bytes

    def free(self, size_bytes: int) -> None:
        """Takes back the room of messages that are settled."""
        self.used_bytes -= size_bytes
        if self.has_room:
            _wake(self._waiters)
        if not self.used_bytes:
            _wake(self._idle)

    async def wait_freed(self) -> None:
        """Until there is room, which someone else may take first: look again."""
        await _wait_in(self._waiters)

    async def wait_empty(self) -> None:
        """Until everything that was taken before is settled, or all of a moment."""
        if self.used_bytes:
            await _wait_in(self._idle)


async def _wait_in(waiting: list[asyncio.Future[None]]) -> None:
    woken = asyncio.get_running_loop().create_future()
    waiting.append(woken)
    await woken


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)
    waiting.clear()

"""The end of a fault, for which requests on the cluster's loop wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class Release:
    """Not set until its fault heals."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._waiting: set[asyncio.Future[None]] = set()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """On any thread: what waits goes on."""
        with self._lock:
            self._is_set = True
            waiting = tuple(self._waiting)
        for ahead in waiting:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and what waited with it
                ahead.get_loop().call_soon_threadsafe(_settle, ahead)

    async def wait(self, at_most_s: float | None = None) -> None:
        """Returns once it is set, or after this time of the loop. Needs no task."""
        loop = asyncio.get_running_loop()
        ahead: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._is_set:
                return
            self._waiting.add(ahead)
        timer = None if at_most_s is None else loop.call_later(at_most_s, _settle, ahead)
        try:
            await ahead
        finally:
            with self._lock:
                self._waiting.discard(ahead)
            if timer is not None:
                timer.cancel()


def _settle(ahead: asyncio.Future[None]) -> None:
    if not ahead.done():
        ahead.set_result(None)

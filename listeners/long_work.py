"""Work on requests that takes long: beside the event loop in one thread, or on it in slices.

Requests of a few bytes may cost a long time; other clients wait for no more than one slice of them. A
thread that decodes, encodes or decompresses gives the loop its turn every few milliseconds at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

LONG_AT_ONCE = 2
"""Long requests of a process whose values are in memory at the same time; the bytes of others wait."""
TURN_MAX_S = 10.0
"""How long a request may keep others waiting for its turn to end."""

Work = Callable[[], Any]


class LongWork:
    """One thread. Owners, such as connections, take turns, one piece of work each."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="long-work")
        self._queues: dict[object, deque[tuple[asyncio.Future[Any], Work]]] = {}
        self._is_busy = False

    def do(self, owner: object, work: Work) -> asyncio.Future[Any]:
        """The future result of `work`. Cancelling it takes back work that has not begun."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(owner, deque()).append((future, work))
        self._advance()
        return future

    def _advance(self) -> None:
        while self._queues and not self._is_busy:
            owner, queue = next(iter(self._queues.items()))
            future, work = queue.popleft()
            del self._queues[owner]
            if queue:
                self._queues[owner] = queue  # behind all others
            if future.done():
                continue
            self._is_busy = True
            begun = asyncio.get_running_loop().run_in_executor(self._thread, work)
            begun.add_done_callback(partial(self._ended, future))

    def _ended(self, future: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
        self._is_busy = False
        error = None if done.cancelled() else done.exception()
        if not future.done():
            if done.cancelled():
                future.cancel()
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())
        with suppress(RuntimeError):  # the thread ended with the process
            self._advance()


class LongRequests:
    """The turns of long requests: decoded, they take many times their size."""

    def __init__(self, at_once: int = LONG_AT_ONCE) -> None:
        self.work = LongWork()
        self._at_once = at_once
        self._in_progress: set[LongTurn] = set()
        self._waiting: dict[LongTurn, None] = {}

    def enter(self, begin: Callable[[], None]) -> LongTurn:
        """Calls `begin` when it is this request's turn, now or later."""
        turn = LongTurn(self, begin)
        self._waiting[turn] = None
        self._advance()
        return turn

    def left(self, turn: LongTurn) -> None:
        self._waiting.pop(turn, None)
        self._in_progress.discard(turn)
        self._advance()

    def _advance(self) -> None:
        while self._waiting and len(self._in_progress) < self._at_once:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            self._in_progress.add(turn)
            turn.begin()


class LongTurn:
    """One long request. It ends when it is answered, at the latest after TURN_MAX_S: some wait for others."""

    def __init__(self, requests: LongRequests, begin: Callable[[], None]) -> None:
        self._requests, self._begin = requests, begin
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TURN_MAX_S, self._requests.left, self)
        self._begin()

    def leave(self) -> None:
        """The request is answered, or its connection has closed."""
        if self._timer is not None:
            self._timer.cancel()
        self._begin = _nothing
        self._requests.left(self)


class LongAnswer:
    """A body that a handler returns if it takes long to encode."""

    __slots__ = ("body",)

    def __init__(self, body: Any) -> None:
        self.body = body


def _nothing() -> None:
    return

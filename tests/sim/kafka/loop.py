"""An event loop on simulated time, for the coroutines of a broker's shell and of simulated clients.

The order in which callbacks run: first in, first out, at the engine's time. It has no socket, no thread
and no clock, so that coroutines are deterministic per seed too.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from tests.sim.engine import Engine

PAUSE_MS = 20.0
"""The interval after which callbacks of a paused process are looked at again."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    """`runs`: whether the process exists; callbacks of a process that has ended are dropped. `is_paused`: it
    exists and does nothing."""

    def __init__(
        self,
        engine: Engine,
        runs: Callable[[], bool] = lambda: True,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine = engine
        self._runs = runs
        self._is_paused = is_paused
        self._ready: deque[asyncio.Handle] = deque()
        self._fresh: list[Coroutine[Any, Any, Any]] = []
        self._is_planned = False
        self._problem: BaseException | None = None

    # ---- what asyncio asks of a loop -------------------------------------------------------------

    def time(self) -> float:
        return self._engine.now_us / 1_000_000

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self._runs()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        self._fresh.append(coro)
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self._runs():
            self._ready.append(handle)
            self._plan(0.0)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.time() + delay, callback, args, self, context)

        def due() -> None:
            if not handle.cancelled() and self._runs():
                self._ready.append(handle)
                self._run()

        self._engine.after(delay * 1000, due)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_later(max(0.0, when - self.time()), callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and self._runs() and self._problem is None:
            self._problem = error

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is dropped when it would be due."""

    # ---- turns -----------------------------------------------------------------------------------

    def _plan(self, delay_ms: float) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._engine.after(delay_ms, self._turn)

    def _turn(self) -> None:
        self._is_planned = False
        self._run()

    def _run(self) -> None:
        """Runs everything that is ready. Raises what a callback or a task raised, which would otherwise get
        lost."""
        if not self._runs():
            for coro in self._fresh:
                if inspect.getcoroutinestate(coro) == inspect.CORO_CREATED:
                    coro.close()
            return
        if self._is_paused():
            self._plan(PAUSE_MS)
            return
        self._fresh.clear()
        asyncio._set_running_loop(self)
        try:
            while self._ready and self._runs():
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem


async def sleep_ms(ms: float) -> None:
    await asyncio.sleep(ms / 1000)

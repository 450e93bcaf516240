"""The event loop of a test cluster, in a thread of its own, with the cluster's time.

It is asyncio's own loop over a selector, which every system has.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from metaquorum.testing.clock import ClusterClock
from metaquorum.testing.errors import ClusterTimeoutError

T = TypeVar("T")


IDLE_S = 0.002
"""A loop that has waited so long in real time waits for its timers alone: no thread or socket answers."""
SETTLE_ROUNDS_MAX = 16
"""After so many rounds in which something happened, a busy loop counts as settled."""
MOMENT_S = 0.001
"""A clock in a hurry looks at the threads once no socket has had anything for this time."""
HURRY_S = 0.02
"""A clock in a hurry moves by at most this much at a time: less than any node waits for another."""
HURRY_FACTOR = 5
"""It passes at most so many times as fast as real time: a node's thread that works on is not seen here."""


class _Selector:
    """The system's selector; while the clock is manual, no timer ends a wait, and while it is in a hurry, it
    moves to the next timer."""

    def __init__(self, clock: ClusterClock) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._quiet: asyncio.Future[bool] | None = None
        self._last = concurrent.futures.ThreadPoolExecutor(1, "kafka cluster at rest")
        self._hurried_s = 0.0
        """Real time of the last look of a clock in a hurry."""
        self._allowed_s = 0.0
        """By how much a clock in a hurry may move now."""
        self.at_rest: Callable[[], object] = _nothing
        """Called by a clock in a hurry before it moves on."""

    def quiet(self, answer: asyncio.Future[bool]) -> None:
        """The answer: whether nothing happens for IDLE_S, once the loop has nothing to do."""
        self._quiet = answer

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        answer = self._quiet
        if answer is None or timeout == 0:
            return self._select(timeout)
        self._quiet = None
        timer_s = IDLE_S if timeout is None or self._clock.is_manual else timeout
        ready = self._selector.select(min(timer_s, IDLE_S))
        if not answer.done():
            answer.set_result(not ready and timer_s >= IDLE_S)
        return ready

    def _select(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._clock.is_hurried and timeout != 0:
            return self._in_a_hurry(timeout)
        is_held = self._clock.is_manual and timeout is not None and timeout > 0
        return self._selector.select(None if is_held else timeout)

    def _in_a_hurry(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._selector.select(MOMENT_S)
        if ready:
            return ready
        self._last.submit(_nothing).result()  # threads that had work before this one have had their turn
        ready = self._selector.select(0)
        if not ready:
            self.at_rest()
            allowed_s = self._allowed()
            if timeout is not None and self._clock.is_hurried:
                by_s = min(timeout, HURRY_S, allowed_s)
                self._allowed_s -= by_s
                self._clock.move(by_s, wall=False)
        return ready

    def _allowed(self) -> float:
        now_s = time.monotonic()
        self._allowed_s = min(HURRY_S, self._allowed_s + HURRY_FACTOR * (now_s - self._hurried_s))
        self._hurried_s = now_s
        return self._allowed_s

    def descriptors(self) -> list[int]:
        """Its own, where it has one, and those of the sockets."""
        own = getattr(self._selector, "fileno", None)
        return [*self._selector.get_map(), *([] if own is None else [own()])]

    def close(self) -> None:
        """Ends the thread, too."""
        self._last.shutdown()
        self._selector.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)


class ClusterLoop(asyncio.SelectorEventLoop):
    """Its time is the cluster's."""

    def __init__(self, clock: ClusterClock) -> None:
        self._cluster_clock = clock
        self._cluster_selector = _Selector(clock)
        super().__init__(self._cluster_selector)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._cluster_clock.seconds()

    def descriptors(self) -> list[int]:
        """Of its selector, and of what that waits for."""
        return self._cluster_selector.descriptors()

    def wait_in_a_hurry(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """On another thread: until the condition may be true, which is looked at whenever nothing happens."""
        ended = threading.Event()

        def look() -> None:
            try:
                if condition():
                    ended.set()
            except Exception:
                ended.set()  # the thread that waits asks, too

        self._cluster_selector.at_rest = look
        ended.wait(timeout_s)
        self._cluster_selector.at_rest = _nothing

    async def settled(self) -> None:
        """Returns once what is due is done on the loop, however slow the machine is: nothing is ready, no
        socket has had anything for IDLE_S, and a thread that began after the loop's others has come back.
        Work of a disk's own threads counts once it reaches the loop."""
        for _ in range(SETTLE_ROUNDS_MAX):
            await self.run_in_executor(None, _nothing)
            answer: asyncio.Future[bool] = self.create_future()
            self._cluster_selector.quiet(answer)
            if await answer:
                return


class LoopThread:
    """Runs a `ClusterLoop` until it is closed; other threads `run` coroutines on it."""

    def __init__(self, clock: ClusterClock, name: str) -> None:
        self.loop = ClusterLoop(clock)
        self.loop.set_exception_handler(_report)
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float, what: str) -> T:
        """The result of `work`. Raises ClusterTimeoutError after this time, by the real clock."""
        ahead = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return ahead.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if ahead.done():
                raise
            ahead.cancel()
            raise ClusterTimeoutError(f"waited {timeout_s:g} s for {what}") from None

    @property
    def is_current(self) -> bool:
        """Whether this is the loop's own thread, on which nothing may wait for it."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Ends every task, the loop and the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(_ended(left))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()


def _nothing() -> None:
    return


async def _ended(tasks: Sequence[asyncio.Task[Any]] | set[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # The loops of a process share gRPC's poller: one that finds nothing left is not an error.
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)


# What a fork of the process has of its test clusters: nothing that keeps their ports taken, or the
# connections of clients open.

OPEN_FILES = "/dev/fd"
"""A directory with the numbers of this process's open files, on every system that forks."""


def let_go(descriptors: Iterable[int], ports: Collection[int]) -> None:
    """This process no longer has what these descriptors are of, nor sockets at these ports. Their numbers
    stay taken: objects of the clusters still have them, and may close them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in {*descriptors, *_sockets_at(ports)}:
        with contextlib.suppress(OSError):
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _sockets_at(ports: Collection[int]) -> Iterator[int]:
    for name in os.listdir(OPEN_FILES):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode) and _port_of(int(name)) in ports:
                yield int(name)


def _port_of(descriptor: int) -> int | None:
    """Its own port; None if it has none."""
    opened = socket.socket(fileno=descriptor)
    try:
        address = opened.getsockname()
    finally:
        opened.detach()
    return address[1] if isinstance(address, tuple) else None

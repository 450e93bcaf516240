"""The process's clocks, for the cores, which get times as arguments: monotonic time and Unix time.

`monotonic_ms` counts from an arbitrary start, continues while the process is stopped (SIGSTOP) or the
machine sleeps, and never runs backwards: every deadline uses it, so a lease ends during a sleep. `wall_ms`
is Unix time, used for timestamps in records only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from metaquorum.platforms import clock_with_sleep

_monotonic_ns = clock_with_sleep()


class Clock(Protocol):
    """The clocks of a node, both in ms."""

    def monotonic_ms(self) -> int: ...

    def wall_ms(self) -> int: ...

    def when_moved(self, call: Callable[[], None]) -> None:
        """Has `call` called, on any thread, whenever the clock was set forward."""

    def was_moved(self) -> bool:
        """Whether the clock was set forward since the last call of this."""


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def monotonic_ms(self) -> int:
        return _monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def when_moved(self, call: Callable[[], None]) -> None:
        """Never: the system moves it."""

    def was_moved(self) -> bool:
        """Never."""
        return False

"""The process's clocks: monotonic time and Unix time.

Owns reading the time for the cores, which must not read it themselves: they get it as an argument.
`monotonic_ms` counts from an arbitrary start, continues while the process is stopped (SIGSTOP) and never runs
backwards: every deadline uses it. `wall_ms` is Unix time, used for timestamps in records only.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The clocks of a driver, both in ms."""

    def monotonic_ms(self) -> int: ...

    def wall_ms(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

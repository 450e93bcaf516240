"""The process's clocks. The only place that reads the time; everything pure gets it.

`monotonic_ms` counts from an arbitrary start, goes on while the process is stopped (SIGSTOP) and never
runs backwards: every deadline uses it. `wall_ms` is Unix time, used for timestamps in records only.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a driver asks: both times in ms."""

    def monotonic_ms(self) -> int: ...

    def wall_ms(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

"""A laptop that sleeps: SIGUSR1 moves the clocks of a process on by eight hours, as its waking up does.

For child processes, by `environment`. Timers of the event loop do not count a sleep; deadlines do.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from tests.systems.hidden import SITE

SLEEPS = "METAQUORUM_TEST_SLEEPS"
SLEEP_NS = 8 * 3600 * 10**9


def environment() -> dict[str, str]:
    """What a child needs in its environment."""
    path = os.pathsep.join([str(SITE), str(SITE.parents[2])])
    return {**os.environ, "PYTHONPATH": path, SLEEPS: "1"}


def sleep_by_signal() -> None:
    """In this process and its forks, from now on."""
    slept_ns = 0
    monotonic, wall_ns, wall_s = time.clock_gettime_ns, time.time_ns, time.time

    def read(number: int) -> int:
        return monotonic(number) + (slept_ns if number == time.CLOCK_BOOTTIME else 0)

    def sleep(number: int, frame: FrameType | None) -> None:
        nonlocal slept_ns
        slept_ns += SLEEP_NS

    time.clock_gettime_ns = read
    time.time_ns = lambda: wall_ns() + slept_ns
    time.time = lambda: wall_s() + slept_ns / 1e9
    signal.signal(signal.SIGUSR1, sleep)

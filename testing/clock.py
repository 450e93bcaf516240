"""The clock of a test cluster: it follows real time, or waits for tests to move it.

Every node reads it, and the loop of the cluster takes its own time from it: timers, time limits and deadlines
move together. What clients do by their clocks stays real.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class ClusterClock:
    """Thread-safe. Implements `clock.Clock`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._wall_s = time.time() - self._began_s
        """Unix time minus the clock's."""
        self._moved_s = 0.0
        """How far it was moved."""
        self._held_at_s: float | None = None
        self.is_hurried = False
        """Time passes only while all wait for it, and then faster; Unix time does not."""
        self._calls: list[Callable[[], None]] = []

    def seconds(self) -> float:
        """Monotonic time."""
        held_s = self._held_at_s
        return time.monotonic() + self._moved_s if held_s is None else held_s

    def monotonic_ms(self) -> int:
        return int(self.seconds() * 1000)

    def wall_ms(self) -> int:
        return int((self.seconds() + self._wall_s) * 1000)

    @property
    def is_manual(self) -> bool:
        """True if only `move` lets time pass."""
        return self._held_at_s is not None

    def hold(self) -> None:
        """From now on only `move` lets time pass."""
        with self._lock:
            self._held_at_s = self.seconds()

    def hurry(self) -> None:
        """From now on time passes only while all wait for it, and then faster: the loop moves it."""
        self.hold()
        self.is_hurried = True

    def follow(self) -> None:
        """From now on it follows real time; Unix time is that of the machine."""
        with self._lock:
            self.is_hurried = False
            now_s = self.seconds()
            self._moved_s, self._held_at_s = now_s - time.monotonic(), None
            self._wall_s = time.time() - now_s

    def resume(self) -> None:
        """After `hold`: it follows real time again from where it is; Unix time, too."""
        with self._lock:
            self._moved_s, self._held_at_s = self.seconds() - time.monotonic(), None

    def move(self, by_s: float, *, wall: bool = True) -> None:
        """Moves it forward at once; `wall`: Unix time, too."""
        with self._lock:
            self._moved_s += by_s
            if not wall:
                self._wall_s -= by_s
            if self._held_at_s is not None:
                self._held_at_s += by_s
            calls = tuple(self._calls)
        for call in calls:
            call()

    def when_moved(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)

    def forget(self, calls: list[Callable[[], None]]) -> None:
        """Calls these no longer."""
        with self._lock:
            self._calls = [each for each in self._calls if each not in calls]


class NodeClock:
    """The cluster's clock for one node, which lets go of it when the node ends."""

    def __init__(self, clock: ClusterClock) -> None:
        self._clock = clock
        self._calls: list[Callable[[], None]] = []
        self._is_moved = False
        self.when_moved(self._note)
        self.monotonic_ms = clock.monotonic_ms
        self.wall_ms = clock.wall_ms

    def when_moved(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._clock.when_moved(call)

    def was_moved(self) -> bool:
        moved, self._is_moved = self._is_moved, False
        return moved

    def _note(self) -> None:
        self._is_moved = True

    def close(self) -> None:
        self._clock.forget(self._calls)

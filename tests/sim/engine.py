"""Simulated time: one heap of events, one random source, one trace.

Two runs of one seed make the same trace whatever the process's hash seed is, so nothing here or in the layers
above may iterate over a set or depend on `id`.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable

TRACE_TAIL_LINES = 400


class Engine:
    """True time in microseconds, as an integer, so that no rounding differs between runs."""

    def __init__(self, seed: int, *, on_line: Callable[[str], None] | None = None) -> None:
        self.rng = random.Random(seed)
        self.now_us = 0
        self.events = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._on_line = on_line
        self._digest = hashlib.sha256()
        self.tail: deque[str] = deque(maxlen=TRACE_TAIL_LINES)

    @property
    def now_ms(self) -> float:
        return self.now_us / 1000

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Runs `action` `delay_ms` from now; actions of equal times run in the order of these calls."""
        self._sequence += 1
        at_us = self.now_us + max(0, int(delay_ms * 1000))
        heapq.heappush(self._heap, (at_us, self._sequence, action))

    def run_for(self, duration_ms: float, after_each: Callable[[], None]) -> None:
        """Runs everything that is due within `duration_ms`, and `after_each` after each event."""
        end_us = self.now_us + int(duration_ms * 1000)
        while self._heap and self._heap[0][0] <= end_us:
            self._run_one(after_each)
        self.now_us = end_us

    def run_until(self, done: Callable[[], bool], within_ms: float, after_each: Callable[[], None]) -> bool:
        """Runs until `done()`; False if `within_ms` passed first."""
        end_us = self.now_us + int(within_ms * 1000)
        while not done():
            if not self._heap or self._heap[0][0] > end_us:
                self.now_us = end_us
                return done()
            self._run_one(after_each)
        return True

    def _run_one(self, after_each: Callable[[], None]) -> None:
        self.now_us, _, action = heapq.heappop(self._heap)
        self.events += 1
        action()
        after_each()

    def trace(self, who: str, what: str) -> None:
        line = f"{self.now_us / 1000:11.3f} {who:<6} {what}"
        self._digest.update(line.encode())
        self.tail.append(line)
        if self._on_line is not None:
            self._on_line(line)

    def digest(self) -> str:
        """A fingerprint of everything that was traced: equal for equal runs."""
        return self._digest.hexdigest()

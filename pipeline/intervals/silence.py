"""Stretches in which no one wrote: the quorum was down, so no one saw how the cluster was.

Owns how long an idle quorum waits before it writes, as the log itself shows, and from when on silence is
longer than that. A log without NoOpRecords says nothing about it: there may have been nothing to write.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from metaquorum.metadata.inspect.summary.limits import gap_ms

STEPS = 31
"""The number of waits of an idle quorum that are looked at, the first ones; with fewer than three nothing is
said."""
_STEPS_MIN = 3


class Silence:
    """Hears of every batch in order."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._last_ms = -1
        self._was_idle = False
        self._limit_ms: int | None = None

    def ends(self, now_ms: int, *, idle: bool) -> bool:
        """Whether no one wrote for too long before a batch at `now_ms`; `idle`: it is one NoOpRecord."""
        since_ms = now_ms - self._last_ms if self._last_ms >= 0 else 0
        silent = self._limit_ms is not None and since_ms > self._limit_ms
        if idle and self._was_idle and since_ms > 0 and len(self._steps) < STEPS and not silent:
            self._steps.append(since_ms)
            self._limit_ms = gap_ms(int(median(self._steps))) if len(self._steps) >= _STEPS_MIN else None
        self._last_ms, self._was_idle = max(self._last_ms, now_ms), idle
        return silent

    @property
    def is_sure(self) -> bool:
        """Whether all waits that are looked at were seen."""
        return len(self._steps) >= STEPS

    def at(self, now_ms: int) -> Any:
        """What `save` would give if a batch at `now_ms` had been the last one."""
        return [self._steps, now_ms, self._was_idle]

    def copy(self) -> Silence:
        """Another one that knows the same."""
        made = Silence()
        made.load(self.save())
        return made

    def lose(self) -> None:
        """The records break off: the next batch follows nothing."""
        self._last_ms, self._was_idle = -1, False

    def save(self) -> Any:
        return [self._steps, self._last_ms, self._was_idle]

    def load(self, saved: Any) -> None:
        self._steps, self._last_ms, self._was_idle = list(saved[0]), saved[1], saved[2]
        self._limit_ms = gap_ms(int(median(self._steps))) if len(self._steps) >= _STEPS_MIN else None

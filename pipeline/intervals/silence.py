"""Times in which the quorum wrote nothing: it was down, and the state of the cluster was unobserved.

Owns how long an idle quorum waits between records, as the log itself shows, and from when on silence is
longer than that. A log without NoOpRecords shows nothing: there may have been nothing to write. Does not know
what silence means for a table (`tables.coverage`, `tables.availability`).
"""

from __future__ import annotations

from statistics import median
from typing import Any

from metaquorum.metadata.inspect.summary.limits import gap_ms

STEPS = 31
"""Number of an idle quorum's first waits that are measured. Fewer than three give no limit."""
_STEPS_MIN = 3


class Silence:
    """Takes every batch in order."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._last_ms = -1
        self._was_idle = False
        self._limit_ms: int | None = None

    def ends(self, now_ms: int, *, idle: bool) -> bool:
        """Whether the silence before a batch at `now_ms` was too long. `idle`:
        the batch is one NoOpRecord."""
        since_ms = now_ms - self._last_ms if self._last_ms >= 0 else 0
        silent = self._limit_ms is not None and since_ms > self._limit_ms
        if idle and self._was_idle and since_ms > 0 and len(self._steps) < STEPS and not silent:
            self._steps.append(since_ms)
            self._limit_ms = gap_ms(int(median(self._steps))) if len(self._steps) >= _STEPS_MIN else None
        self._last_ms, self._was_idle = max(self._last_ms, now_ms), idle
        return silent

    @property
    def is_sure(self) -> bool:
        """Whether all waits to measure were seen."""
        return len(self._steps) >= STEPS

    def at(self, now_ms: int) -> Any:
        """What `save` would return if the last batch had been at `now_ms`."""
        return [self._steps, now_ms, self._was_idle]

    def copy(self) -> Silence:
        """An independent copy."""
        made = Silence()
        made.load(self.save())
        return made

    def lose(self) -> None:
        """Records are missing here: the next batch does not follow the last one."""
        self._last_ms, self._was_idle = -1, False

    def save(self) -> Any:
        return [self._steps, self._last_ms, self._was_idle]

    def load(self, saved: Any) -> None:
        self._steps, self._last_ms, self._was_idle = list(saved[0]), saved[1], saved[2]
        self._limit_ms = gap_ms(int(median(self._steps))) if len(self._steps) >= _STEPS_MIN else None

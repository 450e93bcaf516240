"""When something happened: the log's offsets and times, and spans of time cut at midnight (UTC).

Owns what to do with clocks that run backwards or are plainly wrong. Knows no records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

DAY_MS = 86_400_000
MAX_TIME_MS = 253_402_300_799_999
"""The end of the year 9999: later times, and times before 1970, are no times."""
MAX_JUMP_MS = 3_660 * DAY_MS
"""A step forward by more than ten years is taken for a wrong clock, and no time is counted for it."""
LEAP_MS = 366 * DAY_MS
"""A step forward of this length must be confirmed by the next batch."""

Row = tuple[Any, ...]
"""A row of a table in the order of its columns, without `cluster` and `date`; times are Unix ms."""


class Moment(NamedTuple):
    """A place in a log. `time_ms` is the batch's timestamp, None where it has no usable one; `now_ms` never
    runs backwards and serves to measure durations; `actor`: who or what caused the batch, if it says so."""

    offset: int
    time_ms: int | None
    now_ms: int
    actor: str | None = None

    def at(self, offset: int) -> Moment:
        """The same time at another offset."""
        return self._replace(offset=offset)


class BatchClock(msgspec.Struct):
    """Turns batch timestamps into a time that never runs backwards. `now_ms` is -1 before the first. A step
    ahead by LEAP_MS and more counts once the next batch confirms it (`leapt_ms` is the stamp that waits): one
    batch that is stamped years ahead does not move the time."""

    now_ms: int = -1
    leapt_ms: int = -1

    def moment(self, offset: int, timestamp_ms: int) -> Moment:
        """The moment of a batch, the clock moved on to it."""
        if not 0 <= timestamp_ms <= MAX_TIME_MS:
            return Moment(offset, None, self.now_ms)
        step_ms = timestamp_ms - self.now_ms
        if self.now_ms < 0 or 0 <= step_ms < LEAP_MS or self._is_confirmed(timestamp_ms, step_ms):
            self.now_ms, self.leapt_ms = timestamp_ms, -1
        else:
            self.leapt_ms = timestamp_ms if step_ms >= LEAP_MS else -1
        return Moment(offset, timestamp_ms, self.now_ms)

    def _is_confirmed(self, timestamp_ms: int, step_ms: int) -> bool:
        return step_ms <= MAX_JUMP_MS and self.leapt_ms >= 0 and 0 <= timestamp_ms - self.leapt_ms < LEAP_MS


def ms_of(time_ms: int | None) -> int:
    """A time as columns have it: -1 for none."""
    return -1 if time_ms is None else time_ms


def days(start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
    """(day, milliseconds of it) for every UTC day that the span touches; days are counted since 1970."""
    while start_ms < end_ms:
        day = start_ms // DAY_MS
        stop = min(end_ms, (day + 1) * DAY_MS)
        yield day, stop - start_ms
        start_ms = stop


def tuples(value: Any) -> Any:
    """The same value with tuples for lists, at every depth: what a decoder of saved state gives back."""
    if isinstance(value, list | tuple):
        return tuple(tuples(item) for item in value)
    return value

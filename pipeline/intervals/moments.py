"""Places and times in a log, and time spans split at midnight (UTC).

Owns the handling of clocks that run backwards or are clearly wrong. Knows no records; how long
silence may last is in `silence`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

DAY_MS = 86_400_000
MAX_TIME_MS = 253_402_300_799_999
"""The end of the year 9999. Later times, and times before 1970, are invalid."""
MAX_JUMP_MS = 3_660 * DAY_MS
"""A step forward of more than ten years counts as a wrong clock: no time passes."""
LEAP_MS = 366 * DAY_MS
"""A step forward of this length counts only after the next batch confirms it."""

Row = tuple[Any, ...]
"""A row of a table in column order, without `cluster` and `date`. Times are Unix ms."""


class Moment(NamedTuple):
    """A place in a log. `time_ms`: the batch's timestamp, None if it is invalid. `now_ms`: never runs
    backwards, for durations. `actor`: the cause of the batch, if it has one."""

    offset: int
    time_ms: int | None
    now_ms: int
    actor: str | None = None

    def at(self, offset: int) -> Moment:
        """The same time at another offset."""
        return self._replace(offset=offset)


class BatchClock(msgspec.Struct):
    """Turns batch timestamps into a time that never runs backwards. `now_ms`: -1 before the first batch. A
    step forward of at least LEAP_MS counts once the next batch confirms it (`leapt_ms`: the timestamp to
    confirm): one batch with a timestamp years ahead does not move the time."""

    now_ms: int = -1
    leapt_ms: int = -1

    def moment(self, offset: int, timestamp_ms: int) -> Moment:
        """The moment of a batch. Advances the clock to it."""
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
    """A time as columns store it: -1 for None."""
    return -1 if time_ms is None else time_ms


def days(start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
    """(day, milliseconds of it) for every UTC day in the span. Days are counted since 1970."""
    while start_ms < end_ms:
        day = start_ms // DAY_MS
        stop = min(end_ms, (day + 1) * DAY_MS)
        yield day, stop - start_ms
        start_ms = stop


def tuples(value: Any) -> Any:
    """The same value with tuples instead of lists at every depth, for what a
    decoder of saved state returns."""
    if isinstance(value, list | tuple):
        return tuple(tuples(item) for item in value)
    return value

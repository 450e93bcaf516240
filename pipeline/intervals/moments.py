"""Places and times in a log, time spans split at midnight (UTC), and how long a quorum was silent.

Clocks that run backwards or are clearly wrong do not move the time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from statistics import median
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from metaquorum.metadata.inspect.timeline.time_events import gap_ms
from metaquorum.metadata.records.batch_cause import BatchCause

DAY_MS = 86_400_000
MAX_TIME_MS = 253_402_300_799_999
"""The end of the year 9999. Later times, and times before 1970, are invalid."""
MAX_JUMP_MS = 3_660 * DAY_MS
"""A step forward of more than ten years counts as a wrong clock: no time passes."""
LONG_STEP_MS = 366 * DAY_MS
"""A step forward of this length counts only after the next batch confirms it."""

Row = tuple[Any, ...]
"""A row of a table in column order, without `cluster` and `date`. Times are Unix ms."""


class Moment(NamedTuple):
    """A place in a log. `time_ms`: the batch's timestamp, None if it is invalid. `now_ms`: never runs
    backwards, for durations. `cause`: what the batch says of its cause."""

    offset: int
    time_ms: int | None
    now_ms: int
    cause: BatchCause | None = None

    @property
    def actor(self) -> str | None:
        """The principal, or the rule by which the controller acted; None: the log does not say."""
        cause = self.cause
        return None if cause is None else cause.principal or cause.rule or cause.request

    def at(self, offset: int) -> Moment:
        """The same time at another offset."""
        return self._replace(offset=offset)


class BatchClock(msgspec.Struct):
    """Turns batch timestamps into a time that never runs backwards. `now_ms`: -1 before the first batch. A
    step forward of at least LONG_STEP_MS counts once the next batch confirms it (`stepped_to_ms`: the
    timestamp to confirm): one batch with a timestamp years ahead does not move the time."""

    now_ms: int = -1
    stepped_to_ms: int = -1

    def moment(self, offset: int, timestamp_ms: int) -> Moment:
        """The moment of a batch. Advances the clock to it."""
        if not 0 <= timestamp_ms <= MAX_TIME_MS:
            return Moment(offset, None, self.now_ms)
        step_ms = timestamp_ms - self.now_ms
        if self.now_ms < 0 or 0 <= step_ms < LONG_STEP_MS or self._is_confirmed(timestamp_ms, step_ms):
            self.now_ms, self.stepped_to_ms = timestamp_ms, -1
        else:
            self.stepped_to_ms = timestamp_ms if step_ms >= LONG_STEP_MS else -1
        return Moment(offset, timestamp_ms, self.now_ms)

    def _is_confirmed(self, timestamp_ms: int, step_ms: int) -> bool:
        return (
            step_ms <= MAX_JUMP_MS
            and self.stepped_to_ms >= 0
            and 0 <= timestamp_ms - self.stepped_to_ms < LONG_STEP_MS
        )


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


# Values that hold for an interval: started, replaced, ended, and returned as rows.

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class OpenValue(NamedTuple):
    """A value that still holds. `from_known`: False if it is older than the log."""

    value: Row
    offset: int
    time_ms: int | None
    from_known: bool
    actor: str | None


class Memory(dict[K, V]):
    """The last value of each key. `missed`: keys that `recall` did not find."""

    def __init__(self, pairs: Iterable[tuple[K, V]] = ()) -> None:
        super().__init__(pairs)
        self.missed: set[K] = set()

    def recall(self, key: K) -> V | None:
        """The value; None if there is none."""
        if key not in self:
            self.missed.add(key)
            return None
        return self[key]


class Intervals(Generic[K]):
    """The values of one table by key. A row is the value, the columns of its end, the interval's columns, and
    the actor, unless the log cannot name one (`has_actors` is false)."""

    def __init__(self, *, has_actors: bool = True) -> None:
        self._has_actors = has_actors
        self.open: dict[K, OpenValue] = {}
        self._closed: list[Row] = []

    def start(self, key: K, value: Row, moment: Moment, *, from_known: bool = True) -> None:
        """`value` holds from now on. The key must have none."""
        self.open[key] = OpenValue(value, moment.offset, moment.time_ms, from_known, moment.actor)

    def end(self, key: K, moment: Moment, *ending: Any, to_known: bool = True) -> None:
        """Ends the key's value, if it has one. `ending`: the columns of its end. Without `to_known`, the end
        was not observed: the value is known to have held until then."""
        was = self.open.pop(key, None)
        if was is not None:
            self._closed.append(self._row(was, ending, moment.offset, moment.time_ms, to_known))

    def _row(
        self,
        opened: OpenValue,
        ending: Iterable[Any],
        to_offset: int | None,
        to_ms: int | None,
        to_known: bool,
    ) -> Row:
        interval = (opened.offset, opened.time_ms, to_offset, to_ms, opened.from_known, to_known)
        return (*opened.value, *ending, *interval, *((opened.actor,) if self._has_actors else ()))

    def refine(self, key: K, value: Row) -> None:
        """Replaces the present value with a more detailed one, with the same start."""
        self.open[key] = self.open[key]._replace(value=value)

    def adopt(self, left: Intervals[K], below: int) -> None:
        """Values that began before an offset get those of `left` for the same keys,
        which have the true start."""
        for key, at in list(self.open.items()):
            if at.offset < below:
                self.open[key] = left.open[key]

    def lose(self, moment: Moment, ending: Callable[[K], Row] | None = None) -> None:
        """Ends all values at `moment`, with an unknown end: the records after it are missing."""
        for key in list(self.open):
            self.end(key, moment, *(ending(key) if ending else ()), to_known=False)

    def take(self) -> list[Row]:
        """Rows that ended since the last call."""
        taken, self._closed = self._closed, []
        return taken

    def open_rows(self, ending: Callable[[K], Row] | None = None) -> list[Row]:
        """Rows of values that still hold. `ending`: gives the columns before the interval's."""
        return [
            self._row(at, ending(key) if ending else (), None, None, True) for key, at in self.open.items()
        ]

    def save(self) -> Any:
        return list(self.open.items())

    def load(self, saved: Iterable[Any]) -> None:
        self.open = {tuples(key): OpenValue(*tuples(value)) for key, value in saved}

"""Values that hold for an interval: started, replaced, ended, and returned as rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from metaquorum.pipeline.intervals.moments import Moment, Row, tuples

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

"""Values that hold for a while: opened, replaced, ended, and told as rows.

Owns the interval columns that end most tables. Knows no records.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from metaquorum.pipeline.intervals.moments import Moment, Row, tuples

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class OpenValue(NamedTuple):
    """A value that still holds. `known` is false for one that is older than the log."""

    value: Row
    offset: int
    time_ms: int | None
    known: bool
    actor: str | None


class Memory(dict[K, V]):
    """What was said last of each key. `missed` are the keys that `recall` was asked for in vain."""

    def __init__(self, known: Iterable[tuple[K, V]] = ()) -> None:
        super().__init__(known)
        self.missed: set[K] = set()

    def recall(self, key: K) -> V | None:
        """The value; None where nothing was said."""
        if key not in self:
            self.missed.add(key)
            return None
        return self[key]


class Intervals(Generic[K]):
    """The values of one table by key. A row is the value, what the end adds, the interval's columns, and who
    made it so, unless nothing in the log could say that (`has_actors` is false)."""

    def __init__(self, *, has_actors: bool = True) -> None:
        self._has_actors = has_actors
        self.open: dict[K, OpenValue] = {}
        self._closed: list[Row] = []

    def start(self, key: K, value: Row, moment: Moment, *, known: bool = True) -> None:
        """`value` holds from now on; the key must have none."""
        self.open[key] = OpenValue(value, moment.offset, moment.time_ms, known, moment.actor)

    def end(self, key: K, moment: Moment, *ending: Any, known: bool = True) -> None:
        """The key's value, if it has one, holds no longer; `ending` are the columns that tell of its end.
        Without `known` no one saw the end: it is known to have held so long."""
        was = self.open.pop(key, None)
        if was is not None:
            self._closed.append(self._row(was, ending, moment.offset, moment.time_ms, known))

    def _row(
        self, at: OpenValue, ending: Iterable[Any], to_offset: int | None, to_ms: int | None, known: bool
    ) -> Row:
        interval = (at.offset, at.time_ms, to_offset, to_ms, at.known, known)
        return (*at.value, *ending, *interval, *((at.actor,) if self._has_actors else ()))

    def refine(self, key: K, value: Row) -> None:
        """More is known of the value that holds; it began when it did."""
        self.open[key] = self.open[key]._replace(value=value)

    def adopt(self, left: Intervals[K], below: int) -> None:
        """What began below an offset is what `left` has of the same key: it knows how it began."""
        for key, at in list(self.open.items()):
            if at.offset < below:
                self.open[key] = left.open[key]

    def lose(self, moment: Moment, ending: Callable[[K], Row] | None = None) -> None:
        """No one saw what came after `moment`: everything ends there, unknown how."""
        for key in list(self.open):
            self.end(key, moment, *(ending(key) if ending else ()), known=False)

    def take(self) -> list[Row]:
        """Rows that have ended since the last call."""
        taken, self._closed = self._closed, []
        return taken

    def open_rows(self, ending: Callable[[K], Row] | None = None) -> list[Row]:
        """Rows of what still holds; `ending` gives the columns before the interval's."""
        return [
            self._row(at, ending(key) if ending else (), None, None, True) for key, at in self.open.items()
        ]

    def save(self) -> Any:
        return list(self.open.items())

    def load(self, saved: Iterable[Any]) -> None:
        self.open = {tuples(key): OpenValue(*tuples(value)) for key, value in saved}

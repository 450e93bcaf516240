"""Joins two replays of one log: one that read everything before, and one that began at a snapshot.

Owns what must be equal for their later rows to be equal (the context), and what only the first one knows: how
open states began, and what was counted before. A snapshot has neither. Compares them at several places
(posts) after the snapshot: records shortly before it only matter for a while. Does not replay (`stretch`
does) and does not choose the snapshots (`pipeline.logs.spans`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from metaquorum.pipeline.intervals.daily_sums import DailySums
from metaquorum.pipeline.intervals.moments import Row
from metaquorum.pipeline.intervals.tables.availability import Cell
from metaquorum.pipeline.intervals.trackers import RowsByTable, Trackers
from metaquorum.pipeline.tables import PARTITION_COLUMNS, TABLES


class _Ends(NamedTuple):
    """The columns that the end of an interval sets, besides `to_...`; those to add up (`added`), and those of
    which the `longest` counts. All others are set at the start."""

    told: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    longest: tuple[str, ...] = ()


_ALWAYS = ("to_offset", "to_time", "to_known")
JOINED = {
    "quorum_epochs": _Ends(("last_voters", "kraft_version"), ("records",)),
    "voter_sets": _Ends(),
    "broker_sessions": _Ends(("ended_by",)),
    "partition_states": _Ends(("removed",)),
    "topics": _Ends(("partitions",)),
    "configs": _Ends(),
    "violations": _Ends(),
    "incidents": _Ends(("ended_by",), ("partitions", "leaders", "leaderless"), ("leaderless_ms",)),
    "upgrades": _Ends(),
    "ids": _Ends((), ("processes",)),
}
"""The tables with rows that extend over seams. `coverage` ends no row without a hole. Where two replays
agree, the same failovers are open."""
_NOT_KEYS = ("from_offset", "found")


class Counted(msgspec.Struct, kw_only=True):
    """What a replay that began at a snapshot had counted at a post."""

    coverage: tuple[int, int]
    quorum: int
    ids: dict[int, int]
    incidents: list[tuple[tuple[int, int], tuple[int, int, int]]]
    sums: list[tuple[Cell, DailySums]]


class Post(msgspec.Struct, kw_only=True):
    """The place before the batch at `offset`. `context` is empty if nothing can be joined there."""

    offset: int
    context: bytes
    counted: Counted
    opened: RowsByTable
    """Open rows of the tables with columns to add up."""


def context_of(told: Trackers) -> bytes:
    """A digest of everything on which later rows depend, except the image and how open states began. Empty if
    the state is unknown or the cluster is off."""
    sums, quorum = told.availability.context(), told.quorum.context()
    if sums is None or quorum is None or not told.coverage.is_known:
        return b""
    now_ms = told.clock.now_ms
    parts = (
        *(told.clock, told.silence.save(), told.coverage.context(), quorum, told.voters.context()),
        *(told.brokers.context(), sorted(told.topics.names.items()), told.configs.context()),
        *(told.violations.context(), told.incidents.context(now_ms), told.upgrades.context()),
        *(told.ids.context(), told.failovers.save(), told.placement.save(), sums),
    )
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()


def post_at(offset: int, told: Trackers, *, inside: bool) -> Post:
    """The state of a replay that began at a snapshot, before the batch at `offset`.
    `inside`: in a transaction."""
    counted = Counted(
        coverage=told.coverage.counted(),
        quorum=told.quorum.counted(),
        ids=told.ids.counted(),
        incidents=list(told.incidents.counted().items()),
        sums=told.availability.counted(),
    )
    opened = {
        "quorum_epochs": told.quorum.open_rows(),
        "incidents": told.incidents.open_rows(told.clock.now_ms),
        "ids": told.ids.open_rows(),
    }
    context = b"" if inside else context_of(told)
    return Post(offset=offset, context=context, counted=counted, opened=opened)


def adopt(told: Trackers, left: Trackers, post: Post, began_ms: int) -> None:
    """Completes the open states of `told`, which began at a snapshot at `began_ms`, with those of `left`,
    which is at the post. Raises KeyError if they do not match."""
    below, counted = post.offset, post.counted
    told.coverage.adopt(left.coverage, counted.coverage)
    told.quorum.adopt(left.quorum, below, counted.quorum)
    told.voters.adopt(left.voters, below)
    told.brokers.adopt(left.brokers, below)
    told.topics.adopt(left.topics, below)
    told.configs.adopt(left.configs, below)
    told.partitions.adopt(left.partitions, below)
    told.violations.adopt(left.violations, below)
    told.incidents.adopt(left.incidents, below, dict(counted.incidents))
    told.upgrades.adopt(left.upgrades, below)
    told.ids.adopt(left.ids, below, counted.ids)
    told.availability.adopt(left.availability, dict(counted.sums), began_ms)


class RowJoin:
    """Gives rows that ended in a stretch the starts that the earlier replay knows."""

    def __init__(self, left: RowsByTable, post: Post) -> None:
        """`left`: open rows at the post."""
        self._below = post.offset
        self._left = {table: _by_key(table, left.get(table, ())) for table in JOINED}
        self._seen = {table: _by_key(table, post.opened.get(table, ())) for table in JOINED}

    def rows(self, table: str, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows of a table."""
        if table not in JOINED:
            yield from rows
            return
        places, below = _PLACES[table], self._below
        left, seen = self._left[table], self._seen[table]
        for row in rows:
            before = _find(places, row, left) if row[places.start] < below else None
            yield row if before is None else _joined(places, before, row, _find(places, row, seen))


def _joined(places: _Places, left: Row, row: Row, seen: Row | None) -> Row:
    """The row with the start of `left`. `seen`: what the stretch had counted of it at the post."""
    made = list(left)
    for at in places.told:
        made[at] = row[at]
    for at in places.added:
        made[at] += row[at] - (seen[at] if seen is not None else 0)
    for at in places.longest:
        made[at] = max((value for value in (made[at], row[at]) if value is not None), default=None)
    return tuple(made)


_Known = Mapping[Any, list[Row]]


def _by_key(table: str, rows: Iterable[Row]) -> _Known:
    key_of, found = _PLACES[table].key, dict[Any, list[Row]]()
    for row in rows:
        found.setdefault(key_of(row), []).append(row)
    return found


def _find(places: _Places, row: Row, known: _Known) -> Row | None:
    """The known row with the row's key; of several, the one with the same start."""
    listed = known.get(places.key(row), ())
    if len(listed) > 1:
        start = places.start
        listed = [at for at in listed if at[start] == row[start]]
    return listed[0] if listed else None


class _Places(NamedTuple):
    """Positions of a table's columns for a join: the key without its offset, `from_offset`,
    and the columns of `_Ends`."""

    key: Callable[[Row], Any]
    start: int
    told: list[int]
    added: list[int]
    longest: list[int]


def _only(row: Row) -> None:
    """The key of a table with one open row."""


def _places(table: str, ends: _Ends) -> _Places:
    names = [name for name in TABLES[table].column_names if name not in PARTITION_COLUMNS]

    def at(wanted: Iterable[str]) -> list[int]:
        return [names.index(name) for name in wanted]

    keys = at(name for name in TABLES[table].key if name not in _NOT_KEYS)
    key = itemgetter(*keys) if keys else _only
    told = at([*(name for name in _ALWAYS if name in names), *ends.told])
    return _Places(key, names.index("from_offset"), told, at(ends.added), at(ends.longest))


_PLACES = {table: _places(table, ends) for table, ends in JOINED.items()}

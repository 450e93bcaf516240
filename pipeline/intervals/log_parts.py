"""Replays a part of a log from a snapshot, without the records before, and joins it afterwards.

Their later rows are equal if their contexts are: everything on which rows depend, except how open states
began and what was counted before, which only the earlier replay knows. Contexts are compared at several
places (posts) after the snapshot, because records shortly before it matter for a while. A part that does not
match is never joined: the caller replays it again, from what came before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from metaquorum.metadata.columnar.windows import BatchWindow
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.records.control import LeaderChangeMessage
from metaquorum.pipeline.intervals.cluster import ClusterReplay
from metaquorum.pipeline.intervals.moments import Row
from metaquorum.pipeline.intervals.state import StateError
from metaquorum.pipeline.intervals.tables.availability import Cell, DailySums
from metaquorum.pipeline.intervals.tables.brokers import LevelKey
from metaquorum.pipeline.intervals.tables.partitions import StateRows
from metaquorum.pipeline.intervals.trackers import RowsByTable, Taken, Trackers
from metaquorum.pipeline.tables import PARTITION_COLUMNS, TABLES
from metaquorum.storage.batches.batch import RecordBatch

POSTS = (64, 512, 4_096, 16_384)
"""Records after a snapshot at which a section can be joined."""
NO_END = 1 << 62


class EpochStart(msgspec.Struct, frozen=True):
    """The control records with which the epoch of a snapshot began: a snapshot does not name the leader."""

    epoch: int
    records: tuple[DecodedRecord, ...]


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """What is known where a section begins. `silence`: as `Silence.save` returns it."""

    image: MetadataImage
    quorum: QuorumView
    election: EpochStart | None = None
    silence: Any = None


class Missed(msgspec.Struct):
    """Keys whose earlier values a section asked for and did not have."""

    racks: set[int]
    ids: set[int]
    levels: set[LevelKey]


class ReplayedSection(msgspec.Struct, kw_only=True):
    """A section from offset `start` to below `end`. `rows`: those that ended before each of the `posts`, and
    after the last one those that began before it. `state`: what a replay needs to continue at the end."""

    start: int
    end: int
    began_ms: int
    posts: list[Post]
    rows: list[RowsByTable]
    missed: Missed
    was_moved: bool
    state: bytes


class LateReplay:
    """Give it the batches after the snapshot, then ask for the `section`."""

    def __init__(self, cluster: str, before: Before, posts: Sequence[int] = POSTS) -> None:
        self.engine = ClusterReplay(cluster, log_end=NO_END)
        provenance = before.image.provenance
        self.engine.begins(provenance.offset)
        self.engine.learn(before.image, before.quorum)
        trackers = self.engine.trackers
        if before.silence is not None:
            trackers.silence.load(before.silence)
        self._learn_election(before)
        trackers.take()
        for memory in (trackers.brokers.racks, trackers.ids.last, trackers.upgrades.before):
            memory.missed.clear()
        self._start, self._began_ms = provenance.offset, trackers.clock.now_ms
        self._due = [provenance.offset + at for at in posts]
        self._posts: list[Post] = []
        self._rows: list[RowsByTable] = []
        self._late: RowsByTable = {}

    def _learn_election(self, before: Before) -> None:
        election = before.election
        if election is None:
            return
        trackers, view = self.engine.trackers, QuorumView().after(election.epoch, election.records)
        for one in election.records:
            if isinstance(one.record, LeaderChangeMessage):
                trackers.quorum.learn_election(one.record)
                trackers.incidents.learn_election((one.record.leader_id, election.epoch))
        trackers.voters.learn_election(view, self.engine.moment)

    def batch(self, batch: RecordBatch, records: tuple[DecodedRecord, ...]) -> None:
        """Takes the next batch and its records."""
        while self._due and batch.header.base_offset >= self._due[0]:
            self._due = [at for at in self._due if at > batch.header.base_offset]
            self._rows.append(_lists(self.engine.final_rows()))
            self._posts.append(
                post_at(batch.header.base_offset, self.engine.trackers, inside=self.engine.is_inside)
            )
        self.engine.batch(batch, records)

    def window(self, window: BatchWindow) -> int:
        """Takes several batches at once, as `ClusterReplay.window` does."""
        if self._due and window.batches[-1].header.base_offset >= self._due[0]:
            return 0
        return self.engine.window(window)

    def take(self) -> Taken:
        """Rows that ended since the last call and are valid wherever the section is joined."""
        if not self._posts or self._due:
            return {}
        final, below = self.engine.final_rows(), self._posts[-1].offset
        for table, rows in final.items():
            start = _start_column(table)
            if isinstance(rows, StateRows):
                early, final[table] = rows.split(below)
                self._late.setdefault(table, []).extend(early)
            elif start is not None:
                self._late.setdefault(table, []).extend(row for row in rows if row[start] < below)
                final[table] = [row for row in rows if row[start] >= below]
        return final

    def section(self) -> ReplayedSection:
        """Everything except the rows of `take`, which must have been called before. Raises StateError if
        the state cannot be saved."""
        if not self._posts or self.engine.is_inside:
            raise StateError("the section is too short, or ends inside a transaction")
        if self._due:
            self._late = _lists(self.engine.final_rows())
        trackers = self.engine.trackers
        return ReplayedSection(
            start=self._start,
            end=self.engine.end_offset,
            began_ms=self._began_ms,
            posts=self._posts,
            rows=[*self._rows, self._late],
            missed=Missed(
                trackers.brokers.racks.missed, trackers.ids.last.missed, trackers.upgrades.before.missed
            ),
            was_moved=trackers.availability.was_moved,
            state=self.engine.saved_here(),
        )


def continues(left: ClusterReplay, section: ReplayedSection) -> bool:
    """Whether a section can be joined to a replay that is at its start."""
    trackers, missed = left.trackers, section.missed
    racks = {who for who, rack in trackers.brokers.racks.items() if rack is not None}
    knows_more = (
        missed.racks & racks
        or missed.ids & trackers.ids.last.keys()
        or missed.levels & trackers.upgrades.before.keys()
    )
    fits = left.end_offset == section.start and trackers.clock.now_ms <= section.began_ms
    return fits and left.knows_state and not (knows_more or section.was_moved)


def agrees(left: ClusterReplay, post: Post) -> bool:
    """Whether a replay at a post has the same context as the section had there."""
    if left.end_offset != post.offset or left.is_inside or not post.context:
        return False
    return context_of(left.trackers) == post.context


def spliced(
    left: ClusterReplay, section: ReplayedSection, number: int, cluster: str, log_end: int
) -> tuple[ClusterReplay, Iterator[tuple[str, list[tuple[Any, ...]]]]]:
    """The replay at the section's end, and the rows by table that ended from post `number` on, without those
    of `take`. The rows of `left` must have been taken. Raises StateError if the two do not match."""
    post = section.posts[number]
    try:
        made = ClusterReplay(cluster, log_end=log_end, saved=section.state)
        adopt(made.trackers, left.trackers, post, section.began_ms)
    except KeyError as error:
        raise StateError(f"the section does not match: {error}") from error
    made.is_resumed = left.is_resumed
    join = RowJoin(left.trackers.open_rows(post.offset), post)
    later = (at for part in section.rows[number + 1 :] for at in part.items())
    return made, ((table, list(join.rows(table, rows))) for table, rows in later)


def _lists(rows: Taken) -> RowsByTable:
    return {table: list(some) for table, some in rows.items()}


def _start_column(table: str) -> int | None:
    names = [name for name in TABLES[table].column_names if name not in PARTITION_COLUMNS]
    return names.index("from_offset") if "from_offset" in names else None


class _Ends(NamedTuple):
    """The columns that the end of an interval sets, besides `to_...`; those to add up (`added`), and those of
    which the `longest` counts. All others are set at the start."""

    set_at_end: tuple[str, ...] = ()
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


def context_of(trackers: Trackers) -> bytes:
    """A digest of everything on which later rows depend, except the image and how open states began. Empty if
    the state is unknown or the cluster is off."""
    sums, quorum = trackers.availability.context(), trackers.quorum.context()
    if sums is None or quorum is None or not trackers.coverage.is_known:
        return b""
    now_ms = trackers.clock.now_ms
    parts = (
        *(
            trackers.clock,
            trackers.silence.save(),
            trackers.coverage.context(),
            quorum,
            trackers.voters.context(),
        ),
        *(trackers.brokers.context(), sorted(trackers.topics.names.items()), trackers.configs.context()),
        *(trackers.violations.context(), trackers.incidents.context(now_ms), trackers.upgrades.context()),
        *(trackers.ids.context(), trackers.failovers.save(), trackers.placement.save(), sums),
    )
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()


def post_at(offset: int, trackers: Trackers, *, inside: bool) -> Post:
    """The state of a replay that began at a snapshot, before the batch at `offset`.
    `inside`: in a transaction."""
    counted = Counted(
        coverage=trackers.coverage.counted(),
        quorum=trackers.quorum.counted(),
        ids=trackers.ids.counted(),
        incidents=list(trackers.incidents.counted().items()),
        sums=trackers.availability.counted(),
    )
    opened = {
        "quorum_epochs": trackers.quorum.open_rows(),
        "incidents": trackers.incidents.open_rows(trackers.clock.now_ms),
        "ids": trackers.ids.open_rows(),
    }
    context = b"" if inside else context_of(trackers)
    return Post(offset=offset, context=context, counted=counted, opened=opened)


def adopt(trackers: Trackers, left: Trackers, post: Post, began_ms: int) -> None:
    """Completes the open states of `trackers`, which began at a snapshot at `began_ms`, with those of `left`,
    which is at the post. Raises KeyError if they do not match."""
    below, counted = post.offset, post.counted
    trackers.coverage.adopt(left.coverage, counted.coverage)
    trackers.quorum.adopt(left.quorum, below, counted.quorum)
    trackers.voters.adopt(left.voters, below)
    trackers.brokers.adopt(left.brokers, below)
    trackers.topics.adopt(left.topics, below)
    trackers.configs.adopt(left.configs, below)
    trackers.partitions.adopt(left.partitions, below)
    trackers.violations.adopt(left.violations, below)
    trackers.incidents.adopt(left.incidents, below, dict(counted.incidents))
    trackers.upgrades.adopt(left.upgrades, below)
    trackers.ids.adopt(left.ids, below, counted.ids)
    trackers.availability.adopt(left.availability, dict(counted.sums), began_ms)


class RowJoin:
    """Gives rows that ended in a section the starts that the earlier replay knows."""

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
    """The row with the start of `left`. `seen`: what the section had counted of it at the post."""
    made = list(left)
    for column in places.set_at_end:
        made[column] = row[column]
    for column in places.added:
        made[column] += row[column] - (seen[column] if seen is not None else 0)
    for column in places.longest:
        made[column] = max(
            (value for value in (made[column], row[column]) if value is not None), default=None
        )
    return tuple(made)


_Known = Mapping[Any, list[Row]]


def _by_key(table: str, rows: Iterable[Row]) -> _Known:
    key_of, found = _PLACES[table].key, dict[Any, list[Row]]()
    for row in rows:
        found.setdefault(key_of(row), []).append(row)
    return found


def _find(places: _Places, row: Row, rows_by_key: _Known) -> Row | None:
    """The known row with the row's key; of several, the one with the same start."""
    listed = rows_by_key.get(places.key(row), ())
    if len(listed) > 1:
        start = places.start
        listed = [at for at in listed if at[start] == row[start]]
    return listed[0] if listed else None


class _Places(NamedTuple):
    """Positions of a table's columns for a join: the key without its offset, `from_offset`,
    and the columns of `_Ends`."""

    key: Callable[[Row], Any]
    start: int
    set_at_end: list[int]
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
    set_at_end = at([*(name for name in _ALWAYS if name in names), *ends.set_at_end])
    return _Places(key, names.index("from_offset"), set_at_end, at(ends.added), at(ends.longest))


_PLACES = {table: _places(table, ends) for table, ends in JOINED.items()}

"""Replays a part of a log from a snapshot, without the records before, and joins it afterwards.

Owns the replay of a part (`LateReplay`) and its joining to a replay that read everything before (`goes_on`,
`agrees`, `spliced`). Does not decide what must be equal (`seams` does). A part that does not match is never
joined: the caller replays it again, from what came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from metaquorum.metadata.columnar.windows import BatchWindow
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.records.control import LeaderChangeMessage
from metaquorum.pipeline.intervals.cluster import ClusterReplay
from metaquorum.pipeline.intervals.seams import Post, RowJoin, adopt, context_of, post_at
from metaquorum.pipeline.intervals.state import StateError
from metaquorum.pipeline.intervals.states.ended import StateRows
from metaquorum.pipeline.intervals.tables.upgrades import LevelKey
from metaquorum.pipeline.intervals.trackers import RowsByTable, Taken
from metaquorum.pipeline.tables import PARTITION_COLUMNS, TABLES
from metaquorum.storage.batches.batch import RecordBatch

POSTS = (64, 512, 4_096, 16_384)
"""Records after a snapshot at which a stretch can be joined."""
NO_END = 1 << 62


class EpochStart(msgspec.Struct, frozen=True):
    """The control records with which the epoch of a snapshot began: a snapshot does not name the leader."""

    epoch: int
    records: tuple[DecodedRecord, ...]


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """What is known where a stretch begins. `silence`: as `Silence.save` returns it."""

    image: MetadataImage
    quorum: QuorumView
    election: EpochStart | None = None
    silence: Any = None


class Missed(msgspec.Struct):
    """Keys whose earlier values a stretch asked for and did not have."""

    racks: set[int]
    ids: set[int]
    levels: set[LevelKey]


class ToldStretch(msgspec.Struct, kw_only=True):
    """A stretch from offset `start` to below `end`. `rows`: those that ended before each of the `posts`, and
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
    """Give it the batches after the snapshot, then ask for `told`."""

    def __init__(self, cluster: str, before: Before, posts: Sequence[int] = POSTS) -> None:
        self.engine = ClusterReplay(cluster, log_end=NO_END)
        provenance = before.image.provenance
        self.engine.begins(provenance.offset)
        self.engine.learn(before.image, before.quorum)
        told = self.engine.told
        if before.silence is not None:
            told.silence.load(before.silence)
        self._learn_election(before)
        told.take()
        for memory in (told.brokers.racks, told.ids.last, told.upgrades.before):
            memory.missed.clear()
        self._start, self._began_ms = provenance.offset, told.clock.now_ms
        self._due = [provenance.offset + at for at in posts]
        self._posts: list[Post] = []
        self._rows: list[RowsByTable] = []
        self._late: RowsByTable = {}

    def _learn_election(self, before: Before) -> None:
        at = before.election
        if at is None:
            return
        told, view = self.engine.told, QuorumView().after(at.epoch, at.records)
        for one in at.records:
            if isinstance(one.record, LeaderChangeMessage):
                told.quorum.learn_election(one.record)
                told.incidents.learn_election((one.record.leader_id, at.epoch))
        told.voters.learn_election(view, self.engine.moment)

    def batch(self, batch: RecordBatch, records: tuple[DecodedRecord, ...]) -> None:
        """Takes the next batch and its records."""
        while self._due and batch.header.base_offset >= self._due[0]:
            self._due = [at for at in self._due if at > batch.header.base_offset]
            self._rows.append(_lists(self.engine.final_rows()))
            self._posts.append(
                post_at(batch.header.base_offset, self.engine.told, inside=self.engine.is_inside)
            )
        self.engine.batch(batch, records)

    def window(self, window: BatchWindow) -> int:
        """Takes several batches at once, as `ClusterReplay.window` does."""
        if self._due and window.batches[-1].header.base_offset >= self._due[0]:
            return 0
        return self.engine.window(window)

    def take(self) -> Taken:
        """Rows that ended since the last call and are valid wherever the stretch is joined."""
        if not self._posts or self._due:
            return {}
        found, below = self.engine.final_rows(), self._posts[-1].offset
        for table, rows in found.items():
            start = _start_column(table)
            if isinstance(rows, StateRows):
                early, found[table] = rows.split(below)
                self._late.setdefault(table, []).extend(early)
            elif start is not None:
                self._late.setdefault(table, []).extend(row for row in rows if row[start] < below)
                found[table] = [row for row in rows if row[start] >= below]
        return found

    def told(self) -> ToldStretch:
        """Everything except the rows of `take`, which must have been called before. Raises StateError if
        the state cannot be saved."""
        if not self._posts or self.engine.is_inside:
            raise StateError("the stretch is too short, or ends inside a transaction")
        if self._due:
            self._late = _lists(self.engine.final_rows())
        told = self.engine.told
        return ToldStretch(
            start=self._start,
            end=self.engine.end_offset,
            began_ms=self._began_ms,
            posts=self._posts,
            rows=[*self._rows, self._late],
            missed=Missed(told.brokers.racks.missed, told.ids.last.missed, told.upgrades.before.missed),
            was_moved=told.availability.was_moved,
            state=self.engine.saved_here(),
        )


def goes_on(left: ClusterReplay, told: ToldStretch) -> bool:
    """Whether a stretch can be joined to a replay that is at its start."""
    trackers, missed = left.told, told.missed
    racks = {who for who, rack in trackers.brokers.racks.items() if rack is not None}
    knows_more = (
        missed.racks & racks
        or missed.ids & trackers.ids.last.keys()
        or missed.levels & trackers.upgrades.before.keys()
    )
    fits = left.end_offset == told.start and trackers.clock.now_ms <= told.began_ms
    return fits and left.knows_state and not (knows_more or told.was_moved)


def agrees(left: ClusterReplay, post: Post) -> bool:
    """Whether a replay at a post has the same context as the stretch had there."""
    if left.end_offset != post.offset or left.is_inside or not post.context:
        return False
    return context_of(left.told) == post.context


def spliced(
    left: ClusterReplay, told: ToldStretch, number: int, cluster: str, log_end: int
) -> tuple[ClusterReplay, Iterator[tuple[str, list[tuple[Any, ...]]]]]:
    """The replay at the stretch's end, and the rows by table that ended from post `number` on, without those
    of `take`. The rows of `left` must have been taken. Raises StateError if the two do not match."""
    post = told.posts[number]
    try:
        made = ClusterReplay(cluster, log_end=log_end, saved=told.state)
        adopt(made.told, left.told, post, told.began_ms)
    except KeyError as error:
        raise StateError(f"the stretch does not match: {error}") from error
    made.is_resumed = left.is_resumed
    join = RowJoin(left.told.open_rows(post.offset), post)
    later = (at for part in told.rows[number + 1 :] for at in part.items())
    return made, ((table, list(join.rows(table, rows))) for table, rows in later)


def _lists(rows: Taken) -> RowsByTable:
    return {table: list(some) for table, some in rows.items()}


def _start_column(table: str) -> int | None:
    names = [name for name in TABLES[table].column_names if name not in PARTITION_COLUMNS]
    return names.index("from_offset") if "from_offset" in names else None

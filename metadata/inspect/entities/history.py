"""The life of an entity as rows: its fields from one place in the log to another.

A row holds from the batch that set it (for a metadata transaction, from its end on) to the batch that changed
it. Memory is that of an image and of the open rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import TypedDict

import msgspec
import numpy as np
from msgspec.structs import replace

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.entities.diff import ChangeCause, all_touched, causes_together
from metaquorum.metadata.inspect.entities.views import EVERYTHING, Fields, Wanted, entities_below, fields_of
from metaquorum.metadata.inspect.log.clock import LogClock, RunningClock, clock_of
from metaquorum.metadata.inspect.log.coverage import (
    Coverage,
    Limits,
    before_the_log,
    before_the_state,
    behind_the_log,
    known_from,
)
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.walk.batch_filter import BatchFilter
from metaquorum.metadata.inspect.walk.states import (
    FoundState,
    LogPart,
    OnProblem,
    Passed,
    WalkStep,
    inside_transaction,
    settle,
    state_at,
    steps_about,
    steps_alone,
    with_quorum,
)
from metaquorum.metadata.inspect.walk.steps import FastForward
from metaquorum.metadata.invariants import partition_path
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.text.tree import partition_tree


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One row: an entity's fields from `from_offset` (inclusive) to `to_offset` (exclusive).

    Offsets are those of whole batches; times are Unix ms. `cause` is the last record of the batch that set
    the fields, None if the rows begin with it (in a snapshot, or at the requested place); `ended_by` is that
    of the batch that ended it. `to_offset` and `to_ms` are None while it still holds.
    """

    entity: str
    fields: Fields
    from_offset: int
    from_ms: int
    cause: ChangeCause | None
    to_offset: int | None = None
    to_ms: int | None = None
    ended_by: ChangeCause | None = None


def history(
    log: MetadataLog,
    wanted: Wanted = EVERYTHING,
    start: Point | None = None,
    end: Point = END,
    on_problem: OnProblem | None = None,
    limits: Limits | None = None,
    *,
    past_corruption: bool = False,
    parts: Iterable[LogPart] | None = None,
    begun: FoundState | None = None,
) -> Iterator[Span]:
    """The rows of every wanted entity, in the order in which they ended; those that still hold are last.

    `limits` receives what the rows do not cover. `parts`: where all records about what is wanted are, up to
    `end`. `begun`: the state from which on there are rows, instead of `start`. Only the visible state
    counts: records inside an open metadata transaction make no row. Raises InspectError for a checkpoint,
    which is one state, and as `steps` does.
    """
    if log.is_checkpoint:
        raise InspectError(f"{log.path} is a single state, not a history; give the directory of its log")
    limits = Limits() if limits is None else limits
    first, end = _settled(log, start, limits), _settled(log, end, limits) or END
    limits.coverage.add(before_the_log(log, first))
    limits.coverage.add(behind_the_log(log, end))
    known_start, before = known_from(log), None
    if first is None or first.offset is not None:
        offset = log.start_offset if first is None else first.offset or 0
        if known_start is None or offset < known_start:
            before = yield from _alone(log, wanted, first, end, on_problem, limits)
            first = None
    if before is not None and before.is_over:
        yield from before.open.values()
        return
    options = _Options(past_corruption=past_corruption, coverage=limits.coverage)
    state = begun
    if state is None:
        state = state_at(log, Point(offset=known_start) if first is None else first, on_problem, **options)
    if wanted.has("quorum"):
        state = with_quorum(log, state)
    follower = _Follower(wanted, state, partial(clock_of, log))
    if before is not None:
        follower.take_over(before)
    last: WalkStep | None = None
    for step in _steps(log, state, filter_of(wanted), end, parts, on_problem, options):
        if isinstance(step, Passed):
            if isinstance(step, FastForward):
                yield from follower.fast_forward(step)
            continue
        last = step
        limits.unknown += step.unknown
        yield from follower.step(step)
    limits.place(inside_transaction(state.state if last is None else last.state_after))
    yield from follower.open.values()


def _alone(
    log: MetadataLog,
    wanted: Wanted,
    start: Point | None,
    end: Point,
    on_problem: OnProblem | None,
    limits: Limits,
) -> Generator[Span, None, _Follower]:
    """The rows before the first known state: for what began in the log, records suffice."""
    known_start, limit = known_from(log), end
    if known_start is not None and end.time_ms is None:
        limit = Point(offset=known_start if end.offset is None else min(known_start, end.offset))
    found, steps = steps_alone(log, start, limit, on_problem, limits.coverage)
    follower = _Follower(wanted, found, partial(clock_of, log), is_alone=True)
    reached = found.end_offset
    for step in steps:
        if known_start is not None and step.next_offset > known_start:
            break
        reached = step.next_offset
        limits.unknown += step.unknown
        yield from follower.step(step)
    follower.is_over = known_start is None or (not end.is_end and reached < known_start)
    if wanted.path != "quorum":
        text = "only states that began there have rows; earlier state is unknown"
        place = Point(offset=reached) if follower.is_over and not end.is_end else END
        limits.coverage.add(before_the_state(log, start, place, text))
    return follower


def _steps(
    log: MetadataLog,
    start: FoundState,
    batch_filter: BatchFilter,
    end: Point,
    parts: Iterable[LogPart] | None,
    on_problem: OnProblem | None,
    options: _Options,
) -> Iterator[WalkStep | Passed]:
    if parts is None:
        yield from steps_about(log, start, batch_filter, end, on_problem, **options)
    for part in parts or ():
        until = Point(offset=part.end_offset)
        yield from steps_about(log, part.begun(), batch_filter, until, on_problem, **options)


_OF_MANY_KEYS = ("config/", "quota/")
"""Entities whose fields are set one by one."""


class _Options(TypedDict):
    past_corruption: bool
    coverage: Coverage


def _settled(log: MetadataLog, point: Point | None, limits: Limits) -> Point | None:
    if point is None:
        return None
    place, shown = settle(log, point)
    limits.place(shown)
    return place


def filter_of(wanted: Wanted) -> BatchFilter:
    """The batches that can hold a record about what is wanted."""
    if not wanted.path:
        return BatchFilter()
    kind, _, rest = wanted.path.partition("/")
    if kind == "broker":
        number = rest.partition("/")[0]
        brokers = frozenset({int(number)}) if number.isdigit() else None
        return BatchFilter(topics=frozenset(), brokers=brokers, leaves_others=True)
    if kind != "topic":
        return BatchFilter(topics=frozenset(), brokers=frozenset(), leaves_others=True)
    topic, _, number = rest.partition("/")
    return BatchFilter(
        topics=frozenset({topic}) if topic else None,
        partition=int(number) if number.isdigit() else None,
        brokers=frozenset(),
        together=True,
        leaves_others=True,
    )


class _Follower:
    """Keeps the open rows, starting with those that hold in a state."""

    def __init__(
        self, wanted: Wanted, state: FoundState, clock: Callable[[], LogClock], *, is_alone: bool = False
    ) -> None:
        """`is_alone`: the state before is unknown, so a resource may have keys besides those that were set.
        `clock` reads the log's clock."""
        self.clock = RunningClock(clock)
        self._now_ms = -1
        self._wanted = wanted
        self._is_alone = is_alone
        self.is_over = False
        self._waiting: dict[str, ChangeCause] = {}
        provenance = state.image.provenance
        self.open: dict[str, Span] = {
            path: Span(
                entity=path,
                fields=fields,
                from_offset=provenance.offset,
                from_ms=provenance.timestamp_ms,
                cause=None,
            )
            for path, fields in entities_below(state.image, wanted, state.quorum)
            if not self._is_partial(path)
        }

    def _is_partial(self, path: str) -> bool:
        is_whole = self._wanted.key_of(path) is None
        return self._is_alone and path.startswith(_OF_MANY_KEYS) and is_whole

    def _is_other(self, path: str, decoded: DecodedRecord) -> bool:
        """Whether one key of a resource is wanted and the record sets another one."""
        key, record = self._wanted.key_of(path), decoded.record
        return key is not None and isinstance(record, r.ConfigRecord) and record.name != key

    def take_over(self, before: _Follower) -> None:
        """Takes over the rows that are open in `before` and still hold here."""
        for path, row in self.open.items():
            old = before.open.get(path)
            if old is not None and old.fields == row.fields:
                self.open[path] = old

    def step(self, step: WalkStep) -> Iterator[Span]:
        """Rows that the batch ended."""
        self._now_ms = self.clock.time_ms(step.offset, step.time_ms)
        for path, decoded in all_touched(step, partitions=self._wanted.has_partitions):
            if self._wanted.has(path) and not self._is_partial(path) and not self._is_other(path, decoded):
                self._waiting[path] = ChangeCause.of(step, decoded)
        if step.state_after.transaction is not None or not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for path, cause in waiting.items():
            now = self._wanted.cut(path, fields_of(step.after, path, step.quorum_after))
            ended = self._turn(step.offset, path, now, cause)
            if ended is not None:
                yield ended

    def fast_forward(self, step: FastForward) -> Iterator[Span]:
        """Rows that many changes of partitions ended."""
        versions, topics = step.versions, step.after.topics
        paths = {row: partition_path(topics, row) for row in versions.rows[versions.first].tolist()}
        asked = [row for row, path in paths.items() if self._wanted.has(path)]
        places = np.flatnonzero(np.isin(versions.rows, asked))
        places = places[np.argsort(versions.records[places], kind="stable")]
        rows = versions.rows[places]
        found = topics.seen(versions.chunk(versions.after[:, places]), rows)
        causes = causes_together(step, versions.records[places])
        for row, partition, (header, cause) in zip(rows.tolist(), found, causes, strict=True):
            path, offset = paths[row], header.base_offset
            self._now_ms = self.clock.time_ms(offset, header.max_timestamp_ms)
            ended = self._turn(offset, path, self._wanted.cut(path, partition_tree(partition)), cause)
            if ended is not None:
                yield ended

    def _turn(self, offset: int, path: str, now: Fields | None, cause: ChangeCause) -> Span | None:
        """The row of an entity that ended, if it has other fields from the batch at `offset` on."""
        old = self.open.get(path)
        if now == (None if old is None else old.fields):
            return None
        if now is None:
            self.open.pop(path, None)
        else:
            self.open[path] = Span(
                entity=path, fields=now, from_offset=offset, from_ms=self._now_ms, cause=cause
            )
        if old is None or old.from_offset == offset:
            return None  # it never held: the walk begins with the batch that changed it
        return replace(old, to_offset=offset, to_ms=self._now_ms, ended_by=cause)

"""Which batches a question needs one by one; the others are replayed in columns.

Anything unusual counts as needed: only idle batches, partitions of topics outside the question, and (`along`)
what happens to brokers may be passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.partition_records import (
    CHANGE_API_KEY,
    FRAME_BYTES,
    PARTITION_API_KEY,
    ChangeRows,
    Frames,
    decode_changes,
    gather,
    read_frames,
)
from metaquorum.metadata.columnar.runs import NO_OP, idle_frames, read_run
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.image import TOPIC_RESOURCE, ImageBuilder
from metaquorum.metadata.inspect.log.entities import BROKER_RECORDS, broker_of
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.schema import SCHEMA_BY_CLASS
from metaquorum.metadata.records.types import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.format import parse_header
from metaquorum.storage.batches.places import Places
from metaquorum.storage.log.runs import MIN_BATCHES, BatchRun

SLICE_MIN = 1_000
"""A batch with fewer partitions is not part of a split fence: controllers split at 5,000 (ours) or 10,000."""

_TOPIC_KEY, _CONFIG_KEY = 2, 4
_BROKER_KEYS = np.array([one.api_key for one in BROKER_RECORDS])
_INDEX_BYTES, _ID_BYTES = 4, 16
"""A partition record and a partition change begin with the partition's index and its topic's id."""
_LATEST = tuple(SCHEMA_BY_CLASS[one].latest_version for one in (PartitionRecord, PartitionChangeRecord))

Bools = npt.NDArray[np.bool_]


class PassableReplay(Protocol):
    """What passing over requires of `metadata.replay.Replayer`."""

    builder: ImageBuilder

    def apply_batch(self, batch: RecordBatch) -> None: ...

    def apply_run(self, run: BatchRun) -> None: ...


class BatchFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a question is about. Idle batches are not, unless they end at one of `stops` (offsets).

    `topics` are the names of the topics whose partitions matter, or of which only the one with the index
    `partition` does; `brokers` are the ids of the brokers whose own records matter; None for all. With
    `together`, partition changes in their usual forms, also those that matter, are passed over many at a
    time, in parts that include the idle batches between them and, with `along`, the records of brokers. With
    `creations_only`, partitions of `topics` matter only as they are created. With `leaves_others`, states
    need not have what changes set in partitions that do not matter; `together` then is about the changes of
    those that do.
    """

    topics: frozenset[str] | None = None
    partition: int | None = None
    creations_only: bool = False
    brokers: frozenset[int] | None = None
    stops: frozenset[int] = frozenset()
    together: bool = False
    along: bool = False
    leaves_others: bool = False


class RunRecords(NamedTuple):
    """The records of a run, by their numbers in it. `changes` change a partition, as `groups` say by shape;
    `others` are the decoded records of brokers, and those that name the cause of their batch."""

    frames: Frames
    changes: Places
    groups: tuple[ChangeRows, ...]
    others: dict[int, Any]


class RunPart(NamedTuple):
    """Consecutive batches of a run that are not needed: the batches from number `low` up to but not including
    `high`. `epoch` and `time_ms` are the last one's. `records` are those of the whole run, None if the
    part need only be replayed."""

    run: BatchRun
    low: int
    high: int
    is_idle: bool
    epoch: int
    time_ms: int
    records: RunRecords | None = None

    @property
    def batches(self) -> int:
        return self.high - self.low

    @property
    def base_offset(self) -> int:
        return int(self.run.offsets[self.low])

    @property
    def next_offset(self) -> int:
        """The offset after the last batch."""
        return int(self.run.offsets[self.high])

    @property
    def bounds(self) -> tuple[int, int]:
        """The numbers of its records in the run: the first, and that after the last."""
        return self.base_offset - self.run.base_offset, self.next_offset - self.run.base_offset

    def split(self, batches: int) -> tuple[RunPart, RunPart]:
        """Its first batches, and the rest."""
        middle = self.low + batches
        last = self.run.part(middle - 1, middle)
        time_ms = int(last.timestamps_ms()[0])
        low = self._replace(high=middle, epoch=last.epoch, time_ms=time_ms)
        return low, self._replace(low=middle)

    def as_run(self) -> BatchRun:
        """The batches as a run of their own."""
        return self.run.part(self.low, self.high)

    def groups(self) -> list[ChangeRows]:
        """Its partition changes, by shape."""
        records = self.records
        if records is None:
            return []
        first, last = self.bounds
        return [rows for group in records.groups if (rows := group.between(first, last)) is not None]

    def others(self) -> dict[int, Any]:
        """Its other records that are not idle, by their numbers in the run."""
        first, last = self.bounds
        found = {} if self.records is None else self.records.others
        return {number: record for number, record in found.items() if first <= number < last}

    @property
    def frames(self) -> Frames:
        """Those of the whole run."""
        if self.records is None:
            raise RuntimeError("the records of a part that is only replayed are not kept")
        return self.records.frames

    @property
    def first_no_op(self) -> int | None:
        """The first of its batches that has a NoOpRecord, counted from `low`; None if none has."""
        if self.records is None:
            return 0
        first, last = self.bounds
        found = first + np.flatnonzero(self.records.frames.keys[first:last] == NO_OP)[:1]
        return int(self.run.batch_of(found)[0]) - self.low if len(found) else None


def pieces(
    run: BatchRun, batch_filter: BatchFilter, topic_id: Callable[[str], bytes | None]
) -> Iterator[RecordBatch | RunPart]:
    """The batches of a run that are needed, and the parts between them. `topic_id` returns a topic's id in
    the state before the run."""
    frames = read_run(run)
    if frames is None:
        if run.batches_count < 2 * MIN_BATCHES:
            yield from run.batches()
            return
        middle = run.batches_count // 2
        yield from pieces(run.part(0, middle), batch_filter, topic_id)
        yield from pieces(run.part(middle, run.batches_count), batch_filter, topic_id)
        return
    needed, records, idle = _Sieve(run, frames, batch_filter).sift(topic_id)
    edges = [0, *(np.flatnonzero(np.diff(needed)) + 1).tolist(), len(needed)]
    last = np.array(edges[1:], dtype=np.int64) - 1
    epochs, times = run.epochs()[last].tolist(), run.timestamps_ms()[last].tolist()
    starts = run.places.tolist()
    for at, (low, high) in enumerate(pairwise(edges)):
        if not needed[low]:
            is_idle = bool(idle[low:high].all())
            yield RunPart(run, low, high, is_idle, epochs[at], times[at], None if is_idle else records)
            continue
        for start, end in pairwise(starts[low : high + 1]):
            header = parse_header(run.data, start)
            yield RecordBatch(header, run.data[start:end], run.position + start, run.file)


def is_passed(batch: RecordBatch, batch_filter: BatchFilter, topic_id: Callable[[str], bytes | None]) -> bool:
    """Whether a batch of many records only concerns topics outside the question, their settings and
    partitions."""
    header = batch.header
    if batch_filter.topics is None or header.is_control or header.records_count < MIN_BATCHES:
        return False
    frames = read_frames(batch.data, header)
    if frames is None or header.next_offset in batch_filter.stops:
        return False
    if np.count_nonzero(frames.keys == CHANGE_API_KEY) >= SLICE_MIN:
        return False  # a part of a run, whose moved leaders are a reason for what follows
    asked = {one for name in batch_filter.topics if (one := topic_id(name)) is not None}
    passed = _other_partitions(frames, asked) | (frames.keys == NO_OP)
    if batch_filter.creations_only:
        passed |= (frames.keys == CHANGE_API_KEY) & (frames.versions <= _LATEST[1])
    if not np.isin(frames.keys[~passed], (_TOPIC_KEY, _CONFIG_KEY)).all():
        return False
    return all(
        _is_of_others(frames, number, batch_filter.topics) for number in np.flatnonzero(~passed).tolist()
    )


def _is_of_others(frames: Frames, number: int, topics: frozenset[str]) -> bool:
    """Whether a record creates a topic other than `topics`, or sets one's key. Without `topics`, the question
    may be about any setting."""
    match _decoded(frames, number):
        case TopicRecord(name=name):
            return name not in topics
        case ConfigRecord(resource_type=kind, resource_name=name):
            return bool(topics) and kind == TOPIC_RESOURCE and name not in topics
    return False


def _decoded(frames: Frames, number: int) -> Any:
    """A record; None if it cannot be decoded."""
    start = int(frames.starts[number])
    try:
        return decode(frames.data, start, start + int(frames.lengths[number]))[1]
    except RecordDecodeError:
        return None


def pass_over(engine: PassableReplay, part: RunPart) -> None:
    """Applies a part that continues where `engine` is."""
    if part.is_idle:
        builder = engine.builder
        builder.offset, builder.epoch = part.next_offset, part.epoch
        builder.timestamp_ms = part.time_ms
    elif part.batches >= MIN_BATCHES:
        engine.apply_run(part.as_run())
    else:
        for batch in part.as_run().batches():
            engine.apply_batch(batch)


class _Sieve:
    """Finds the records of a run that a question needs."""

    def __init__(self, run: BatchRun, frames: Frames, batch_filter: BatchFilter) -> None:
        self._run = run
        self._frames = frames
        self._batch_filter = batch_filter

    def sift(self, topic_id: Callable[[str], bytes | None]) -> tuple[Bools, RunRecords | None, Bools]:
        """Which batches are needed, the records of the others, and which batches are idle."""
        run, frames, batch_filter = self._run, self._frames, self._batch_filter
        idle = idle_frames(frames)
        records, not_asked = None, np.zeros(len(idle), dtype=bool)
        if batch_filter.topics is not None:
            ids = (topic_id(name) for name in (() if batch_filter.creations_only else batch_filter.topics))
            not_asked = _other_partitions(
                frames, {one for one in ids if one is not None}, batch_filter.partition
            )
        passed: Bools = not_asked
        others = self._others()
        if batch_filter.together:
            taken: Bools = (frames.keys == CHANGE_API_KEY) & (frames.versions <= _LATEST[1])
            if batch_filter.leaves_others:
                taken &= ~not_asked
            groups, odd = decode_changes(frames, np.flatnonzero(taken))
            taken[odd] = False
            records = RunRecords(frames, np.flatnonzero(taken), tuple(groups), others)
            passed = taken | not_asked if batch_filter.leaves_others else taken
        passed[list(others)] = True
        starts = run.offsets[:-1] - run.base_offset
        needed = np.logical_or.reduceat(~(passed | idle), starts)
        takes_all = batch_filter.together and not batch_filter.leaves_others
        asked = None if takes_all else batch_filter.topics
        if asked and (created := self._created(asked)) is not None:
            needed[created:] = True  # the question may be about it from there on
        self._stop(needed)
        return needed, records, np.logical_and.reduceat(idle, starts)

    def _others(self) -> dict[int, Any]:
        """Causes of batches, and records of brokers that are not in question; those that can be decoded."""
        frames, batch_filter = self._frames, self._batch_filter
        chosen = (frames.keys == NO_OP) & ~idle_frames(frames)
        if batch_filter.along or batch_filter.brokers is not None:
            chosen |= np.isin(frames.keys, _BROKER_KEYS)
        found = {number: _decoded(frames, number) for number in np.flatnonzero(chosen).tolist()}
        return {
            number: record
            for number, record in found.items()
            if record is not None and broker_of(record) not in (batch_filter.brokers or ())
        }

    def _created(self, topics: frozenset[str]) -> int | None:
        """The first batch that creates one of these topics, or something that cannot be read."""
        for number in np.flatnonzero(self._frames.keys == _TOPIC_KEY).tolist():
            record = _decoded(self._frames, number)
            if not isinstance(record, TopicRecord) or record.name in topics:
                return int(self._run.batch_of(np.array([number]))[0])
        return None

    def _stop(self, needed: Bools) -> None:
        """Marks batches that are needed whatever their records are."""
        run, batch_filter = self._run, self._batch_filter
        if batch_filter.stops:
            needed |= np.isin(run.offsets[1:], np.array(sorted(batch_filter.stops), dtype=np.int64))


def _other_partitions(frames: Frames, asked: set[bytes], partition: int | None = None) -> Bools:
    """Records about partitions of topics other than `asked`, or with another index than `partition`; none
    from a newer version."""
    named: Bools = (frames.keys == PARTITION_API_KEY) & (frames.versions <= _LATEST[0])
    named |= (frames.keys == CHANGE_API_KEY) & (frames.versions <= _LATEST[1])
    named &= frames.lengths >= FRAME_BYTES + _INDEX_BYTES + _ID_BYTES
    if asked:
        rows = np.flatnonzero(named)
        if len(rows):
            starts = frames.starts[rows] + FRAME_BYTES + _INDEX_BYTES
            ids = gather(frames, starts, _ID_BYTES, np.dtype("V16"))
            chosen = np.isin(ids, np.array(list(asked), dtype="V16"))
            if partition is not None:
                indexes = gather(frames, frames.starts[rows] + FRAME_BYTES, _INDEX_BYTES, np.dtype(">i4"))
                chosen &= indexes == partition
            named[rows[chosen]] = False
    return named

"""Replays a batch in columns: splits it into segments, checks each, then writes rows in bulk.

Owns the decision when many records may be applied together. A segment is a stretch of records in which the
order between different partitions does not matter. It is checked before anything is written, and left to the
per-record path if one of its records could fail or touch a partition twice.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar import changes, partitions
from metaquorum.metadata.columnar.apply_changes import apply_changes
from metaquorum.metadata.columnar.frames import Frames, read_frames
from metaquorum.metadata.columnar.partitions import PartitionRows, decode_partitions
from metaquorum.metadata.errors import RecordDecodeError, ReplayError
from metaquorum.metadata.image import ImageBuilder
from metaquorum.metadata.image.chunk import TOPIC
from metaquorum.metadata.image.runs import Run, TopicEntry, with_run
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.types import PartitionRecord, TopicRecord
from metaquorum.storage.batches.batch import BatchHeader, RecordBatch
from metaquorum.storage.batches.places import Places

MIN_RECORDS = 24
"""Batches (and segments) with fewer partition records are faster one by one."""

_TOPIC_KEY = 2
_NEUTRAL, _CREATE, _CHANGE, BARRIER = 0, 1, 2, 3
_UNPLACED = 1 << 40
"""Row numbers for partitions that are checked but not yet stored; above every real row."""

CLASS_OF_KEY = np.zeros(128, dtype=np.uint8)
CLASS_OF_KEY[[_TOPIC_KEY, partitions.API_KEY]] = _CREATE
CLASS_OF_KEY[changes.API_KEY] = _CHANGE
CLASS_OF_KEY[[9, 23, 24, 25, 28]] = BARRIER  # RemoveTopic, the transaction markers and ClearElr


class Engine(Protocol):
    """What the column path requires of `metadata.replay.Replayer`."""

    builder: ImageBuilder

    def apply(self, record: object, offset: int, epoch: int, timestamp_ms: int) -> None: ...

    def refuse(self, error: ReplayError) -> None: ...


def apply_batch(engine: Engine, batch: RecordBatch) -> bool:
    """Applies every record of `batch`; False, with nothing applied, if the per-record path must do it."""
    frames = read_frames(batch.data, batch.header)
    if frames is None:
        return False
    bulk = (frames.keys == partitions.API_KEY) | (frames.keys == changes.API_KEY)
    if np.count_nonzero(bulk) < MIN_RECORDS:
        return False
    apply_places(engine, frames, batch.header, np.arange(len(frames.keys), dtype=np.int64))
    return True


def apply_places(engine: Engine, frames: Frames, header: BatchHeader, places: Places) -> None:
    """Applies the records with the ascending numbers `places`; `header` gives the place of record 0."""
    one_by_one = _OneByOne(engine, frames, header)
    for kind, low, high in _segments(frames.keys[places]):
        _apply_segment(kind, engine.builder, frames, places[low:high], one_by_one)


def _apply_segment(
    kind: int, builder: ImageBuilder, frames: Frames, records: Places, one_by_one: _OneByOne
) -> None:
    """Applies a segment. An unusual segment is halved until the records that make it unusual are alone."""
    done = False
    if len(records) >= MIN_RECORDS:
        if kind == _CREATE:
            done = _create(builder, frames, records, one_by_one)
        elif kind == _CHANGE:
            done = apply_changes(builder, frames, records, one_by_one)
    if done:
        return
    if len(records) < 2 * MIN_RECORDS or kind not in (_CREATE, _CHANGE):
        one_by_one(records)
        return
    middle = len(records) // 2
    _apply_segment(kind, builder, frames, records[:middle], one_by_one)
    _apply_segment(kind, builder, frames, records[middle:], one_by_one)


class _OneByOne:
    """Applies records of the batch through the per-record path."""

    def __init__(self, engine: Engine, frames: Frames, header: BatchHeader) -> None:
        self._engine = engine
        self._frames = frames
        self._header = header

    def __call__(self, records: Places) -> None:
        engine, frames, header = self._engine, self._frames, self._header
        starts = frames.starts[records].tolist()
        lengths = frames.lengths[records].tolist()
        for record, start, length in zip(records.tolist(), starts, lengths, strict=True):
            offset = header.base_offset + record
            try:
                _, decoded = decode(frames.data, start, start + length)
            except RecordDecodeError as error:
                failure = ReplayError(offset, None, str(error))
                failure.__cause__ = error
                engine.refuse(failure)
                continue
            engine.apply(decoded, offset, header.leader_epoch, header.max_timestamp_ms)


def _segments(keys: npt.NDArray[np.uint8]) -> list[tuple[int, int, int]]:
    """(class, first record, end) of stretches that hold one class of records, and neutral ones."""
    classes = CLASS_OF_KEY[keys]
    marked = np.flatnonzero(classes)
    if not marked.size:
        return [(_NEUTRAL, 0, len(keys))]
    kinds = classes[marked]
    edges = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1
    starts = [0, *marked[edges].tolist()]
    return [
        (int(kind), low, high)
        for kind, low, high in zip(
            [kinds[0], *kinds[edges].tolist()], starts, [*starts[1:], len(keys)], strict=True
        )
    ]


def _create(builder: ImageBuilder, frames: Frames, records: Places, one_by_one: _OneByOne) -> bool:
    """Applies a segment of topics and partitions; False, with nothing applied, if it is unusual."""
    keys = frames.keys[records]
    is_partition = keys == partitions.API_KEY
    rows, odd = decode_partitions(frames, records[is_partition], builder.topics.columns.directories)
    if len(rows.records) < MIN_RECORDS or (rows.block[1] < 0).any():
        return False
    created = _created_topics(builder, frames, records[keys == _TOPIC_KEY])
    if created is None:
        return False
    rows = _in_order(rows)
    stretches = _stretches(rows)
    planned = _plan(builder, rows, stretches, created)
    if planned is None or not _odd_are_apart(frames, records[is_partition][odd], planned):
        return False
    others = records[~is_partition]
    one_by_one(np.sort(np.concatenate([others, records[is_partition][odd]])) if odd.any() else others)
    _store(builder, rows, stretches)
    return True


def _created_topics(builder: ImageBuilder, frames: Frames, records: Places) -> dict[bytes, int] | None:
    """Record number by topic id for the segment's TopicRecords; None if one of them would be refused."""
    topics = builder.topics
    created: dict[bytes, int] = {}
    names: set[str] = set()
    for record in records.tolist():
        topic = _decoded(frames, record)
        if not isinstance(topic, TopicRecord) or topic.topic_id in created or topic.name in names:
            return None
        if topic.topic_id in topics.by_id or topic.name in topics.by_name:
            return None
        created[topic.topic_id] = record
        names.add(topic.name)
    return created


def _decoded(frames: Frames, record: int) -> object:
    start = int(frames.starts[record])
    try:
        return decode(frames.data, start, start + int(frames.lengths[record]))[1]
    except RecordDecodeError:
        return None


def _breaks(rows: PartitionRows) -> Places:
    """Places where the topic changes or the index does not increase by one."""
    index, topics = rows.block[1], rows.topics
    breaks = (topics[1:, 0] != topics[:-1, 0]) | (topics[1:, 1] != topics[:-1, 1])
    breaks |= index[1:] != index[:-1] + 1
    return np.flatnonzero(breaks) + 1


def _in_order(rows: PartitionRows) -> PartitionRows:
    """The rows sorted by topic and index, if storing them in order of arrival would be slow."""
    count = len(rows.records)
    if len(_breaks(rows)) * 4 <= count:
        return rows
    _, first, group = np.unique(
        np.ascontiguousarray(rows.topics).view("V16").ravel(), return_index=True, return_inverse=True
    )
    order = np.lexsort((rows.block[1], first[group.ravel()]))
    return rows._replace(
        records=rows.records[order],
        topics=rows.topics[order],
        block=np.ascontiguousarray(rows.block[:, order]),
    )


Stretch = tuple[bytes, int, int, int]
"""(topic id, first index, count, place of the first row in the block)."""


def _stretches(rows: PartitionRows) -> list[Stretch]:
    edges = _breaks(rows)
    places = np.concatenate([np.zeros(1, np.int64), edges])
    counts = np.diff(np.concatenate([places, np.array([len(rows.records)])]))
    raw = np.ascontiguousarray(rows.topics[places]).tobytes()
    ids = [raw[at : at + 16] for at in range(0, len(raw), 16)]
    first = rows.block[1][places]
    return list(zip(ids, first.tolist(), counts.tolist(), places.tolist(), strict=True))


def _plan(
    builder: ImageBuilder, rows: PartitionRows, stretches: list[Stretch], created: dict[bytes, int]
) -> dict[bytes, tuple[Run, ...]] | None:
    """Where each topic's partitions will be; None if a topic is unknown or a partition exists twice."""
    by_id = builder.topics.by_id
    planned: dict[bytes, tuple[Run, ...]] = {}
    for topic_id, first, count, place in stretches:
        if topic_id in created:
            if created[topic_id] > int(rows.records[place : place + count].min()):
                return None
            runs = planned.get(topic_id, ())
        else:
            entry = by_id.get(topic_id)
            if entry is None:
                return None
            runs = planned.get(topic_id, entry.runs)
        extended = with_run(runs, (first, count, _UNPLACED + place))
        if extended is None:
            return None
        planned[topic_id] = extended
    return planned


def _odd_are_apart(frames: Frames, odd: Places, planned: dict[bytes, tuple[Run, ...]]) -> bool:
    """Whether no odd record's partition is also among the rows."""
    for record in odd.tolist():
        decoded = _decoded(frames, record)
        if not isinstance(decoded, PartitionRecord):
            return False
        runs = planned.get(decoded.topic_id, ())
        for first, count, row in runs:
            if row >= _UNPLACED and first <= decoded.partition_id < first + count:
                return False
    return True


def _store(builder: ImageBuilder, rows: PartitionRows, stretches: list[Stretch]) -> None:
    topics = builder.topics
    count = len(rows.records)
    start = topics.columns.allocate(count, rows.replica_width, rows.isr_width)
    slots = []
    entry: TopicEntry | None = None
    runs: tuple[Run, ...] = ()
    for topic_id, first, size, place in stretches:
        if entry is None or entry.info.topic_id != topic_id:
            if entry is not None:
                topics.by_id.put(entry.info.topic_id, TopicEntry(entry.info, entry.slot, runs))
            entry = topics.by_id[topic_id]
            runs = entry.runs
        extended = with_run(runs, (first, size, start + place))
        if extended is None:
            raise RuntimeError("a partition was stored twice although the check said that it is new")
        runs = extended
        slots.append(entry.slot)
    if entry is not None:
        topics.by_id.put(entry.info.topic_id, TopicEntry(entry.info, entry.slot, runs))
    sizes = [size for _, _, size, _ in stretches]
    rows.block[TOPIC] = np.repeat(np.array(slots, dtype=np.int32), sizes)
    topics.columns.write_block(start, rows.block, rows.replica_width, rows.isr_width)

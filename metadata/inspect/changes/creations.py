"""Batches that only create topics and partitions, taken as a whole: how thousands of creations appear.

The test for such a batch, so that its partitions can be reported as counts, and the fallback if the batch
turns out otherwise. Applies records with the single interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.partition_records import (
    FRAME_BYTES,
    PARTITION_API_KEY,
    Frames,
    gather,
    read_frames,
)
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.image import TOPIC_RESOURCE, ImageBuilder
from metaquorum.metadata.image.chunk import LEADER, N_ISR, N_REPLICAS
from metaquorum.metadata.image.columns import split_by_chunk
from metaquorum.metadata.image.types import NO_LEADER
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_in
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.schema import SCHEMA_BY_CLASS
from metaquorum.storage.batches.batch import RecordBatch

MIN_PARTITIONS = 32
"""Batches with fewer partitions are reported record by record."""

_LATEST = SCHEMA_BY_CLASS[r.PartitionRecord].latest_version
_OTHER_KEYS = (2, 4, 20)
"""TopicRecord, ConfigRecord, and the NoOpRecord that names the cause."""
_INDEX_BYTES, _ID_BYTES = 4, 16
"""A partition record begins with the partition's index and its topic's id."""

Numbers = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class Creations:
    """What the records of a batch say, before they are applied. `others` are topics and their settings, with
    offsets; `made` maps topic ids to (number of new partitions, offset of the first)."""

    asked: BatchCause | None = None
    others: list[tuple[int, r.TopicRecord | r.ConfigRecord]] = field(default_factory=list)
    made: dict[bytes, tuple[int, int]] = field(default_factory=dict)


def may_create(batch: RecordBatch) -> bool:
    """Whether a batch, by its frames, holds many new partitions and otherwise only topics and settings."""
    return not batch.header.is_control and _frames(batch) is not None


def read_creations(batch: RecordBatch, builder: ImageBuilder) -> Creations | None:
    """What a batch creates on top of `builder`; None for a batch that must be reported record by record: with
    records that do not fit, existing partitions, or settings of other resources."""
    frames = _frames(batch)
    if frames is None:
        return None
    base = batch.header.base_offset
    creations = Creations()
    is_partition = frames.keys == PARTITION_API_KEY
    topics: dict[bytes, int] = {}
    for number in np.flatnonzero(~is_partition).tolist():
        start = int(frames.starts[number])
        try:
            record = decode(frames.data, start, start + int(frames.lengths[number]))[1]
        except RecordDecodeError:
            return None
        if isinstance(record, r.NoOpRecord):
            creations.asked = creations.asked or cause_in(record)
            continue
        if isinstance(record, r.TopicRecord):
            if record.topic_id in builder.topics.by_id:
                return None
            topics[record.topic_id] = number
        elif not isinstance(record, r.ConfigRecord):
            return None
        creations.others.append((base + number, record))
    places = np.flatnonzero(is_partition)
    made = _made(frames, places, topics, builder)
    if made is None or not _settings_are_new(creations.others):
        return None
    creations.made = {topic_id: (count, base + first) for topic_id, (count, first) in made.items()}
    return creations


def all_led_and_in_sync(builder: ImageBuilder, topic_ids: list[bytes], min_isrs: list[int]) -> bool:
    """Whether every partition of these topics has a leader and its topic's minimum ISR (capped at its
    number of replicas)."""
    by_topic = [builder.topics.by_id[topic_id].rows() for topic_id in topic_ids]
    wanted = np.repeat(np.array(min_isrs, dtype=np.int64), [len(rows) for rows in by_topic])
    columns = builder.topics.columns
    for at, within, local in split_by_chunk(np.concatenate(by_topic)):
        leaders, isr, replicas = columns.chunks[at].data[[[LEADER], [N_ISR], [N_REPLICAS]], local]
        if (leaders == NO_LEADER).any() or (isr < np.minimum(replicas, wanted[within])).any():
            return False
    return True


def _frames(batch: RecordBatch) -> Frames | None:
    if batch.header.records_count < MIN_PARTITIONS:
        return None
    frames = read_frames(batch.data, batch.header)
    if frames is None:
        return None
    fits = (frames.keys == PARTITION_API_KEY) & (frames.versions <= _LATEST)
    fits &= frames.lengths >= FRAME_BYTES + _INDEX_BYTES + _ID_BYTES
    if np.count_nonzero(fits) < MIN_PARTITIONS:
        return None
    return frames if (fits | np.isin(frames.keys, _OTHER_KEYS)).all() else None


def _made(
    frames: Frames, places: Numbers, topics: dict[bytes, int], builder: ImageBuilder
) -> dict[bytes, tuple[int, int]] | None:
    """(count, first record) of new partitions by topic id, ordered by first record; None if one appears
    twice, exists already or precedes its topic."""
    starts = frames.starts[places] + FRAME_BYTES
    whole = gather(frames, starts, _INDEX_BYTES + _ID_BYTES, np.dtype(f"V{_INDEX_BYTES + _ID_BYTES}"))
    if len(np.unique(whole)) != len(whole):
        return None
    ids = gather(frames, starts + _INDEX_BYTES, _ID_BYTES, np.dtype("V16"))
    indexes = gather(frames, starts, _INDEX_BYTES, np.dtype(">i4"))
    names, first, counts = np.unique(ids, return_index=True, return_counts=True)
    by_topic: dict[bytes, tuple[int, int]] = {}
    for number in np.argsort(first).tolist():
        topic_id, record = names[number].tobytes(), int(places[first[number]])
        entry = builder.topics.by_id.get(topic_id)
        if entry is None and topics.get(topic_id, record) >= record:
            return None
        if entry is not None and any(
            entry.row_of(index) >= 0 for index in indexes[ids == names[number]].tolist()
        ):
            return None
        by_topic[topic_id] = (int(counts[number]), record)
    return by_topic


def _settings_are_new(others: list[tuple[int, r.TopicRecord | r.ConfigRecord]]) -> bool:
    """Whether the settings belong to topics that the batch creates, each set once."""
    names = {record.name for _, record in others if isinstance(record, r.TopicRecord)}
    seen: set[tuple[str, str]] = set()
    for _, record in others:
        if not isinstance(record, r.ConfigRecord):
            continue
        key = (record.resource_name, record.name)
        if record.resource_type != TOPIC_RESOURCE or record.resource_name not in names or key in seen:
            return False
        seen.add(key)
    return True

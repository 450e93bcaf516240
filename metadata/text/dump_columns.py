"""The payloads of whole batches directly from bytes to JSON text, for batches with many partition records.

Owns the fast path for PartitionRecords and PartitionChangeRecords of the usual shapes (see `columnar`):
fields are cut out in numpy, the texts of ids and lists come from caches, and no record is created. Does not
define the text: any other record goes through `dump_text`, and a property test compares the two.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from metaquorum.metadata.columnar.changes import API_KEY as CHANGE_KEY
from metaquorum.metadata.columnar.changes import ChangeRows, decode_changes
from metaquorum.metadata.columnar.frames import Frames, gather, read_frames
from metaquorum.metadata.columnar.partitions import API_KEY, record_dtype, record_shapes
from metaquorum.metadata.records.codec import decode_tolerant
from metaquorum.metadata.records.types import UnknownRecord
from metaquorum.metadata.text.dump_text import TextCache, payload_text
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.places import Places
from metaquorum.storage.uuids import uuid_to_text

MIN_RECORDS = 24
"""Batches with fewer partition records are faster record by record."""


def batch_payloads(batch: RecordBatch, *, secrets: bool = False) -> tuple[list[str], int] | None:
    """The result of `payload_text` for each record, and how many of them are from a newer version; None for a
    batch that must be read record by record. Raises RecordDecodeError."""
    frames = frames_of(batch)
    return None if frames is None else frame_payloads(frames, secrets=secrets)


def frames_of(batch: RecordBatch) -> Frames | None:
    """The frames of a batch for `frame_payloads`; None if it must be read record by record. All records of
    such a batch have its timestamp and consecutive offsets."""
    header = batch.header
    if (
        header.is_control
        or header.records_count < MIN_RECORDS
        or header.base_timestamp_ms != header.max_timestamp_ms
    ):
        return None
    frames = read_frames(batch.data, header)
    if frames is None:
        return None
    short = np.count_nonzero((frames.keys == API_KEY) | (frames.keys == CHANGE_KEY))
    return frames if short >= MIN_RECORDS else None


def frame_payloads(frames: Frames, *, secrets: bool = False) -> tuple[list[str], int]:
    """The result of `payload_text` for each record, and how many of them are from a newer version.
    Raises RecordDecodeError."""
    texts: list[str | None] = [None] * len(frames.starts)
    places = np.flatnonzero(frames.keys == API_KEY)
    if len(places):
        shapes, usual = record_shapes(frames, places)
        for shape in np.unique(shapes[usual]).tolist():
            _put_texts(texts, frames, places[usual & (shapes == shape)], shape)
    for rows in decode_changes(frames, np.flatnonzero(frames.keys == CHANGE_KEY))[0]:
        if len(rows.records):
            _put_changes(texts, frames, rows)
    return _with_others(texts, frames, secrets)


def _with_others(texts: list[str | None], frames: Frames, secrets: bool) -> tuple[list[str], int]:
    """The texts, with the missing ones created record by record."""
    unknown = 0
    found: list[str] = []
    for at, text in enumerate(texts):
        if text is not None:
            found.append(text)
            continue
        start = int(frames.starts[at])
        version, record = decode_tolerant(frames.data, start, start + int(frames.lengths[at]))
        unknown += isinstance(record, UnknownRecord)
        found.append(payload_text(record, version, secrets=secrets))
    return found, unknown


def _put_texts(texts: list[str | None], frames: Frames, places: Places, shape: int) -> None:
    """Writes the texts of PartitionRecords of one shape to their places."""
    has_directories, replicas, isr = shape >> 16, shape >> 8 & 0xFF, shape & 0xFF
    dtype = record_dtype(has_directories, replicas, isr)
    rows = gather(frames, frames.starts[places], dtype.itemsize, dtype)
    count = len(places)
    columns = zip(
        places.tolist(),
        frames.versions[places].tolist(),
        rows["index"].tolist(),
        _raw(rows["topic"], 16),
        _raw(rows["replicas"], 4 * replicas) if replicas else [b""] * count,
        _raw(rows["isr"], 4 * isr) if isr else [b""] * count,
        rows["leader"].tolist(),
        rows["leader_epoch"].tolist(),
        rows["partition_epoch"].tolist(),
        _raw(rows["directories"], 16 * replicas) if has_directories and replicas else [b""] * count,
        strict=True,
    )
    ids, numbers, directories = _IDS, _NUMBERS, _DIRECTORIES
    for place, version, index, topic, held, synced, leader, leader_epoch, epoch, placed in columns:
        end = f',"directories":{directories[placed]}}}' if has_directories else "}"
        texts[place] = (
            f'"type":"PARTITION_RECORD","version":{version},"data":{{"partitionId":{index},'
            f'"topicId":{ids[topic]},"replicas":{numbers[held]},"isr":{numbers[synced]},'
            f'"removingReplicas":[],"addingReplicas":[],"leader":{leader},"leaderEpoch":{leader_epoch},'
            f'"partitionEpoch":{epoch}{end}'
        )


def _put_changes(texts: list[str | None], frames: Frames, rows: ChangeRows) -> None:
    """The same for PartitionChangeRecords of one shape. Fields are in schema order."""
    form = '"type":"PARTITION_CHANGE_RECORD","version":%d,"data":{"partitionId":%d,"topicId":%s'
    ids, numbers, directories = _IDS, _NUMBERS, _DIRECTORIES
    columns: list[list[Any]] = [
        frames.versions[rows.records].tolist(),
        rows.indexes.tolist(),
        [ids[topic] for topic in _raw(rows.topics, 16)],
    ]
    if rows.isr is not None:
        form += ',"isr":%s'
        columns.append([numbers[isr] for isr in _raw(rows.isr.astype(">i4"), 4 * rows.isr.shape[1])])
    if rows.leader is not None:
        form += ',"leader":%d'
        columns.append(rows.leader.tolist())
    if rows.recovery is not None:
        form += ',"leaderRecoveryState":%d'
        columns.append(rows.recovery.tolist())
    if rows.directories is not None:
        form += ',"directories":%s'
        raw = _raw(rows.directories, 16 * rows.directories.shape[1])
        columns.append([directories[placed] for placed in raw])
    form += "}"
    for place, values in zip(rows.records.tolist(), zip(*columns, strict=True), strict=True):
        texts[place] = form % values


def _raw(column: Any, size: int) -> list[bytes]:
    """The bytes of each row."""
    rows: list[bytes] = (
        np.ascontiguousarray(column).reshape(len(column), -1).view(f"V{size}").ravel().tolist()
    )
    return rows


def _id_text(value: bytes) -> str:
    return f'"{uuid_to_text(value)}"'


def _listed_ids(value: bytes) -> str:
    return "[" + ",".join([_IDS[value[at : at + 16]] for at in range(0, len(value), 16)]) + "]"


def _listed_numbers(value: bytes) -> str:
    return "[" + ",".join(map(str, struct.unpack(f">{len(value) // 4}i", value))) + "]"


_IDS = TextCache(_id_text)
_DIRECTORIES = TextCache(_listed_ids)
_NUMBERS = TextCache(_listed_numbers)

"""Typed tables: a column for each field of one record type.

Owns the choice between the column-wise decoder of `metadata.columnar`, for partition records, and record by
record. Values of many batches are put into one buffer first, so that small batches are decoded together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from metaquorum.metadata.columnar.frames import FRAME_BYTES, Frames
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.types import PartitionChangeRecord, PartitionRecord
from metaquorum.pipeline.arrow.base import CHUNK_ROWS, Longs, same, times
from metaquorum.pipeline.arrow.fields import SCHEMAS, field_columns, typed_schema
from metaquorum.pipeline.arrow.partition_columns import change_columns, partition_columns
from metaquorum.pipeline.logs.pieces import Piece
from metaquorum.pipeline.logs.selection import Selection
from metaquorum.storage.batches.batch import RecordBatch, batch_record_spans
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.reader import Damage

_MAX_BUFFER_BYTES = 4 * 1024 * 1024
_COLUMNS = {
    PartitionRecord.type_name: partition_columns,
    PartitionChangeRecord.type_name: change_columns,
}


class _Window:
    """Framed values of one record type from several batches, back to back."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size_bytes = 0
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.offsets: list[int] = []
        self.epochs: list[int] = []
        self.times_ms: list[int] = []

    def add(self, batch: RecordBatch, spans: list[tuple[int, int]], key: int) -> None:
        """The values of api key `key`; frames have one byte for version and key (numbers below 128)."""
        data, header = batch.data, batch.header
        wanted = [at for at, (start, _) in enumerate(spans) if data[start + 1] == key]
        if not wanted:
            return
        first = self.size_bytes
        self.pieces.append(data)
        self.size_bytes += len(data)
        self.starts += [first + spans[at][0] for at in wanted]
        self.ends += [first + spans[at][1] for at in wanted]
        self.offsets += [header.base_offset + at for at in wanted]
        self.epochs += [header.leader_epoch] * len(wanted)
        self.times_ms += [header.max_timestamp_ms] * len(wanted)

    @property
    def is_full(self) -> bool:
        return len(self.starts) >= CHUNK_ROWS or self.size_bytes >= _MAX_BUFFER_BYTES

    def frames(self) -> Frames:
        data = b"".join(self.pieces)
        octets = np.frombuffer(data, dtype=np.uint8)
        starts = np.array(self.starts, dtype=np.int64)
        lengths = np.array(self.ends, dtype=np.int64) - starts
        return Frames(data, octets, starts, lengths, octets[starts + 1], octets[starts + 2])


def typed_batches(
    type_name: str, piece: Piece, items: Iterable[RecordBatch | Damage], selection: Selection
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the piece's wanted records of one type. What is damaged, cannot be decoded or has a
    version that is not known is left out: the damage table and the wide view have it."""
    key = SCHEMAS[type_name].key
    is_control = not hasattr(SCHEMAS[type_name].body.cls, "api_key")
    window = _Window()
    for item in items:
        if isinstance(item, Damage) or not selection.may_hold(item.header):
            continue
        spans = None
        if not is_control and not item.header.is_control and key < 0x80:
            spans = _plain_spans(item, selection)
        if spans is None:
            if window.starts:
                yield from _emptied(type_name, piece, window, selection.secrets)
                window = _Window()
            yield from _one_by_one(type_name, piece, item, selection)
            continue
        window.add(item, spans, key)
        if window.is_full:
            yield from _emptied(type_name, piece, window, selection.secrets)
            window = _Window()
    if window.starts:
        yield from _emptied(type_name, piece, window, selection.secrets)


def _plain_spans(batch: RecordBatch, selection: Selection) -> list[tuple[int, int]] | None:
    """The values of a batch of the usual shape, all of which are wanted; None for any other."""
    header = batch.header
    if header.base_timestamp_ms != header.max_timestamp_ms:
        return None
    inside = (selection.from_offset is None or header.base_offset >= selection.from_offset) and (
        selection.to_offset is None or header.next_offset - 1 <= selection.to_offset
    )
    if not inside:
        return None
    try:
        spans = batch_record_spans(batch)
    except BatchError:
        return None
    data = batch.data
    if any(end - start < FRAME_BYTES or data[start] != 1 for start, end in spans):
        return None
    return spans


def _one_by_one(
    type_name: str, piece: Piece, batch: RecordBatch, selection: Selection
) -> Iterator[pa.RecordBatch]:
    try:
        decoded = decode_batch(batch, tolerant=True)
    except (RecordDecodeError, BatchError):
        return
    cls = SCHEMAS[type_name].body.cls
    found = [
        at for at in decoded if isinstance(at.record, cls) and selection.wants(type_name, at.offset, at[1])
    ]
    if found:
        yield _batch(
            type_name,
            piece,
            np.array([at.offset for at in found], dtype=np.int64),
            [batch.header.leader_epoch] * len(found),
            [at.timestamp_ms for at in found],
            [at.version for at in found],
            field_columns(type_name, [at.record for at in found], secrets=selection.secrets),
        )


def _emptied(type_name: str, piece: Piece, window: _Window, secrets: bool) -> Iterator[pa.RecordBatch]:
    frames = window.frames()
    rows = np.arange(len(frames.starts), dtype=np.int64)
    columns_of = _COLUMNS.get(type_name)
    if columns_of is not None:
        rows, columns = columns_of(frames, rows)
    else:
        kept, records = [], []
        for row, start, end in zip(rows.tolist(), window.starts, window.ends, strict=True):
            try:
                record: Any = decode(frames.data, start, end)[1]
            except RecordDecodeError:
                continue
            kept.append(row)
            records.append(record)
        rows = np.array(kept, dtype=np.int64)
        columns = field_columns(type_name, records, secrets=secrets)
    if len(rows):
        offsets = np.array(window.offsets, dtype=np.int64)[rows]
        epochs = np.array(window.epochs, dtype=np.int32)[rows]
        times_ms = np.array(window.times_ms, dtype=np.int64)[rows]
        versions = frames.versions[rows].astype(np.int32)
        yield _batch(type_name, piece, offsets, epochs, times_ms, versions, columns)


def _batch(
    type_name: str,
    piece: Piece,
    offsets: Longs,
    epochs: Any,
    times_ms: Any,
    versions: Any,
    columns: list[pa.Array],
) -> pa.RecordBatch:
    count = len(offsets)
    place = [
        same(piece.cluster, count, pa.string()),
        same(piece.node_id, count, pa.int32()),
        same(piece.file, count, pa.string()),
        pa.array(offsets, pa.int64()),
        pa.array(epochs, pa.int32()),
        times(times_ms),
        pa.array(versions, pa.int32()),
    ]
    return pa.RecordBatch.from_arrays([*place, *columns], schema=typed_schema(type_name))

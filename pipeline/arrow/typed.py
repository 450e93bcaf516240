"""Typed tables: a column for each field of one record type.

Owns the choice between decoding in columns (partition records, by `metadata.columnar`) and record by record.
Many batches are read as one window, so that small ones are decoded together. Does not report damage:
`pipeline.logs.damage` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from metaquorum.metadata.columnar.windows import BatchWindow, windows
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.types import PartitionChangeRecord, PartitionRecord
from metaquorum.pipeline.arrow.base import CHUNK_ROWS, Longs, same, times
from metaquorum.pipeline.arrow.fields import SCHEMAS, field_columns, typed_schema
from metaquorum.pipeline.arrow.partition_columns import change_columns, partition_columns
from metaquorum.pipeline.logs.pieces import Piece
from metaquorum.pipeline.logs.selection import Selection
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.reader import Damage

_COLUMNS = {
    PartitionRecord.type_name: partition_columns,
    PartitionChangeRecord.type_name: change_columns,
}


def typed_batches(
    type_name: str, piece: Piece, items: Iterable[RecordBatch | Damage], selection: Selection
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the piece's selected records of one type. Leaves out what is damaged, cannot be
    decoded or has an unknown version: the damage table and the wide view have it."""
    key = SCHEMAS[type_name].key
    is_control = not hasattr(SCHEMAS[type_name].body.cls, "api_key")
    wanted = (item for item in items if not isinstance(item, Damage) and selection.may_hold(item.header))
    for found in wanted if is_control or key >= 0x80 else windows(wanted, CHUNK_ROWS):
        if isinstance(found, RecordBatch):
            yield from _one_by_one(type_name, piece, found, selection)
        else:
            yield from _together(type_name, piece, found, key, selection)


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


def _together(
    type_name: str, piece: Piece, window: BatchWindow, key: int, selection: Selection
) -> Iterator[pa.RecordBatch]:
    frames, offsets = window.frames, window.offsets()
    wanted = frames.keys == key
    if selection.from_offset is not None:
        wanted &= offsets >= selection.from_offset
    if selection.to_offset is not None:
        wanted &= offsets <= selection.to_offset
    rows = np.flatnonzero(wanted)
    columns_of = _COLUMNS.get(type_name)
    if columns_of is not None:
        rows, columns = columns_of(frames, rows)
    else:
        kept, records = [], []
        for row, start, size in zip(
            rows.tolist(), frames.starts[rows].tolist(), frames.lengths[rows].tolist(), strict=True
        ):
            try:
                record: Any = decode(frames.data, start, start + size)[1]
            except RecordDecodeError:
                continue
            kept.append(row)
            records.append(record)
        rows = np.array(kept, dtype=np.int64)
        columns = field_columns(type_name, records, secrets=selection.secrets)
    if len(rows):
        epochs = window.each([at.header.leader_epoch for at in window.batches])[rows].astype(np.int32)
        times_ms = window.each([at.header.max_timestamp_ms for at in window.batches])[rows]
        versions = frames.versions[rows].astype(np.int32)
        yield _batch(type_name, piece, offsets[rows], epochs, times_ms, versions, columns)


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

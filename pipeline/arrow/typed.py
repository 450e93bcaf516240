"""Typed tables: a column for each field of one record type.

Many batches are read as one window, so that small ones are decoded together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from metaquorum.metadata.columnar.partition_records import (
    ChangeRows,
    Frames,
    decode_changes,
    decode_partitions,
)
from metaquorum.metadata.columnar.windows import BatchWindow, windows
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.image.chunk import (
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PARTITION_EPOCH,
)
from metaquorum.metadata.image.directories import DirectoryTable
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.types import PartitionChangeRecord, PartitionRecord
from metaquorum.pipeline.arrow.fields import (
    CHUNK_ROWS,
    SCHEMAS,
    Longs,
    column_type,
    field_columns,
    padded_lists,
    same,
    times,
    typed_schema,
    uuid_column,
)
from metaquorum.pipeline.logs.pieces import Piece
from metaquorum.pipeline.logs.selection import Selection
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.places import Places
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.uuids import uuid_to_text

Columns = list[pa.Array]


def change_columns(frames: Frames, rows: Places) -> tuple[Places, Columns]:
    """The rows that could be decoded, ascending, and their own columns."""
    groups, odd = decode_changes(frames, rows)
    groups = [group for group in groups if len(group.records)]
    usual = np.sort(np.concatenate([np.empty(0, np.int64), *(group.records for group in groups)]))
    name = PartitionChangeRecord.type_name
    if not len(odd):
        return usual, _changes(usual, groups)
    return _merged(name, [(usual, _changes(usual, groups)), _odd(name, frames, odd)])


def _changes(rows: Places, groups: list[ChangeRows]) -> Columns:
    """The columns of groups whose records together are `rows`."""
    count = len(rows)
    indexes, topics = np.empty(count, np.int32), np.empty((count, 2), np.uint64)
    leader, recovery = _Some(count), _Some(count)
    isr, directories = _Lists(count), _Lists(count)
    for group in groups:
        group_rows = np.searchsorted(rows, group.records)
        indexes[group_rows], topics[group_rows] = group.indexes, group.topics
        leader.put(group_rows, group.leader)
        recovery.put(group_rows, group.recovery)
        isr.put(group_rows, group.isr)
        directories.put(group_rows, group.directories)
    columns: dict[str, pa.Array] = {
        "partition_id": pa.array(indexes),
        "topic_id": uuid_column(topics),
        "leader": leader.column(),
        "leader_recovery_state": recovery.column(),
        "isr": isr.column(np.empty(0, np.int32), pa.array),
        "directories": directories.column(np.empty((0, 2), np.uint64), uuid_column),
    }
    fields = SCHEMAS[PartitionChangeRecord.type_name].body.fields
    return [
        columns[field.name].cast(column_type(field))
        if field.name in columns
        else pa.nulls(count, column_type(field))
        for field in fields
    ]


class _Some:
    """A column of numbers that only some rows have."""

    def __init__(self, count: int) -> None:
        self._values = np.zeros(count, np.int32)
        self._absent = np.ones(count, dtype=bool)

    def put(self, rows: Places, values: npt.NDArray[Any] | None) -> None:
        if values is not None:
            self._values[rows], self._absent[rows] = values, False

    def column(self) -> pa.Array:
        return pa.array(self._values, mask=self._absent)


class _Lists:
    """A column of lists that only some rows have. Lists of one `put` have the same length."""

    def __init__(self, count: int) -> None:
        self._lengths = np.zeros(count, np.int32)
        self._absent = np.ones(count, dtype=bool)
        self._parts: list[tuple[Places, npt.NDArray[Any]]] = []

    def put(self, rows: Places, values: npt.NDArray[Any] | None) -> None:
        """`values`: (rows, length), or (rows, length, words) for uuids."""
        if values is not None:
            self._lengths[rows], self._absent[rows] = values.shape[1], False
            self._parts.append((rows, values))

    def column(self, empty: npt.NDArray[Any], made: Callable[[npt.NDArray[Any]], pa.Array]) -> pa.Array:
        """`made` builds a column of all list members; `empty` has their type."""
        offsets = np.zeros(len(self._lengths) + 1, np.int32)
        np.cumsum(self._lengths, out=offsets[1:])
        members = np.empty((int(offsets[-1]), *empty.shape[1:]), empty.dtype)
        for at, values in self._parts:
            members[offsets[at][:, None] + np.arange(values.shape[1])] = values
        return pa.ListArray.from_arrays(pa.array(offsets), made(members), mask=pa.array(self._absent))


def partition_columns(frames: Frames, rows: Places) -> tuple[Places, Columns]:
    """The rows that could be decoded, ascending, and their own columns."""
    table = DirectoryTable()
    decoded, odd = decode_partitions(frames, rows, table)
    block, count = decoded.block, len(decoded.records)
    parts = [_odd(PartitionRecord.type_name, frames, rows[odd])]
    if count:
        width = decoded.replica_width
        replicas = block[LISTS : LISTS + width].T
        codes = block[LISTS + width : LISTS + 2 * width].T
        isr = block[LISTS + 2 * width :].T
        n_replicas, n_isr = block[N_REPLICAS], block[N_ISR]
        directories = padded_lists(codes, n_replicas)
        distinct = sorted(set(directories.values.to_numpy().tolist()))
        texts = pa.array([uuid_to_text(raw) for raw in table.ids(distinct)], pa.string())
        places = pa.array(np.searchsorted(np.array(distinct, dtype=np.int64), directories.values.to_numpy()))
        empty = pa.repeat(pa.scalar([], pa.list_(pa.int32())), count)
        has_directories = frames.versions[decoded.records] > 0
        by_name: dict[str, pa.Array] = {
            "partition_id": pa.array(block[INDEX]),
            "topic_id": uuid_column(decoded.topics),
            "replicas": padded_lists(replicas, n_replicas),
            "isr": padded_lists(isr, n_isr),
            "removing_replicas": empty,
            "adding_replicas": empty,
            "leader": pa.array(block[LEADER]),
            "leader_epoch": pa.array(block[LEADER_EPOCH]),
            "partition_epoch": pa.array(block[PARTITION_EPOCH]),
            "leader_recovery_state": pa.repeat(pa.scalar(0, pa.int32()), count),
            "directories": _without(
                pa.ListArray.from_arrays(directories.offsets, texts.take(places)), ~has_directories
            ),
        }
        fields = SCHEMAS[PartitionRecord.type_name].body.fields
        columns = [
            by_name[field.name].cast(column_type(field))
            if field.name in by_name
            else _default(field.default, count, column_type(field))
            for field in fields
        ]
        parts.append((decoded.records, columns))
    return _merged(PartitionRecord.type_name, parts)


def _without(lists: pa.Array, absent: Any) -> pa.Array:
    """Sets lists to empty where the record's version has no directories."""
    if not absent.any():
        return lists
    values = lists.to_pylist()
    return pa.array([[] if gone else value for value, gone in zip(values, absent, strict=True)], lists.type)


def _default(value: Any, count: int, kind: pa.DataType) -> pa.Array:
    if value is None:
        return pa.nulls(count, kind)
    return pa.repeat(pa.scalar(list(value) if isinstance(value, tuple) else value, kind), count)


def _odd(type_name: str, frames: Frames, odd: Places) -> tuple[Places, Columns]:
    kept, records = [], []
    for row in odd.tolist():
        start = int(frames.starts[row])
        try:
            records.append(decode(frames.data, start, start + int(frames.lengths[row]))[1])
        except RecordDecodeError:
            continue
        kept.append(row)
    return np.array(kept, dtype=np.int64), field_columns(type_name, records)


def _merged(type_name: str, parts: list[tuple[Places, Columns]]) -> tuple[Places, Columns]:
    """The parts as one, in row order."""
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return np.empty(0, dtype=np.int64), field_columns(type_name, [])
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part for part, _ in parts])
    order = np.argsort(rows, kind="stable")
    places = pa.array(order)
    columns = [
        pa.concat_arrays(list(column)).take(places)
        for column in zip(*[part for _, part in parts], strict=True)
    ]
    return rows[order], columns


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
    for part in wanted if is_control or key >= 0x80 else windows(wanted, CHUNK_ROWS):
        if isinstance(part, RecordBatch):
            yield from _one_by_one(type_name, piece, part, selection)
        else:
            yield from _together(type_name, piece, part, key, selection)


def _one_by_one(
    type_name: str, piece: Piece, batch: RecordBatch, selection: Selection
) -> Iterator[pa.RecordBatch]:
    try:
        decoded = decode_batch(batch, tolerant=True)
    except (RecordDecodeError, BatchError):
        return
    cls = SCHEMAS[type_name].body.cls
    selected = [
        at for at in decoded if isinstance(at.record, cls) and selection.wants(type_name, at.offset, at[1])
    ]
    if selected:
        yield _batch(
            type_name,
            piece,
            np.array([at.offset for at in selected], dtype=np.int64),
            [batch.header.leader_epoch] * len(selected),
            [at.timestamp_ms for at in selected],
            [at.version for at in selected],
            field_columns(type_name, [at.record for at in selected], secrets=selection.secrets),
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
    origin = [
        same(piece.cluster, count, pa.string()),
        same(piece.node_id, count, pa.int32()),
        same(piece.file, count, pa.string()),
        pa.array(offsets, pa.int64()),
        pa.array(epochs, pa.int32()),
        times(times_ms),
        pa.array(versions, pa.int32()),
    ]
    return pa.RecordBatch.from_arrays([*origin, *columns], schema=typed_schema(type_name))

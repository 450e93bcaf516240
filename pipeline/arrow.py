"""Records of a log as Arrow record batches: the wide view, and a typed table for each record type."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, cast

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
from metaquorum.metadata.records.batches import DecodedRecord, decode_batch
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.schema import (
    CONTROL_SCHEMAS,
    RECORD_SCHEMAS,
    SCHEMA_BY_API_KEY,
    RecordSchema,
)
from metaquorum.metadata.records.types import PartitionChangeRecord, PartitionRecord, UnknownRecord
from metaquorum.metadata.secrets import REDACTED, is_secret
from metaquorum.metadata.text.dump import frame_payloads, payload_texter
from metaquorum.pipeline.intervals.moments import MAX_TIME_MS
from metaquorum.pipeline.logs.damage import Dialect, log_damage
from metaquorum.pipeline.logs.pieces import Piece, Selection, read_piece, undamaged
from metaquorum.pipeline.logs.places import LogPlace
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.places import Places
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.uuids import uuid_to_text
from metaquorum.wire.schema import Field

# Fields of a record type as Arrow columns, by Kafka's types.

TIME_TYPE = pa.timestamp("us", tz="UTC")
CHUNK_ROWS = 16_384
"""Approximate number of rows in an Arrow batch."""

Longs = npt.NDArray[np.int64]


def times(values_ms: Sequence[int] | Longs) -> pa.Array:
    """Unix ms as timestamps; null for values that are not a time (before 1970, after 9999)."""
    at = np.asarray(values_ms, dtype=np.int64)
    wrong = (at < 0) | (at > MAX_TIME_MS)
    return pa.array(np.where(wrong, 0, at) * 1000, mask=wrong if wrong.any() else None).cast(TIME_TYPE)


def same(value: Any, count: int, kind: pa.DataType) -> pa.Array:
    """A column with one value in every row."""
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def uuid_column(words: npt.NDArray[np.uint64]) -> pa.Array:
    """Uuids as text, from two native words each: (rows, 2)."""
    raw = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(words), [None, pa.py_buffer(np.ascontiguousarray(words))]
    )
    found = raw.dictionary_encode()
    return pa.array(list(map(uuid_to_text, found.dictionary.to_pylist())), pa.string()).take(found.indices)


def padded_lists(values: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]) -> pa.Array:
    """Lists of different lengths from a padded array (rows, longest list): of each
    row, the first `lengths`."""
    mask = np.arange(values.shape[1]) < lengths[:, None]
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[mask]))


_PLAIN = {
    "bool": pa.bool_(),
    "int8": pa.int32(),
    "int16": pa.int32(),
    "uint16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "uuid": pa.string(),
}
PLACE_COLUMNS: tuple[tuple[str, pa.DataType], ...] = (
    ("cluster", pa.string()),
    ("node_id", pa.int32()),
    ("file", pa.string()),
    ("offset", pa.int64()),
    ("epoch", pa.int32()),
    ("timestamp", TIME_TYPE),
    ("version", pa.int32()),
)
"""The columns before a record type's own."""
_TAKEN = {name for name, _ in PLACE_COLUMNS}
SCHEMAS: dict[str, RecordSchema] = {
    schema.type_name: schema for schema in [*RECORD_SCHEMAS, *CONTROL_SCHEMAS]
}


def column_name(field: Field) -> str:
    """The field's name in snake case, with the prefix `record_` if a place column has that name."""
    return f"record_{field.name}" if field.name in _TAKEN else field.name


def column_type(field: Field) -> pa.DataType:
    if field.struct is not None:
        element = pa.struct([(inner.name, column_type(inner)) for inner in field.struct.fields])
    else:
        element = _PLAIN[field.element_type]
    return pa.list_(element) if field.is_array else element


def converter(field: Field) -> Callable[[Any], Any] | None:
    """The function that converts a field's values for Arrow; None if they need no conversion."""
    inside: Callable[[Any], Any] | None = None
    if field.struct is not None:
        parts = [(inner.name, converter(inner)) for inner in field.struct.fields]

        def as_dict(value: Any) -> dict[str, Any]:
            return {name: _converted(convert, getattr(value, name)) for name, convert in parts}

        inside = as_dict
    elif field.element_type == "uuid":
        inside = uuid_to_text
    if inside is None or not field.is_array:
        return inside
    element = inside
    return lambda values: [element(value) for value in values]


def _converted(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def typed_schema(type_name: str) -> pa.Schema:
    """The columns of a record type's table."""
    body = SCHEMAS[type_name].body
    own = [(column_name(field), column_type(field)) for field in body.fields]
    return pa.schema([*PLACE_COLUMNS, *own])


def field_columns(type_name: str, records: list[Any], *, secrets: bool = False) -> list[pa.Array]:
    """The own columns of records of one type. Secrets are `(redacted)` in texts and null in other columns."""
    columns = []
    for field in SCHEMAS[type_name].body.fields:
        convert = converter(field)
        values = [getattr(record, field.name) for record in records]
        if field.secret and not secrets:
            hidden = REDACTED if field.type == "string" else None
            values = [
                hidden if value is not None and is_secret(field.secret, record) else value
                for value, record in zip(values, records, strict=True)
            ]
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        columns.append(pa.array(values, column_type(field)))
    return columns


# Typed tables: a column for each field of one record type.
#
# Many batches are read as one window, so that small ones are decoded together.

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


# All Arrow tables of the data source, by the option `type`: the wide view, typed tables, damage.

ALL, DAMAGE = "all", "damage"
DAMAGE_SCHEMA = pa.schema(
    [
        ("cluster", pa.string()),
        ("node_id", pa.int32()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("offset", pa.int64()),
        ("kind", pa.string()),
        ("reason", pa.string()),
    ]
)


def arrow_schema_of(type_name: str) -> pa.Schema:
    """The columns of `all`, `damage` or a record type."""
    if type_name == ALL:
        return WIDE_SCHEMA
    return DAMAGE_SCHEMA if type_name == DAMAGE else typed_schema(type_name)


def record_batches(
    type_name: str, piece: Piece, selection: Selection, *, whole_to: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of a piece, as the wide view or as one type's table. `whole_to`: raises DamagedError for
    damage before that offset, which is otherwise left out."""
    items = read_piece(StoreDisk(), piece)
    if whole_to is not None:
        items = undamaged(items, piece.from_offset or piece.offset or 0, whole_to)
    wanted = (item for item in items if isinstance(item, Damage) or selection.may_hold(item.header))
    bounded = _within(piece, selection)
    if type_name == ALL:
        yield from wide_batches(piece, wanted, bounded)
    else:
        yield from typed_batches(type_name, piece, wanted, bounded)


def _within(piece: Piece, selection: Selection) -> Selection:
    """The selection, limited to the piece's range of offsets."""
    low = [at for at in (selection.from_offset, piece.from_offset) if at is not None]
    high = [at for at in (selection.to_offset,) if at is not None]
    high += [piece.to_offset - 1] if piece.to_offset is not None else []
    return Selection(
        types=selection.types,
        from_ms=selection.from_ms,
        to_ms=selection.to_ms,
        from_offset=max(low) if low else None,
        to_offset=min(high) if high else None,
        secrets=selection.secrets,
    )


def damage_batches(location: LogPlace, dialect: Dialect | None) -> Iterator[pa.RecordBatch]:
    """The damage of one log."""
    rows = list(log_damage(StoreDisk(), location, dialect))
    count = len(rows)
    if count:
        columns = [
            same(location.cluster, count, pa.string()),
            same(location.node_id, count, pa.int32()),
            pa.array([row.file for row in rows], pa.string()),
            pa.array([row.position for row in rows], pa.int64()),
            pa.array([row.offset for row in rows], pa.int64()),
            pa.array([row.kind for row in rows], pa.string()),
            pa.array([row.reason for row in rows], pa.string()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=DAMAGE_SCHEMA)


WIDE_SCHEMA = pa.schema(
    [
        ("cluster", pa.string()),
        ("node_id", pa.int32()),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("epoch", pa.int32()),
        ("timestamp", TIME_TYPE),
        ("type", pa.string()),
        ("version", pa.int32()),
        ("control", pa.bool_()),
        ("payload", pa.string()),
    ]
)


@cache
def _type_name(key: int, version: int) -> str:
    """The name of a record type from its api key; for unknown ones, with the numbers."""
    schema = SCHEMA_BY_API_KEY.get(key)
    return UnknownRecord.type_name if schema is None or version not in schema.versions else schema.type_name


class _Rows:
    """Columns under construction."""

    def __init__(self, piece: Piece, secrets: bool) -> None:
        self._piece = piece
        self._secrets = secrets
        self._clear()

    def _clear(self) -> None:
        self.offsets: list[int] = []
        self.epochs: list[int] = []
        self.times_ms: list[int] = []
        self.types: list[str] = []
        self.versions: list[int] = []
        self.controls: list[bool] = []
        self.payloads: list[str] = []

    def add(self, batch: RecordBatch, records: Iterable[DecodedRecord]) -> None:
        last: Any = None
        before = len(self.offsets)
        for offset, timestamp_ms, version, record in records:
            self.offsets.append(offset)
            self.times_ms.append(timestamp_ms)
            self.types.append(record.type_name)
            self.versions.append(version)
            kind = (record.__class__, version)
            if kind != last:
                last, text = kind, payload_texter(cast(Hashable, kind[0]), version, self._secrets)
            self.payloads.append(f"{{{text(record)}}}")
        added = len(self.offsets) - before
        self.epochs += [batch.header.leader_epoch] * added
        self.controls += [batch.header.is_control] * added

    def add_window(self, window: BatchWindow) -> None:
        """Adds all records of several batches. Raises RecordDecodeError, then without adding any."""
        frames, batches = window.frames, window.batches
        texts, _ = frame_payloads(frames, secrets=self._secrets)
        versions = frames.versions.tolist()
        self.offsets += window.offsets().tolist()
        self.epochs += window.each([at.header.leader_epoch for at in batches]).tolist()
        self.times_ms += window.each([at.header.max_timestamp_ms for at in batches]).tolist()
        self.types += map(_type_name, frames.keys.tolist(), versions)
        self.versions += versions
        self.controls += [False] * len(texts)
        self.payloads += [f"{{{text}}}" for text in texts]

    def take(self) -> pa.RecordBatch:
        piece, count = self._piece, len(self.offsets)
        columns = [
            same(piece.cluster, count, pa.string()),
            same(piece.node_id, count, pa.int32()),
            same(piece.file, count, pa.string()),
            pa.array(self.offsets, pa.int64()),
            pa.array(self.epochs, pa.int32()),
            times(self.times_ms),
            pa.array(self.types, pa.string()),
            pa.array(self.versions, pa.int32()),
            pa.array(self.controls, pa.bool_()),
            pa.array(self.payloads, pa.string()),
        ]
        self._clear()
        return pa.RecordBatch.from_arrays(columns, schema=WIDE_SCHEMA)


def wide_batches(
    piece: Piece, items: Iterable[RecordBatch | Damage], selection: Selection
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the piece's selected records. Leaves out what is damaged or cannot be
    decoded: the damage table has it."""
    rows = _Rows(piece, selection.secrets)
    wanted = (item for item in items if not isinstance(item, Damage) and selection.may_hold(item.header))
    for found in windows(wanted) if selection.wants_all else wanted:
        _add(rows, found, selection)
        if len(rows.offsets) >= CHUNK_ROWS:
            yield rows.take()
    if rows.offsets:
        yield rows.take()


def _add(rows: _Rows, batches: BatchWindow | RecordBatch, selection: Selection) -> None:
    try:
        if isinstance(batches, BatchWindow):
            rows.add_window(batches)
        else:
            records = decode_batch(batches, tolerant=True)
            rows.add(
                batches, [at for at in records if selection.wants(at.record.type_name, at.offset, at[1])]
            )
    except (RecordDecodeError, BatchError):
        if isinstance(batches, BatchWindow):  # one of its batches has a record that cannot be decoded
            for batch in batches.batches:
                _add(rows, batch, selection)

"""All Arrow tables of the data source, by the option `type`: the wide view, typed tables, damage."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from typing import Any, cast

import pyarrow as pa

from metaquorum.metadata.columnar.windows import BatchWindow, windows
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.records.batches import DecodedRecord, decode_batch
from metaquorum.metadata.records.schema import SCHEMA_BY_API_KEY
from metaquorum.metadata.records.types import UnknownRecord
from metaquorum.metadata.text.dump import frame_payloads, payload_texter
from metaquorum.pipeline.arrow.fields import CHUNK_ROWS, TIME_TYPE, same, times, typed_schema
from metaquorum.pipeline.arrow.typed import typed_batches
from metaquorum.pipeline.logs.damage import Dialect, log_damage
from metaquorum.pipeline.logs.pieces import Piece, read_piece, undamaged
from metaquorum.pipeline.logs.places import LogPlace
from metaquorum.pipeline.logs.selection import Selection
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.reader import Damage

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

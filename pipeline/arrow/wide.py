"""The wide view: every record with its payload as JSON, as `metaquorum log dump --json` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.records.batches import DecodedRecord, decode_batch
from metaquorum.metadata.text.dump import payload_json
from metaquorum.pipeline.arrow.base import CHUNK_ROWS, TIME_TYPE, same, times
from metaquorum.pipeline.logs.pieces import Piece
from metaquorum.pipeline.logs.selection import Selection
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.reader import Damage

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
_encode = msgspec.json.Encoder().encode


class _Rows:
    """Columns that grow."""

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
        self.payloads: list[bytes] = []

    def add(self, batch: RecordBatch, records: Iterable[DecodedRecord]) -> None:
        epoch, control = batch.header.leader_epoch, batch.header.is_control
        before = len(self.offsets)
        for offset, timestamp_ms, version, record in records:
            self.offsets.append(offset)
            self.times_ms.append(timestamp_ms)
            self.types.append(record.type_name)
            self.versions.append(version)
            self.payloads.append(_encode(payload_json(record, version, secrets=self._secrets)))
        added = len(self.offsets) - before
        self.epochs += [epoch] * added
        self.controls += [control] * added

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
    """Arrow batches of the piece's wanted records. What is damaged or cannot be decoded is left out: the
    damage table tells of it."""
    rows = _Rows(piece, selection.secrets)
    for item in items:
        if isinstance(item, Damage) or not selection.may_hold(item.header):
            continue
        try:
            records = decode_batch(item, tolerant=True)
        except (RecordDecodeError, BatchError):
            continue
        if selection.wants_all:
            rows.add(item, records)
        else:
            rows.add(item, [at for at in records if selection.wants(at.record.type_name, at.offset, at[1])])
        if len(rows.offsets) >= CHUNK_ROWS:
            yield rows.take()
    if rows.offsets:
        yield rows.take()

"""Arrow tables against the records themselves: wide and typed, column-wise and one by one."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from metaquorum.metadata.records.batches import DecodedRecord, decode_batch
from metaquorum.metadata.text.dump import payload_json
from metaquorum.pipeline.arrow import (
    PLACE_COLUMNS,
    SCHEMAS,
    arrow_schema_of,
    field_columns,
    record_batches,
    typed_schema,
)
from metaquorum.pipeline.logs.pieces import TYPE_NAMES, Piece, Selection, type_named
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.reader import LogReader
from metaquorum.storage.uuids import uuid_to_text

pytestmark = pytest.mark.shared_data
LOGS = ("kafka-3.7/controller-3000", "kafka-3.7/all-records", "kraft-wild", "kafka-3.7/upgrade")


def files(root: Path) -> list[Path]:
    return sorted(path for folder in LOGS for path in (root / folder).rglob("*.log"))


@lru_cache(maxsize=64)
def decoded(file: Path) -> list[tuple[RecordBatch, DecodedRecord]]:
    reader = LogReader(PosixDisk(), str(file), tolerant=True)
    return [
        (batch, record)
        for batch in reader
        if isinstance(batch, RecordBatch)
        for record in decode_batch(batch, tolerant=True)
    ]


def rows(kind: str, file: Path, selection: Selection | None = None) -> list[dict[str, Any]]:
    piece = Piece(cluster="c", node_id=7, file=str(file))
    schema = arrow_schema_of(kind)
    found = list(record_batches(kind, piece, selection or Selection()))
    assert all(batch.schema == schema for batch in found)
    return pa.Table.from_batches(found, schema).to_pylist()


def test_the_wide_view_has_every_record_with_its_payload(shared_data: Path) -> None:
    for file in files(shared_data):
        expected = decoded(file)
        found = rows("all", file)
        assert [row["offset"] for row in found] == [record.offset for _, record in expected]
        for row, (batch, record) in zip(found, expected, strict=True):
            assert row["epoch"] == batch.header.leader_epoch
            assert row["control"] == batch.header.is_control
            assert row["type"] == record.record.type_name
            payload = msgspec.to_builtins(payload_json(record.record, record.version))
            assert json.loads(row["payload"]) == json.loads(msgspec.json.encode(payload))


@pytest.mark.parametrize("kind", sorted(SCHEMAS))
def test_a_typed_table_says_what_the_records_say(shared_data: Path, kind: str) -> None:
    """The column-wise decoder of partition records among them, in windows over many batches."""
    cls = SCHEMAS[kind].body.cls
    for file in files(shared_data):
        expected = [(at, batch) for batch, at in decoded(file) if isinstance(at.record, cls)]
        found = rows(kind, file)
        assert [row["offset"] for row in found] == [at.offset for at, _ in expected]
        own = field_columns(kind, [at.record for at, _ in expected])
        names = typed_schema(kind).names[len(PLACE_COLUMNS) :]
        for name, column in zip(names, own, strict=True):
            assert [row[name] for row in found] == column.to_pylist(), (file, name)
        assert [row["version"] for row in found] == [at.version for at, _ in expected]
        assert [row["epoch"] for row in found] == [batch.header.leader_epoch for _, batch in expected]


def test_uuids_are_text_and_absent_fields_are_null(shared_data: Path) -> None:
    file = shared_data / "kafka-3.7/controller-3000/__cluster_metadata-0/00000000000000000000.log"
    (change,) = [row for row in rows("PARTITION_CHANGE_RECORD", file) if row["offset"] == 63]
    record = next(at.record for _, at in decoded(file) if at.offset == 63)
    assert change["topic_id"] == uuid_to_text(record.topic_id)
    assert change["directories"] == [uuid_to_text(at) for at in record.directories]
    assert change["isr"] is None
    assert change["leader"] is None


def test_selections_bound_offset_time_and_type(shared_data: Path) -> None:
    file = shared_data / "kafka-3.7/controller-3000/__cluster_metadata-0/00000000000000000000.log"
    everything = rows("all", file)
    some = rows(
        "all", file, Selection(from_offset=100, to_offset=300, types=("TOPIC_RECORD", "CONFIG_RECORD"))
    )
    assert some == [
        row
        for row in everything
        if 100 <= row["offset"] <= 300 and row["type"] in ("TOPIC_RECORD", "CONFIG_RECORD")
    ]
    middle = everything[500]["timestamp"]
    at_ms = round(middle.timestamp() * 1000)
    assert rows("all", file, Selection(from_ms=at_ms)) == [
        row for row in everything if row["timestamp"] >= middle
    ]
    assert rows("all", file, Selection(to_ms=at_ms)) == [
        row for row in everything if row["timestamp"] <= middle
    ]
    changes = rows("PARTITION_CHANGE_RECORD", file, Selection(from_offset=100, to_offset=300))
    assert changes
    assert all(100 <= row["offset"] <= 300 for row in changes)


def test_types_go_by_short_names() -> None:
    assert type_named("partition-change") == "PARTITION_CHANGE_RECORD"
    assert {type_named(name.lower()) for name in TYPE_NAMES} == set(TYPE_NAMES)
    with pytest.raises(ValueError, match="did you mean TOPIC_RECORD"):
        type_named("tpoic")

"""Logs that a test writes down, fed to ClusterReplay, and rows by column name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.metadata.records.control import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderVoter,
    VotersRecord,
)
from metaquorum.metadata.records.schema import SCHEMA_BY_CLASS
from metaquorum.pipeline.intervals import ClusterReplay
from metaquorum.pipeline.tables import PARTITION_COLUMNS, TABLES
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, iter_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.reader import LogReader

ORDERS, PAYMENTS = bytes(range(16)), bytes(range(16, 32))
DIR_A, DIR_B, DIR_C = b"A" * 16, b"B" * 16, b"C" * 16
DAY_MS = 86_400_000
START_MS = 20_000 * DAY_MS

Line = tuple[int, Sequence[object]]
"""Milliseconds since START_MS, and the records of one batch."""


def leads(node_id: int) -> LeaderChangeMessage:
    return LeaderChangeMessage(node_id, (LeaderVoter(3000), LeaderVoter(3001)), (LeaderVoter(node_id),))


def broker(
    broker_id: int, epoch: int, *, rack: str | None = None, dirs: tuple[bytes, ...] = ()
) -> r.BrokerRecord:
    return r.BrokerRecord(broker_id, bytes([broker_id]) * 16, epoch, rack=rack, log_dirs=dirs)


def alive(broker_id: int, epoch: int) -> r.BrokerRegistrationChangeRecord:
    return r.BrokerRegistrationChangeRecord(broker_id, epoch, fenced=-1)


def fence(broker_id: int, epoch: int) -> r.BrokerRegistrationChangeRecord:
    return r.BrokerRegistrationChangeRecord(broker_id, epoch, fenced=1)


def partition(index: int, replicas: tuple[int, ...], topic: bytes = ORDERS) -> r.PartitionRecord:
    return r.PartitionRecord(
        index,
        topic,
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=(DIR_A, DIR_C, DIR_C)[: len(replicas)],
    )


def change(index: int = 0, topic: bytes = ORDERS, **fields: Any) -> r.PartitionChangeRecord:
    return r.PartitionChangeRecord(index, topic, **fields)


def batches(lines: Sequence[Line], epochs: Sequence[int] | None = None) -> list[RecordBatch]:
    """One batch a line, in epoch 1 or those given."""
    data, offset = [], 0
    for number, (at_ms, records) in enumerate(lines):
        control = isinstance(records[0], LeaderChangeMessage | KRaftVersionRecord | VotersRecord)
        pairs = [encode_control(one) for one in records] if control else []  # type: ignore[arg-type]
        values = [value for _, value in pairs] or [
            encode(one, SCHEMA_BY_CLASS[type(one)].latest_version)  # type: ignore[arg-type]
            for one in records
        ]
        data.append(
            encode_batch(
                base_offset=offset,
                leader_epoch=epochs[number] if epochs else 1,
                timestamp_ms=START_MS + at_ms,
                values=values,
                keys=[key for key, _ in pairs] or None,
                is_control=control,
            )
        )
        offset += len(records)
    return list(iter_batches(b"".join(data), file="made.log"))


def read_log(path: Path) -> list[RecordBatch]:
    reader = LogReader(PosixDisk(), str(path), tolerant=True)
    try:
        return [item for item in reader if isinstance(item, RecordBatch)]
    finally:
        reader.close()


def feed(replay: ClusterReplay, given: Sequence[RecordBatch]) -> ClusterReplay:
    for batch in given:
        replay.batch(batch, decode_batch(batch, tolerant=True))
    return replay


def replayed(given: Sequence[RecordBatch], **options: Any) -> ClusterReplay:
    return feed(ClusterReplay("made", log_end=given[-1].header.next_offset, **options), given)


def named(table: str, rows: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Rows as dicts by column name."""
    names = [column.name for column in TABLES[table].columns if column.name not in PARTITION_COLUMNS]
    return [dict(zip(names, row, strict=True)) for row in rows]


def tables_of(replay: ClusterReplay) -> dict[str, list[tuple[Any, ...]]]:
    """Every row, final or not, sorted so that two replays can be compared."""
    tables = replay.final_rows()
    for table, rows in replay.provisional_rows().items():
        tables[table] = [*tables.get(table, []), *rows]
    tables["availability"] = [(day, *row) for day, row in replay.availability_rows()]
    return {table: sorted(_plain(rows), key=repr) for table, rows in tables.items()}


def _plain(rows: Any) -> Any:
    """Lists as tuples: what was saved and loaded comes back as either."""
    if isinstance(rows, list):
        return [_tuple(row) for row in rows]
    return rows


def _tuple(value: Any) -> Any:
    return tuple(_tuple(item) for item in value) if isinstance(value, list | tuple) else value


def told(given: Sequence[RecordBatch], table: str) -> list[dict[str, Any]]:
    """The rows of one table, in order of their offsets."""
    rows = named(table, tables_of(replayed(given))[table])
    return sorted(rows, key=lambda row: (row.get("from_offset", row.get("offset")), str(row)))

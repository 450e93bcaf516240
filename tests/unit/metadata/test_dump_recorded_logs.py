"""Recorded logs: our records equal Kafka's dump field by field, and writing them again gives their bytes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from metaquorum.metadata.features import METADATA_VERSION, METADATA_VERSION_NAMES, write_version
from metaquorum.metadata.records import codec
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.types import FeatureLevelRecord, Record
from metaquorum.metadata.text.dump import payload_json
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, iter_batches, parse_header

pytestmark = pytest.mark.shared_data

ODDITIES = "synthetic-oddities"

BATCH_LINE = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) lastSequence: (-?\d+) "
    r"producerId: (-?\d+) producerEpoch: (-?\d+) partitionLeaderEpoch: (-?\d+) isTransactional: (\w+) "
    r"isControl: (\w+) deleteHorizonMs: OptionalLong\.empty position: (\d+) CreateTime: (-?\d+) size: (\d+) "
    r"magic: (\d+) compresscodec: none crc: (\d+) isvalid: true"
)
RECORD_LINE = re.compile(
    r"\| offset: (\d+) CreateTime: (-?\d+) keySize: (-?\d+) valueSize: (\d+) "
    r"sequence: -1 headerKeys: \[\] (.*)"
)


def _log_files(root: Path) -> list[Path]:
    """Of metadata logs: brokers' directories of partitions are recorded too."""
    return sorted(
        path
        for path in root.rglob("*")
        if path.suffix in (".log", ".checkpoint")
        and ("kafka-3.7-wire" not in path.parts or "__cluster_metadata-0" in path.parts)
    )


def _batches(path: Path) -> Iterator[RecordBatch]:
    """Every batch; of the oddities the headers as they are, for no strict reader accepts them."""
    data = path.read_bytes()
    if ODDITIES not in path.parts:
        yield from iter_batches(data, file=path.name)
        return
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        yield RecordBatch(header, data[position : position + header.size_bytes], position, path.name)
        position += header.size_bytes


def _batch_fields(batch: RecordBatch) -> tuple[str, ...]:
    header = batch.header
    values = (
        *(header.base_offset, header.last_offset, header.records_count, header.base_sequence),
        *(header.base_sequence, header.producer_id, header.producer_epoch, header.leader_epoch),
        *(header.is_transactional, header.is_control, batch.position, header.max_timestamp_ms),
        *(header.size_bytes, header.magic, header.crc),
    )
    return tuple(str(value).lower() for value in values)


def test_every_golden_file_equals_kafkas_dump_field_by_field(shared_data: Path) -> None:
    files = _log_files(shared_data / "kafka-3.7")
    assert len(files) >= 28
    compared: Counter[str] = Counter()
    for path in files:
        dump = path.with_name(path.name + ".dump.txt").read_text("utf-8")
        lines = iter([line for line in dump.split("\n") if line.startswith(("baseOffset: ", "| offset: "))])
        for batch in _batches(path):
            line = next(lines)
            match = BATCH_LINE.fullmatch(line)
            assert match is not None, line
            assert match.groups() == _batch_fields(batch)
            for raw, decoded in zip(batch.records(), decode_batch(batch), strict=True):
                line = next(lines)
                match = RECORD_LINE.fullmatch(line)
                assert match is not None, line
                key_size = -1 if raw.key is None else len(raw.key)
                value_size = len(raw.value or b"")
                numbers = (decoded.offset, decoded.timestamp_ms, key_size, value_size)
                assert match.groups()[:4] == tuple(str(number) for number in numbers)
                shown = payload_json(decoded.record, decoded.version, secrets=True)
                _assert_payload(match.group(5), shown)
                compared[shown["type"]] += 1
        assert next(lines, None) is None, f"{path.name}: the dump has more than we read"
    assert compared.total() >= 9000
    assert len(compared) == 25 + 3


def _assert_payload(printed: str, shown: dict[str, object]) -> None:
    """Compare as text, so that the order of fields counts too."""
    if printed.startswith("payload: "):
        assert json.dumps(shown) == json.dumps(json.loads(printed.removeprefix("payload: ")))
    elif printed.startswith("Snapshot"):
        name, fields = printed.split(" ", 1)
        assert (shown["type"], shown["data"]) == (
            {"SnapshotHeader": "SNAPSHOT_HEADER", "SnapshotFooter": "SNAPSHOT_FOOTER"}[name],
            json.loads(fields),
        )
    else:
        assert (printed, shown["type"]) == ("controlType: LEADER_CHANGE(2)", "LEADER_CHANGE")


def test_every_record_of_every_file_is_written_to_the_byte(shared_data: Path) -> None:
    written: Counter[str] = Counter()
    for path in _log_files(shared_data):
        for batch in _batches(path):
            for raw, decoded in zip(batch.records(), decode_batch(batch), strict=True):
                if batch.header.is_control:
                    again = codec.encode_control(decoded.record)  # type: ignore[arg-type]
                else:
                    again = (None, codec.encode(decoded.record, decoded.version))  # type: ignore[arg-type]
                assert again == (raw.key, raw.value), f"{path.name} offset {raw.offset}"
                written[path.suffix] += 1
    assert written[".log"] >= 35_000
    assert written[".checkpoint"] >= 3_000


def test_batches_of_decoded_records_are_written_to_the_byte(shared_data: Path) -> None:
    """Headers and CRC included, for batches as our log writes them: one timestamp, no gaps."""
    whole = 0
    for path in _log_files(shared_data):
        if ODDITIES in path.parts:
            continue
        for batch in _batches(path):
            header = batch.header
            if header.base_timestamp_ms != header.max_timestamp_ms:
                continue
            decoded = decode_batch(batch)
            if header.is_control:
                pairs = [codec.encode_control(item.record) for item in decoded]  # type: ignore[arg-type]
                keys, values = [key for key, _ in pairs], [value for _, value in pairs]
            else:
                keys = None
                values = [codec.encode(item.record, item.version) for item in decoded]  # type: ignore[arg-type]
            again = encode_batch(
                base_offset=header.base_offset,
                leader_epoch=header.leader_epoch,
                timestamp_ms=header.base_timestamp_ms,
                values=values,
                keys=keys,
                is_control=header.is_control,
            )
            assert again == batch.data, f"{path.name} offset {header.base_offset}"
            whole += 1
    assert whole >= 30_000


def test_all_records_file_holds_what_its_list_says(shared_data: Path) -> None:
    folder = shared_data / "kafka-3.7" / "all-records"
    rows = [json.loads(line) for line in (folder / "all-records.jsonl").read_text("utf-8").splitlines()]
    logged = [raw for batch in _batches(folder / f"{0:020d}.log") for raw in batch.records()]
    assert len(rows) == len(logged) == 514
    for row, raw in zip(rows, logged, strict=True):
        value = bytes.fromhex(row["valueHex"])
        assert (row["offset"], value) == (raw.offset, raw.value)
        if row["apiKey"] is None:
            control = codec.decode_control(bytes.fromhex(row["keyHex"]), value)
            assert codec.encode_control(control) == (raw.key, value)
            kept = control.unknown_tags
        else:
            version, record = codec.decode(value)
            assert (record.api_key, version) == (row["apiKey"], row["version"])
            assert codec.encode(record, version) == value
            kept = record.unknown_tags
        assert bool(kept) == ("unknown-tag" in row["variant"])


def test_the_version_that_kafka_wrote_at_each_level_is_the_one_we_would_write(shared_data: Path) -> None:
    agreed: Counter[tuple[str, int]] = Counter()
    kinds = get_args(Record)
    for path in _log_files(shared_data):
        if ODDITIES in path.parts or "all-records" in path.parts:
            continue
        level: int | None = None
        for decoded in (decoded for batch in _batches(path) for decoded in decode_batch(batch)):
            record = decoded.record
            if isinstance(record, FeatureLevelRecord) and record.name == METADATA_VERSION:
                level = record.feature_level
            if level in METADATA_VERSION_NAMES and isinstance(record, kinds):
                assert write_version(record, level) == decoded.version, f"{path.name} {decoded}"
                agreed[record.type_name, level] += 1
    assert agreed.total() >= 30_000
    assert {level for _, level in agreed} >= {7, 8, 11, 12, 14, 19, 25}

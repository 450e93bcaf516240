"""Records of internal topics: the bytes that Apache Kafka stored come back as they were."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from metaquorum.storage.batches.batch import RecordBatch, parse_header
from metaquorum.wire.errors import DecodeError, EncodeError
from metaquorum.wire.messages import (
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
)
from metaquorum.wire.stored import StoredRecord, decode_stored, encode_stored, stored_types

TOPICS = ("__consumer_offsets", "__transaction_state")


def records_of(path: Path) -> list[tuple[bytes, bytes | None]]:
    data = path.read_bytes()
    found: list[tuple[bytes, bytes | None]] = []
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        batch = RecordBatch(header, data[position : position + header.size_bytes])
        position += header.size_bytes
        if not header.is_control:
            found += [(record.key or b"", record.value) for record in batch.records()]
    return found


@pytest.mark.shared_data
def test_every_record_that_kafka_stored_is_decoded_and_encoded_to_its_bytes(shared_data: Path) -> None:
    logs = shared_data / "kafka-3.7-wire" / "logs"
    seen: Counter[str] = Counter()
    for topic in TOPICS:
        for path in sorted(logs.glob(f"*/**/{topic}-*/*.log")):
            for key, value in records_of(path):
                record = decode_stored(topic, key, value)
                assert record is not None
                assert encode_stored(record) == (key, value)
                seen[f"{type(record.key).__name__} {'none' if value is None else record.value_version}"] += 1
    assert seen == {
        "OffsetCommitKey 3": 323,
        "OffsetCommitKey none": 20,
        "GroupMetadataKey 3": 96,
        "GroupMetadataKey none": 9,
        "TransactionLogKey 0": 246,
    }


@pytest.mark.parametrize("kind", stored_types(), ids=lambda kind: str(kind.name))
def test_every_version_of_a_default_record_comes_back(kind: object) -> None:
    found = next(each for each in stored_types() if each is kind)
    for key_version in found.key_versions:
        for version in found.value_versions:
            record = StoredRecord(found.key.cls(), found.value.cls(), key_version, version)
            assert decode_stored(found.topic, *encode_stored(record)) == record


@pytest.mark.parametrize("text", ["x" * 2**15, "\ud800"], ids=["too long", "no text"])
def test_text_that_no_key_can_carry_is_refused(text: str) -> None:
    for kind in stored_types():
        for field in (each for each in kind.key.fields if each.type == "string"):
            for version in kind.key_versions:
                record = StoredRecord(kind.key.cls(**{field.name: text}), None, version)
                with pytest.raises(EncodeError, match=f"{kind.key.name} version {version}: "):
                    encode_stored(record)


def test_versions_that_cannot_carry_a_field_leave_it_out() -> None:
    value = OffsetCommitValue(offset=5, leader_epoch=3, metadata="m", commit_timestamp=9, expire_timestamp=11)
    key = OffsetCommitKey(group="g", topic="t", partition=1)
    for version, epoch, expires in ((0, -1, -1), (1, -1, 11), (2, -1, -1), (3, 3, -1), (4, 3, -1)):
        found = decode_stored("__consumer_offsets", *encode_stored(StoredRecord(key, value, 1, version)))
        assert found is not None
        assert (found.value.leader_epoch, found.value.expire_timestamp) == (epoch, expires)


def test_types_are_those_of_their_topic() -> None:
    record = StoredRecord(TransactionLogKey(transactional_id="x"), TransactionLogValue(), 0)
    key, value = encode_stored(record)
    assert decode_stored("__transaction_state", key, value) == record
    with pytest.raises(DecodeError, match="OffsetCommitKey version 0"):
        decode_stored("__consumer_offsets", key, value)


def test_what_is_no_such_record_is_named() -> None:
    assert decode_stored("__consumer_offsets", b"\x00\x63", b"") is None
    with pytest.raises(DecodeError, match="must begin with a version"):
        decode_stored("__consumer_offsets", b"\0", None)
    key, value = encode_stored(
        StoredRecord(
            OffsetCommitKey(group="g"), OffsetCommitValue(metadata="m"), key_version=1, value_version=3
        )
    )
    assert value is not None
    with pytest.raises(
        DecodeError, match="OffsetCommitValue version 9 is unknown; this release reads 0 to 4"
    ):
        decode_stored("__consumer_offsets", key, b"\0\x09" + value[2:])
    with pytest.raises(DecodeError, match="OffsetCommitValue version 3 ends at byte"):
        decode_stored("__consumer_offsets", key, value + b"\0")
    with pytest.raises(DecodeError, match="OffsetCommitValue version 3"):
        decode_stored("__consumer_offsets", key, value[:-3])


def test_what_does_not_fit_its_field_is_named() -> None:
    key = OffsetCommitKey(group="g")
    with pytest.raises(EncodeError, match=r"OffsetCommitValue version 3: offset is .*, not a number"):
        encode_stored(StoredRecord(key, OffsetCommitValue(offset=2**63), 1, 3))
    with pytest.raises(EncodeError, match="has no version 5; write 0 to 4"):
        encode_stored(StoredRecord(key, OffsetCommitValue(), 1, 5))
    with pytest.raises(EncodeError, match="TransactionLogValue does not belong to OffsetCommitKey"):
        encode_stored(StoredRecord(key, TransactionLogValue(), 1, 0))

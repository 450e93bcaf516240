"""What a client may write to an internal topic: only what the coordinators can read, and deletions."""

from __future__ import annotations

import pytest

from metaquorum.broker.server.kafka.opening import unreadable
from metaquorum.metadata.errors import ErrorCode
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, parse_header
from metaquorum.wire.messages import (
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
)
from metaquorum.wire.stored import StoredRecord, encode_stored

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
COMMIT = encode_stored(
    StoredRecord(
        OffsetCommitKey(group="g", topic="t", partition=0),
        OffsetCommitValue(offset=1, metadata="", commit_timestamp=1),
        key_version=1,
        value_version=3,
    )
)


def transaction(status: int) -> tuple[bytes, bytes | None]:
    value = TransactionLogValue(
        producer_id=1,
        producer_epoch=0,
        transaction_timeout_ms=1,
        transaction_status=status,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=1,
        transaction_start_timestamp_ms=1,
    )
    return encode_stored(StoredRecord(TransactionLogKey(transactional_id="x"), value, 0, 0))


def batch(key: bytes | None, value: bytes | None) -> RecordBatch:
    data = encode_batch(
        base_offset=0,
        leader_epoch=0,
        timestamp_ms=0,
        keys=[COMMIT[0], key],
        values=[COMMIT[1], value],
    )
    return RecordBatch(parse_header(data), data)


@pytest.mark.parametrize(
    ("topic", "key", "value", "text"),
    [
        (OFFSETS, *COMMIT, None),
        (OFFSETS, COMMIT[0], None, None),
        (OFFSETS, b"\0\1\0", None, None),
        (OFFSETS, b"\0\1\0", COMMIT[1], "OffsetCommitKey version 1"),
        (OFFSETS, None, COMMIT[1], "it has no key"),
        (OFFSETS, b"\0\x63x", COMMIT[1], "does not know records with such a key"),
        (OFFSETS, COMMIT[0], b"\0\x09", "version 9 is unknown"),
        (OFFSETS, COMMIT[0], b"\0\3", "OffsetCommitValue version 3"),
        (OFFSETS, COMMIT[0], b"", "must begin with a version"),
        (TRANSACTIONS, *transaction(1), None),
        (TRANSACTIONS, *transaction(99), "99 is not the status of a transaction"),
    ],
)
def test_a_record_that_no_coordinator_can_read_is_refused(
    topic: str, key: bytes | None, value: bytes | None, text: str | None
) -> None:
    found = batch(key, value)
    if topic == TRANSACTIONS:
        data = encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=0, keys=[key], values=[value])
        found = RecordBatch(parse_header(data), data)
    refusal = unreadable(topic, found)
    if text is None:
        assert refusal is None
        return
    assert refusal is not None and refusal.error is ErrorCode.INVALID_RECORD
    assert text in refusal.message and "use another topic" in refusal.message
    assert len(refusal.records) == 1

"""What a leader requires of a producer's batch, and the batch in the form in which it is stored.

Owns the rules of one batch's header, its place in the log, and the texts of refusals; knows no partition and
no other batch. The rules of its records are `opened`'s.
"""

from __future__ import annotations

from crc32c import crc32c

from metaquorum.broker.replica.partition.opened import NO_TIMESTAMP, OpenedBatch, open_batch
from metaquorum.broker.replica.partition.values import BatchRefusal
from metaquorum.broker.replica.topic_settings import TopicSettings
from metaquorum.metadata.errors import ErrorCode
from metaquorum.storage.batches.format import (
    CRC_START,
    HEADER_BYTES,
    HEADER_STRUCT,
    LOG_APPEND_TIME,
    MAGIC,
    BatchHeader,
    Compression,
    parse_header,
)
from metaquorum.storage.batches.parsed import Batches

_KNOWN_ATTRIBUTES = 0x3F
_MAGIC_AT = 16
_LAST_COMPRESSION = max(Compression)


def check_batch(
    batch: Batches, settings: TopicSettings, *, by_coordinator: bool = False, wall_ms: int
) -> OpenedBatch | BatchRefusal:
    """The batch that arrived, if it may be appended judging by the batch alone. `by_coordinator`:
    a coordinator of this cluster made it.

    Refused with MESSAGE_TOO_LARGE, CORRUPT_MESSAGE (the CRC does not match: send it again),
    UNSUPPORTED_COMPRESSION_TYPE, INVALID_TIMESTAMP, or INVALID_RECORD (errors that no retry fixes, such as a
    batch of magic 0 or 1, or part of one).
    """
    header = _frame(batch, settings)
    if isinstance(header, BatchRefusal):
        return header
    refusal = _kind_refusal(header) or _time_refusal(header, settings)
    if refusal is None and not by_coordinator:
        refusal = _client_refusal(header)
    if refusal is not None:
        return refusal
    payload = batch.data[HEADER_BYTES:]
    if header.is_control:
        return OpenedBatch(header, payload, changed=False)
    return open_batch(header, payload, settings, wall_ms=wall_ms)


def stored_batch(
    batch: OpenedBatch, *, base_offset: int, leader_epoch: int, append_time_ms: int | None
) -> Batches:
    """The batch with its place in the log. Offset and epoch are outside the checksum; with
    `append_time_ms` (LogAppendTime) attributes, maximum timestamp and checksum change too."""
    came = batch.header
    header = BatchHeader(base_offset, came.batch_length, leader_epoch, *came[3:])
    if append_time_ms is not None:
        header = header._replace(
            attributes=header.attributes | LOG_APPEND_TIME, max_timestamp_ms=append_time_ms
        )
    if batch.changed or append_time_ms is not None:
        checked = HEADER_STRUCT.pack(*header)[CRC_START:]
        header = header._replace(crc=crc32c(batch.payload, crc32c(checked)))
    return Batches(b"".join((HEADER_STRUCT.pack(*header), batch.payload)), (header,))


def _frame(batch: Batches, settings: TopicSettings) -> BatchHeader | BatchRefusal:
    """Whether the bytes are exactly one whole batch whose CRC matches."""
    size = len(batch.data)
    if size > settings.max_message_bytes:
        return BatchRefusal(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size} bytes, but the topic's limit is {settings.max_message_bytes}: send "
            "smaller batches, or raise max.message.bytes",
        )
    if not batch.headers:
        return _without_header(batch.data)
    header = batch.headers[0]
    actual = crc32c(memoryview(batch.data)[CRC_START:])
    if actual != header.crc:
        return _corrupt(f"its CRC is {actual:#010x}, but the header says {header.crc & 4294967295:#010x}")
    return header


def _without_header(data: bytes) -> BatchRefusal:
    """Why these bytes are not one whole batch."""
    size = len(data)
    if not size:
        return _not_one("there is no record batch")
    if size > _MAGIC_AT and data[_MAGIC_AT] != MAGIC:
        return _wrong_magic(data[_MAGIC_AT])
    if size < HEADER_BYTES:
        return _not_one(f"{size} bytes are not a record batch, whose header alone has {HEADER_BYTES}")
    claimed = parse_header(data).size_bytes
    if HEADER_BYTES <= claimed < size:
        return _not_one(f"{size - claimed} bytes follow the first batch")
    text = f"the header says {claimed} bytes, but {size} arrived"
    return _corrupt(text) if claimed < HEADER_BYTES else _not_one(text)


def _wrong_magic(magic: int) -> BatchRefusal:
    if magic < MAGIC:
        return _not_one(f"message format {magic} is not supported, only {MAGIC}")
    return _corrupt(f"its magic is {magic}, expected {MAGIC}")


def _corrupt(text: str) -> BatchRefusal:
    return BatchRefusal(
        ErrorCode.CORRUPT_MESSAGE,
        f"the batch was damaged in transit ({text}): nothing was stored; send it again",
    )


def _not_one(text: str) -> BatchRefusal:
    whole = f"{text}: send exactly one whole record batch per partition"
    return BatchRefusal(ErrorCode.INVALID_RECORD, whole, is_one_batch=False)


def _invalid(text: str) -> BatchRefusal:
    return BatchRefusal(ErrorCode.INVALID_RECORD, text)


def _kind_refusal(header: BatchHeader) -> BatchRefusal | None:
    if header.base_offset != 0:
        return _invalid(f"the batch begins at offset {header.base_offset}: number its records from 0")
    if header.last_offset_delta < 0 or header.records_count != header.last_offset_delta + 1:
        return _invalid(
            f"the batch counts {header.records_count} records, but its last offset delta is "
            f"{header.last_offset_delta}: number the records of a batch 0, 1, 2 and so on"
        )
    if header.attributes & ~_KNOWN_ATTRIBUTES:
        return _invalid(
            f"the attributes {header.attributes & 65535:#06x} have bits that producers must not set: clear "
            "them"
        )
    if header.compression > _LAST_COMPRESSION:
        return BatchRefusal(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression {header.compression} is unknown: use none, gzip, snappy, lz4 or zstd (0 to 4)",
        )
    return None


def _client_refusal(header: BatchHeader) -> BatchRefusal | None:
    if header.is_control:
        return _invalid("only brokers write control batches: send records")
    if header.producer_id < 0:
        if header.is_transactional:
            return _invalid("the batch is in a transaction, but has no producer id: request one")
        return None
    if header.producer_epoch < 0 or header.base_sequence < 0:
        return _invalid(
            f"producer {header.producer_id} sent epoch {header.producer_epoch} and sequence "
            f"{header.base_sequence}: both must be 0 or more in a batch with a producer id"
        )
    return None


def _time_refusal(header: BatchHeader, settings: TopicSettings) -> BatchRefusal | None:
    first, last = header.base_timestamp_ms, header.max_timestamp_ms
    text = None
    if header.is_log_append_time:
        text = "the batch has append times, but producers send create times: clear attribute bit 3"
    elif not settings.log_append_time and (first < NO_TIMESTAMP or last < NO_TIMESTAMP):
        text = f"the batch's timestamps run from {first} to {last}: send timestamps of 0 or more (-1: none)"
    return None if text is None else BatchRefusal(ErrorCode.INVALID_TIMESTAMP, text)


# ---- after the checks of what its producer sent before

_LOG_NOT_LOOKED_AT = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


def concerns_the_log(refusal: BatchRefusal) -> bool:
    """Whether an answer includes the log's start: by Kafka's rule, not if the bytes alone were wrong."""
    return refusal.is_one_batch and refusal.error not in _LOG_NOT_LOOKED_AT


def out_of_order(header: BatchHeader, expected: int) -> BatchRefusal:
    return BatchRefusal(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence}, but {expected} is next: "
        "first send the previous batches again",
    )


def fenced(header: BatchHeader, epoch: int) -> BatchRefusal:
    return BatchRefusal(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {header.producer_id} sent epoch {header.producer_epoch}, but its current epoch is "
        f"{epoch}: another process has taken over; request a new producer id",
    )


def coordinator_fenced(header: BatchHeader, epoch: int) -> BatchRefusal:
    return BatchRefusal(
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        f"the marker for producer {header.producer_id} is from an earlier coordinator than that of epoch "
        f"{epoch}: load the coordinator again",
    )


def outside(header: BatchHeader) -> BatchRefusal:
    return BatchRefusal(
        ErrorCode.INVALID_TXN_STATE,
        f"producer {header.producer_id} sent a batch without a transaction while one is open: end it first",
    )

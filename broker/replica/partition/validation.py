"""What a leader requires of a producer's batch, and the batch in the form in which it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from msgspec import Struct

from metaquorum.broker.replica.partition.values import BatchRefusal
from metaquorum.broker.replica.topic_settings import MAX_LONG, TopicSettings
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import RefusedRecord
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.batches.codecs import (
    MAX_UNPACKED_BYTES,
    TooLargeUnpacked,
    frame_problem,
    pack,
    unpack_in_place,
)
from metaquorum.storage.batches.format import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER_BYTES,
    HEADER_STRUCT,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    Compression,
    parse_header,
)
from metaquorum.storage.batches.places import (
    Buffer,
    RecordBounds,
    TooManyHeaders,
    record_bounds,
    record_places,
    renumbered,
    times_and_key_lengths,
)
from metaquorum.storage.errors import BatchError

_KNOWN_ATTRIBUTES = 0x3F
_MAGIC_AT = 16
_LAST_COMPRESSION = max(Compression)


class OpenedEarlier(Struct, frozen=True):
    """What `open_batch` made of a batch before it arrived, by these settings."""

    settings: TopicSettings
    outcome: OpenedBatch | BatchRefusal


def header_to_open(batch: Batches, settings: TopicSettings) -> BatchHeader | None:
    """The header of a batch that `check_batch` opens unless its checksum is wrong; None if it refuses the
    batch anyway, or the records of the batch do not matter."""
    if not batch.headers or len(batch.data) > settings.max_message_bytes:
        return None
    header = batch.headers[0]
    return None if header.is_control or _kind_refusal(header) is not None else header


def check_batch(
    batch: Batches,
    settings: TopicSettings,
    *,
    opened: OpenedEarlier | None = None,
    by_coordinator: bool = False,
    wall_ms: int,
) -> OpenedBatch | BatchRefusal:
    """The batch that arrived, if it may be appended judging by the batch alone. `by_coordinator`:
    a coordinator of this cluster made it.

    Refused with MESSAGE_TOO_LARGE, CORRUPT_MESSAGE (the CRC does not match: send it again),
    UNSUPPORTED_COMPRESSION_TYPE, INVALID_TIMESTAMP, RECORD_LIST_TOO_LARGE (it fits no segment), or
    INVALID_RECORD (errors that no retry fixes, such as a batch of magic 0 or 1, or part of one).
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
    if opened is not None and opened.settings == settings:
        outcome = opened.outcome
    else:
        outcome = open_batch(header, payload, settings, wall_ms=wall_ms)
    most = settings.log.segment_bytes
    if isinstance(outcome, OpenedBatch) and outcome.header.size_bytes > most:
        text = f"the batch has {outcome.header.size_bytes} bytes, but segment.bytes of the topic is {most}"
        return BatchRefusal(ErrorCode.RECORD_LIST_TOO_LARGE, f"{text}: send smaller batches, or raise it")
    return outcome


def stored_batch(
    batch: OpenedBatch, *, base_offset: int, leader_epoch: int, append_time_ms: int | None
) -> Batches:
    """The batch with its place in the log. Offset and epoch are outside the checksum; with
    `append_time_ms` (LogAppendTime) attributes, maximum timestamp and checksum change too."""
    received = batch.header
    header = BatchHeader(base_offset, received.batch_length, leader_epoch, *received[3:])
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


def is_about_the_log(refusal: BatchRefusal) -> bool:
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


# The records inside a batch that a producer sends: opened, validated one by one, and packed again where
# needed.
#
# The rules of Kafka's LogValidator that need records: their number, keys of compacted topics, each
# record's time, the codec of the topic. A batch that is already right keeps its payload.
#
# A few bytes may claim millions of records, or be gigabytes when unpacked. So the records and headers of
# a compressed batch have a bound beside that of its bytes (`codecs`), and an event loop opens only what
# is within a `LightWork`.

REFUSED_RECORDS_MAX = 1_000
"""The number of wrong records of one batch that an answer lists."""


VALUES_MAX = 1 << 18
"""Records and headers of one batch, if it has fewer bytes than that as it was sent: the tools of Kafka send
some ten thousand."""
RENUMBERED_MAX = 10_000
"""Records of a batch whose offset deltas are corrected; every known client numbers them itself."""
_LIGHT_RENUMBERED = 500
_LIGHT_PACKED_BYTES = 256 * 1024


class NotLight(Exception):
    """Opening the batch takes longer than the LightWork allows; nothing was decided."""


@dataclass(slots=True)
class LightWork:
    """What may be opened without a pause: bytes that are unpacked, and values (records and headers). Counted
    down by each batch."""

    unpacked_bytes: int
    values: int


class OpenedBatch(NamedTuple):
    """A batch that may be stored. `changed`: its checksum must be computed again."""

    header: BatchHeader
    payload: bytes
    changed: bool


def open_batch(
    header: BatchHeader,
    payload: bytes,
    settings: TopicSettings,
    *,
    wall_ms: int,
    light: LightWork | None = None,
) -> OpenedBatch | BatchRefusal:
    """The batch as the topic wants it stored, except for its place in the log.

    Refused with INVALID_RECORD (the payload cannot be opened, holds another number of records, or records
    without keys for a compacted topic), INVALID_TIMESTAMP, or MESSAGE_TOO_LARGE (in the topic's codec).
    Raises NotLight.
    """
    values_max = max(VALUES_MAX, len(payload))
    try:
        plain, bounds = _unpacked(header, payload, values_max, light)
    except BatchError as error:
        text = f"the records cannot be read ({error}): send the batch as a current client encodes it"
        return BatchRefusal(ErrorCode.INVALID_RECORD, text)
    refusal = _records_refusal(header, plain, bounds, settings, wall_ms)
    if refusal is not None:
        return refusal
    codec = header.compression if settings.compression is None else settings.compression
    newest = header.max_timestamp_ms
    if not settings.log_append_time:
        newest = header.base_timestamp_ms + bounds.last_time
    if codec == header.compression and bounds.numbered and newest == header.max_timestamp_ms:
        return OpenedBatch(header, payload, changed=False)
    if codec != header.compression or not bounds.numbered:
        if not bounds.numbered:
            if header.records_count > RENUMBERED_MAX:
                text = f"{header.records_count} records are not numbered 0, 1, 2 and so on: number them"
                return BatchRefusal(ErrorCode.INVALID_RECORD, text)
            if light is not None and header.records_count > _LIGHT_RENUMBERED:
                raise NotLight
            plain = renumbered(plain, record_places(plain, header.records_count))
        if light is not None and len(plain) > _LIGHT_PACKED_BYTES:
            raise NotLight
        payload = pack(codec, plain)
    changed = header._replace(
        attributes=header.attributes & ~COMPRESSION_MASK | codec,
        max_timestamp_ms=newest,
        batch_length=HEADER_BYTES - LENGTH_OVERHEAD_BYTES + len(payload),
    )
    if changed.size_bytes > settings.max_message_bytes:
        text = (
            f"the batch has {changed.size_bytes} bytes in the topic's compression.type, but the limit is "
            f"{settings.max_message_bytes}: send smaller batches, or raise max.message.bytes"
        )
        return BatchRefusal(ErrorCode.MESSAGE_TOO_LARGE, text)
    return OpenedBatch(changed, payload, changed=True)


def _unpacked(
    header: BatchHeader, payload: bytes, values_max: int, light: LightWork | None
) -> tuple[Buffer, RecordBounds]:
    """The records and their bounds. Raises BatchError, NotLight."""
    count = header.records_count
    if count > values_max:
        raise BatchError(f"its header counts {count} records, but at most {values_max} may be in one batch")
    if light is not None and count > light.values:
        raise NotLight
    limit = MAX_UNPACKED_BYTES if light is None else min(MAX_UNPACKED_BYTES, light.unpacked_bytes)
    if header.compression == Compression.LZ4 and (problem := frame_problem(payload)):
        raise BatchError(problem)
    try:
        plain = unpack_in_place(header.compression, payload, limit=limit)
    except TooLargeUnpacked:
        if limit == MAX_UNPACKED_BYTES:
            raise
        raise NotLight from None
    headers_max = values_max - count
    if light is not None:
        light.values -= count
        if header.compression != Compression.NONE:
            light.unpacked_bytes -= len(plain)
        headers_max = min(headers_max, light.values)
    try:
        bounds = record_bounds(plain, count, headers_max)
    except TooManyHeaders:
        if headers_max == values_max - count:
            raise
        raise NotLight from None
    if light is not None:
        light.values -= bounds.headers
    return plain, bounds


def _records_refusal(
    header: BatchHeader, plain: Buffer, record_bounds: RecordBounds, settings: TopicSettings, wall_ms: int
) -> BatchRefusal | None:
    keyless = settings.log.compacts and record_bounds.keyless
    bounds = None if settings.log_append_time else _bounds(settings, wall_ms)
    first = header.base_timestamp_ms
    outside = bounds is not None and not (
        bounds[0] <= first + record_bounds.first_time and first + record_bounds.last_time <= bounds[1]
    )
    if not keyless and not outside:
        return None
    times, key_lengths = times_and_key_lengths(plain, header.records_count)
    has_no_key = keyless & (key_lengths < 0)
    has_wrong_time = np.zeros_like(has_no_key)
    if bounds is not None:
        least, most = max(bounds[0] - first, -MAX_LONG), min(bounds[1] - first, MAX_LONG)
        in_bounds = (times >= least) & (times <= most) if least <= MAX_LONG and most >= -MAX_LONG else False
        none = NO_TIMESTAMP - first
        has_none = times == none if abs(none) <= MAX_LONG else False
        has_wrong_time = ~(has_no_key | in_bounds | has_none)
    count = int((has_no_key | has_wrong_time).sum())
    if not count:
        return None
    times_wrong = bool(has_wrong_time.any())
    no_key = "it has no key, which records of a compacted topic must have"
    low, high = bounds or (0, 0)
    wrong = [
        RefusedRecord(
            index,
            no_key
            if has_no_key[index]
            else f"its timestamp {first + int(times[index])} is not in [{low}, {high}]",
        )
        for index in np.flatnonzero(has_no_key | has_wrong_time)[:REFUSED_RECORDS_MAX].tolist()
    ]
    shown = "; ".join(f"record {one.index}: {one.message}" for one in wrong[:3])
    advice = "send a key with every record"
    if times_wrong:
        advice = "correct the producer's clock, or raise message.timestamp.before.max.ms or .after.max.ms"
    return BatchRefusal(
        ErrorCode.INVALID_TIMESTAMP if times_wrong else ErrorCode.INVALID_RECORD,
        f"{count} of {header.records_count} records are refused ({shown}): nothing was stored; {advice}",
        tuple(wrong),
    )


def _bounds(settings: TopicSettings, wall_ms: int) -> tuple[int, int] | None:
    """The earliest and the latest time that a record may have; None: any."""
    before, after = settings.timestamp_before_max_ms, settings.timestamp_after_max_ms
    if before == MAX_LONG and after == MAX_LONG:
        return None
    return wall_ms - before, wall_ms + after

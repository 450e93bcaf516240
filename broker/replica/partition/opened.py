"""The records inside a batch that a producer sends: opened, validated one by one, and packed again where
needed.

Owns the rules of Kafka's LogValidator that need records: their number, keys of compacted topics, each
record's time, the codec of the topic. A batch that is already right keeps its payload. Knows no partition.
"""

from __future__ import annotations

from typing import NamedTuple

from metaquorum.broker.replica.partition.values import BatchRefusal
from metaquorum.broker.replica.topic_settings import MAX_LONG, TopicSettings
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import RefusedRecord
from metaquorum.storage.batches.codecs import pack, unpack
from metaquorum.storage.batches.format import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    BatchHeader,
)
from metaquorum.storage.batches.places import RecordBounds, record_bounds, record_places, renumbered
from metaquorum.storage.errors import BatchError

NO_TIMESTAMP = -1
REFUSED_RECORDS_MAX = 1_000
"""The number of wrong records of one batch that an answer lists."""


class OpenedBatch(NamedTuple):
    """A batch that may be stored. `changed`: its checksum must be computed again."""

    header: BatchHeader
    payload: bytes
    changed: bool


def open_batch(
    header: BatchHeader, payload: bytes, settings: TopicSettings, *, wall_ms: int
) -> OpenedBatch | BatchRefusal:
    """The batch as the topic wants it stored, except for its place in the log.

    Refused with INVALID_RECORD (the payload cannot be opened, holds another number of records, or records
    without keys for a compacted topic), INVALID_TIMESTAMP, or MESSAGE_TOO_LARGE (in the topic's codec).
    """
    try:
        plain = unpack(header.compression, payload)
        bounds = record_bounds(plain, header.records_count)
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
            plain = renumbered(plain, record_places(plain, header.records_count))
        payload = pack(codec, plain)
    changed = header._replace(
        attributes=header.attributes & ~COMPRESSION_MASK | codec,
        max_timestamp_ms=newest,
        batch_length=HEADER_BYTES - LENGTH_OVERHEAD_BYTES + len(payload),
    )
    if changed.size_bytes > max(settings.max_message_bytes, header.size_bytes):
        text = (
            f"the batch has {changed.size_bytes} bytes in the topic's compression.type, but the limit is "
            f"{settings.max_message_bytes}: send smaller batches, or raise max.message.bytes"
        )
        return BatchRefusal(ErrorCode.MESSAGE_TOO_LARGE, text)
    return OpenedBatch(changed, payload, changed=True)


def _records_refusal(
    header: BatchHeader, plain: bytes, found: RecordBounds, settings: TopicSettings, wall_ms: int
) -> BatchRefusal | None:
    keyless = settings.log.compacts and found.keyless
    bounds = None if settings.log_append_time else _bounds(settings, wall_ms)
    first = header.base_timestamp_ms
    outside = bounds is not None and not (
        bounds[0] <= first + found.first_time and first + found.last_time <= bounds[1]
    )
    if not keyless and not outside:
        return None
    places = record_places(plain, header.records_count)
    times = places.time_deltas
    wrong: list[RefusedRecord] = []
    times_wrong = False
    for index, (delta, key_length) in enumerate(zip(times, places.key_lengths, strict=True)):
        time_ms = first + delta
        if keyless and key_length < 0:
            wrong.append(RefusedRecord(index, "it has no key, which records of a compacted topic must have"))
        elif bounds is not None and time_ms != NO_TIMESTAMP and not bounds[0] <= time_ms <= bounds[1]:
            times_wrong = True
            wrong.append(
                RefusedRecord(index, f"its timestamp {time_ms} is not in [{bounds[0]}, {bounds[1]}]")
            )
    if not wrong:
        return None
    shown = "; ".join(f"record {one.index}: {one.message}" for one in wrong[:3])
    advice = "send a key with every record"
    if times_wrong:
        advice = "correct the producer's clock, or raise message.timestamp.before.max.ms or .after.max.ms"
    return BatchRefusal(
        ErrorCode.INVALID_TIMESTAMP if times_wrong else ErrorCode.INVALID_RECORD,
        f"{len(wrong)} of {header.records_count} records are refused ({shown}): nothing was stored; {advice}",
        tuple(wrong[:REFUSED_RECORDS_MAX]),
    )


def _bounds(settings: TopicSettings, wall_ms: int) -> tuple[int, int] | None:
    """The earliest and the latest time that a record may have; None: any."""
    before, after = settings.timestamp_before_max_ms, settings.timestamp_after_max_ms
    if before == MAX_LONG and after == MAX_LONG:
        return None
    return wall_ms - before, wall_ms + after

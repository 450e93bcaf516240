"""Record batches in message format 2 (magic 2): iterating, checking and splitting them.

Owns the walk over batches in a buffer and the framing of records inside one. A record's key and value are
bytes here; the metadata layer interprets them. Does not know files or the offset that must follow, which
`walk` checks. Import everything about batches from here; `format` has the header, `encode` makes batches.
This is the hot path of every replay: `iter_batches` and `batch_record_spans` avoid objects where they can.

Source: Kafka's message format (KIP-98, `DefaultRecordBatch`), control batches (KIP-98, KIP-595, KIP-630).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from metaquorum.storage.batches.codecs import unpack
from metaquorum.storage.batches.encode import (
    control_key,
    encode_batch,
    encode_records,
    parse_control_key,
    plain_header,
    seal_batch,
)
from metaquorum.storage.batches.format import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER_BYTES,
    HEADER_STRUCT,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    MAX_BATCH_BYTES,
    MIN_LENGTH,
    BatchHeader,
    Compression,
    batch_problem,
    header_problems,
    hop_headers,
    parse_header,
)
from metaquorum.storage.batches.varint import decode_varint, encode_varint
from metaquorum.storage.errors import BatchError, CompressedBatchError, CorruptLogError

__all__ = [
    "CRC_START",
    "HEADER_BYTES",
    "LENGTH_OVERHEAD_BYTES",
    "MAGIC",
    "MAX_BATCH_BYTES",
    "BatchHeader",
    "Compression",
    "RawRecord",
    "RecordBatch",
    "batch_of_records",
    "batch_payload",
    "batch_problem",
    "batch_record_spans",
    "control_key",
    "encode_batch",
    "header_problems",
    "hop_headers",
    "iter_batches",
    "parse_control_key",
    "parse_header",
    "plain_header",
    "seal_batch",
]

ADVICE = (
    "do not replace it with an older copy; see 'Damaged or lost' in docs/operations.md; no byte was changed"
)


class RawRecord(NamedTuple):
    """One record. `headers` is a tuple of (key, value or None); `attributes` is always 0 in Kafka 3."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    attributes: int


class RecordBatch(NamedTuple):
    """A batch and its position: `data` is header and records, `position` the byte in `file`."""

    header: BatchHeader
    data: bytes
    position: int = 0
    file: str = ""

    def records(self) -> list[RawRecord]:
        """Every record. Raises CompressedBatchError if the codec is unknown, BatchError if the payload is
        damaged or the records do not fill the batch exactly."""
        return _split_records(self.header, batch_payload(self.header, self.data))


def batch_payload(header: BatchHeader, data: bytes) -> bytes:
    """The uncompressed records of a batch (`data`: header and records). Raises CompressedBatchError if the
    codec is unknown, BatchError if the payload does not decompress or exceeds a limit."""
    codec = header.compression
    if codec == Compression.NONE:
        return data[HEADER_BYTES:]
    if codec > max(Compression):
        raise CompressedBatchError(
            f"the batch at offset {header.base_offset} has the unknown codec {codec}: a newer release may "
            "read it"
        )
    try:
        return unpack(codec, data[HEADER_BYTES:])
    except BatchError as error:
        raise BatchError(f"in the batch at offset {header.base_offset} {error}") from None


def iter_batches(
    buf: bytes,
    base_position: int = 0,
    file: str = "<bytes>",
    *,
    expected_offset: int | None = None,
    min_epoch: int = 0,
    verify_crc: bool = True,
) -> Iterator[RecordBatch]:
    """Every batch of `buf`, which holds whole batches only; `base_position` is where `buf` starts in `file`.

    Checks lengths, magic, CRC, contiguous offsets (from `expected_offset`, or from the first batch), epochs
    that never fall, and record counts. Raises CorruptLogError at the first invalid batch.
    """
    view = memoryview(buf)
    unpack = HEADER_STRUCT.unpack_from
    make = BatchHeader._make
    end = len(buf)
    position = 0
    expected = -1 if expected_offset is None else expected_offset
    epoch = min_epoch
    while position < end:
        if end - position >= HEADER_BYTES:
            header = make(unpack(buf, position))
            base, length, batch_epoch, magic, crc, _, delta = header[:7]
            after = position + length + LENGTH_OVERHEAD_BYTES
            if (
                magic == MAGIC
                and length >= MIN_LENGTH
                and after <= end
                and (base == expected if expected >= 0 else base >= 0)
                and batch_epoch >= epoch
                and delta >= 0
                and header[12] == delta + 1
                and (not verify_crc or crc32c(view[position + CRC_START : after]) == crc)
            ):
                yield RecordBatch(header, buf[position:after], base_position + position, file)
                expected = base + delta + 1
                epoch = batch_epoch
                position = after
                continue
        reason = batch_problem(
            buf,
            position,
            expected_offset=None if expected < 0 else expected,
            min_epoch=epoch,
            verify_crc=verify_crc,
        )
        raise CorruptLogError(
            file, base_position + position, max(expected, 0), reason or "expected a batch", ADVICE
        )


_CACHED_PREFIXES = 4096


def _value_prefix(delta: int) -> bytes:
    """Attributes 0, timestamp delta 0, the offset delta, a null key."""
    return b"\0\0" + encode_varint(delta) + b"\x01"


_PREFIXES = tuple(_value_prefix(delta) for delta in range(_CACHED_PREFIXES))


def batch_record_spans(batch: RecordBatch) -> list[tuple[int, int]]:
    """(start, end) of every record's value inside `batch.data`, without creating record objects.

    For metadata batches: uncompressed, every record with a null key, a value, no record headers and its
    batch's timestamp, offset deltas 0, 1, 2... Raises BatchError for any other record; use
    `RecordBatch.records()` for those.
    """
    data = batch.data
    count = batch.header.records_count
    if batch.header.attributes & COMPRESSION_MASK:
        raise CompressedBatchError(
            f"the batch at offset {batch.header.base_offset} is compressed, so its values are not directly "
            "readable; use records()"
        )
    position = HEADER_BYTES
    size = len(data)
    spans: list[tuple[int, int]] = []
    add = spans.append
    starts_with = data.startswith
    try:
        for delta in range(count):
            # Nearly every record has a length of one or two bytes and the same few bytes before its value's
            # length: comparing them at once is twice as fast as parsing them.
            first = data[position]
            if first < 0x80:
                body = position + 1
                end = body + (first >> 1)
            else:
                body = position + 2
                end = body + (((data[position + 1] << 7) | (first & 0x7F)) >> 1)
            prefix = _PREFIXES[delta] if delta < _CACHED_PREFIXES else _value_prefix(delta)
            if first & 1 or not starts_with(prefix, body) or (first >= 0x80 and data[position + 1] >= 0x80):
                position, start, end = _value_span(data, position, delta)
                add((start, end))
                continue
            start = body + len(prefix)
            first = data[start]
            if first < 0x80:
                start += 1
                length = first >> 1
            elif data[start + 1] < 0x80:
                length = ((data[start + 1] << 7) | (first & 0x7F)) >> 1
                start += 2
            else:
                length, start = decode_varint(data, start)
            if start + length + 1 != end or first & 1 or data[end - 1]:
                raise BatchError(f"record {delta} has a null value, headers or a wrong length; use records()")
            add((start, end - 1))
            position = end
    except IndexError:
        raise BatchError(
            f"record {len(spans)} of the batch at offset {batch.header.base_offset} extends past the end "
            "of the batch"
        ) from None
    if position != size:
        raise BatchError(
            f"the batch at offset {batch.header.base_offset} has {size - position} bytes "
            "after its last record"
        )
    return spans


def _value_span(data: bytes, position: int, delta: int) -> tuple[int, int, int]:
    """(end of the record, start and end of its value); raises IndexError or BatchError."""
    length, position = decode_varint(data, position)
    record_end = position + length
    time_delta, position = decode_varint(data, position + 1)  # after the attributes, always 0
    found, position = decode_varint(data, position)
    key_length, position = decode_varint(data, position)
    if found != delta or key_length >= 0 or time_delta:
        raise BatchError(
            f"record {delta} has offset delta {found}, a time of its own or a key; read it with records()"
        )
    value_length, position = decode_varint(data, position)
    end = position + value_length
    if value_length < 0 or end + 1 != record_end or data[end]:
        raise BatchError(
            f"record {delta} has a null value, headers or a wrong length; read it with records()"
        )
    return record_end, position, end


def _split_records(header: BatchHeader, payload: bytes) -> list[RawRecord]:
    records: list[RawRecord] = []
    position = 0
    for _ in range(header.records_count):
        length, start = decode_varint(payload, position)
        if length < 0 or start + length > len(payload):
            raise BatchError(
                f"record {len(records)} of the batch at offset {header.base_offset} has length {length}, "
                f"{len(payload) - start} bytes are left"
            )
        position = start + length
        records.append(_parse_record(header, payload[start:position]))
    if position != len(payload):
        raise BatchError(
            f"the batch at offset {header.base_offset} has {len(payload) - position} bytes "
            "after its last record"
        )
    return records


def _parse_record(header: BatchHeader, body: bytes) -> RawRecord:
    if not body:
        raise BatchError(f"a record of the batch at offset {header.base_offset} is empty")
    timestamp_delta, position = decode_varint(body, 1)
    offset_delta, position = decode_varint(body, position)
    key, position = _nullable_bytes(body, position)
    value, position = _nullable_bytes(body, position)
    count, position = decode_varint(body, position)
    if count < 0:
        raise BatchError(f"a record of the batch at offset {header.base_offset} has {count} headers")
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        name, position = _nullable_bytes(body, position)
        content, position = _nullable_bytes(body, position)
        if name is None:
            raise BatchError(f"a record header of the batch at offset {header.base_offset} has no key")
        headers.append((name, content))
    if position != len(body):
        raise BatchError(f"a record of the batch at offset {header.base_offset} has bytes after its headers")
    timestamp = (
        header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms + timestamp_delta
    )
    return RawRecord(header.base_offset + offset_delta, timestamp, key, value, tuple(headers), body[0])


def _nullable_bytes(body: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(body, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(body):
        raise BatchError(f"a field of {length} bytes extends past the end of its record")
    return body[position:end], end


def batch_of_records(header: BatchHeader, records: Sequence[RawRecord]) -> bytes:
    """The batch that `header` describes, with these records, uncompressed. The records of a well-formed
    batch give the same bytes again."""
    # With log append time, every record reads as the batch's maximum; its deltas are 0 by definition.
    timestamps = None if header.is_log_append_time else [record.timestamp_ms for record in records]
    body = encode_records(
        base_timestamp_ms=header.base_timestamp_ms,
        values=[record.value for record in records],
        keys=[record.key for record in records],
        timestamps=timestamps,
        headers=[record.headers for record in records],
        deltas=[record.offset - header.base_offset for record in records],
        attributes=[record.attributes for record in records],
    )
    return seal_batch(header, body)

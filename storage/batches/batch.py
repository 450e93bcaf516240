"""Record batches in message format 2 (magic 2): iterating, checking and splitting them.

A record's key and value are bytes here; the metadata layer interprets them. Import everything about batches
from here; `format` has the header, `encode` makes batches. This is the hot path of every replay:
`iter_batches` and `batch_record_spans` avoid objects where they can.

Source: Kafka's message format (KIP-98, `DefaultRecordBatch`), control batches (KIP-98, KIP-595, KIP-630).
"""

from __future__ import annotations

import struct
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
    CONTROL,
    CRC_START,
    HEADER_BYTES,
    HEADER_STRUCT,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    MAX_BATCH_BYTES,
    MIN_LENGTH,
    TRANSACTIONAL,
    BatchHeader,
    Compression,
    HeaderWalk,
    Hop,
    batch_problem,
    decode_varint,
    encode_varint,
    header_problems,
    hop_headers,
    parse_header,
    walk_headers,
)
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
    size, position = decode_varint(data, position)
    key_length, position = decode_varint(data, position)
    if size != delta or key_length >= 0 or time_delta:
        raise BatchError(
            f"record {delta} has offset delta {size}, a time of its own or a key; read it with records()"
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


# Record batches that travel together: their bytes, and their headers, parsed once.
# The step that turns bytes into batches of a log: from an append, a fetch response or a read. Nothing
# parses a header's bytes again after that.


class Batches(NamedTuple):
    """`data` is whole batches and nothing else, each with offsets that follow those of the one before (in
    a partition's log some may be missing); `headers` are theirs, in order. Create one with `parse`,
    `arrived`, `sealed` or `of_walk`."""

    data: bytes
    headers: tuple[BatchHeader, ...]

    @staticmethod
    def parse(data: bytes, *, file: str = "<bytes>") -> Batches:
        """Bytes from elsewhere. Runs the checks of `walk_headers`, CRCs included; raises CorruptLogError."""
        walk = walk_headers(data)
        if walk.problem is not None:
            offset = walk.headers[-1].next_offset if walk.headers else 0
            raise CorruptLogError(file, walk.end, offset, walk.problem, ADVICE)
        return Batches.of_walk(data, walk)

    @staticmethod
    def arrived(data: bytes) -> Batches:
        """What a producer sent as one batch: parsed, not checked. Without a header if the bytes, by magic and
        length, are not exactly one batch."""
        if len(data) >= HEADER_BYTES:
            header = BatchHeader._make(HEADER_STRUCT.unpack_from(data))
            if header.magic == MAGIC and header.size_bytes == len(data):
                return Batches(data, (header,))
        return Batches(data, ())

    @staticmethod
    def sealed(data: bytes) -> Batches:
        """Bytes that this process has encoded, or has checked before it stored them: parsed, not checked.
        Raises BatchError if they cannot be batches."""
        headers: list[BatchHeader] = []
        position = 0
        while position < len(data):
            headers.append(parse_header(data, position))
            position += headers[-1].size_bytes
        if position > len(data):
            raise BatchError(
                f"the last of these batches is {position - len(data)} bytes longer than the data"
            )
        return Batches(data, tuple(headers))

    @staticmethod
    def of_walk(data: bytes, walk: HeaderWalk) -> Batches:
        """The batches that `walk_headers` has just checked in these bytes."""
        return Batches(data[: walk.end], tuple(walk.headers))

    @staticmethod
    def joined(batches: Sequence[RecordBatch]) -> Batches:
        """Consecutive batches, at least one."""
        if len(batches) == 1:
            return Batches(batches[0].data, (batches[0].header,))
        return Batches(
            b"".join([batch.data for batch in batches]), tuple([batch.header for batch in batches])
        )

    @staticmethod
    def chained(parts: Sequence[Batches]) -> Batches:
        """The batches of all parts, of which each follows the one before; at least one."""
        if len(parts) == 1:
            return parts[0]
        return Batches(
            b"".join([part.data for part in parts]), tuple([each for part in parts for each in part.headers])
        )

    @property
    def base_offset(self) -> int:
        """Offset of the first record. There must be a record."""
        return self.headers[0].base_offset

    @property
    def next_offset(self) -> int:
        """Offset after the last record. There must be a record."""
        return self.headers[-1].next_offset

    def problem_after(self, end_offset: int, epoch: int, *, gaps: bool = False) -> str | None:
        """Why these cannot follow a log that ends at `end_offset` in `epoch`; None if they can. With
        `gaps`, offsets may be missing between them and the log."""
        if not self.headers:
            return "expected at least one batch"
        return next(iter(header_problems(self.headers[0], end_offset, epoch, gaps=gaps)), None)

    def after(self, count: int) -> Batches:
        """Without the first `count` batches."""
        if not count:
            return self
        start = sum([header.size_bytes for header in self.headers[:count]])
        return Batches(self.data[start:], self.headers[count:])

    def below(self, offset: int) -> Batches:
        """Without the batches that begin at or above `offset`."""
        headers = self.headers
        if not headers or headers[-1].base_offset < offset:
            return self
        kept = tuple([header for header in headers if header.base_offset < offset])
        return Batches(self.data[: sum([header.size_bytes for header in kept])], kept)

    def hops(self) -> list[Hop]:
        """The position of each batch, in the form that a walk over the bytes returns."""
        hops: list[Hop] = []
        position = 0
        for header in self.headers:
            hops.append((position, header.base_offset, header.next_offset, header.leader_epoch))
            position += header.size_bytes
        return hops

    def split(self) -> Iterator[RecordBatch]:
        """The batches one by one."""
        if len(self.headers) == 1:
            yield RecordBatch(self.headers[0], self.data)
            return
        position = 0
        for header in self.headers:
            end = position + header.size_bytes
            yield RecordBatch(header, self.data[position:end], position)
            position = end


NO_BATCHES = Batches(b"", ())


# The control batch that ends a producer's transaction in one partition: commit or abort (KIP-98).

_ABORT, _COMMIT = 0, 1
_VALUE = struct.Struct(">hi")
_VERSION = 0


class EndMarker(NamedTuple):
    """How a transaction ended. `coordinator_epoch` is the leader epoch of the coordinator's partition,
    which distinguishes the current coordinator from a former one."""

    committed: bool
    coordinator_epoch: int


def encode_marker(marker: EndMarker, *, producer_id: int, producer_epoch: int, timestamp_ms: int) -> bytes:
    """A batch at offset 0, as a leader accepts it."""
    return encode_batch(
        base_offset=0,
        leader_epoch=-1,
        timestamp_ms=timestamp_ms,
        keys=[control_key(_COMMIT if marker.committed else _ABORT)],
        values=[_VALUE.pack(_VERSION, marker.coordinator_epoch)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=CONTROL | TRANSACTIONAL,
    )


def read_marker(header: BatchHeader, data: bytes) -> EndMarker | None:
    """The marker in one batch (`data`: header and records); None if it ends no transaction."""
    if not (header.is_control and header.producer_id >= 0):
        return None
    try:
        record = RecordBatch(header, data).records()[0]
        _, kind = parse_control_key(record.key)
        if kind not in (_ABORT, _COMMIT) or record.value is None or len(record.value) < _VALUE.size:
            return None
    except (BatchError, IndexError):
        return None
    return EndMarker(kind == _COMMIT, _VALUE.unpack_from(record.value)[1])


def marked_headers(batches: Batches) -> Iterator[tuple[BatchHeader, EndMarker | None]]:
    """Each header with the marker in its batch."""
    position = 0
    for header in batches.headers:
        end = position + header.size_bytes
        is_marker = header.attributes & CONTROL
        yield header, read_marker(header, batches.data[position:end]) if is_marker else None
        position = end

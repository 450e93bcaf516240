"""Record batches in message format 2 (magic 2): parse, check, split and encode.

Owns the 61-byte header, CRC32C, and the framing of records inside a batch. A record's key and value are
bytes here: what they mean is the business of the metadata layer. Touches no file.
This is the hot path of every replay: `iter_batches` and `batch_record_spans` avoid objects where they can.

Source: Kafka's message format (KIP-98, `DefaultRecordBatch`), control batches (KIP-98, KIP-595, KIP-630).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from .errors import BatchError, CompressedBatchError, CorruptLogError
from .varint import decode_varint, encode_varint

MAX_BATCH_BYTES = 8 * 1024 * 1024
HEADER_BYTES = 61
MAGIC = 2
# baseOffset and batchLength stand outside the length that batchLength counts.
LENGTH_OVERHEAD_BYTES = 12
_MIN_LENGTH = HEADER_BYTES - LENGTH_OVERHEAD_BYTES
# The CRC covers everything from the attributes on.
CRC_START = 21

_HEADER = struct.Struct(">qiibIhiqqqhii")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_PREFIX = struct.Struct(">qiibI")
_HOP = struct.Struct(">qii7xi")
_CONTROL_KEY = struct.Struct(">hh")

_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20

_ADVICE = "restore this file from another node or a backup; no byte was changed"


class Compression(IntEnum):
    """The codec in the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BatchHeader(NamedTuple):
    """All thirteen fields of the header, in the order of the bytes."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset that the next batch must have as its base."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + LENGTH_OVERHEAD_BYTES

    @property
    def is_control(self) -> bool:
        """True for LeaderChange, SnapshotHeader, SnapshotFooter, KRaftVersion and KRaftVoters batches."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """True for batches of a producer's transaction (never in a metadata log)."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """True when every record carries the batch's maximum timestamp."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def compression(self) -> int:
        """Codec number, see `Compression`; 0 is none. Numbers above 4 are not assigned."""
        return self.attributes & _COMPRESSION_MASK


class RawRecord(NamedTuple):
    """One record. `headers` is a tuple of (key, value or None); `attributes` is always 0 in Kafka 3."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    attributes: int


class RecordBatch(NamedTuple):
    """A batch and where it stands: `data` is header and records, `position` the byte in `file`."""

    header: BatchHeader
    data: bytes
    position: int = 0
    file: str = ""

    def validate_crc(self) -> bool:
        """True when the stored CRC32C matches the bytes."""
        return crc32c(memoryview(self.data)[CRC_START:]) == self.header.crc

    def records(self) -> list[RawRecord]:
        """Every record. Raises CompressedBatchError for a codec other than none and gzip,
        BatchError when the records do not fill the batch exactly."""
        return _split_records(self.header, self._payload())

    def _payload(self) -> bytes:
        codec = self.header.compression
        if codec == Compression.NONE:
            return self.data[HEADER_BYTES:]
        if codec == Compression.GZIP:
            return _gunzip(self.data[HEADER_BYTES:], self.header.base_offset)
        name = Compression(codec).name.lower() if codec in set(Compression) else f"codec {codec}"
        raise CompressedBatchError(
            f"the batch at offset {self.header.base_offset} is compressed with {name}, which is not opened here; "
            "copy it unopened, or read it with Kafka's own tools"
        )


def _gunzip(payload: bytes, base_offset: int) -> bytes:
    # A few bytes may unpack to gigabytes: stop at a bound instead of trusting the sender.
    limit = 16 * MAX_BATCH_BYTES
    unpacker = zlib.decompressobj(wbits=31)
    try:
        data = unpacker.decompress(payload, limit)
    except zlib.error as error:
        raise BatchError(f"the gzip payload of the batch at offset {base_offset} is damaged: {error}") from error
    if not unpacker.eof:
        raise BatchError(f"the gzip payload of the batch at offset {base_offset} is cut off or over {limit} bytes")
    return data


def parse_header(buf: bytes | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`. Raises BatchError when fewer than 61 bytes are left or the magic is not 2."""
    if len(buf) - position < HEADER_BYTES:
        raise BatchError(f"{len(buf) - position} bytes are left at {position}, a batch header has {HEADER_BYTES}")
    header = BatchHeader._make(_HEADER.unpack_from(buf, position))
    if header.magic != MAGIC:
        raise BatchError(
            f"magic {header.magic} at byte {position} is not 2; "
            "this is no record batch, or one of a format that KRaft never wrote"
        )
    return header


def batch_problem(
    buf: bytes | memoryview,
    position: int,
    *,
    expected_offset: int | None = None,
    min_epoch: int = 0,
    verify_crc: bool = True,
    check_count: bool = True,
) -> str | None:
    """What is wrong with the batch at `position`, as "expected X, found Y"; None when it is whole and right.

    `expected_offset` and `min_epoch` guard what the CRC does not cover: base offset, epoch and length.
    """
    left = len(buf) - position
    if left < HEADER_BYTES:
        return f"expected a batch header of {HEADER_BYTES} bytes, found {left}"
    header = BatchHeader._make(_HEADER.unpack_from(buf, position))
    if header.magic != MAGIC:
        return f"expected magic {MAGIC}, found {header.magic}"
    if header.batch_length < _MIN_LENGTH:
        return f"expected a batch length of at least {_MIN_LENGTH}, found {header.batch_length}"
    if header.size_bytes > left:
        return f"expected a batch of {header.size_bytes} bytes, found {left}"
    if verify_crc:
        actual = crc32c(memoryview(buf)[position + CRC_START : position + header.size_bytes])
        if actual != header.crc:
            return f"expected CRC {header.crc:#010x}, found {actual:#010x}"
    return header_problem(header, expected_offset, min_epoch, check_count=check_count)


def header_problem(
    header: BatchHeader, expected_offset: int | None, min_epoch: int, *, check_count: bool = True
) -> str | None:
    """What is wrong in a header whose bytes are all there; None when nothing is."""
    if expected_offset is not None and header.base_offset != expected_offset:
        return f"expected base offset {expected_offset}, found {header.base_offset}"
    if header.base_offset < 0 or header.last_offset_delta < 0:
        return f"expected offsets from 0 up, found {header.base_offset} + {header.last_offset_delta}"
    if header.leader_epoch < min_epoch:
        return f"expected leader epoch {min_epoch} or higher, found {header.leader_epoch}"
    if check_count and header.records_count != header.last_offset_delta + 1:
        return f"expected {header.last_offset_delta + 1} records by the last offset delta, found {header.records_count}"
    return None


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
    that never fall, and record counts. Raises CorruptLogError at the first batch that is not right.
    """
    view = memoryview(buf)
    unpack = _HEADER.unpack_from
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
                and length >= _MIN_LENGTH
                and after <= end
                and (base == expected or (expected < 0 and base >= 0))
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
            buf, position, expected_offset=None if expected < 0 else expected, min_epoch=epoch, verify_crc=verify_crc
        )
        raise CorruptLogError(file, base_position + position, max(expected, 0), reason or "expected a batch", _ADVICE)


def batch_record_spans(batch: RecordBatch) -> list[tuple[int, int]]:
    """(start, end) of every record's value inside `batch.data`, without making a record object.

    For metadata batches: uncompressed, every record with a null key, a value and no record headers, offset
    deltas 0, 1, 2... Raises BatchError when a record is not so; use `RecordBatch.records()` for those.
    """
    data = batch.data
    count = batch.header.records_count
    if batch.header.attributes & _COMPRESSION_MASK:
        batch._payload()
        raise BatchError("a compressed batch has no spans in its own bytes; use records()")
    position = HEADER_BYTES
    size = len(data)
    spans: list[tuple[int, int]] = []
    try:
        for delta in range(count):
            position, start, end = _value_span(data, position, delta)
            spans.append((start, end))
    except IndexError:
        raise BatchError(
            f"record {len(spans)} of the batch at offset {batch.header.base_offset} runs over its end"
        ) from None
    if position != size:
        raise BatchError(
            f"the batch at offset {batch.header.base_offset} has {size - position} bytes after its last record"
        )
    return spans


def _value_span(data: bytes, position: int, delta: int) -> tuple[int, int, int]:
    """(end of the record, start and end of its value); raises IndexError or BatchError."""
    byte = data[position]
    if byte < 0x80:
        length = byte >> 1
        position += 1
    else:
        length, position = decode_varint(data, position)
    record_end = position + length
    position += 1  # attributes, always 0
    if data[position] < 0x80:
        position += 1  # timestamp delta: the caller takes the header's
    else:
        _, position = decode_varint(data, position)
    byte = data[position]
    if byte < 0x80:
        found = byte >> 1
        position += 1
    else:
        found, position = decode_varint(data, position)
    if found != delta or data[position] != 1:
        raise BatchError(f"record {delta} has offset delta {found} or a key; read it with records()")
    position += 1
    byte = data[position]
    if byte < 0x80:
        value_length = byte >> 1 if not byte & 1 else -1
        position += 1
    else:
        value_length, position = decode_varint(data, position)
    end = position + value_length
    if value_length < 0 or end + 1 != record_end or data[end]:
        raise BatchError(f"record {delta} has a null value, headers or a wrong length; read it with records()")
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
            f"the batch at offset {header.base_offset} has {len(payload) - position} bytes after its last record"
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
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        name, position = _nullable_bytes(body, position)
        content, position = _nullable_bytes(body, position)
        if name is None:
            raise BatchError(f"a record header of the batch at offset {header.base_offset} has no key")
        headers.append((name, content))
    if position != len(body):
        raise BatchError(f"a record of the batch at offset {header.base_offset} has bytes after its headers")
    timestamp = header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms + timestamp_delta
    return RawRecord(header.base_offset + offset_delta, timestamp, key, value, tuple(headers), body[0])


def _nullable_bytes(body: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(body, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(body):
        raise BatchError(f"a field of {length} bytes runs over the end of its record")
    return body[position:end], end


def hop_headers(buf: bytes | memoryview, position: int = 0) -> list[tuple[int, int, int, int]]:
    """(position, base offset, next offset, leader epoch) of every batch whose header lies in `buf`.

    Reads no payload and checks nothing but the length; stops at a header that is cut off or has an impossible
    length. The last batch listed may reach beyond `buf`: `position + length` tells the caller where to go on.
    """
    hops: list[tuple[int, int, int, int]] = []
    unpack = _HOP.unpack_from
    last = len(buf) - HEADER_BYTES
    while position <= last:
        base, length, epoch, delta = unpack(buf, position)
        if length < _MIN_LENGTH:
            break
        hops.append((position, base, base + delta + 1, epoch))
        position += length + LENGTH_OVERHEAD_BYTES
    return hops


def whole_batches_bytes(buf: bytes | memoryview, position: int = 0) -> int:
    """How many bytes from `position` on are whole batches, judged by their lengths alone."""
    start = position
    end = len(buf)
    while end - position >= HEADER_BYTES:
        length = _HOP.unpack_from(buf, position)[1]
        after = position + length + LENGTH_OVERHEAD_BYTES
        if length < _MIN_LENGTH or after > end:
            break
        position = after
    return position - start


def encode_batch(
    *,
    base_offset: int,
    leader_epoch: int,
    timestamp_ms: int,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    headers: Sequence[Sequence[tuple[bytes, bytes | None]]] | None = None,
    is_control: bool = False,
    max_timestamp_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int | None = None,
    last_offset_delta: int | None = None,
    records_count: int | None = None,
) -> bytes:
    """One uncompressed batch; record `i` gets offset `base_offset + i`.

    A metadata batch gives `values` only: null keys, no headers, every record at `timestamp_ms`. A control
    batch gives `keys` made by `control_key`. The last seven parameters exist so that a batch that was read
    can be encoded to the same bytes. Raises BatchError for no records, a wrong length of a sequence, or more
    than MAX_BATCH_BYTES.
    """
    count = len(values)
    if not count:
        raise BatchError("a batch needs at least one record")
    for name, sequence in (("keys", keys), ("timestamps", timestamps), ("headers", headers)):
        if sequence is not None and len(sequence) != count:
            raise BatchError(f"{len(sequence)} {name} were given for {count} values; give one each")
    if keys is None and timestamps is None and headers is None:
        body = _encode_plain(values)
        newest = timestamp_ms
    else:
        body = _encode_full(timestamp_ms, values, keys, timestamps, headers)
        newest = max(timestamps) if timestamps else timestamp_ms
    return seal_batch(
        BatchHeader(
            base_offset=base_offset,
            batch_length=0,
            leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=(_CONTROL if is_control else 0) if attributes is None else attributes,
            last_offset_delta=count - 1 if last_offset_delta is None else last_offset_delta,
            base_timestamp_ms=timestamp_ms,
            max_timestamp_ms=newest if max_timestamp_ms is None else max_timestamp_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            records_count=count if records_count is None else records_count,
        ),
        body,
    )


def seal_batch(header: BatchHeader, payload: bytes) -> bytes:
    """`header` and `payload` as one batch, its length and CRC computed anew.

    Also how a compressed batch is copied with another base offset or epoch. Raises BatchError over 8 MiB.
    """
    size = HEADER_BYTES + len(payload)
    if size > MAX_BATCH_BYTES:
        raise BatchError(f"a batch of {size} bytes is over the limit of {MAX_BATCH_BYTES}; split the request")
    covered = _AFTER_CRC.pack(*header[5:])
    crc = crc32c(payload, crc32c(covered))
    prefix = _PREFIX.pack(header.base_offset, size - LENGTH_OVERHEAD_BYTES, header.leader_epoch, header.magic, crc)
    return b"".join((prefix, covered, payload))


def reencode_batch(batch: RecordBatch) -> bytes:
    """The batch taken apart into records and encoded again: the same bytes, if it was well formed.

    A compressed batch is passed through with its payload unopened.
    """
    header = batch.header
    if header.compression:
        return seal_batch(header, batch.data[HEADER_BYTES:])
    records = batch.records()
    # With log append time every record reads as the batch's maximum; its deltas are 0 by definition.
    timestamps = None if header.is_log_append_time else [record.timestamp_ms for record in records]
    body = _encode_full(
        header.base_timestamp_ms,
        [record.value for record in records],
        [record.key for record in records],
        timestamps,
        [record.headers for record in records],
        [record.offset - header.base_offset for record in records],
        [record.attributes for record in records],
    )
    return seal_batch(header, body)


def control_key(control_type: int, version: int = 0) -> bytes:
    """A control record's key: int16 version, int16 type."""
    return _CONTROL_KEY.pack(version, control_type)


def parse_control_key(key: bytes | None) -> tuple[int, int]:
    """(version, type) of a control record's key. Raises BatchError when it is absent or too short."""
    if key is None or len(key) < _CONTROL_KEY.size:
        raise BatchError("a control record has no key of int16 version and int16 type")
    version, control_type = _CONTROL_KEY.unpack_from(key)
    return version, control_type


def _encode_plain(values: Sequence[bytes | None]) -> bytes:
    parts: list[bytes] = []
    for delta, value in enumerate(values):
        delta_bytes = encode_varint(delta)
        if value is None:
            parts.append(encode_varint(5 + len(delta_bytes)) + b"\0\0" + delta_bytes + b"\x01\x01\0")
            continue
        length_bytes = encode_varint(len(value))
        head = b"\0\0" + delta_bytes + b"\x01" + length_bytes
        parts.append(encode_varint(len(head) + len(value) + 1) + head)
        parts.append(value)
        parts.append(b"\0")
    return b"".join(parts)


def _encode_full(
    base_timestamp_ms: int,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps: Sequence[int] | None,
    headers: Sequence[Sequence[tuple[bytes, bytes | None]]] | None,
    deltas: Sequence[int] | None = None,
    attributes: Sequence[int] | None = None,
) -> bytes:
    parts: list[bytes] = []
    for index, value in enumerate(values):
        pieces = [
            bytes((attributes[index] if attributes else 0,)),
            encode_varint(timestamps[index] - base_timestamp_ms if timestamps else 0),
            encode_varint(deltas[index] if deltas else index),
            _length_prefixed(keys[index] if keys else None),
            _length_prefixed(value),
        ]
        record_headers = headers[index] if headers else ()
        pieces.append(encode_varint(len(record_headers)))
        for name, content in record_headers:
            pieces += (_length_prefixed(name), _length_prefixed(content))
        body = b"".join(pieces)
        parts += (encode_varint(len(body)), body)
    return b"".join(parts)


def _length_prefixed(content: bytes | None) -> bytes:
    return b"\x01" if content is None else encode_varint(len(content)) + content

"""The 61-byte header of a record batch in message format 2: its fields, parsing and checks.

Source: Kafka's message format (KIP-98, `DefaultRecordBatch`).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from metaquorum.storage.errors import BatchError

MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_OFFSET = (1 << 63) - 1
"""The offset after a log's last record fits into 64 bits with a sign, as Kafka's do."""
HEADER_BYTES = 61
MAGIC = 2
# baseOffset and batchLength are not part of the length that batchLength states.
LENGTH_OVERHEAD_BYTES = 12
MIN_LENGTH = HEADER_BYTES - LENGTH_OVERHEAD_BYTES
# The CRC covers everything from the attributes on.
CRC_START = 21

HEADER_STRUCT = struct.Struct(">qiibIhiqqqhii")
_HOP = struct.Struct(">qii7xi")

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
# The base timestamp is when a cleaner may start to drop the batch's tombstones or marker (KIP-534).
NO_TIMESTAMP = -1
DELETE_HORIZON = 0x40


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
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """True for batches of a producer's transaction (never in a metadata log)."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """True when every record carries the batch's maximum timestamp."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def compression(self) -> int:
        """Codec number, see `Compression`; 0 means none. Numbers above 4 are not assigned."""
        return self.attributes & COMPRESSION_MASK


def parse_header(buf: bytes | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`. Raises BatchError if fewer than 61 bytes are left or the magic is not 2."""
    if len(buf) - position < HEADER_BYTES:
        raise BatchError(
            f"{len(buf) - position} bytes are left at {position}, a batch header has {HEADER_BYTES}"
        )
    header = BatchHeader._make(HEADER_STRUCT.unpack_from(buf, position))
    if header.magic != MAGIC:
        raise BatchError(
            f"magic {header.magic} at byte {position} is not 2; this is not a record batch, or has a "
            "format that KRaft never wrote"
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
    gaps: bool = False,
) -> str | None:
    """What is wrong with the batch at `position`, as "expected X, found Y"; None if it is whole and valid.

    `expected_offset` and `min_epoch` guard what the CRC does not cover: base offset, epoch and length.
    """
    left = len(buf) - position
    if left < HEADER_BYTES:
        return f"expected a batch header of {HEADER_BYTES} bytes, found {left}"
    header = BatchHeader._make(HEADER_STRUCT.unpack_from(buf, position))
    if header.magic != MAGIC:
        return f"expected magic {MAGIC}, found {header.magic}"
    if header.batch_length < MIN_LENGTH:
        return f"expected a batch length of at least {MIN_LENGTH}, found {header.batch_length}"
    if header.size_bytes > left:
        return f"expected a batch of {header.size_bytes} bytes, found {left}"
    if verify_crc:
        actual = crc32c(memoryview(buf)[position + CRC_START : position + header.size_bytes])
        if actual != header.crc:
            return f"expected CRC {header.crc:#010x}, found {actual:#010x}"
    problems = header_problems(header, expected_offset, min_epoch, check_count=check_count, gaps=gaps)
    return next(iter(problems), None)


def header_problems(
    header: BatchHeader,
    expected_offset: int | None,
    min_epoch: int,
    *,
    check_count: bool = True,
    gaps: bool = False,
) -> list[str]:
    """Every problem in a header that is complete; empty if there is none. With `gaps`, offsets may be
    missing, before the batch and in it."""
    problems: list[str] = []
    base = header.base_offset
    if expected_offset is not None and (base < expected_offset if gaps else base != expected_offset):
        problems.append(f"expected base offset {expected_offset}{' or above' * gaps}, found {base}")
    if header.base_offset < 0 or header.last_offset_delta < 0:
        problems.append(
            f"expected offsets from 0 up, found {header.base_offset} + {header.last_offset_delta}"
        )
    if header.base_offset + header.last_offset_delta >= MAX_OFFSET:
        problems.append(f"expected an offset below {MAX_OFFSET}, found {header.base_offset}")
    if header.leader_epoch < min_epoch:
        problems.append(f"expected leader epoch {min_epoch} or higher, found {header.leader_epoch}")
    expected = header.last_offset_delta + 1
    count = header.records_count
    if check_count and count != expected and not (gaps and 0 <= count < expected):
        most = "at most " * gaps
        problems.append(f"expected {most}{expected} records by the last offset delta, found {count}")
    return problems


def hop_headers(buf: bytes | memoryview, position: int = 0) -> list[tuple[int, int, int, int]]:
    """(position, base offset, next offset, leader epoch) of every batch whose header is in `buf`.

    Reads no payload and checks only the length; stops at a header that is cut off or has an impossible
    length. The last batch listed may extend beyond `buf`: `position + length` is where the caller continues.
    """
    hops: list[tuple[int, int, int, int]] = []
    unpack = _HOP.unpack_from
    last = len(buf) - HEADER_BYTES
    while position <= last:
        base, length, epoch, delta = unpack(buf, position)
        if length < MIN_LENGTH:
            break
        hops.append((position, base, base + delta + 1, epoch))
        position += length + LENGTH_OVERHEAD_BYTES
    return hops


# One pass over the batches in a buffer that checks each batch: for callers that need only where the
# batches are, and for callers that need their headers.

# (position in the buffer, base offset, next offset, leader epoch)
Hop: TypeAlias = tuple[int, int, int, int]

_CHECKED = struct.Struct(">qiibI2xi30xi")
_LENGTH = struct.Struct(">i")


class BatchWalk(NamedTuple):
    """The batches that passed, where they end, and what is wrong with the bytes there (None at the end)."""

    hops: list[Hop]
    end: int
    problem: str | None


class HeaderWalk(NamedTuple):
    """As `BatchWalk`, with the headers of the batches that passed."""

    headers: list[BatchHeader]
    end: int
    problem: str | None


def is_cut_off(buf: bytes, position: int) -> bool:
    """Whether the bytes at `position` are the start of a batch that, by its length, ends after the buffer.
    Kafka fills a fetch response to the last byte."""
    left = len(buf) - position
    if left < LENGTH_OVERHEAD_BYTES:
        return left > 0
    (length,) = _LENGTH.unpack_from(buf, position + 8)
    return bool(length >= MIN_LENGTH and left < length + LENGTH_OVERHEAD_BYTES)


def walk_batches(
    buf: bytes,
    *,
    expected_offset: int,
    min_epoch: int,
    verify_crc: bool = True,
    limit: int | None = None,
    gaps: bool = False,
) -> BatchWalk:
    """Checks length, magic, CRC, contiguous offsets from `expected_offset` on, epochs that never fall, and
    record counts of every batch in `buf`; stops at the first batch that is cut off, invalid or beyond
    `limit` bytes (the first batch always fits). With `gaps`, offsets only have to rise, and batches may
    lack records, as a cleaner leaves a compacted log."""
    view = memoryview(buf)
    unpack = _CHECKED.unpack_from
    size = len(buf)
    end = size if limit is None else min(limit, size)
    hops: list[Hop] = []
    position = 0
    epoch = min_epoch
    while position <= size - HEADER_BYTES:
        base, length, batch_epoch, magic, crc, delta, count = unpack(buf, position)
        after = position + length + LENGTH_OVERHEAD_BYTES
        if (
            magic != MAGIC
            or length < MIN_LENGTH
            or after > size
            or (base != expected_offset and not (gaps and base > expected_offset))
            or batch_epoch < epoch
            or delta < 0
            or (count != delta + 1 and not (gaps and 0 <= count <= delta))
            or (verify_crc and crc32c(view[position + CRC_START : after]) != crc)
        ):
            break
        if after > end and hops:
            return BatchWalk(hops, position, None)
        expected_offset = base + delta + 1
        epoch = batch_epoch
        hops.append((position, base, expected_offset, epoch))
        position = after
    if position == size:
        return BatchWalk(hops, position, None)
    problem = batch_problem(
        buf, position, expected_offset=expected_offset, min_epoch=epoch, verify_crc=verify_crc, gaps=gaps
    )
    return BatchWalk(hops, position, problem)


def walk_headers(
    buf: bytes, *, expected_offset: int | None = None, min_epoch: int = 0, gaps: bool = False
) -> HeaderWalk:
    """The checks of `walk_batches` on whole headers, each parsed once. `expected_offset` None: that of the
    first batch."""
    view = memoryview(buf)
    unpack, make = HEADER_STRUCT.unpack_from, BatchHeader._make
    size = len(buf)
    headers: list[BatchHeader] = []
    position = 0
    expected = -1 if expected_offset is None else expected_offset
    epoch = min_epoch
    while position <= size - HEADER_BYTES:
        header = make(unpack(buf, position))
        base, length, batch_epoch, magic, crc, _, delta, _, _, _, _, _, count = header
        after = position + length + LENGTH_OVERHEAD_BYTES
        if (
            magic != MAGIC
            or length < MIN_LENGTH
            or after > size
            or (base < 0 if expected < 0 else base != expected and not (gaps and base > expected))
            or batch_epoch < epoch
            or delta < 0
            or (count != delta + 1 and not (gaps and 0 <= count <= delta))
            or crc32c(view[position + CRC_START : after]) != crc
        ):
            break
        expected = base + delta + 1
        epoch = batch_epoch
        headers.append(header)
        position = after
    if position == size:
        return HeaderWalk(headers, position, None)
    wanted = None if expected < 0 else expected
    problem = batch_problem(buf, position, expected_offset=wanted, min_epoch=epoch, gaps=gaps)
    return HeaderWalk(headers, position, problem)


# Zig-zag variable-length integers, as record batches use them.
# Source: Kafka's message format 2 and Protocol Buffers' sint32 / sint64 encoding. Encodings are minimal.

_MAX_VARLONG_BYTES = 10
_LIMIT = 1 << 64
_CACHED = 4096


def _encode(value: int) -> bytes:
    rest = (value << 1) if value >= 0 else ((-value) << 1) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SMALL = tuple(_encode(value) for value in range(_CACHED))


def encode_varint(value: int) -> bytes:
    """The zig-zag encoding of a signed integer of at most 64 bits."""
    return _SMALL[value] if 0 <= value < _CACHED else _encode(value)


def decode_varint(buf: bytes | memoryview, position: int) -> tuple[int, int]:
    """(value, position after it). Raises BatchError if the bytes run out or the number exceeds 64 bits."""
    result = 0
    shift = 0
    for index in range(position, min(position + _MAX_VARLONG_BYTES, len(buf))):
        byte = buf[index]
        result |= (byte & 0x7F) << shift
        if byte < 0x80 and result < _LIMIT:
            return (result >> 1) ^ -(result & 1), index + 1
        shift += 7
    raise BatchError(f"a variable-length integer at byte {position} of the batch does not end")

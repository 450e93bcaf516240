"""The 61-byte header of a record batch in message format 2: its fields, parsing and checks.

Owns the positions and limits of the fields. Knows one batch at a time, as bytes, and no file; `batch` splits
records, `encode` makes them. Source: Kafka's message format (KIP-98, `DefaultRecordBatch`).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from metaquorum.storage.errors import BatchError

MAX_BATCH_BYTES = 8 * 1024 * 1024
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

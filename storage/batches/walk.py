"""One pass over the batches in a buffer that checks each batch: for callers that need only where the batches
are, and for callers that need their headers.

Owns the checks that append, read and recovery share. Knows buffers, not files, and looks into no record:
`batch` does.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from metaquorum.storage.batches.format import (
    CRC_START,
    HEADER_BYTES,
    HEADER_STRUCT,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    MIN_LENGTH,
    BatchHeader,
    batch_problem,
)

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

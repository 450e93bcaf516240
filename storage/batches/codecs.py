"""The payloads of compressed batches: decompressed within a limit, and compressed so that Kafka's clients can
read them.

Snappy is read in the blocks of Java's SnappyOutputStream or, from librdkafka, as one raw block; it is written
in blocks. LZ4 is a frame of independent blocks: Java reads no other kind (`Lz4BlockOutputStream`, KIP-57). A
few bytes may claim to be gigabytes, so nothing is decompressed beyond a limit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import cramjam

from metaquorum.storage.batches.format import COMPRESSION_MASK, Compression, hop_headers
from metaquorum.storage.errors import BatchError

MAX_UNPACKED_BYTES = 64 * 1024 * 1024
"""Limit per batch; the largest batch that is sent by default is a 64th of it."""


class TooLargeUnpacked(BatchError):
    """The payload is larger than the limit when it is unpacked."""


_FIRST_TRY_FACTOR = 16
_FIRST_TRY_BYTES = 64 * 1024
_COPIED_BYTES = 1024 * 1024
_NO_ROOM = "write whole buffer"
# The one of the two attribute bytes that holds the codec.
_ATTRIBUTES_LOW = 22
_GZIP_LEVEL, _ZSTD_LEVEL = 6, 3

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL + (1).to_bytes(4, "big") * 2
_XERIAL_BLOCK_BYTES = 32 * 1024

# Magic, version 1 with independent blocks, blocks of at most 64 KiB, and the checksum of these two bytes.
_LZ4_HEADER = bytes.fromhex("04224d18604082")
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_PLAIN = 1 << 31


def unpack(codec: int, payload: bytes, *, limit: int = MAX_UNPACKED_BYTES) -> bytes:
    """The records that `payload` holds, at most `limit` bytes of them. `codec` is one of `Compression`.

    Raises BatchError if the payload is damaged or cut off, TooLargeUnpacked if it is larger than the limit.
    """
    found = unpack_in_place(codec, payload, limit=limit)
    return found if isinstance(found, bytes) else found.tobytes()


def unpack_in_place(codec: int, payload: bytes, *, limit: int = MAX_UNPACKED_BYTES) -> bytes | memoryview:
    """The same, without another copy in memory of what is large."""
    if codec == Compression.NONE:
        return payload
    name = Compression(codec).name.lower()
    try:
        if codec == Compression.SNAPPY:
            return b"".join(_snappy_blocks(payload, limit))
        return _unpacked(_UNPACK[codec], payload, limit)
    except cramjam.DecompressionError as error:
        if _NO_ROOM in str(error):
            text = f"the {name} payload is too large: it unpacks to over {limit} bytes"
            raise TooLargeUnpacked(text) from None
        raise BatchError(f"the {name} payload is damaged: {error}") from None


def _unpacked(into: Callable[[bytes, Any], int], payload: bytes, limit: int) -> bytes | memoryview:
    import numpy as np  # commands that decompress nothing start without it

    # Memory that is never written costs next to nothing, but mapping a lot of it does.
    guess = min(limit, max(_FIRST_TRY_BYTES, _FIRST_TRY_FACTOR * len(payload)))
    out = np.empty(guess, dtype=np.uint8)
    try:
        size = into(payload, out)
    except cramjam.DecompressionError as error:
        if guess == limit or _NO_ROOM not in str(error):
            raise
        out = np.empty(limit, dtype=np.uint8)
        size = into(payload, out)
    return out[:size].tobytes() if size <= _COPIED_BYTES else out.data[:size]


_UNPACK: dict[int, Callable[[bytes, Any], int]] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}


def _snappy_blocks(payload: bytes, limit: int) -> Iterator[bytes]:
    if not payload.startswith(_XERIAL):
        yield _snappy_block(payload, limit)
        return
    block_start = 0
    while block_start < len(payload):
        if payload.startswith(_XERIAL, block_start):  # several streams may follow one another
            block_start += len(_XERIAL_HEADER)
            continue
        size = int.from_bytes(payload[block_start : block_start + 4], "big")
        block = payload[block_start + 4 : block_start + 4 + size]
        if len(block) < size or block_start + 4 > len(payload):
            raise BatchError("the snappy payload is cut off within a block")
        found = _snappy_block(block, limit)
        limit -= len(found)
        block_start += 4 + size
        yield found


def _snappy_block(block: bytes, limit: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > limit:
        raise TooLargeUnpacked(f"the snappy payload is too large: it unpacks to over {limit} more bytes")
    return bytes(cramjam.snappy.decompress_raw(block))


def pack(codec: int, records: bytes | memoryview) -> bytes:
    """The payload of a batch in this codec, one of `Compression`."""
    match codec:
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(records, level=_GZIP_LEVEL))
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(records, level=_ZSTD_LEVEL))
        case Compression.SNAPPY:
            return _snappy_stream(records)
        case Compression.LZ4:
            return _lz4_frame(records)
        case _:
            return bytes(records)


def _snappy_stream(records: bytes | memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for at in range(0, len(records), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(bytes(records[at : at + _XERIAL_BLOCK_BYTES])))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _lz4_frame(records: bytes | memoryview) -> bytes:
    parts = [_LZ4_HEADER]
    for at in range(0, len(records), _LZ4_BLOCK_BYTES):
        plain = bytes(records[at : at + _LZ4_BLOCK_BYTES])
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (len(block).to_bytes(4, "little"), block)
        else:
            parts += ((len(plain) | _LZ4_PLAIN).to_bytes(4, "little"), plain)
    return b"".join((*parts, bytes(4)))


def holds_zstd(batches: bytes) -> bool:
    """Whether one of these batches is compressed with zstd, as far as their headers are complete."""
    return any(
        batches[position + _ATTRIBUTES_LOW] & COMPRESSION_MASK == Compression.ZSTD
        for position, *_ in hop_headers(batches)
    )


# Which LZ4 payloads all of Kafka's consumers can decompress: one frame of version 1 with independent
# blocks.
#
# Kafka's clients stop at anything else (KIP-57): other frames of the format, such as skippable ones, a
# second one, blocks that refer to earlier ones, a dictionary. Hops over the blocks; decompresses nothing.

BLOCKS_MAX = 16_384
"""The most blocks of a frame. With blocks of 64 KiB, the smallest size that encoders know, an unpacked batch
of 64 MiB has 1,024; every block costs time, however small it is."""

_MAGIC = 0x184D2204
_HEADER = struct.Struct("<IBB")
_HEADER_CHECKSUM_BYTES, _CONTENT_SIZE_BYTES, _CHECKSUM_BYTES = 1, 8, 4
_VERSION_BITS, _VERSION = 0xC0, 0x40
_INDEPENDENT, _BLOCK_CHECKSUMS, _CONTENT_SIZE, _CONTENT_CHECKSUM, _RESERVED = 0x20, 0x10, 0x08, 0x04, 0x03
_BLOCK_SIZE = struct.Struct("<I")
_SIZE_BITS = (1 << 31) - 1


def frame_problem(payload: bytes) -> str | None:
    """Why consumers cannot decompress this payload, judging by its frame; None if they can."""
    if len(payload) < _HEADER.size:
        return "the lz4 payload is cut off within the header of its frame"
    magic, flags, _ = _HEADER.unpack_from(payload)
    if magic != _MAGIC:
        return f"the lz4 payload begins with {magic:#010x}, but an lz4 frame with {_MAGIC:#010x}"
    if flags & _VERSION_BITS != _VERSION or flags & _RESERVED:
        return f"the lz4 frame's flags are {flags:#04x}: version 1 without a dictionary is expected"
    if not flags & _INDEPENDENT:
        return "the lz4 frame has linked blocks, but consumers read independent blocks only"
    position = _HEADER.size + _HEADER_CHECKSUM_BYTES + (_CONTENT_SIZE_BYTES if flags & _CONTENT_SIZE else 0)
    end = _end_of_blocks(payload, position, _CHECKSUM_BYTES if flags & _BLOCK_CHECKSUMS else 0)
    if isinstance(end, str):
        return end
    left = len(payload) - end - (_CHECKSUM_BYTES if flags & _CONTENT_CHECKSUM else 0)
    if left < 0:
        return "the lz4 frame is cut off within the checksum of its content"
    return f"{left} bytes follow the lz4 frame, but consumers read one frame only" if left else None


def _end_of_blocks(payload: bytes, position: int, checksum_bytes: int) -> int | str:
    """The position after the end mark, or a problem."""
    last = len(payload) - _BLOCK_SIZE.size
    for _ in range(BLOCKS_MAX + 1):
        if position > last:
            return "the lz4 frame is cut off within its blocks"
        size = _BLOCK_SIZE.unpack_from(payload, position)[0] & _SIZE_BITS
        position += _BLOCK_SIZE.size
        if not size:
            return position
        position += size + checksum_bytes
    return f"the lz4 frame has over {BLOCKS_MAX} blocks"

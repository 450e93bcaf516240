"""The payloads of compressed batches: decompressed within a limit, and compressed so that Kafka's clients can
read them.

Owns the framing that each codec has in a batch. gzip and zstd are whole streams. Snappy is read in the blocks
of Java's SnappyOutputStream or, from librdkafka, as one raw block; it is written in blocks. LZ4 is a frame of
independent blocks: Java reads no other kind (`Lz4BlockOutputStream`, KIP-57). A few bytes may claim to be
gigabytes, so nothing is decompressed beyond a limit. Does not know headers or records: `batch` splits what is
unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cramjam

from metaquorum.storage.batches.format import COMPRESSION_MASK, Compression, hop_headers
from metaquorum.storage.errors import BatchError

MAX_UNPACKED_BYTES = 64 * 1024 * 1024
"""Limit per batch; the largest batch that is sent by default is a 64th of it."""

_FIRST_TRY_FACTOR = 16
_FIRST_TRY_BYTES = 64 * 1024
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

    Raises BatchError if the payload is damaged, cut off or larger than the limit.
    """
    if codec == Compression.NONE:
        return payload
    name = Compression(codec).name.lower()
    try:
        if codec == Compression.SNAPPY:
            return b"".join(_snappy_blocks(payload, limit))
        return _unpacked(_UNPACK[codec], payload, limit)
    except cramjam.DecompressionError as error:
        reason = f"it unpacks to over {limit} bytes" if _NO_ROOM in str(error) else str(error)
        raise BatchError(f"the {name} payload is damaged or too large: {reason}") from None


def _unpacked(into: Callable[[bytes, Any], int], payload: bytes, limit: int) -> bytes:
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
    return out[:size].tobytes()


_UNPACK: dict[int, Callable[[bytes, Any], int]] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}


def _snappy_blocks(payload: bytes, limit: int) -> Iterator[bytes]:
    if not payload.startswith(_XERIAL):
        yield _snappy_block(payload, limit)
        return
    at = 0
    while at < len(payload):
        if payload.startswith(_XERIAL, at):  # several streams may follow one another
            at += len(_XERIAL_HEADER)
            continue
        size = int.from_bytes(payload[at : at + 4], "big")
        block = payload[at + 4 : at + 4 + size]
        if len(block) < size or at + 4 > len(payload):
            raise BatchError("the snappy payload is cut off within a block")
        found = _snappy_block(block, limit)
        limit -= len(found)
        at += 4 + size
        yield found


def _snappy_block(block: bytes, limit: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > limit:
        raise BatchError(f"the snappy payload is too large: it unpacks to over {limit} more bytes")
    return bytes(cramjam.snappy.decompress_raw(block))


def pack(codec: int, records: bytes) -> bytes:
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
            return records


def _snappy_stream(records: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for at in range(0, len(records), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(records[at : at + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _lz4_frame(records: bytes) -> bytes:
    parts = [_LZ4_HEADER]
    for at in range(0, len(records), _LZ4_BLOCK_BYTES):
        plain = records[at : at + _LZ4_BLOCK_BYTES]
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

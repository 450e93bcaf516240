"""Which framings of a codec a leader stores: those, and only those, that Kafka's consumers can decompress."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest

from metaquorum.broker.replica.partition.validation import OpenedBatch, check_batch
from metaquorum.broker.replica.partition.values import BatchRefusal
from metaquorum.broker.replica.topic_settings import TopicSettings
from metaquorum.metadata.errors import ErrorCode
from metaquorum.storage.batches.batch import Batches, encode_batch, seal_batch
from metaquorum.storage.batches.codecs import BLOCKS_MAX, pack
from metaquorum.storage.batches.format import HEADER_BYTES, Compression, parse_header

WALL_MS = 1_700_000_000_000
GZIP, SNAPPY, LZ4, ZSTD = Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD
SKIPPABLE = struct.pack("<II", 0x184D2A50, 3) + b"abc"
XERIAL = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2


def frame(data: bytes, **options: object) -> bytes:
    return bytes(lz4.frame.compress(data, **{"block_linked": False, **options}))


def stored_blocks(data: bytes, size: int) -> bytes:
    """A frame whose blocks are not compressed and have `size` bytes."""
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    header = bytes.fromhex("04224d18604082")
    return header + b"".join(struct.pack("<I", len(one) | 1 << 31) + one for one in blocks) + bytes(4)


def with_flag(data: bytes, flag: int) -> bytes:
    whole = bytearray(frame(data, store_size=False))
    whole[4] |= flag
    return bytes(whole)


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def block(data: bytes) -> bytes:
    packed = raw_snappy(data)
    return len(packed).to_bytes(4, "big") + packed


def zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


Framing = Callable[[bytes], bytes]

STORED: dict[str, tuple[Compression, Framing]] = {
    "lz4: as librdkafka and Java write it": (LZ4, lambda data: pack(LZ4, data)),
    "lz4: blocks of 256 KiB": (LZ4, lambda data: frame(data, block_size=5)),
    "lz4: blocks of 4 MiB": (LZ4, lambda data: frame(data, block_size=7)),
    "lz4: checksum of the content": (LZ4, lambda data: frame(data, content_checksum=True)),
    "lz4: checksums of the blocks": (LZ4, lambda data: frame(data, block_checksum=True)),
    "lz4: both": (LZ4, lambda data: frame(data, block_checksum=True, content_checksum=True)),
    "lz4: without the content's size": (LZ4, lambda data: frame(data, store_size=False)),
    "lz4: blocks that are not compressed": (LZ4, lambda data: stored_blocks(data, 64 * 1024)),
    "lz4: small blocks": (LZ4, lambda data: stored_blocks(data, 1000)),
    "gzip: one member": (GZIP, lambda data: pack(GZIP, data)),
    "gzip: as Python writes it": (GZIP, gzip.compress),
    "gzip: two members": (GZIP, lambda data: gzip.compress(data[:99]) + gzip.compress(data[99:])),
    "gzip: an empty member first": (GZIP, lambda data: gzip.compress(b"") + gzip.compress(data)),
    "snappy: raw": (SNAPPY, raw_snappy),
    "snappy: blocks": (SNAPPY, lambda data: pack(SNAPPY, data)),
    "snappy: two blocks": (SNAPPY, lambda data: XERIAL + block(data[:99]) + block(data[99:])),
    "snappy: two streams": (SNAPPY, lambda data: pack(SNAPPY, data[:99]) + pack(SNAPPY, data[99:])),
    "zstd: one frame": (ZSTD, zstd),
    "zstd: two frames": (ZSTD, lambda data: zstd(data[:99]) + zstd(data[99:])),
    "zstd: an empty frame first": (ZSTD, lambda data: zstd(b"") + zstd(data)),
    "zstd: a skippable frame first": (ZSTD, lambda data: SKIPPABLE + zstd(data)),
}

REFUSED: dict[str, tuple[Compression, Framing, str]] = {
    "lz4: linked blocks": (LZ4, lambda data: frame(data, block_linked=True), "linked blocks"),
    "lz4: two frames": (LZ4, lambda data: frame(data[:99]) + frame(data[99:]), "bytes follow the lz4 frame"),
    "lz4: an empty frame first": (LZ4, lambda data: frame(b"") + frame(data), "bytes follow the lz4 frame"),
    "lz4: an empty frame last": (LZ4, lambda data: frame(data) + frame(b""), "bytes follow the lz4 frame"),
    "lz4: a skippable frame first": (LZ4, lambda data: SKIPPABLE + frame(data), "begins with 0x184d2a50"),
    "lz4: a skippable frame last": (LZ4, lambda data: frame(data) + SKIPPABLE, "bytes follow the lz4 frame"),
    "lz4: bytes after the frame": (LZ4, lambda data: frame(data) + b"x", "1 bytes follow the lz4 frame"),
    "lz4: a dictionary": (LZ4, lambda data: with_flag(data, 1), "without a dictionary"),
    "lz4: a reserved flag": (LZ4, lambda data: with_flag(data, 2), "version 1"),
    "lz4: version 3": (LZ4, lambda data: with_flag(data, 0x80), "version 1"),
    "lz4: the legacy format": (
        LZ4,
        lambda data: bytes.fromhex("02214c18") + frame(data)[7:],
        "begins with 0x184c2102",
    ),
    "lz4: no end mark": (LZ4, lambda data: pack(LZ4, data)[:-4], "cut off within its blocks"),
    "lz4: no checksum of the content": (
        LZ4,
        lambda data: frame(data, content_checksum=True)[:-4],
        "cut off within the checksum",
    ),
    "lz4: a header alone": (LZ4, lambda data: frame(data)[:5], "cut off within the header"),
    "lz4: countless blocks": (LZ4, lambda data: stored_blocks(data, 1), f"over {BLOCKS_MAX} blocks"),
    "gzip: cut off": (GZIP, lambda data: gzip.compress(data)[:-9], "gzip"),
    "gzip: bytes after the member": (GZIP, lambda data: gzip.compress(data) + b"x" * 30, "gzip"),
    "snappy: cut off": (SNAPPY, lambda data: pack(SNAPPY, data)[:-9], "snappy"),
    "zstd: cut off": (ZSTD, lambda data: zstd(data)[:-9], "zstd"),
    "zstd: bytes after the frame": (ZSTD, lambda data: zstd(data) + b"x" * 30, "zstd"),
}


def answered(codec: Compression, framing: Framing) -> OpenedBatch | BatchRefusal:
    plain = encode_batch(
        base_offset=0, leader_epoch=-1, timestamp_ms=WALL_MS, values=[b"value %d" % at for at in range(9999)]
    )
    header, records = parse_header(plain), plain[HEADER_BYTES:]
    data = seal_batch(header._replace(attributes=codec), framing(records))
    return check_batch(Batches.arrived(data), TopicSettings(), wall_ms=WALL_MS)


@pytest.mark.parametrize("name", STORED)
def test_what_consumers_decompress_is_stored_as_it_came(name: str) -> None:
    codec, framing = STORED[name]
    batch = answered(codec, framing)
    assert isinstance(batch, OpenedBatch) and not batch.changed


@pytest.mark.parametrize("name", REFUSED)
def test_what_consumers_cannot_decompress_is_refused(name: str) -> None:
    codec, framing, words = REFUSED[name]
    refusal = answered(codec, framing)
    assert isinstance(refusal, BatchRefusal) and refusal.error is ErrorCode.INVALID_RECORD
    assert words in refusal.message

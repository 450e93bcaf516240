"""Kafka's codecs: what other clients pack is unpacked, what is packed here others unpack."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.storage.batches.batch import encode_batch, iter_batches
from metaquorum.storage.batches.codecs import holds_zstd, pack, unpack
from metaquorum.storage.batches.format import Compression
from metaquorum.storage.errors import BatchError

CODECS = [each for each in Compression if each]
LOGS = "kafka-3.7-wire/logs"


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.one_of(st.binary(max_size=300), st.binary(max_size=30).map(lambda some: some * 9000)))
def test_what_is_packed_is_unpacked(codec: Compression, data: bytes) -> None:
    assert unpack(codec, pack(codec, data)) == data


def test_several_streams_and_blocks_in_a_row_are_one_payload() -> None:
    assert unpack(Compression.GZIP, gzip.compress(b"ab") + gzip.compress(b"c")) == b"abc"
    for codec in CODECS:
        assert unpack(codec, pack(codec, b"ab") + pack(codec, b"c")) == b"abc"


def test_snappy_comes_raw_too() -> None:
    assert unpack(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(b"x" * 99))) == b"x" * 99


def test_lz4_is_framed_as_java_reads_it() -> None:
    """Version 1, blocks that do not depend on each other, no checksum of the content; block and end mark."""
    frame = pack(Compression.LZ4, b"x" * 200_000)
    assert frame[:7].hex() == "04224d18604082" and frame.endswith(bytes(4))
    assert bytes(cramjam.lz4.decompress(frame)) == b"x" * 200_000


def test_blocks_are_of_the_sizes_that_java_s_streams_have() -> None:
    """Snappy's of 32 KiB, LZ4's of 64 KiB, and one that would grow is stored as it is."""
    noise = random.Random(1).randbytes(200_000)
    data = noise[:100_000] + bytes(100_000) + noise[100_000:]
    stream, frame = pack(Compression.SNAPPY, data), pack(Compression.LZ4, data)

    def blocks(payload: bytes, at: int, order: Literal["big", "little"]) -> Iterator[tuple[int, bytes]]:
        while at < len(payload):
            size = int.from_bytes(payload[at : at + 4], order)
            end = at + 4 + (size & (1 << 31) - 1)
            yield size >> 31, payload[at + 4 : end]
            at = end

    snappy = [bytes(cramjam.snappy.decompress_raw(block)) for _, block in blocks(stream, 16, "big")]
    assert snappy == [data[at : at + 32 * 1024] for at in range(0, len(data), 32 * 1024)]
    *lz4, (_, end) = blocks(frame, 7, "little")
    plain = [data[at : at + 64 * 1024] for at in range(0, len(data), 64 * 1024)]
    assert [block for is_stored, block in lz4 if is_stored] == [plain[0], plain[4]]
    assert len(lz4) == len(plain) and end == b"" and all(len(block) <= 64 * 1024 for _, block in lz4)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_and_damage_are_refused(codec: Compression) -> None:
    bomb = pack(codec, bytes(3_000_000))
    assert len(unpack(codec, bomb, limit=3_000_000)) == 3_000_000
    name = codec.name.lower()
    with pytest.raises(BatchError, match=f"{name}.*too large: it unpacks to"):
        unpack(codec, bomb, limit=2_999_999)
    for wrong in (b"", b"nonsense", bomb[:-5], bomb[: len(bomb) // 2]):
        with pytest.raises(BatchError, match=name) as caught:
            unpack(codec, wrong)
        assert "it unpacks to over" not in str(caught.value)


@pytest.mark.shared_data
def test_recorded_batches_of_every_codec_are_opened(shared_data: Path) -> None:
    seen = set()
    for path in sorted((shared_data / LOGS).glob("broker-0-*/d?/*-[0-9]/*.log")):
        data = path.read_bytes()
        for batch in iter_batches(data, file=str(path)):
            assert len(batch.records()) == batch.header.records_count
            seen.add(batch.header.compression)
    assert seen == set(Compression)


def test_zstd_is_seen_by_the_headers() -> None:
    plain = encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=0, values=[b"v"])
    zstd = encode_batch(base_offset=1, leader_epoch=0, timestamp_ms=0, values=[b"v"], attributes=4)
    assert not holds_zstd(plain * 3) and not holds_zstd(b"") and not holds_zstd(zstd[:50])
    assert holds_zstd(plain + zstd)

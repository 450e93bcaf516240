"""Bytes and their parsed headers stay one value, however it is cut."""

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

from metaquorum.storage.batches.batch import NO_BATCHES, Batches, encode_batch, iter_batches, parse_header
from metaquorum.storage.batches.codecs import holds_zstd, pack, unpack
from metaquorum.storage.batches.format import Compression, walk_batches, walk_headers
from metaquorum.storage.errors import BatchError, CorruptLogError
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.testing.faulty_disk import FaultyDisk

BASE = 7


def encoded(counts: list[int]) -> bytes:
    """A batch of so many records each, one after another from `BASE` on, epochs rising now and then."""
    data, offset = b"", BASE
    for number, count in enumerate(counts):
        values = [bytes([number]) * (number % 40)] * count
        data += encode_batch(base_offset=offset, leader_epoch=1 + number // 3, timestamp_ms=9, values=values)
        offset += count
    return data


some = st.lists(st.integers(min_value=1, max_value=5), max_size=12).map(encoded)


@given(data=some, cut=st.integers(min_value=0, max_value=14), offset=st.integers(min_value=0, max_value=80))
def test_every_part_is_what_parsing_its_bytes_gives(data: bytes, cut: int, offset: int) -> None:
    whole = Batches.parse(data)
    assert whole == Batches.sealed(data)
    assert [(each.header, each.data, each.position) for each in whole.split()] == [
        (each.header, each.data, each.position) for each in iter_batches(data)
    ]
    walk = walk_batches(data, expected_offset=BASE, min_epoch=0)
    assert walk.problem is None and whole.hops() == walk.hops
    headers = walk_headers(data, expected_offset=BASE, min_epoch=0)
    assert headers == (list(whole.headers), len(data), None) and Batches.of_walk(data, headers) == whole
    rest = whole.after(min(cut, len(whole.headers)))
    assert rest == Batches.parse(rest.data) and rest.headers == whole.headers[cut:]
    below = whole.below(offset)
    assert below == Batches.parse(below.data)
    assert list(below.headers) == [header for header in whole.headers if header.base_offset < offset]
    if whole.headers:
        assert Batches.joined(list(whole.split())) == whole
        assert (whole.base_offset, whole.next_offset) == (BASE, walk.hops[-1][2])


@given(data=some, at=st.integers(min_value=0), byte=st.integers(min_value=0, max_value=255))
def test_what_arrives_has_a_header_if_its_bytes_are_one_whole_batch(data: bytes, at: int, byte: int) -> None:
    for one in Batches.parse(data).split():
        assert Batches.arrived(one.data) == Batches(one.data, (one.header,))
        for other in (one.data[:-1], one.data + b"x", one.data + one.data, one.data[:60], b""):
            assert Batches.arrived(other) == Batches(other, ())
        changed = bytearray(one.data)
        changed[at % len(changed)] = byte
        found = Batches.arrived(bytes(changed))
        framed = bytes(changed[8:12]) == one.data[8:12] and changed[16] == 2
        assert found == Batches(bytes(changed), (parse_header(bytes(changed)),) if framed else ())


@given(data=some.filter(bool), less=st.integers(min_value=1))
def test_bytes_that_end_inside_a_batch_are_no_batches(data: bytes, less: int) -> None:
    size = Batches.parse(data).headers[-1].size_bytes
    cut = data[: len(data) - 1 - less % (size - 1)]
    with pytest.raises(CorruptLogError):
        Batches.parse(cut)
    with pytest.raises(BatchError):
        Batches.sealed(cut)


@given(data=some.filter(bool), at=st.integers(min_value=0), bit=st.integers(min_value=0, max_value=7))
def test_no_changed_bit_comes_through_the_door(data: bytes, at: int, bit: int) -> None:
    at %= len(data)
    damaged = bytearray(data)
    damaged[at] ^= 1 << bit
    try:
        found = Batches.parse(bytes(damaged))
    except CorruptLogError:
        return
    if found.base_offset != BASE:
        assert found.problem_after(BASE, 0) is not None
        return
    # The CRC does not cover a leader epoch, which may be any that does not fall.
    before = Batches.parse(data).headers
    assert [each._replace(leader_epoch=0) for each in found.headers] == [
        each._replace(leader_epoch=0) for each in before
    ]
    assert [each.leader_epoch for each in found.headers] != [each.leader_epoch for each in before]


@pytest.mark.parametrize(
    ("end_offset", "epoch", "says"),
    [
        (BASE, 1, None),
        (BASE, 0, None),
        (BASE, 2, "expected leader epoch 2 or higher, found 1"),
        (BASE - 1, 1, "expected base offset 6, found 7"),
        (BASE + 1, 1, "expected base offset 8, found 7"),
    ],
)
def test_batches_follow_a_log_or_say_why_not(end_offset: int, epoch: int, says: str | None) -> None:
    assert Batches.parse(encoded([2, 1])).problem_after(end_offset, epoch) == says
    assert NO_BATCHES.problem_after(end_offset, epoch) == "expected at least one batch"


def test_a_log_takes_parsed_batches_that_follow_and_no_others() -> None:
    disk = FaultyDisk(random.Random(1))
    disk.make_directory("/data")
    log = SegmentedLog.open(disk, "/data/log")
    first = Batches.parse(encoded([3, 4]))
    with pytest.raises(BatchError, match="expected base offset 0, found 7"):
        log.append(first)
    log.append(
        Batches.parse(encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=1, values=[b""] * BASE))
    )
    assert log.append(first) == log.end_offset == BASE + 7
    assert log.read(BASE, 1 << 20) == first
    with pytest.raises(BatchError, match="expected base offset 14, found 7"):
        log.append(first)


def test_bytes_that_were_damaged_on_the_disk_do_not_become_batches() -> None:
    disk = FaultyDisk(random.Random(1))
    disk.make_directory("/data")
    log = SegmentedLog.open(disk, "/data/log")
    log.append(Batches.parse(encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=1, values=[b"value"])))
    path = log.segments()[0].file
    file = disk.open_append(path)
    content = bytearray(file.read_at(0, file.size()))
    content[-3] ^= 4
    file.truncate(0)
    file.append(bytes(content))
    with pytest.raises(CorruptLogError, match="expected a valid batch"):
        log.read(0, 1 << 20)


# Kafka's codecs: what other clients pack is unpacked, what is packed here others unpack.


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

"""Bytes and their parsed headers stay one value, however it is cut."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.storage.batches.batch import NO_BATCHES, Batches, encode_batch, iter_batches, parse_header
from metaquorum.storage.batches.format import walk_batches, walk_headers
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

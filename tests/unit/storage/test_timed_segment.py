"""Index files of full segments, and searching a segment with them, without them, and with wrong ones."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.batch import encode_batch, iter_batches
from storage.faulty_disk import FaultyDisk
from storage.file_pool import FilePool
from storage.segment_index import (
    decode_index,
    decode_times,
    encode_index,
    encode_times,
    parse_index_name,
)
from storage.timed_segment import TimedSegment
from storage.walk import walk_batches

BASE = 1_000


def segment(times: list[int], *, records: int = 2, size: int = 30) -> tuple[FaultyDisk, TimedSegment]:
    disk = FaultyDisk(random.Random(1))
    disk.make_directory("/d")
    made = TimedSegment(disk, "/d", BASE, FilePool(disk, 4), index_interval_bytes=300, new=True)
    at = BASE
    for time_ms in times:
        data = encode_batch(
            base_offset=at, leader_epoch=1, timestamp_ms=time_ms, values=[b"v" * size] * records
        )
        hops = walk_batches(data, expected_offset=at, min_epoch=0).hops
        made.append(data, hops)
        made.note_appended(data, hops)
        at += records
    return disk, made


def reopened(disk: FaultyDisk, end: int | None) -> TimedSegment:
    again = TimedSegment(disk, "/d", BASE, FilePool(disk, 4), index_interval_bytes=300)
    again.sealed_end = end
    return again


def put(disk: FaultyDisk, files: list[tuple[str, bytes]]) -> None:
    for path, data in files:
        disk.open_append(path).append(data)


def first_not_older(made: TimedSegment, time_ms: int) -> int:
    """Where a search ends that begins where the segment says."""
    assert made.newest_timestamp_ms() >= time_ms
    position, base = made.locate(made.offset_before(time_ms))
    for one in iter_batches(made.file.read_at(position, made.size), expected_offset=base):
        if one.header.max_timestamp_ms >= time_ms:
            return one.header.base_offset
    raise AssertionError("nothing found")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=20, max_size=60), st.sampled_from(["warm", "files", "none"]))
def test_every_offset_and_time_is_found(times: list[int], how: str) -> None:
    disk, made = segment(times)
    end = BASE + 2 * len(times)
    if how != "warm":
        files = made.seal(end)
        assert [path.rpartition(".")[2] for path, _ in files] == ["index", "timeindex"]
        if how == "files":
            put(disk, files)
        made = reopened(disk, end)
    assert made.newest_timestamp_ms() == max(times)
    for number in range(len(times)):
        position, base = made.locate(BASE + 2 * number + 1)
        assert base == BASE + 2 * number and position == number * (made.size // len(times))
    for time_ms in range(max(times) + 1):
        index = next(index for index, each in enumerate(times) if each >= time_ms)
        assert first_not_older(made, time_ms) == BASE + 2 * index


@pytest.mark.parametrize("wrong", [b"", b"\0" * 7, b"\0" * 96, b"\xff" * 96, bytes(range(96))])
def test_index_files_that_make_no_sense_are_left_aside(wrong: bytes) -> None:
    disk, made = segment(list(range(40)))
    put(disk, [(path, wrong) for path, _ in made.seal(BASE + 80)])
    again = reopened(disk, BASE + 80)
    assert again.newest_timestamp_ms() == 39
    assert again.locate(BASE + 79)[1] == BASE + 78
    assert first_not_older(again, 17) == BASE + 34


class Counted:
    """A file that counts what is read of it."""

    def __init__(self, made: TimedSegment) -> None:
        self._inner = made.pooled
        self.read = 0

    def read_at(self, position: int, length: int) -> bytes:
        self.read += length
        return self._inner.read_at(position, length)


def counted(made: TimedSegment) -> Counted:
    made.file = Counted(made)  # type: ignore[assignment]
    return made.file  # type: ignore[return-value]


def test_an_index_saves_reading() -> None:
    disk, made = segment(list(range(400)), size=1_000)
    files = made.seal(BASE + 800)
    without = counted(found := reopened(disk, BASE + 800))
    assert found.locate(BASE + 790)[1] == BASE + 790
    put(disk, files)
    with_files = counted(found := reopened(disk, BASE + 800))
    assert found.locate(BASE + 790)[1] == BASE + 790
    assert with_files.read <= 2 * 65_536 < made.size * 9 // 10 < without.read


def test_large_batches_are_hopped_over_by_their_headers() -> None:
    disk, made = segment([1] * 30, size=50_000, records=1)
    again = reopened(disk, None)
    file = counted(again)
    assert again.locate(BASE + 29)[1] == BASE + 29
    assert file.read < 70_000 < made.size


def test_a_small_segment_gets_no_index_files() -> None:
    _, made = segment([1, 2])
    assert made.seal(BASE + 4) == []


def test_the_last_start_of_a_batch_below_a_bound() -> None:
    _, made = segment(list(range(40)))
    each = made.size // 40
    for limit in (each * 7, each * 7 + 1, each * 8 - 1):
        assert made.boundary(each * 3, limit) == each * 7
    assert made.boundary(each * 3, each * 3 + 5) == each * 3
    assert made.boundary(0, made.size) == made.size
    assert made.boundary(0, made.size - 1) == each * 39


def test_texts_of_kafkas_files() -> None:
    index = encode_index(BASE, [1010, 1030], [4100, 8200])
    assert index == bytes.fromhex("0000000a00001004" + "0000001e00002008")
    assert decode_index(index, BASE, end_offset=1031, size=8201) == (
        array("q", [1010, 1030]),
        array("q", [4100, 8200]),
    )
    assert decode_index(index, BASE, end_offset=1030, size=8201) is None
    assert decode_index(index, BASE, end_offset=1031, size=8200) is None
    times = encode_times(BASE, [77, 99], [1011, 1029])
    assert times == bytes.fromhex("000000000000004d0000000b" + "00000000000000630000001d")
    assert decode_times(times, BASE, end_offset=1030) == (array("q", [77, 99]), array("q", [1011, 1029]))
    assert decode_times(times, BASE, end_offset=1029) is None
    assert decode_times(times[12:] + times[:12], BASE, end_offset=1030) is None
    assert parse_index_name("00000000000000001000.index") == 1000
    assert parse_index_name("00000000000000001000.timeindex") == 1000
    assert parse_index_name("00000000000000001000.log") is None and parse_index_name("1000.index") is None


def test_index_files_that_kafka_wrote_say_what_the_headers_say(shared_data: Path) -> None:
    folder = shared_data / "kafka-3.7" / "controller-3000" / "__cluster_metadata-0"
    checked = 0
    for log in sorted(folder.glob("*.log")):
        base = int(log.stem)
        headers = [(one.header, one.position) for one in iter_batches(log.read_bytes())]
        end, size = headers[-1][0].next_offset, log.stat().st_size
        index = decode_index(log.with_suffix(".index").read_bytes(), base, end_offset=end, size=size)
        times = decode_times(log.with_suffix(".timeindex").read_bytes(), base, end_offset=end)
        for offset, position in zip(*(index or ([], [])), strict=True):
            header = next(header for header, at in headers if at == position)
            assert header.base_offset <= offset <= header.last_offset
            checked += 1
        for time_ms, offset in zip(*(times or ([], [])), strict=True):
            seen = [header.max_timestamp_ms for header, _ in headers if header.last_offset <= offset]
            assert max(seen) == time_ms
            checked += 1
    assert checked > 10

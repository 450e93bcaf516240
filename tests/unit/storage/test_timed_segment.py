"""Index files of full segments, and searching a segment with them, without them, and with wrong ones."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.storage.batches.batch import Batches, encode_batch, iter_batches
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.timed_segment import (
    TimedSegment,
    decode_index,
    decode_times,
    encode_index,
    encode_times,
    parse_index_name,
)
from metaquorum.testing.faulty_disk import FaultyDisk

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
        made.append(Batches.parse(data))
        made.note_appended(Batches.parse(data))
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


def test_a_small_segment_gets_its_index_files_too() -> None:
    """Kafka complains of every segment without them."""
    _, made = segment([1, 2])
    (_, index), (_, times) = made.seal(BASE + 4)
    assert index == b"" and times == encode_times(BASE, [2], [BASE + 3])
    _, empty = segment([])
    assert [data for _, data in empty.index_files()] == [b"", b""]


def test_batches_without_a_timestamp_have_no_entry_in_the_time_index() -> None:
    _, made = segment([-1] * 30)
    (_, index), (_, times) = made.index_files()
    assert len(index) > 8 and times == b""


def test_an_index_of_earlier_releases_leads_to_every_batch() -> None:
    """It held the first offsets of batches."""
    disk, made = segment(list(range(40)), records=3)
    each = made.size // 40
    numbers = range(3, 40, 4)
    old = encode_index(BASE, [BASE + 3 * number for number in numbers], [each * number for number in numbers])
    path = made.path.replace(".log", ".index")
    put(disk, [(path, old)])
    again = reopened(disk, BASE + 120)
    for offset in range(BASE, BASE + 120):
        number = (offset - BASE) // 3
        assert again.locate(offset) == (each * number, BASE + 3 * number)
        assert again.boundary(0, each * number) == each * number


@pytest.mark.parametrize("shift", [1, 61, 12_345])
def test_an_index_that_leads_astray_is_left_aside(shift: int) -> None:
    disk, made = segment(list(range(200)), records=3, size=60)
    (path, index), times = made.seal(BASE + 600)
    offsets, positions = decode_index(index, BASE, end_offset=BASE + 600, size=made.size) or ([], [])
    wrong = [position + shift for position in positions if position + shift < made.size]
    put(disk, [(path, encode_index(BASE, list(offsets)[: len(wrong)], wrong)), times])
    each = made.size // 200
    for number in range(200):
        again = reopened(disk, BASE + 600)
        assert again.boundary(0, each * number + 5) == each * number
        assert reopened(disk, BASE + 600).locate(BASE + 3 * number + 2) == (each * number, BASE + 3 * number)
        assert again.locate(BASE + 3 * number) == (each * number, BASE + 3 * number)


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


# Here Kafka's broker began to count bytes anew where it was restarted, or one append had several batches.
COUNTED_ANEW = {
    "kafka-3.5/data/kafka/__cluster_metadata-0/00000000000000000000",
    "kafka-3.7/controller-3000/__cluster_metadata-0/00000000000000001850",
    "kafka-4.0-v2-records/data/__cluster_metadata-0/00000000000000000000",
    "kafka-4.0-with-snapshot/kafka/kafka-data/__cluster_metadata-0/00000000000000000000",
    "broker-0-after-all-clients/d1/__consumer_offsets-0/00000000000000000000",
    "broker-0-after-all-clients/d1/__transaction_state-1/00000000000000000000",
    "broker-0-after-all-clients/d2/__consumer_offsets-1/00000000000000000000",
    "broker-0-after-all-clients/d2/__transaction_state-0/00000000000000000000",
    "controller-3000-after-clean-shutdown/__cluster_metadata-0/00000000000000000000",
}
SMALL_INTERVAL_BYTES = {"idx-logappend-0": 100, "idx-txn-0": 64}


def on_disk(log: Path, interval: int) -> TimedSegment:
    disk = PosixDisk()
    found = TimedSegment(
        disk, str(log.parent), int(log.stem), FilePool(disk, 3), index_interval_bytes=interval
    )
    found.pooled.writable = False
    return found


def indexed_logs(shared_data: Path) -> list[Path]:
    logs = [one for one in sorted(shared_data.rglob("*.log")) if one.with_suffix(".index").exists()]
    return [one for one in logs if "compaction" not in one.parts and one.with_suffix(".timeindex").exists()]


def test_index_files_are_those_that_kafka_wrote_for_the_same_batches(shared_data: Path) -> None:
    equal = 0
    for log in indexed_logs(shared_data):
        if any(str(log.with_suffix("")).endswith(one) for one in COUNTED_ANEW):
            continue
        made = on_disk(log, SMALL_INTERVAL_BYTES.get(log.parent.name, 4096))
        made.without_index_files()
        (_, index), (_, times) = made.index_files()
        assert index == log.with_suffix(".index").read_bytes(), log
        assert times == log.with_suffix(".timeindex").read_bytes(), log
        equal += len(index) // 8
    assert equal > 100


def test_every_offset_and_time_is_found_with_kafkas_index_files(shared_data: Path) -> None:
    for log in indexed_logs(shared_data):
        batches = list(iter_batches(log.read_bytes()))
        end = batches[-1].header.next_offset if batches else int(log.stem)
        made = on_disk(log, 64)
        made.sealed_end = end
        newest = -1
        for number, one in enumerate(batches):
            for offset in (one.header.base_offset, one.header.last_offset) if number % 16 == 0 else ():
                assert made.locate(offset) == (one.position, one.header.base_offset), (log, offset)
            if one.header.max_timestamp_ms > newest:
                newest = one.header.max_timestamp_ms
                assert first_not_older(made, newest) == one.header.base_offset, (log, newest)
        assert made.newest_timestamp_ms() == newest

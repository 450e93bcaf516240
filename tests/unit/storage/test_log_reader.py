"""LogReader: without a lock, without a write, over what grows, what is torn and what is damaged."""

from __future__ import annotations

import random

import pytest

from metaquorum.storage.batches.batch import RecordBatch, encode_batch
from metaquorum.storage.batches.parsed import Batches
from metaquorum.storage.disk.interface import join
from metaquorum.storage.errors import CorruptLogError, FileMissingError, LogTruncatedError, NotALogError
from metaquorum.storage.log.log import LogConfig, SegmentedLog
from metaquorum.storage.log.reader import Damage, LogReader
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk

DIRECTORY = "/log"


def batch(base: int, epoch: int = 1, size: int = 20) -> bytes:
    return encode_batch(base_offset=base, leader_epoch=epoch, timestamp_ms=0, values=[b"r" * size])


@pytest.fixture
def disk() -> FaultyDisk:
    disk = FaultyDisk(random.Random(1))
    disk.make_directory(DIRECTORY)
    return disk


def write(disk: FaultyDisk, base: int, data: bytes) -> str:
    path = join(DIRECTORY, segment_name(base))
    disk.open_append(path).append(data)
    return path


def summary(items: list[RecordBatch | Damage]) -> list[object]:
    return [item.header.base_offset if isinstance(item, RecordBatch) else item.reason for item in items]


def everything(reader: LogReader) -> list[object]:
    return summary(list(reader))


def test_it_takes_no_lock_and_writes_nothing(disk: FaultyDisk) -> None:
    log = SegmentedLog.open(disk, DIRECTORY, LogConfig(segment_bytes=300))
    for offset in range(20):
        log.append(Batches.parse(batch(offset)))
    before = disk.operations
    reader = LogReader(disk, DIRECTORY)
    assert everything(reader) == list(range(20)) and reader.next_offset == 20
    assert disk.operations == before


def test_following_across_rolls(disk: FaultyDisk) -> None:
    log = SegmentedLog.open(disk, DIRECTORY, LogConfig(segment_bytes=300))
    reader = LogReader(disk, DIRECTORY)
    seen: list[object] = []
    for offset in range(20):
        assert reader.poll() == []
        log.append(Batches.parse(batch(offset)))
        seen += summary(reader.poll())
    assert seen == list(range(20)) and len(log.segments()) > 3


def test_never_half_a_batch(disk: FaultyDisk) -> None:
    path = write(disk, 0, b"")
    reader = LogReader(disk, DIRECTORY)
    data = batch(0) + batch(1)
    seen: list[object] = []
    file = disk.open_append(path)
    for index in range(len(data)):
        file.append(data[index : index + 1])
        seen += summary(reader.poll())
        assert len(seen) == (index + 1) // len(batch(0))
    assert seen == [0, 1] and reader.tail_problem() is None


@pytest.mark.parametrize("tolerant", [True, False])
@pytest.mark.parametrize("tail", [batch(2)[:30], batch(2)[:-1], bytes(100), b"garbage" * 30])
def test_a_torn_tail_is_waited_at_and_can_be_asked_for(disk: FaultyDisk, tail: bytes, tolerant: bool) -> None:
    path = write(disk, 0, batch(0) + batch(1) + tail)
    reader = LogReader(disk, DIRECTORY, tolerant=tolerant)
    found = list(reader)
    assert summary(found[:2]) == [0, 1]
    problem = reader.tail_problem()
    assert problem is not None
    assert (problem.file, problem.position, problem.offset) == (path, 2 * len(batch(0)), 2)
    assert found[2:] == ([problem] if tolerant else [])
    assert list(reader) == []


def test_damage_in_the_middle(disk: FaultyDisk) -> None:
    size = len(batch(0))
    path = write(disk, 0, b"".join(batch(offset) for offset in range(6)))
    disk.flip_bit(path, 2 * size + 65)
    disk.flip_bit(path, 3 * size + 9, 6)  # the length of the next one
    with pytest.raises(CorruptLogError) as caught:
        list(LogReader(disk, DIRECTORY))
    assert (caught.value.file, caught.value.position, caught.value.offset) == (path, 2 * size, 2)
    found = list(LogReader(disk, DIRECTORY, tolerant=True))
    assert summary(found)[:2] == [0, 1] and summary(found)[3:] == [4, 5]
    damage = found[2]
    assert isinstance(damage, Damage) and damage.position == 2 * size and "expected CRC" in damage.reason


def test_damage_before_another_segment(disk: FaultyDisk) -> None:
    write(disk, 0, batch(0) + batch(1)[:-1])
    write(disk, 2, batch(2))
    with pytest.raises(CorruptLogError, match="expected a batch of"):
        list(LogReader(disk, DIRECTORY))
    found = everything(LogReader(disk, DIRECTORY, tolerant=True))
    assert (found[0], found[2]) == (0, 2) and "expected a batch of" in str(found[1])


def test_a_gap_between_segments(disk: FaultyDisk) -> None:
    write(disk, 0, batch(0))
    write(disk, 5, batch(5))
    with pytest.raises(CorruptLogError, match="expected a segment at offset 1, found 5"):
        list(LogReader(disk, DIRECTORY))
    found = everything(LogReader(disk, DIRECTORY, tolerant=True))
    assert found == [0, "expected a segment at offset 1, found 5", 5]


def test_an_epoch_that_falls_is_reported_once(disk: FaultyDisk) -> None:
    write(disk, 0, batch(0, 5) + batch(1, 3) + batch(2, 3))
    found = everything(LogReader(disk, DIRECTORY, tolerant=True))
    assert found == [0, "expected leader epoch 5 or higher, found 3", 1, 2]
    with pytest.raises(CorruptLogError, match="epoch 5 or higher"):
        list(LogReader(disk, DIRECTORY))


def test_damage_at_the_end_below_the_recovery_point_is_no_torn_tail(disk: FaultyDisk) -> None:
    log = SegmentedLog.open(disk, DIRECTORY)
    for offset in range(3):
        log.append(Batches.parse(batch(offset)))
    log.clean_close()
    path = join(DIRECTORY, segment_name(0))
    disk.flip_bit(path, disk.file_size(path) - 1)
    with pytest.raises(CorruptLogError):
        list(LogReader(disk, DIRECTORY))
    found = everything(LogReader(disk, DIRECTORY, tolerant=True))
    assert found[:2] == [0, 1] and len(found) == 3


def test_a_log_that_was_cut_under_the_reader(disk: FaultyDisk) -> None:
    log = SegmentedLog.open(disk, DIRECTORY)
    for offset in range(3):
        log.append(Batches.parse(batch(offset)))
    reader = LogReader(disk, DIRECTORY)
    assert everything(reader) == [0, 1, 2]
    log.truncate_to(1)
    with pytest.raises(LogTruncatedError, match="open it again"):
        reader.poll()


def test_segments_trimmed_or_reset_while_following(disk: FaultyDisk) -> None:
    log = SegmentedLog.open(disk, DIRECTORY, LogConfig(segment_bytes=100))
    log.append(Batches.parse(batch(0)))
    reader = LogReader(disk, DIRECTORY)
    assert everything(reader) == [0]
    for offset in range(1, 5):
        log.append(Batches.parse(batch(offset)))
    log.delete_segments_before(3)
    with pytest.raises(CorruptLogError, match="expected a segment at offset 1, found 3"):
        everything(reader)
    log.reset_to(LogPosition(7, 50))
    log.append(Batches.parse(batch(50, 7)))
    assert everything(LogReader(disk, DIRECTORY)) == [50]


def test_from_an_offset(disk: FaultyDisk) -> None:
    log = SegmentedLog.open(disk, DIRECTORY, LogConfig(segment_bytes=300))
    for offset in range(20):
        log.append(Batches.parse(batch(offset)))
    for start in (0, 7, 19, 20, 100):
        assert everything(LogReader(disk, DIRECTORY, start_offset=start)) == list(range(start, 20))


def test_batches_larger_than_the_window_and_bounded_reads(disk: FaultyDisk) -> None:
    write(disk, 0, batch(0, size=3_000_000) + b"".join(batch(n, size=300_000) for n in range(1, 20)))
    largest: list[int] = []
    opened = disk.open_read

    def measured(path: str) -> object:
        file = opened(path)
        read = file.read_at
        file.read_at = lambda position, length: largest.append(length) or read(position, length)  # type: ignore
        return file

    disk.open_read = measured  # type: ignore[assignment, method-assign]
    assert everything(LogReader(disk, DIRECTORY)) == list(range(20))
    assert max(largest) < 3_001_000 and sorted(largest)[-2] <= 1024 * 1024


def test_single_files(disk: FaultyDisk) -> None:
    path = write(disk, 7, batch(7) + batch(8))
    assert everything(LogReader(disk, path)) == [7, 8]
    checkpoint = join(DIRECTORY, "00000000000000000009-0000000001.checkpoint")
    disk.open_append(checkpoint).append(batch(0) + batch(1))
    assert everything(LogReader(disk, checkpoint)) == [0, 1]
    wrong = join(DIRECTORY, "00000000000000000003.log")
    disk.open_append(wrong).append(batch(4))
    assert everything(LogReader(disk, wrong, tolerant=True)) == ["expected base offset 3, found 4", 4]


def test_what_is_no_log(disk: FaultyDisk) -> None:
    with pytest.raises(FileMissingError):
        LogReader(disk, "/nowhere")
    with pytest.raises(NotALogError, match="holds no"):
        LogReader(disk, DIRECTORY)
    disk.open_append("/log/notes.txt")
    with pytest.raises(NotALogError, match="neither a segment nor a checkpoint"):
        LogReader(disk, "/log/notes.txt")
    foreign = write(disk, 0, b"this is a text file that somebody called .log " * 5)
    reader = LogReader(disk, foreign)
    assert list(reader) == []
    problem = reader.tail_problem()
    assert problem is not None and problem.reason.startswith("expected magic 2")

"""LogReader: without a lock, without a write, over what grows, what is torn and what is damaged."""

from __future__ import annotations

import random
from typing import Any

import pytest

from metaquorum.storage.batches.batch import HEADER_BYTES, Batches, RecordBatch, encode_batch
from metaquorum.storage.disk.interface import join
from metaquorum.storage.errors import (
    CorruptLogError,
    FileMissingError,
    LogDeletedError,
    LogTruncatedError,
    NotALogError,
)
from metaquorum.storage.log import reader as reader_module
from metaquorum.storage.log import runs as runs_module
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.log.reader import Damage, KnownPlaces, LogReader
from metaquorum.storage.log.recovery import RecoveryPoint, store_recovery_point
from metaquorum.storage.log.runs import BatchRun, RunReader
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


def test_a_log_that_is_deleted_while_it_is_read_does_not_end_early_without_a_word(disk: FaultyDisk) -> None:
    first, second = write(disk, 0, batch(0)), write(disk, 1, batch(1))
    reader = LogReader(disk, DIRECTORY, tolerant=True)
    disk.remove(first)
    assert everything(reader) == ["expected a segment at offset 0, found 1", 1], (
        "trimmed: the newest is there"
    )
    reader = LogReader(disk, DIRECTORY, tolerant=True)
    disk.remove(second)
    with pytest.raises(LogDeletedError, match="deleted while the log was read"):
        list(reader)
    path = write(disk, 2, batch(2))
    reader = LogReader(disk, path)
    disk.remove(path)
    with pytest.raises(LogDeletedError):
        list(reader)


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
    assert (problem.position, problem.offset) == (0, 0)


# ---- windows and places to begin at -----------------------------------------------------------

SIZE = len(batch(0))


def miscounted(base: int, *, delta: int, count: int = 1) -> bytes:
    return encode_batch(
        base_offset=base,
        leader_epoch=1,
        timestamp_ms=0,
        values=[b"r" * 20],
        last_offset_delta=delta,
        records_count=count,
    )


def damaged(base: int) -> bytes:
    return batch(base)[:-1] + b"\xff"


LOGS: dict[str, list[bytes]] = {
    "sound": [batch(at) for at in range(7)],
    "gap": [batch(at) for at in (0, 1, 4, 5, 6)],
    "back": [batch(at) for at in (0, 1, 2, 1, 2, 3)],
    "epochs": [batch(at, epoch) for at, epoch in enumerate((1, 5, 5, 3, 3, 6))],
    "counts": [batch(0), miscounted(1, delta=1), batch(3), miscounted(4, delta=0, count=3), batch(5)],
    "no offsets": [batch(0), miscounted(1, delta=-1, count=0), batch(1), batch(2)],
    "wrong CRC": [batch(0), damaged(1), batch(2), batch(3)],
    "wrong CRCs": [batch(0), damaged(1), damaged(2), batch(3)],
    "torn": [batch(0), batch(1), batch(2)[:-1]],
    "torn in a header": [batch(0), batch(1), batch(2)[:60]],
    "behind a gap": [batch(0), batch(3), damaged(4), batch(5)],
    "behind an epoch": [batch(0, 3), batch(1, 2), damaged(2), batch(3)],
    "the first": [miscounted(0, delta=0, count=3), batch(1), batch(2)],
    "a byte": [batch(0), b"x", batch(1), batch(2)],
    "garbage first": [b"x" * 90, batch(0), batch(1)],
    "large": [batch(0), batch(1, size=300), batch(2), batch(3, size=70)],
}


def told(items: list[RecordBatch | Damage]) -> list[object]:
    """Batches whole, damage by place and reason (but for how many bytes a window showed)."""
    return [
        (item.position, item.data, item.file)
        if isinstance(item, RecordBatch)
        else (item.position, item.offset, item.reason.partition(" bytes, found")[0], item.file)
        for item in items
    ]


@pytest.mark.parametrize("window", [61, 62, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE - 1, 2 * SIZE, 3 * SIZE + 7])
@pytest.mark.parametrize("log", LOGS)
def test_what_is_read_does_not_depend_on_the_window(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch, log: str, window: int
) -> None:
    write(disk, 0, b"".join(LOGS[log]))
    wanted = told(list(LogReader(disk, DIRECTORY, tolerant=True)))
    assert len(wanted) > 2
    monkeypatch.setattr(reader_module, "WINDOW_BYTES", window)
    assert told(list(LogReader(disk, DIRECTORY, tolerant=True))) == wanted
    polled: list[object] = []
    reader = LogReader(disk, DIRECTORY, tolerant=True)
    while items := reader.poll():
        polled += told(items)
    tail = reader.tail_problem()
    assert polled + (told([tail]) if tail is not None else []) == wanted


FROM: dict[str, str] = {
    "sound": "0123456 123456 23456 3456 456 56 6 -",
    "gap": "01!456 1!456 !456 !456 !456 56 6 -",
    "back": "012!123 12!123 2!123 !3 - - - -",
    "epochs": "012!345 12!345 2!345 !345 45 5 - -",
    "counts": "0!13!45 !13!45 !13!45 3!45 !45 5 - -",
    "no offsets": "0!12 !12 !2 ! ! ! ! !",
    "wrong CRC": "0!23 !23 23 3 - - - -",
    "wrong CRCs": "0!3 !3 !3 3 - - - -",
    "torn": "01! 1! ! ! ! ! ! !",
    "torn in a header": "01! 1! ! ! ! ! ! !",
    "behind a gap": "0!3!5 !3!5 !3!5 !3!5 !5 !5 ! !",
    "behind an epoch": "0!1!!3 !1!!3 !!3 !!3 ! ! ! !",
    "the first": "!012 12 2 - - - - -",
    "a byte": "0!12 !12 !2 ! ! ! ! !",
    "garbage first": "!01 !1 ! ! ! ! ! !",
    "large": "0123 123 23 3 - - - -",
}
"""By the offset to begin at, 0 to 7: base offsets of batches, and ! for damage."""


@pytest.mark.parametrize("window", [3 * SIZE, 1 << 20])
@pytest.mark.parametrize("log", LOGS)
def test_a_reader_begins_at_the_batch_that_holds_its_offset(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch, log: str, window: int
) -> None:
    """Headers lead there, so what is damaged before it is not told, but for headers that do not lead on."""
    write(disk, 0, b"".join(LOGS[log]))
    monkeypatch.setattr(reader_module, "WINDOW_BYTES", window)
    found = []
    for start in range(8):
        items = everything(LogReader(disk, DIRECTORY, tolerant=True, start_offset=start))
        found.append("".join(str(item) if isinstance(item, int) else "!" for item in items) or "-")
    assert " ".join(found) == FROM[log]
    if "!" not in FROM[log]:
        for start in range(8):
            strict = everything(LogReader(disk, DIRECTORY, start_offset=start))
            assert "".join(map(str, strict)) or "-" == found[start]


class Measured:
    """A file that remembers what was read of it; with `place`, one that knows where a batch is."""

    def __init__(self, file: Any, read: list[tuple[int, int]]) -> None:
        self._file, self._read = file, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read_at(self, position: int, length: int) -> bytes:
        data: bytes = self._file.read_at(position, length)
        self._read.append((position, len(data)))
        return data


class Placed(Measured):
    place: tuple[int, int, int] | None = None

    def place_before(self, offset: int) -> tuple[int, int, int] | None:
        return self.place


def measured(disk: FaultyDisk, kind: type[Measured] = Measured) -> list[tuple[int, int]]:
    read: list[tuple[int, int]] = []
    opened = disk.open_read
    disk.open_read = lambda path: kind(opened(path), read)  # type: ignore[assignment, method-assign, return-value]
    return read


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        (None, [5, 6]),
        ((0, 0, 0), [5, 6]),
        ((4 * SIZE, 4, 1), [5, 6]),
        ((5 * SIZE, 5, 1), [5, 6]),
        ((5 * SIZE, 5, 2), ["expected leader epoch 2 or higher, found 1", 5, 6]),
        ((3 * SIZE, 2, 1), [5, 6]),
    ],
)
def test_a_file_that_knows_where_a_batch_is_is_not_read_before_it(
    disk: FaultyDisk, place: tuple[int, int, int] | None, wanted: list[object]
) -> None:
    write(disk, 0, b"".join(LOGS["sound"]))
    Placed.place = place
    read = measured(disk, Placed)
    reader = LogReader(disk, DIRECTORY, tolerant=True, start_offset=5)
    assert everything(reader) == wanted
    assert min(at for at, _ in read) == (0 if place is None else place[0])
    assert everything(LogReader(disk, DIRECTORY, tolerant=True)) == list(range(7))
    assert everything(LogReader(disk, DIRECTORY, start_offset=5)) == [5, 6]


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> KnownPlaces:
    """Places of every batch that a reader passes."""
    monkeypatch.setattr(reader_module, "_PLACE_BYTES", 1)
    monkeypatch.setattr(runs_module, "_NOTED", 1 << 20)
    return KnownPlaces()


def from_each(disk: FaultyDisk, places: KnownPlaces) -> str:
    """What `FROM` has, by readers that know these places."""
    found = []
    for start in range(8):
        items = everything(LogReader(disk, DIRECTORY, tolerant=True, start_offset=start, places=places))
        found.append("".join(str(item) if isinstance(item, int) else "!" for item in items) or "-")
    return " ".join(found)


@pytest.mark.parametrize("window", [3 * SIZE, 1 << 20])
@pytest.mark.parametrize("log", LOGS)
def test_places_that_an_earlier_reader_passed_change_no_answer(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch, places: KnownPlaces, log: str, window: int
) -> None:
    """Also in a segment that was written again since, if other batches are at those places."""
    path = write(disk, 0, b"".join(LOGS[log]))
    monkeypatch.setattr(reader_module, "WINDOW_BYTES", window)
    for start in (None, 3):
        list(RunReader(disk, DIRECTORY, start_offset=start, places=places))
    assert from_each(disk, places) == FROM[log]
    for other in ("sound", "gap", "large"):
        file = disk.open_append(path)
        file.truncate(0)
        file.append(b"".join(LOGS[other]))
        assert from_each(disk, places) == FROM[other]


def test_a_place_that_is_known_is_not_read_before(disk: FaultyDisk, places: KnownPlaces) -> None:
    write(disk, 0, b"".join(LOGS["sound"]))
    list(RunReader(disk, DIRECTORY, places=places))
    read = measured(disk)
    assert everything(LogReader(disk, DIRECTORY, tolerant=True, start_offset=5, places=places)) == [5, 6]
    assert min(at for at, _ in read) == 5 * SIZE


def test_little_is_read_at_first_in_the_middle_of_a_segment(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch, places: KnownPlaces
) -> None:
    write(disk, 0, b"".join(batch(offset) for offset in range(200)))
    monkeypatch.setattr(reader_module, "_FIRST_BYTES", 10 * SIZE)
    list(RunReader(disk, DIRECTORY, places=places))
    read = measured(disk)
    assert everything(LogReader(disk, DIRECTORY, tolerant=True, start_offset=50, places=places))[0] == 50
    assert [length for _, length in read if length > HEADER_BYTES][1:4] == [10 * SIZE, 20 * SIZE, 40 * SIZE]


def test_only_windows_up_to_the_file_s_end_are_read(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole window each; the next one begins behind the last whole batch."""
    write(disk, 0, b"".join(LOGS["sound"]))
    monkeypatch.setattr(reader_module, "WINDOW_BYTES", 3 * SIZE + 7)
    read = measured(disk)
    assert len(everything(LogReader(disk, DIRECTORY, tolerant=True))) == 7
    windows = [(0, 3 * SIZE + 7), (3 * SIZE, 3 * SIZE + 7), (6 * SIZE, SIZE)]
    assert read == windows
    read.clear()
    assert everything(LogReader(disk, DIRECTORY, tolerant=True, start_offset=6)) == [6]
    assert max(length for _, length in read) <= 3 * SIZE + 7 and len(read) <= 5


@pytest.mark.parametrize("tolerant", [True, False])
@pytest.mark.parametrize(
    ("segment", "position", "below"),
    [(0, 2 * SIZE - 1, False), (0, 2 * SIZE, False), (0, 2 * SIZE + 1, True), (1, 0, True), (None, 0, False)],
)
def test_a_tail_is_torn_from_the_recovery_point_on(
    disk: FaultyDisk, segment: int | None, position: int, below: bool, tolerant: bool
) -> None:
    """Below it the writer has said that all is durable. A file by itself has no such point."""
    path = write(disk, 0, b"".join(LOGS["torn"]))
    for resetting in (False, True):
        if segment is not None:
            point = RecoveryPoint(
                offset=2,
                segment=segment,
                position=position,
                start_offset=0,
                start_epoch=0,
                resetting=resetting,
            )
            store_recovery_point(disk, DIRECTORY, point)
        for where, is_damage in ((DIRECTORY, below and not resetting), (path, False)):
            reader = LogReader(disk, where, tolerant=tolerant)
            if is_damage and not tolerant:
                with pytest.raises(CorruptLogError):
                    list(reader)
                continue
            assert [item.header.base_offset for item in reader.poll() if isinstance(item, RecordBatch)] == [
                0,
                1,
            ]
            items = reader.poll()
            assert (len(items), reader.tail_problem() is None) == ((1, True) if is_damage else (0, False))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000000007.log", 7),
        ("00000000000000000007.log.deleted", None),
        ("copy.log", None),
        ("00000000000000000007-0000000001.checkpoint", 0),
        ("00000000000000000007-0000000001.checkpoint.part", 0),
        ("00000000000000000007-0000000001.checkpoint.deleted", 0),
    ],
)
def test_a_file_by_itself_begins_where_its_name_says(
    disk: FaultyDisk, name: str, expected: int | None
) -> None:
    """And is read alone, whatever is beside it."""
    path = join(DIRECTORY, name)
    disk.open_append(path).append(batch(7) + batch(8))
    write(disk, 9, batch(9))
    reader = LogReader(disk, path, tolerant=True)
    assert reader.next_offset == expected
    damaged = [] if expected in (7, None) else [f"expected base offset {expected}, found 7"]
    assert everything(reader) == [*damaged, 7, 8]
    assert reader.next_offset == 9

    for start, first in ((7, 7), (8, 8)):
        assert everything(LogReader(disk, path, tolerant=True, start_offset=start))[-1 - (8 - first)] == first
    disk.open_append(path).truncate(0)
    disk.open_append(path).append(b"x" * 90 + batch(8))
    assert everything(LogReader(disk, path, tolerant=True))[1:] == [8]


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("before", [b"", b"x" * 90])
@pytest.mark.parametrize("name", ["copy.log", segment_name(7)])
def test_a_reader_of_runs_gives_what_the_plain_one_gives(
    disk: FaultyDisk, name: str, before: bytes, count: int
) -> None:
    """Also where it does not know which offset comes next: at the beginning of a copy, and behind damage."""
    path = join(DIRECTORY, name)
    disk.open_append(path).append(before + b"".join(batch(at) for at in range(7, 7 + count)))
    plain = everything(LogReader(disk, path, tolerant=True))
    found: list[object] = []
    for one in RunReader(disk, path):
        found += summary(list(one.batches()) if isinstance(one, BatchRun) else [one])  # type: ignore[arg-type]
    assert found == plain and found[-count:] == list(range(7, 7 + count))


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("reads", [LogReader, RunReader])
def test_epochs_do_not_fall_from_one_segment_to_the_next(
    disk: FaultyDisk, reads: type[LogReader], count: int
) -> None:
    write(disk, 0, b"".join(batch(at, epoch=5) for at in range(count)))
    write(disk, count, b"".join(batch(at, epoch=3) for at in range(count, 2 * count)))
    kept = {"tolerant": True} if reads is LogReader else {}
    told = [one.reason for one in reads(disk, DIRECTORY, **kept) if isinstance(one, Damage)]
    assert told[0] == "expected leader epoch 5 or higher, found 3"
    strict = LogReader(disk, DIRECTORY)
    with pytest.raises(CorruptLogError, match="expected leader epoch 5 or higher, found 3"):
        list(strict)
    assert strict.next_offset == count


def test_a_tail_that_was_told_and_then_completed_is_a_batch(disk: FaultyDisk) -> None:
    path = write(disk, 0, batch(0) + batch(1)[:70])
    reader = LogReader(disk, DIRECTORY, tolerant=True)
    assert [isinstance(item, Damage) for item in reader] == [False, True]
    disk.open_append(path).append(batch(1)[70:])
    assert everything(reader) == [1] and list(reader) == []


def test_segments_that_overlap_or_follow_damage_are_told_once(disk: FaultyDisk) -> None:
    write(disk, 0, batch(0) + batch(1) + batch(2))
    write(disk, 2, batch(2) + batch(3)[:-1])
    write(disk, 4, batch(4))
    overlap = "expected a segment at offset 3, found 2"
    assert everything(LogReader(disk, DIRECTORY, tolerant=True))[:5] == [0, 1, 2, overlap, 2]
    with pytest.raises(CorruptLogError, match=rf"\(offset 3\): {overlap}; see the rest with"):
        list(LogReader(disk, DIRECTORY))
    for below in (False, True):
        if below:
            point = RecoveryPoint(offset=4, segment=4, position=0, start_offset=0, start_epoch=0)
            store_recovery_point(disk, DIRECTORY, point)
        reader = LogReader(disk, DIRECTORY, tolerant=True, start_offset=2)
        assert summary(reader.poll()) == [2]
        (problem,) = reader.poll()
        assert isinstance(problem, Damage) and "a batch of 88 bytes" in problem.reason
        assert reader.tail_problem() is None
        assert everything(reader) == [4]

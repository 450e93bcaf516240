"""A partition's log at every bound: what a read may hold, what retention removes, when a segment is full."""

from __future__ import annotations

import random
from array import array
from itertools import accumulate

import pytest

from metaquorum.storage.batches.batch import Batches, encode_batch, parse_header, seal_batch
from metaquorum.storage.batches.format import HEADER_BYTES, LOG_APPEND_TIME
from metaquorum.storage.disk.file_pool import FilePool, PooledFile
from metaquorum.storage.disk.interface import write_atomically
from metaquorum.storage.errors import CorruptLogError, OffsetOutOfRange
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.recovery import RecoveryPoint, store_recovery_point
from metaquorum.storage.log.timed_segment import (
    ABORTED_ENTRY,
    TimedSegment,
    decode_aborted,
    decode_times,
    encode_times,
)
from metaquorum.storage.partition.partition_log import MAX_OFFSETS_A_SEGMENT, LogIndexes, PartitionLog
from metaquorum.storage.partition.pooled_log import FoundRecord
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.storage.cleaner_bench import clean, settle

PLACE = "/data"


def new_disk() -> FaultyDisk:
    disk = FaultyDisk(random.Random(5))
    disk.make_directory(PLACE)
    return disk


def load(disk: FaultyDisk, **settings: int) -> PartitionLog:
    config = LogConfig(**{"segment_bytes": 400, "index_interval_bytes": 100, **settings})
    return PartitionLog.load(disk, PLACE, config, FilePool(disk, 4), disk.file_system(PLACE))


def batch(base: int, count: int = 1, time: int = 100, size: int = 20) -> bytes:
    return encode_batch(base_offset=base, leader_epoch=1, timestamp_ms=time, values=[b"v" * size] * count)


def keyed(base: int) -> bytes:
    return encode_batch(base_offset=base, leader_epoch=1, timestamp_ms=1, keys=[b"k"], values=[b"v" * 60])


def test_a_read_holds_what_fits_and_at_least_one_batch() -> None:
    disk = new_disk()
    log = load(disk)
    counts = (1, 3, 2, 1, 1, 4, 1, 2, 2, 1)
    ends = list(accumulate(counts))
    made = [batch(end - count, count) for end, count in zip(ends, counts, strict=True)]
    for data in made:
        log.append(Batches.parse(data))
    assert len(log.segments()) > 2
    sums = list(accumulate(map(len, made)))
    for _ in range(2):
        for start in range(ends[-1]):
            first = next(at for at, end in enumerate(ends) if end > start)
            before = sums[first] - len(made[first])
            limits = {sums[at] - before + more for at in range(first, len(made)) for more in (-1, 0, 1)}
            for limit in (0, 1, *sorted(limits)):
                last = max([at for at in range(first, len(made)) if sums[at] - before <= limit] or [first])
                expected = b"".join(made[first : last + 1])
                assert log.read_range(start, ends[-1], limit) == expected, (start, limit)
        assert log.read_range(ends[-1], ends[-1] + 9, 100) == b""
        for wrong in (-1, ends[-1] + 1):
            with pytest.raises(OffsetOutOfRange):
                log.read_range(wrong, 100, 100)
        log.close()
        with pytest.raises(OffsetOutOfRange):
            log.read_range(0, 1, 100)
        log = load(disk)


SIZE = len(batch(0))


def four_segments(times: tuple[int, ...] = (10, 20, 30, 40, 50, 60, 70, 80)) -> PartitionLog:
    """Of two batches each; the last one is appended to."""
    log = load(new_disk(), segment_bytes=2 * SIZE)
    for at, time in enumerate(times):
        log.append(Batches.parse(batch(at, time=time)))
    assert [one.base_offset for one in log.segments()] == [0, 2, 4, 6]
    return log


@pytest.mark.parametrize(
    ("keep_bytes", "below", "start"),
    [
        (-1, 8, 0),
        (8 * SIZE, 8, 0),
        (6 * SIZE + 1, 8, 0),
        (6 * SIZE, 8, 2),
        (4 * SIZE + 1, 8, 2),
        (4 * SIZE, 8, 4),
        (4 * SIZE, 4, 4),
        (4 * SIZE, 3, 2),
        (4 * SIZE, 1, 0),
        (1, 8, 6),
        (0, 8, 8),
        (0, 7, 6),
        (0, 0, 0),
    ],
)
def test_retention_by_size(keep_bytes: int, below: int, start: int) -> None:
    log = four_segments()
    gone = log.enforce_retention(
        retention_bytes=keep_bytes, retention_ms=-1, below_offset=below, wall_ms=10**9
    )
    assert (gone, log.start_offset, log.end_offset) == (start > 0, start, 8)
    again = log.enforce_retention(
        retention_bytes=keep_bytes, retention_ms=-1, below_offset=below, wall_ms=10**9
    )
    assert (again, log.start_offset, log.end_offset) == (False, start, 8)


@pytest.mark.parametrize(
    ("times", "wall", "start"),
    [
        ((10, 20, 30, 40, 50, 60, 70, 80), 120, 0),
        ((10, 20, 30, 40, 50, 60, 70, 80), 121, 2),
        ((20, 10, 30, 40, 50, 60, 70, 80), 120, 0),
        ((20, 10, 30, 40, 50, 60, 70, 80), 121, 2),
        ((10, 20, 30, 40, 50, 60, 70, 80), 180, 6),
        ((10, 20, 30, 40, 50, 60, 70, 80), 181, 8),
        ((10, 500, 30, 40, 50, 60, 70, 80), 400, 0),
        ((-1, -1, 30, 40, 50, 60, 70, 80), 400, 0),
        ((-1, 0, 30, 40, 50, 60, 70, 80), 101, 2),
        ((0, 0, -1, 1, 50, 60, 70, 80), 102, 4),
    ],
)
def test_retention_by_time(times: tuple[int, ...], wall: int, start: int) -> None:
    log = four_segments(times)
    gone = log.enforce_retention(retention_bytes=-1, retention_ms=100, below_offset=8, wall_ms=wall)
    assert (gone, log.start_offset, log.end_offset) == (start > 0, start, 8)
    assert not four_segments(times).enforce_retention(
        retention_bytes=-1, retention_ms=-1, below_offset=8, wall_ms=wall
    )


@pytest.mark.parametrize(("wall", "gone"), [(20, False), (21, True)])
def test_a_retention_of_0_ms_is_one(wall: int, gone: bool) -> None:
    log = four_segments()
    assert gone == log.enforce_retention(retention_bytes=-1, retention_ms=0, below_offset=8, wall_ms=wall)
    assert log.start_offset == (2 if gone else 0)


def test_either_bound_is_enough_and_what_is_over_the_size_counts_no_more() -> None:
    log = four_segments()
    assert log.enforce_retention(retention_bytes=6 * SIZE, retention_ms=100, below_offset=8, wall_ms=141)
    assert log.start_offset == 4
    log = four_segments()
    assert log.enforce_retention(retention_bytes=4 * SIZE, retention_ms=100, below_offset=8, wall_ms=121)
    assert log.start_offset == 4


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize(
    ("span", "rolls"), [(MAX_OFFSETS_A_SEGMENT, False), (MAX_OFFSETS_A_SEGMENT + 1, True)]
)
def test_a_segment_spans_as_many_offsets_as_its_index_can_count(first: int, span: int, rolls: bool) -> None:
    assert MAX_OFFSETS_A_SEGMENT == 2**31 - 1
    log = load(new_disk())
    if first:
        log.start_over(first)
    log.append(Batches.parse(batch(first)))
    log.append(Batches.parse(batch(first + span - 1)))
    assert [one.base_offset for one in log.segments()] == [first, *([first + 1] if rolls else [])]
    # However far the first batch of a segment is from where it begins.
    log = load(new_disk())
    log.append(Batches.parse(batch(2**31 + 5)))
    assert [one.base_offset for one in log.segments()] == [0]


@pytest.mark.parametrize(("over", "rolls"), [(-1, True), (0, False), (1, False)])
def test_a_segment_holds_as_many_bytes_as_it_may(over: int, rolls: bool) -> None:
    log = load(new_disk(), segment_bytes=2 * SIZE + over)
    log.append(Batches.parse(batch(0)))
    log.append(Batches.parse(batch(1)))
    assert len(log.segments()) == 1 + rolls


@pytest.mark.parametrize(("later", "rolls"), [(999, False), (1000, False), (1001, True)])
def test_a_segment_grows_as_old_as_it_may(later: int, rolls: bool) -> None:
    log = load(new_disk(), segment_ms=1000)
    log.append(Batches.parse(batch(0, time=50)))
    log.append(Batches.parse(batch(1, time=50 + later)))
    assert len(log.segments()) == 1 + rolls


@pytest.mark.parametrize("more", [-1, 0])
def test_index_files_are_made_where_not_too_much_must_be_read(more: int) -> None:
    disk = four_segments()._disk
    segment = TimedSegment(disk, PLACE, 0, FilePool(disk, 4), index_interval_bytes=100)
    segment.without_index_files()
    assert segment.untimed_bytes == segment.size == 2 * SIZE
    assert len(segment.index_files(segment.size + more)) == (2 if more == 0 else 0)
    assert segment.untimed_bytes == (0 if more == 0 else segment.size)
    assert segment.first_batch_ms() == 10
    empty = TimedSegment(disk, PLACE, 99, FilePool(disk, 4), index_interval_bytes=100, new=True)
    assert empty.first_batch_ms() == -1


def test_what_is_read_while_the_log_is_cut_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = new_disk()
    log = load(disk)
    for offset in range(9):
        log.append(Batches.parse(batch(offset)))
    read_held = PooledFile.read_held

    def cut(file: PooledFile, position: int, length: int) -> bytes:
        data = read_held(file, position, length)
        log.truncate_to(2)
        return data

    monkeypatch.setattr(PooledFile, "read_held", cut)
    with pytest.raises(OffsetOutOfRange):
        log.read_range(1, 9, 10_000)
    monkeypatch.undo()
    assert len(log.read_range(1, 9, 10_000)) == len(batch(1))
    log.close()
    assert len(log.pool) == 0  # no read holds a file


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("damage", ["short", "contents"])
def test_what_is_read_is_what_was_written(damage: str, reopened: bool) -> None:
    """Of a log that this process wrote the length is looked at; else the whole batch."""
    disk = new_disk()
    log = load(disk, segment_bytes=10_000)
    for offset in range(3):
        log.append(Batches.parse(batch(offset)))
    size = len(batch(0))
    if reopened:
        settle(log)
        log.close()
        log = load(disk, segment_bytes=10_000)
    file = disk.open_append(log.segments()[0].file)
    whole = file.read_at(0, 3 * size)
    file.truncate(0)
    file.append(whole[:-1] + b"x" * (damage == "contents"))
    if damage == "contents" and not reopened:
        assert log.read_range(2, 3, 10_000) == whole[2 * size : -1] + b"x"
    else:
        with pytest.raises(CorruptLogError):
            log.read_range(2, 3, 10_000)
    log.close()
    assert len(log.pool) == 0  # no read holds a file


def test_another_batch_in_the_place_of_the_one_that_was_found_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = load(new_disk())
    for offset in range(3):
        log.append(Batches.parse(batch(offset)))
    monkeypatch.setattr(PooledFile, "read_held", lambda *arguments: batch(5) + batch(6))
    with pytest.raises(CorruptLogError, match="from offset 1 on"):
        log.read_range(1, 3, 10_000)
    log.close()
    assert len(log.pool) == 0  # no read holds a file


def test_a_checkpoint_of_a_log_that_was_cut_since_says_nothing() -> None:
    disk = new_disk()
    log = load(disk)
    for offset in range(9):
        log.append(Batches.parse(batch(offset)))
    log.sync()
    checkpoint = log.checkpoint()
    assert checkpoint is not None
    log.truncate_to(1)
    assert checkpoint.stage() == [] and not any(checkpoint.place(step) for step in checkpoint.STEPS)
    epochs, kept = log._stored_epochs, log._producers.kept_to
    log.checkpointed(checkpoint)
    assert (log._stored_epochs, log._producers.kept_to) == (epochs, kept)
    log.close()
    again = load(disk)
    assert (again.end_offset, again.recovery_point.offset) == (1, 1)
    again.close()


def test_a_checkpoint_is_placed_after_a_roll_and_not_after_a_swap() -> None:
    disk = new_disk()
    log = load(disk)
    for offset in range(9):
        log.append(Batches.parse(keyed(offset)))
    log.sync()
    checkpoint = log.checkpoint()
    assert checkpoint is not None
    files = checkpoint.stage()
    for offset in range(9, 13):
        log.append(Batches.parse(keyed(offset)))
    assert log._producers.kept_to > checkpoint.offset
    assert len(files) == 3 and [checkpoint.place(step) for step in checkpoint.STEPS] == [False, True, True]
    assert {"leader-epoch-checkpoint", f"{9:020}.snapshot"} <= set(disk.list_directory(PLACE))
    assert log.recovery_point.offset == 9
    log.checkpointed(checkpoint)
    later = log.checkpoint()
    assert later is not None
    clean(log, None, 10**13)
    assert later.stage() == [] and not any(later.place(step) for step in later.STEPS)
    log.close()


def test_files_beside_a_segment_stay_while_they_are_right() -> None:
    indexes = LogIndexes(new_disk(), PLACE)
    indexes.missing = {10}
    suffixes = (".index", ".timeindex", ".txnindex")
    names = [f"{base:020}{suffix}" for base in (0, 10, 20) for suffix in suffixes]
    kept = [name for name in names if not indexes.is_leftover(name, {0, 10})]
    assert kept == [*names[:3], names[5]]
    assert not indexes.is_leftover("recovery-point", {0})
    assert indexes.complete([]) == [] and indexes.bytes_to_read([]) is None
    times = encode_times(7, [-1, 0, 5], [7, 8, 9])
    assert decode_times(times, 7, end_offset=10) == (array("q", [0, 5]), array("q", [8, 9]))
    entry = ABORTED_ENTRY.pack(0, 7, 1, 5, 5)
    assert decode_aborted(entry, 0, end_offset=6) == [(7, 1, 5, 5)]
    for wrong, base, end in ((entry + entry[:1], 0, 6), (entry, 6, 9), (entry, 0, 5), (entry * 2, 0, 6)):
        assert decode_aborted(wrong, base, end_offset=end) is None
    for version in (-1, 1):
        assert decode_aborted(ABORTED_ENTRY.pack(version, 7, 1, 5, 5), 0, end_offset=6) is None


def test_a_checkpoint_is_void_after_a_new_beginning_and_a_cut() -> None:
    log = load(new_disk())
    log.append(Batches.parse(batch(0)))
    log.sync()
    checkpoint = log.checkpoint()
    assert checkpoint is not None
    log.start_over(50)
    assert checkpoint.stage() == []
    log.append(Batches.parse(batch(50)))
    log.truncate_to(50)
    assert checkpoint.stage() == [] and not checkpoint.place(2)
    assert log.unindexed_bytes == 0
    log.close()


def test_an_interrupted_new_beginning_is_completed_with_everything_beside_it() -> None:
    disk = new_disk()
    log = load(disk)
    for offset in range(20):
        log.append(Batches.parse(batch(offset)))
    settle(log)
    log.close()
    point = RecoveryPoint(offset=50, segment=50, position=0, start_offset=50, start_epoch=-1, resetting=True)
    store_recovery_point(disk, PLACE, point)
    warnings: list[str] = []
    pool = FilePool(disk, 4)
    log = PartitionLog.load(disk, PLACE, LogConfig(), pool, disk.file_system(PLACE), warnings.append)
    assert (log.start_offset, log.end_offset, log.trusted_from) == (50, 50, 50)
    assert log.unindexed_bytes == 0 and "reset to offset 50 was completed" in warnings[0]
    names = disk.list_directory(PLACE)
    assert names == [f"{50:020}.log", "leader-epoch-checkpoint", "recovery-point"]
    log.close()


def test_a_time_of_a_batch_that_the_broker_stamped_is_found_from_the_log_s_start_on() -> None:
    log = load(new_disk())
    data = batch(0, 5, time=100)
    header = parse_header(data)
    stamped = header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp_ms=300)
    log.append(Batches.parse(seal_batch(stamped, data[HEADER_BYTES:])))
    for start in (0, 3):
        log.start_at(start)
        assert log.find_offset(200, 5) == FoundRecord(start, 300, 1)
        assert log.find_offset(301, 5) is None
    log.close()


def test_index_files_are_the_same_after_a_start_that_reads_the_whole_segment() -> None:
    """An entry names its batch's last offset, whoever noted the batch."""
    disk = new_disk()
    log = load(disk, segment_bytes=10_000)
    for offset in range(0, 60, 3):
        log.append(Batches.parse(batch(offset, 3, time=offset)))
    log.sync()
    files = log._segments[-1].index_files()
    assert all(len(content) > 50 for _, content in files)
    log.close()
    again = load(disk, segment_bytes=10_000)
    assert again._segments[-1].index_files() == files
    again.close()


SMALL_FILES = ("recovery-point", "leader-epoch-checkpoint", ".snapshot", ".index", ".timeindex", ".txnindex")


@pytest.mark.parametrize("content", [b"", b"\0" * 30, b"garbage", b'{"version": 7}\n', b"7\n0\n"])
@pytest.mark.parametrize("ending", SMALL_FILES)
def test_whatever_a_small_file_holds_the_records_are_there(ending: str, content: bytes) -> None:
    """It only saves work: a log whose small file is garbled is opened with what its segments say. Every file
    that is not what a program would write is named; those that may be empty are not."""
    disk = new_disk()
    log = load(disk)
    for offset in range(9):
        log.append(Batches.parse(batch(offset, time=offset)))
    settle(log)
    expected = log.read_range(0, 9, 10_000), log.epochs, [one.base_offset for one in log.segments()]
    log.close()
    names = [name for name in disk.list_directory(PLACE) if name.endswith(ending)]
    names = names or [f"{log.segments()[0].base_offset:020}{ending}"]
    for name in names:
        write_atomically(disk, f"{PLACE}/{name}", content)
    warnings: list[str] = []
    for more in range(2):
        config = LogConfig(segment_bytes=400, index_interval_bytes=100)
        pool, system = FilePool(disk, 4), disk.file_system(PLACE)
        log = PartitionLog.load(disk, PLACE, config, pool, system, warnings.append)
        assert (
            log.read_range(0, 9, 10_000),
            log.epochs,
            [one.base_offset for one in log.segments()],
        ) == expected
        for time in range(10):
            found = log.find_offset(time, 9)
            assert found == (FoundRecord(time, time, 1) if time < 9 else None)
        if more == 0:
            told = [name for name in names if any(name in warning for warning in warnings)]
            is_index = ending in (".index", ".timeindex") or (content == b"" and ending == ".txnindex")
            if ending == ".snapshot":
                assert told == names[-1:] or set(told) == set(names)
            elif ending == "leader-epoch-checkpoint" and content == b"":
                assert told == []  # as Kafka leaves it of an empty table
            else:
                assert told == ([] if is_index else names)
            settle(log)
            del warnings[:]
        else:
            assert warnings == []
        log.close()

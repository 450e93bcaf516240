"""The segmented log: append, roll, read, sync, truncate, reset, trim, and what opening makes of damage."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from metaquorum.storage.batches.batch import Batches, encode_batch, iter_batches, parse_header
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.errors import (
    BatchError,
    CorruptFileError,
    CorruptLogError,
    DiskError,
    LogDirectoryLockedError,
    LogFailedError,
    OffsetOutOfRange,
)
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.log.reader import LogReader
from metaquorum.storage.log.recovery import FILE_NAME as POINT_FILE
from metaquorum.storage.log.recovery import RecoveryPoint, load_recovery_point
from metaquorum.storage.log.segment import parse_segment_name, segment_name
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.storage.whole_log import whole, window

DIRECTORY = "/data/__cluster_metadata-0"
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def batch(base: int, epoch: int = 1, *, records: int = 1, timestamp_ms: int = 0, size: int = 20) -> bytes:
    values = [bytes([base % 251]) * size for _ in range(records)]
    return encode_batch(base_offset=base, leader_epoch=epoch, timestamp_ms=timestamp_ms, values=values)


@dataclass
class Bench:
    """A disk, and the log on it opened anew at will."""

    disk: FaultyDisk = field(default_factory=lambda: FaultyDisk(random.Random(3)))
    config: LogConfig = SMALL
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")

    def open(self) -> SegmentedLog:
        return SegmentedLog.open(self.disk, DIRECTORY, self.config, self.warnings.append)

    def filled(self, count: int = 60, batches_an_epoch: int = 10) -> SegmentedLog:
        log = self.open()
        for offset in range(count):
            log.append(Batches.parse(batch(offset, 1 + offset // batches_an_epoch)))
        log.sync()
        return log

    def path(self, base: int) -> str:
        return join(DIRECTORY, segment_name(base))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def offsets(log: SegmentedLog) -> list[int]:
    return [one.header.base_offset for one in whole(log)]


def test_a_new_log_is_empty_and_named_as_kafka_names_it(bench: Bench) -> None:
    log = bench.open()
    assert (log.start_offset, log.end_offset, log.synced_offset) == (0, 0, 0)
    assert log.last_position == LogPosition(0, 0)
    assert log.read(0, 1000).data == b""
    assert "00000000000000000000.log" in bench.disk.list_directory(DIRECTORY)
    metadata = read_file(bench.disk, join(DIRECTORY, "partition.metadata"))
    assert metadata == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    log.clean_close()
    assert bench.open().end_offset == 0 and bench.warnings == []


def test_append_rolls_and_reads_back_from_every_offset(bench: Bench) -> None:
    log = bench.filled()
    infos = log.segments()
    assert len(infos) > 4 and all(info.size_bytes <= 1000 for info in infos)
    assert [info.end_offset for info in infos[:-1]] == [info.base_offset for info in infos[1:]]
    assert (log.end_offset, log.synced_offset, log.last_position) == (60, 60, LogPosition(6, 60))
    assert log.epochs.entries == tuple((1 + n, n * 10) for n in range(6))
    for offset in range(60):
        first = next(iter_batches(log.read(offset, 1).data))
        assert first.header.base_offset == offset
        assert len(log.read(offset, 1).data) == first.header.size_bytes
    assert offsets(log) == list(range(60))


def test_read_gives_the_batch_that_contains_the_offset_and_respects_the_limit(bench: Bench) -> None:
    bench.config = LogConfig()
    log = bench.open()
    log.append(Batches.parse(batch(0, records=5) + batch(5, records=5)))
    log.append(Batches.parse(batch(10, records=5)))
    size = parse_header(log.read(0, 1).data).size_bytes
    assert [one.header.base_offset for one in window(log, 7, size)] == [5]
    assert [one.header.base_offset for one in window(log, 3, 2 * size)] == [0, 5]
    assert [one.header.base_offset for one in window(log, 3, 2 * size + 60)] == [0, 5]
    assert [one.position for one in window(log, 0, 10**6)] == [0, size, 2 * size]
    assert log.read(15, 100).data == b""
    for wrong in (-1, 16):
        with pytest.raises(OffsetOutOfRange):
            log.read(wrong, 100)


def test_the_same_after_reopening_with_an_index_built_from_nothing(bench: Bench) -> None:
    bench.filled().clean_close()
    log = bench.open()
    order = list(range(60))
    random.Random(4).shuffle(order)
    for offset in order:
        assert parse_header(log.read(offset, 1).data).base_offset == offset
    assert log.epochs.entries == tuple((1 + n, n * 10) for n in range(6))


def test_a_batch_larger_than_every_window(bench: Bench) -> None:
    bench.config = LogConfig()
    log = bench.open()
    log.append(Batches.parse(batch(0)))
    log.append(Batches.parse(batch(1, size=3_000_000)))
    log.append(Batches.parse(batch(2)))
    log.close()
    log = bench.open()
    assert len(log.read(1, 10).data) > 3_000_000
    assert offsets(log) == [0, 1, 2] and bench.warnings == []


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (batch(11), "expected base offset 10, found 11"),
        (batch(9), "expected base offset 10, found 9"),
        (batch(10, epoch=0), "expected leader epoch 1 or higher, found 0"),
        (batch(10)[:-1], "expected a batch of"),
        (batch(10)[:30], "expected a batch header of 61 bytes, found 30"),
        (batch(10)[:-1] + b"\xff", "expected CRC"),
        (batch(10) + batch(12), "expected base offset 11, found 12"),
        (b"", "at least one batch"),
        (bytes(61), "expected magic 2, found 0"),
        (batch(10, size=2000), "the limit is 1500"),
    ],
)
def test_append_refuses_and_stays_usable(bench: Bench, bad: bytes, says: str) -> None:
    bench.config = LogConfig(max_batch_bytes=1500)
    log = bench.filled(10)
    before = bench.disk.file_size(bench.path(0))
    with pytest.raises((BatchError, CorruptLogError), match=says):
        log.append(Batches.parse(bad))
    assert bench.disk.file_size(bench.path(0)) == before
    assert log.append(Batches.parse(batch(10))) == 11


def test_rolls_by_age_of_the_batches(bench: Bench) -> None:
    bench.config = LogConfig(segment_ms=1000)
    log = bench.open()
    for offset, timestamp in enumerate((5000, 5500, 6000, 6001, 6900, 9000)):
        log.append(Batches.parse(batch(offset, timestamp_ms=timestamp)))
    assert [info.base_offset for info in log.segments()] == [0, 3, 5]
    assert [info.first_timestamp_ms for info in log.segments()] == [5000, 6001, 9000]
    assert [info.last_timestamp_ms for info in log.segments()] == [6001, 9000, 9000]
    log.close()
    assert [info.last_timestamp_ms for info in bench.open().segments()] == [6001, 9000, 9000]


def test_a_log_that_was_cut_tells_the_newest_time_of_what_is_left(bench: Bench) -> None:
    log = bench.open()
    for offset, timestamp in enumerate((5000, 6000, 9000)):
        log.append(Batches.parse(batch(offset, timestamp_ms=timestamp)))
    assert log.segments()[-1].last_timestamp_ms == 9000
    log.truncate_to(2)
    assert log.segments()[-1].last_timestamp_ms == 6000
    log.reset_to(LogPosition(1, 9))
    assert log.segments()[-1].last_timestamp_ms is None


def test_a_sync_covers_what_was_there_when_it_was_prepared(bench: Bench) -> None:
    bench.config = LogConfig()
    log = bench.open()
    log.append(Batches.parse(batch(0)))
    ticket = log.prepare_sync()
    log.append(Batches.parse(batch(1)))
    assert log.synced_offset == 0
    ticket.run()
    assert log.synced_offset == 0
    assert log.sync_completed(ticket) == 1 == log.synced_offset
    assert log.sync() == 2


def test_a_sync_of_a_log_that_was_cut_since_counts_for_nothing(bench: Bench) -> None:
    bench.config = LogConfig()
    log = bench.filled(10)
    log.append(Batches.parse(batch(10, 2)))
    ticket = log.prepare_sync()
    generation = log.generation
    assert log.truncate_to(4) == 4
    assert log.generation == generation + 1
    ticket.run()
    assert log.sync_completed(ticket) == 4
    log.append(Batches.parse(batch(4, 3)))
    assert (log.sync_completed(ticket), log.end_offset) == (4, 5)


def test_a_stale_sync_raises_no_recovery_point(bench: Bench) -> None:
    """A point above the end would make the next opening take the cut for lost data."""
    bench.config = LogConfig(recovery_point_interval_bytes=10)
    log = bench.filled(10)
    log.append(Batches.parse(batch(10, 2)))
    ticket = log.prepare_sync()
    assert ticket.point is not None and ticket.point.offset == 11
    log.truncate_to(4)
    ticket.run()
    assert log.recovery_point.offset == 4
    log.close()
    assert bench.open().end_offset == 4


def test_a_sync_from_before_a_trim_keeps_the_new_start(bench: Bench) -> None:
    """A point with the old start would name a segment that is gone: the node could not start again."""
    bench.config = replace(bench.config, recovery_point_interval_bytes=10)
    log = bench.filled()
    log.append(Batches.parse(batch(log.end_offset, 10)))
    ticket = log.prepare_sync()
    assert ticket.point is not None and ticket.point.offset == log.end_offset
    start = log.segments()[2].base_offset
    log.delete_segments_before(start)
    ticket.run()
    assert (log.recovery_point.offset, log.recovery_point.start_offset) == (log.end_offset, start)
    log.close()
    again = bench.open()
    assert (again.start_offset, again.epochs, again.start_epoch) == (start, log.epochs, log.start_epoch)


@pytest.mark.parametrize("batches_an_epoch", [1, 10])
def test_a_trimmed_log_knows_the_epoch_before_its_start(bench: Bench, batches_an_epoch: int) -> None:
    """Also where another one begins there; once everything is cut, the log ends with it."""
    log = bench.filled(batches_an_epoch=batches_an_epoch)
    start = log.segments()[1].base_offset
    log.delete_segments_before(start)
    before = LogPosition(1 + (start - 1) // batches_an_epoch, start)
    assert log.start_epoch == log.recovery_point.start_epoch == before.epoch
    log.close()
    log = bench.open()
    assert log.start_epoch == before.epoch
    assert log.truncate_to(start) == start and log.last_position == before


@pytest.mark.parametrize("end", [0, 1, 15, 16, 17, 59, 60])
def test_truncate(bench: Bench, end: int) -> None:
    log = bench.filled()
    assert log.truncate_to(end) == end
    assert log.last_position == LogPosition((end + 9) // 10, end)
    assert offsets(log) == list(range(end))
    log.close()
    log = bench.open()
    assert offsets(log) == list(range(end)) and bench.warnings == []
    log.append(Batches.parse(batch(end, 9)))
    assert log.epochs.entries == (*((1 + n, n * 10) for n in range((end + 9) // 10)), (9, end))


def test_truncate_into_a_batch_drops_it_whole(bench: Bench) -> None:
    log = bench.open()
    log.append(Batches.parse(batch(0, records=5) + batch(5, records=5)))
    assert log.truncate_to(7) == 5
    assert log.end_offset == 5
    with pytest.raises(OffsetOutOfRange):
        log.truncate_to(6)


def test_reset_after_a_snapshot(bench: Bench) -> None:
    log = bench.filled()
    log.reset_to(LogPosition(9, 500))
    assert (log.start_offset, log.end_offset, log.synced_offset) == (500, 500, 500)
    assert log.last_position == LogPosition(9, 500)
    assert log.epochs.entries == ((9, 500),)
    with pytest.raises(BatchError, match="leader epoch 9"):
        log.append(Batches.parse(batch(500, 8)))
    log.close()
    log = bench.open()
    assert (log.start_offset, log.last_position) == (500, LogPosition(9, 500))
    log.append(Batches.parse(batch(500, 10)))
    assert log.last_position == LogPosition(10, 501)
    # The batch goes again, and the epoch before the start is still known.
    log.truncate_to(500)
    assert log.last_position == LogPosition(9, 500)
    log.close()
    assert bench.open().last_position == LogPosition(9, 500)
    names = [name for name in bench.disk.list_directory(DIRECTORY) if parse_segment_name(name) is not None]
    assert names == [segment_name(500)]


def test_trim_keeps_the_last_segment_and_the_epoch_before_the_start(bench: Bench) -> None:
    log = bench.filled()
    bases = [info.base_offset for info in log.segments()]
    assert log.delete_segments_before(bases[0]) == []
    assert log.delete_segments_before(bases[2] + 1) == [bench.path(bases[0]), bench.path(bases[1])]
    assert log.start_offset == bases[2]
    assert log.start_epoch == 1 + (bases[2] - 1) // 10
    assert log.epochs.entries[0] == (1 + bases[2] // 10, bases[2])
    assert len(log.delete_segments_before(10**9)) == len(bases) - 3
    assert log.start_offset == bases[-1] and log.end_offset == 60
    with pytest.raises(OffsetOutOfRange):
        log.read(bases[-1] - 1, 10)
    epochs = log.epochs
    log.close()
    log = bench.open()
    assert (log.start_offset, log.end_offset, log.epochs) == (bases[-1], 60, epochs)


def test_one_writer(bench: Bench) -> None:
    log = bench.open()
    with pytest.raises(LogDirectoryLockedError):
        bench.open()
    log.close()
    bench.open().close()
    lock = bench.disk.lock(DIRECTORY)
    held = SegmentedLog.open(bench.disk, DIRECTORY, SMALL, lock=lock)
    held.close()
    with pytest.raises(LogDirectoryLockedError):
        bench.open()


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_after_a_disk_error_nothing_more_is_accepted(bench: Bench, operation: str) -> None:
    log = bench.filled(10)
    bench.disk.inject(DIRECTORY, operation=operation, count=1)
    with pytest.raises(DiskError):
        log.append(Batches.parse(batch(10, 2)))
        log.sync()
    assert log.synced_offset == 10
    for attempt in (
        lambda: log.append(Batches.parse(batch(log.end_offset, 2))),
        log.sync,
        lambda: log.truncate_to(3),
    ):
        with pytest.raises(LogFailedError, match="repair the disk"):
            attempt()
    bench.disk = bench.disk.crash()
    assert bench.open().end_offset >= 10


def test_a_full_disk_leaves_a_log_that_opens(bench: Bench) -> None:
    log = bench.filled(10)
    total = sum(bench.disk.file_size(join(DIRECTORY, name)) for name in bench.disk.list_directory(DIRECTORY))
    bench.disk.profile = replace(bench.disk.profile, capacity_bytes=total + 30)
    with pytest.raises(DiskError, match="no space"):
        log.append(Batches.parse(batch(10, 2)))
    log.close()
    bench.disk = bench.disk.kill()
    bench.disk.profile = replace(bench.disk.profile, capacity_bytes=None)
    assert bench.open().end_offset == 10
    assert len(bench.warnings) == 1 and "torn tail of 30 bytes" in bench.warnings[0]


# --- damage


def edit(bench: Bench, path: str, position: int, content: bytes) -> None:
    """Overwrites bytes of a closed file."""
    file = bench.disk.open_append(path)
    data = file.read_at(0, file.size())
    file.truncate(0)
    file.append(data[:position] + content + data[position + len(content) :])
    file.sync()


def unpointed(count: int = 8) -> Bench:
    """A log of one segment whose recovery point is still at 0."""
    bench = Bench(config=LogConfig())
    bench.filled(count).close()
    return bench


@pytest.mark.parametrize(
    ("what", "tail"),
    [
        ("half a header", batch(8)[:40]),
        ("half a batch", batch(8)[:-3]),
        ("zeros", bytes(300)),
        ("garbage", random.Random(7).randbytes(300)),
        ("a wrong CRC", batch(8)[:-2] + b"zz"),
        ("a gap", batch(7)[:61] + batch(8)[61:]),
        ("one byte", b"\x00"),
    ],
)
def test_a_torn_tail_is_cut_with_a_warning(what: str, tail: bytes) -> None:
    bench = unpointed()
    size = bench.disk.file_size(bench.path(0))
    bench.disk.open_append(bench.path(0)).append(tail)
    log = bench.open()
    assert offsets(log) == list(range(8)) and log.synced_offset == 8
    assert len(bench.warnings) == 1
    assert (
        f"{bench.path(0)}: truncated a torn tail of {len(tail)} bytes at byte {size} (offset 8)"
        in bench.warnings[0]
    )
    assert bench.disk.file_size(bench.path(0)) == size
    log.append(Batches.parse(batch(8)))
    log.close()
    assert bench.open().end_offset == 9 and len(bench.warnings) == 1


def test_a_torn_batch_above_a_window_is_told_by_the_files_bytes() -> None:
    bench = unpointed()
    torn = batch(8, size=3 << 20)[: (2 << 20) + 7]
    path, size = bench.path(0), bench.disk.file_size(bench.path(0))
    bench.disk.open_append(path).append(torn)
    reader = LogReader(bench.disk, DIRECTORY)
    assert len(list(reader.batches())) == 8
    problem = f"bytes, found {len(torn)}"
    tail = reader.tail_problem()
    assert tail is not None and tail.position == size and tail.reason.endswith(problem)
    bench.open()
    assert len(bench.warnings) == 1 and bench.warnings[0].endswith(problem)
    assert bench.disk.file_size(path) == size


@pytest.mark.parametrize("field_position", [0, 7, 8, 11, 12, 15, 16, 17, 20, 21, 26, 60, 70])
def test_damage_before_a_valid_later_batch_is_corruption(field_position: int) -> None:
    """Also where the CRC does not look: base offset, length and epoch."""
    bench = unpointed()
    log = bench.open()
    position = sum(len(one.data) for one in window(log, 0, 10**6) if one.header.base_offset < 3)
    log.close()
    remove_point(bench)
    original = read_file(bench.disk, bench.path(0))
    value = original[position + field_position] ^ 0x41
    edit(bench, bench.path(0), position + field_position, bytes([value]))
    damaged = read_file(bench.disk, bench.path(0))
    with pytest.raises(CorruptLogError) as caught:
        bench.open()
    assert caught.value.file == bench.path(0)
    assert caught.value.offset in (3, 4) and caught.value.position >= position
    assert "no byte was changed" in str(caught.value) and "\n" not in str(caught.value)
    assert read_file(bench.disk, bench.path(0)) == damaged


def remove_point(bench: Bench) -> None:
    bench.disk.remove(join(DIRECTORY, POINT_FILE))


def test_damage_below_the_recovery_point_is_corruption_even_at_the_end() -> None:
    bench = Bench(config=LogConfig())
    bench.filled(8).clean_close()
    size = bench.disk.file_size(bench.path(0))
    point = load_recovery_point(bench.disk, DIRECTORY)
    assert point is not None and (point.offset, point.position) == (8, size)
    bench.disk.open_append(bench.path(0)).truncate(size - 1)
    with pytest.raises(CorruptLogError, match=f"expected at least {size} bytes"):
        bench.open()
    assert bench.disk.file_size(bench.path(0)) == size - 1


def test_a_flipped_bit_below_the_recovery_point_is_found_by_the_read() -> None:
    bench = Bench(config=LogConfig())
    bench.filled(8).clean_close()
    bench.disk.flip_bit(bench.path(0), bench.disk.file_size(bench.path(0)) - 2)
    log = bench.open()
    with pytest.raises(CorruptLogError) as caught:
        offsets(log)
    assert (caught.value.file, caught.value.offset) == (bench.path(0), 7)


def test_a_missing_epoch_table_is_rebuilt_and_the_point_still_holds() -> None:
    bench = Bench(config=LogConfig())
    bench.filled(30).clean_close()
    bench.disk.remove(join(DIRECTORY, "leader-epoch-checkpoint"))
    log = bench.open()
    assert log.epochs.entries == ((1, 0), (2, 10), (3, 20))
    log.clean_close()
    bench.disk.remove(join(DIRECTORY, "leader-epoch-checkpoint"))
    bench.disk.flip_bit(bench.path(0), bench.disk.file_size(bench.path(0)) - 2)
    with pytest.raises(CorruptLogError, match="synced up to offset 30"):
        bench.open()


@pytest.mark.parametrize("gone", [0, 1, -1])
def test_a_missing_segment_is_corruption(bench: Bench, gone: int) -> None:
    log = bench.filled()
    bases = [info.base_offset for info in log.segments()]
    log.clean_close()
    bench.disk.remove(bench.path(bases[gone]))
    with pytest.raises(CorruptLogError):
        offsets(bench.open())


def test_a_segment_after_a_torn_one_is_removed_only_if_it_holds_nothing(bench: Bench) -> None:
    log = bench.filled()
    bases = [info.base_offset for info in log.segments()]
    log.close()
    remove_point(bench)
    last = bench.path(bases[-1])
    before = bench.path(bases[-2])
    bench.disk.open_append(before).truncate(bench.disk.file_size(before) - 1)
    with pytest.raises(CorruptLogError, match="a valid batch follows"):
        bench.open()
    bench.disk.open_append(last).truncate(30)
    log = bench.open()
    assert log.end_offset == bases[-1] - 1
    assert len(bench.warnings) == 2 and not bench.disk.exists(last)
    assert offsets(log) == list(range(bases[-1] - 1))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a recovery point"),
        (b"{}", "is not a recovery point"),
        (b'{"version": 7}', "version 7"),
        (
            RecoveryPoint(offset=5, segment=5, position=0, start_offset=0, start_epoch=0)
            .encode()
            .replace(b"5", b"-5"),
            "not offsets",
        ),
        (RecoveryPoint(offset=3, segment=5, position=0, start_offset=0, start_epoch=0).encode(), "outside"),
    ],
)
def test_an_unreadable_recovery_point_is_refused(content: bytes, says: str) -> None:
    bench = unpointed()
    path = join(DIRECTORY, POINT_FILE)
    file = bench.disk.open_append(path)
    file.truncate(0)
    file.append(content)
    with pytest.raises(CorruptFileError, match=says):
        bench.open()


def test_the_recovery_point_moves_at_roll_by_bytes_and_at_a_clean_close() -> None:
    bench = Bench(config=LogConfig(segment_bytes=2000, recovery_point_interval_bytes=500))
    log = bench.open()
    points = []
    for offset in range(30):
        log.append(Batches.parse(batch(offset, 1 + offset // 7)))
        log.sync()
        point = load_recovery_point(bench.disk, DIRECTORY)
        assert point == log.recovery_point
        points.append(point.offset)
    assert points == sorted(points) and len(set(points)) > 4
    bases = {info.base_offset for info in log.segments()}
    assert len(bases) > 1 and bases <= set(points)
    table = EpochTable.decode(read_file(bench.disk, join(DIRECTORY, "leader-epoch-checkpoint")))
    assert table.truncate_to(points[-1]) == log.epochs.truncate_to(points[-1])
    log.clean_close()
    point = load_recovery_point(bench.disk, DIRECTORY)
    assert point is not None and point.offset == 30


def test_opening_reads_only_the_tail() -> None:
    bench = Bench(config=LogConfig(segment_bytes=100_000, recovery_point_interval_bytes=1000))
    bench.filled(2000).close()
    read: list[int] = []
    original = bench.disk.begin

    def counting(operation: str, directory: str, path: str) -> None:
        if operation == "read":
            read.append(1)
        original(operation, directory, path)

    bench.disk.begin = counting  # type: ignore[method-assign]
    log = bench.open()
    assert log.end_offset == 2000
    assert len(read) < 6


@pytest.mark.parametrize(
    ("entries", "start", "start_epoch", "epochs"),
    [
        (None, 0, 0, ((1, 0),)),
        ("0\n2\n1 0\n4 9\n", 9, 1, ((4, 9),)),
        ("0\n1\n4 9\n", 9, 4, ((4, 9),)),
        ("0\n2\n3 5\n4 7\n", 9, 4, ((4, 9),)),
        (None, 9, 0, ((4, 9),)),
    ],
)
def test_the_epoch_before_a_log_that_another_program_trimmed_is_in_its_table(
    bench: Bench, entries: str | None, start: int, start_epoch: int, epochs: tuple[tuple[int, int], ...]
) -> None:
    """Kafka has no recovery point of ours."""
    bench.disk.make_directory(DIRECTORY)
    bench.disk.open_append(bench.path(start)).append(batch(start, epoch=epochs[0][0]))
    if entries is not None:
        bench.disk.open_append(join(DIRECTORY, "leader-epoch-checkpoint")).append(entries.encode())
    log = bench.open()
    assert (log.start_epoch, log.epochs.entries) == (start_epoch, epochs)
    log.truncate_to(start)
    assert log.last_position == LogPosition(start_epoch, start)

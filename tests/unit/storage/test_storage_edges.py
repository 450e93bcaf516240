"""Storage at its edges: lengths of every size, files that are given back, offsets that lie on a boundary."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from metaquorum.storage.archive import MAX_BLOCK_BYTES, MAX_INDEX_BYTES, LogArchive
from metaquorum.storage.archive_writer import ArchiveSource, extract_archive, write_archive
from metaquorum.storage.batches.batch import (
    Batches,
    batch_record_spans,
    encode_batch,
    iter_batches,
    parse_header,
    plain_header,
    seal_batch,
)
from metaquorum.storage.batches.codecs import MAX_UNPACKED_BYTES
from metaquorum.storage.batches.format import HEADER_BYTES, MAX_BATCH_BYTES
from metaquorum.storage.cleaner.plan import CleanerSettings
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import Disk, join, read_file, write_atomically
from metaquorum.storage.errors import (
    CorruptLogError,
    DiskError,
    LogFailedError,
    StorageError,
    stopped_text,
)
from metaquorum.storage.files.snapshots import SnapshotWriter, read_chunk
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.log.reader import LogReader
from metaquorum.storage.log.recovery import FILE_NAME as POINT_FILE
from metaquorum.storage.log.recovery import MAX_READABLE_BATCH_BYTES
from metaquorum.storage.log.segment import list_segments, segment_name
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.partition.producers import BATCHES_KEPT
from metaquorum.storage.partition.replica_directory import MAX_NAME_BYTES
from metaquorum.storage.partition.swap import finish_swaps
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk

DIRECTORY = "/data/__cluster_metadata-0"
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


class CountingDisk:
    """Passes everything on, and knows which files are open and which were ever opened."""

    def __init__(self, inner: Disk) -> None:
        self._inner = inner
        self.held: Counter[str] = Counter()
        self.opened: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open_read(self, path: str) -> Any:
        return self._counted(path, self._inner.open_read(path))

    def open_append(self, path: str) -> Any:
        return self._counted(path, self._inner.open_append(path))

    def _counted(self, path: str, file: Any) -> Any:
        self.held[path] += 1
        self.opened.append(path)
        return _CountedFile(self, path, file)

    def still_open(self) -> list[str]:
        return sorted(path for path, count in self.held.items() if count)


class _CountedFile:
    def __init__(self, disk: CountingDisk, path: str, inner: Any) -> None:
        self._disk = disk
        self._path = path
        self._inner = inner
        self._is_open = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> None:
        self._disk.held[self._path] -= self._is_open
        self._is_open = False
        self._inner.close()


@pytest.fixture
def disk() -> Any:
    inner = FaultyDisk(random.Random(5))
    inner.make_directory("/data")
    inner.sync_directory("/")
    return CountingDisk(inner)


def batch(base: int, epoch: int = 1, *, size: int = 20, records: int = 1) -> bytes:
    values = [b"v" * size] * records
    return encode_batch(base_offset=base, leader_epoch=epoch, timestamp_ms=base, values=values)


def filled(disk: Any, count: int = 60, batches_an_epoch: int = 10) -> SegmentedLog:
    log = SegmentedLog.open(disk, DIRECTORY, SMALL)
    for offset in range(log.end_offset, count):
        log.append(Batches.parse(batch(offset, 1 + offset // batches_an_epoch)))
    log.sync()
    return log


EDGES = [*range(56, 72), *range(8180, 8200), 0, 1, 100, 20_000]


@pytest.mark.parametrize("first", [0, 1, 63, 64, 200])
def test_values_of_every_length_are_found_where_they_are(first: int) -> None:
    """Lengths of records and of values change their own length at 64 and at 8,192; numbers of records too."""
    values = [bytes([at % 251]) * size for at, size in enumerate([3] * first + EDGES + EDGES[::-1])]
    data = encode_batch(base_offset=7, leader_epoch=2, timestamp_ms=5, values=values)
    (one,) = iter_batches(data)
    assert [one.data[start:end] for start, end in batch_record_spans(one)] == values
    assert [raw.value for raw in one.records()] == values
    assert [raw.offset for raw in one.records()] == list(range(7, 7 + len(values)))


def test_a_batch_that_is_sealed_from_its_parts_is_the_encoded_one() -> None:
    whole = encode_batch(base_offset=7, leader_epoch=2, timestamp_ms=5, values=[b"a", b"bc"])
    assert seal_batch(plain_header(7, 2, 5, 2), whole[HEADER_BYTES:]) == whole
    header = parse_header(whole)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.base_timestamp_ms, header.max_timestamp_ms, header.attributes) == (5, 5, 0)


def test_defaults_are_kafkas() -> None:
    """log.segment.bytes, log.roll.hours, index.interval.bytes, and the largest metadata batch."""
    config = LogConfig()
    assert config.segment_bytes == 1_073_741_824
    assert config.segment_ms == 168 * 3_600_000
    assert config.index_interval_bytes == 4096
    assert config.max_batch_bytes == 8_388_608
    assert config.recovery_point_interval_bytes == 4_194_304


def test_bounds_are_kafkas_or_those_that_files_were_written_under() -> None:
    cleaner = CleanerSettings()
    assert (cleaner.min_dirty_ratio, cleaner.min_lag_ms) == (0.5, 0)
    assert (cleaner.max_lag_ms, cleaner.delete_retention_ms) == (9_223_372_036_854_775_807, 86_400_000)
    assert MAX_NAME_BYTES == 255 and BATCHES_KEPT == 5
    assert (MAX_BATCH_BYTES, MAX_READABLE_BATCH_BYTES) == (8_388_608, 134_217_728)
    assert (MAX_UNPACKED_BYTES, MAX_BLOCK_BYTES, MAX_INDEX_BYTES) == (67_108_864, 67_108_864, 1_073_741_824)


Work = Callable[[Any], None]


def _write(disk: Any) -> None:
    write_atomically(disk, "/data/x", b"a")
    write_atomically(disk, "/data/x", b"b")
    assert read_file(disk, "/data/x") == b"b"


def _live(disk: Any) -> None:
    log = filled(disk)
    log.read(0, 5000)
    log.truncate_to(25)
    log.delete_segments_before(15)
    log.reset_to(LogPosition(9, 100))
    log.append(Batches.parse(batch(100, 9)))
    log.close()


def _reopen(disk: Any) -> None:
    filled(disk).close()
    SegmentedLog.open(disk, DIRECTORY, SMALL).clean_close()
    SegmentedLog.open(disk, DIRECTORY, SMALL).close()


def _torn(disk: Any) -> None:
    log = filled(disk)
    last = join(DIRECTORY, segment_name(list_segments(disk, DIRECTORY)[-1]))
    log.close()
    file = disk.open_append(last)
    file.append(b"\0" * 30)
    file.close()
    SegmentedLog.open(disk, DIRECTORY, SMALL).close()


def _refused(disk: Any) -> None:
    log = filled(disk)
    first = join(DIRECTORY, segment_name(0))
    log.close()
    file = disk.open_append(first)
    file.truncate(50)
    file.close()
    disk.remove(join(DIRECTORY, POINT_FILE))
    with pytest.raises(CorruptLogError):
        SegmentedLog.open(disk, DIRECTORY, SMALL)


def _followed(disk: Any) -> None:
    filled(disk).close()
    reader = LogReader(disk, DIRECTORY)
    assert len(list(reader.batches())) == 60
    reader.close()


def _snapshot(disk: Any) -> None:
    writer = SnapshotWriter(disk, "/data", LogPosition(1, 10))
    writer.append(b"x" * 100)
    writer.freeze()
    chunk = read_chunk(disk, "/data", LogPosition(1, 10), 0, 40)
    assert not chunk.is_last
    abandoned = SnapshotWriter(disk, "/data", LogPosition(1, 20))
    abandoned.append(b"y")
    abandoned.close()


def _partition(disk: Any) -> None:
    disk.make_directory("/data/t-0")
    for end in (20, 30):
        pool = FilePool(disk, 2)
        log = PartitionLog.load(disk, "/data/t-0", SMALL, pool, disk.file_system("/data"))
        for offset in range(log.end_offset, end):
            log.append(Batches.parse(batch(offset)))
        assert len(log.segments()) > 1 and log.read_range(log.start_offset, end, 10_000)
        log.truncate_to(end - 2)
        log.delete_segments_before(5)
        log.close()
        assert len(pool) == 0


def _swapped(disk: Any) -> None:
    write_atomically(disk, f"/data/{segment_name(0)}.swap", batch(0))
    assert finish_swaps(disk, "/data", disk.list_directory("/data")) == [segment_name(0)]


def _archive(disk: Any) -> None:
    filled(disk, 5).close()
    name = segment_name(0)
    write_archive(disk, "/data/a.mqa", [ArchiveSource(disk, f"{DIRECTORY}/{name}", f"n/{name}")], "1")
    archive = LogArchive(disk.open_read("/data/a.mqa"))
    extract_archive(archive, disk, "/data/out", "1")
    archive.close()


@pytest.mark.parametrize(
    "work", [_archive, _write, _live, _reopen, _torn, _refused, _followed, _snapshot, _partition, _swapped]
)
def test_every_file_that_was_opened_is_given_back(disk: Any, work: Work) -> None:
    """A file that stays open is a handle lost for good: a broker has thousands of segments."""
    work(disk)
    assert disk.opened
    assert disk.still_open() == []


def test_a_failed_atomic_write_gives_its_file_back(disk: Any) -> None:
    class NoSync(_CountedFile):
        def sync(self) -> None:
            raise DiskError("/data", "sync", "no")

    class Broken(CountingDisk):
        def _counted(self, path: str, file: Any) -> Any:
            self.held[path] += 1
            return NoSync(self, path, file)

    broken = Broken(disk._inner)
    with pytest.raises(DiskError):
        write_atomically(broken, "/data/x", b"a")  # type: ignore[arg-type]
    assert broken.still_open() == []


def test_a_reader_that_begins_at_a_segment_opens_no_earlier_one(disk: Any) -> None:
    filled(disk).close()
    bases = list_segments(disk, DIRECTORY)
    assert len(bases) > 3
    for tolerant in (False, True):
        for at, base in enumerate(bases):
            for start in (base, base + 1):
                del disk.opened[:]
                reader = LogReader(disk, DIRECTORY, start_offset=start, tolerant=tolerant)
                assert next(reader.batches()).header.base_offset == start
                reader.close()
                first = min(path for path in disk.opened if path.endswith(".log"))
                assert first == join(DIRECTORY, segment_name(bases[at]))


@pytest.mark.parametrize("start", [30, 31])
def test_a_cut_to_the_start_keeps_the_epoch_before_it(disk: Any, start: int) -> None:
    """After a trim the log may become empty again: its last epoch is still known, for votes and fetches."""
    log = filled(disk)
    removed = log.delete_segments_before(start)
    assert removed
    at = log.start_offset
    assert 0 < at <= start
    before = EpochTable(tuple((1 + offset // 10, offset) for offset in range(0, 60, 10))).epoch_at(at - 1)
    log.truncate_to(at)
    assert (log.start_offset, log.end_offset) == (at, at)
    assert log.last_position == LogPosition(before or 0, at)
    assert log.epochs.entries == ((before, at),)
    log.append(Batches.parse(batch(at, 9)))
    log.sync()
    log.close()
    again = SegmentedLog.open(disk, DIRECTORY, SMALL)
    assert (again.start_offset, again.end_offset) == (at, at + 1)
    assert again.epochs.last_epoch == 9
    again.close()


@pytest.mark.parametrize("limit", [0, 1, 60, 61, 89, 90, 91, 200, 267, 268, 269])
def test_a_read_gives_whole_batches_up_to_its_limit_and_at_least_one(disk: Any, limit: int) -> None:
    log = filled(disk, 9)
    size = len(batch(0))
    data = log.read(2, limit).data
    assert len(data) % size == 0
    count = len(data) // size
    assert count == max(1, min(limit // size, 9 - 2)) or len(log.segments()) > 1
    assert [one.header.base_offset for one in iter_batches(data)] == list(range(2, 2 + count))
    log.close()


def test_a_log_whose_end_lies_below_the_recovery_point_names_the_place(disk: Any) -> None:
    """Two ways to lie below it: a file that is too short, and damage before the point without epochs."""
    log = filled(disk)
    log.clean_close()
    last = list_segments(disk, DIRECTORY)[-1]
    path = join(DIRECTORY, segment_name(last))
    size = disk.file_size(path)
    file = disk.open_append(path)
    file.truncate(size - 1)
    file.close()
    with pytest.raises(CorruptLogError, match=f"expected at least {size} bytes") as caught:
        SegmentedLog.open(disk, DIRECTORY, SMALL)
    assert caught.value.file == path
    file = disk.open_append(path)
    file.append(b"\x7f")
    file.close()
    disk.remove(join(DIRECTORY, "leader-epoch-checkpoint"))
    with pytest.raises(CorruptLogError, match="expected a log synced up to offset 60") as caught:
        SegmentedLog.open(disk, DIRECTORY, SMALL)
    assert caught.value.file == path
    assert caught.value.offset == 59
    assert disk.still_open() == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DiskError("/d", "sync", "Input/output error"), "/output error; repair the disk, then start again"),
        (LogFailedError("/d"), "no more records; stop the process, repair the disk, start again"),
        (DiskError("/d", "append", "no space left; free some, then start again"), "some, then start again"),
    ],
)
def test_what_to_do_is_said_once(error: StorageError, text: str) -> None:
    said = stopped_text(error)
    assert said.startswith("stopped: ") and said.endswith(text) and said.count("start again") == 1

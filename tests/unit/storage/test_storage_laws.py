"""Laws of storage at places where two ways meet: windows, files that are gone, numbers that cannot be."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metaquorum.storage.batches.batch import (
    BatchError,
    Batches,
    RawRecord,
    batch_of_records,
    batch_record_spans,
    encode_batch,
    iter_batches,
    plain_header,
    seal_batch,
)
from metaquorum.storage.batches.format import HEADER_BYTES
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import join, write_atomically
from metaquorum.storage.errors import CorruptFileError, CorruptLogError
from metaquorum.storage.files.known_committed import Known, KnownCommitted, decode
from metaquorum.storage.files.meta_properties import MetaProperties
from metaquorum.storage.files.snapshots import SnapshotWriter, latest_snapshot
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.log.reader import Damage, LogReader
from metaquorum.storage.log.recovery import FILE_NAME as POINT_FILE
from metaquorum.storage.log.recovery import (
    WINDOW_BYTES,
    find_valid_batch,
    load_recovery_point,
    store_recovery_point,
)
from metaquorum.storage.log.segment import list_segments, segment_name
from metaquorum.storage.log.timed_segment import decode_index, encode_index
from metaquorum.storage.partition.partition_log import LogIndexes, PartitionLog
from metaquorum.storage.partition.pooled_log import FoundRecord
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.storage.test_storage_edges import DIRECTORY, SMALL, CountingDisk, batch, filled
from tests.unit.storage.test_storage_limits import with_bytes


@pytest.fixture
def disk() -> FaultyDisk:
    made = FaultyDisk(random.Random(5))
    made.make_directory("/data")
    made.sync_directory("/")
    return made


# --- windows and offsets behind damage


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("before_end", [-1, 0, 1, 17, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, 80])
def test_a_batch_behind_damage_is_found_wherever_a_window_ends(
    disk: FaultyDisk, before_end: int, start: int
) -> None:
    """The search reads a window at a time: a header, or what follows it, may lie across its end."""
    at = start + WINDOW_BYTES - before_end
    whole = batch(7, size=60)
    assert len(whole) > 80
    with_bytes(disk, "/data/f", b"\1" * at + whole + b"\1" * 40)
    file = disk.open_read("/data/f")
    found = find_valid_batch(file, start, 5)
    assert found is not None
    assert (found[0], found[1].base_offset) == (at, 7)
    file.close()


@pytest.mark.parametrize("base", [0, 2**31 - 3, 2**31, 2**40])
def test_a_reader_finds_its_way_past_damage_at_any_offset(disk: FaultyDisk, base: int) -> None:
    """What it looks for lies behind the place it stands at, however far the log has come; older batches
    that lie in the damaged bytes are none of the log's."""
    log = SegmentedLog.open(disk, DIRECTORY, LogConfig())
    log.reset_to(LogPosition(1, base))
    log.close()
    size = len(batch(0))
    stale = [batch(base - 2)] if base else []
    with_bytes(
        disk,
        join(DIRECTORY, segment_name(base)),
        b"".join([batch(base), b"\x2a" * size, *stale, batch(base + 2), batch(base + 3)]),
    )
    seen = [
        (item.offset if isinstance(item, Damage) else item.header.base_offset)
        for item in LogReader(disk, DIRECTORY, tolerant=True)
    ]
    assert seen == [base, base + 1, base + 2, base + 3]


def test_a_log_of_one_record_a_segment_is_read_whole(disk: FaultyDisk) -> None:
    log = SegmentedLog.open(disk, DIRECTORY, LogConfig(segment_bytes=1))
    for offset in range(5):
        log.append(Batches.parse(batch(offset)))
    log.sync()
    log.close()
    assert list_segments(disk, DIRECTORY) == [0, 1, 2, 3, 4]
    for start in range(5):
        reader = LogReader(disk, DIRECTORY, start_offset=start)
        assert [one.header.base_offset for one in reader.batches()] == list(range(start, 5))


def test_damage_below_the_recovery_point_is_named_where_it_begins(disk: FaultyDisk) -> None:
    """It may begin in one segment and go on to the end of the last; the end of the log is not its place."""
    log = filled(disk)
    log.clean_close()
    *_, torn, last = list_segments(disk, DIRECTORY)
    for base in (torn, last):
        path = join(DIRECTORY, segment_name(base))
        size = disk.file_size(path)
        file = disk.open_append(path)
        file.truncate(0)
        file.append(b"\1" * size)
        file.close()
    disk.remove(join(DIRECTORY, "leader-epoch-checkpoint"))
    with pytest.raises(CorruptLogError, match="expected a log synced up to offset 60") as caught:
        SegmentedLog.open(disk, DIRECTORY, SMALL)
    assert (caught.value.file, caught.value.position) == (join(DIRECTORY, segment_name(torn)), 0)
    assert disk.exists(join(DIRECTORY, POINT_FILE))


def test_a_recovery_point_beyond_the_records_is_told_also_where_nothing_tore(disk: FaultyDisk) -> None:
    filled(disk).clean_close()
    point = load_recovery_point(disk, DIRECTORY)
    assert point is not None
    store_recovery_point(disk, DIRECTORY, replace(point, offset=point.offset + 5))
    disk.remove(join(DIRECTORY, "leader-epoch-checkpoint"))
    with pytest.raises(CorruptLogError, match="expected a log synced up to offset 65") as caught:
        SegmentedLog.open(disk, DIRECTORY, SMALL)
    last = join(DIRECTORY, segment_name(list_segments(disk, DIRECTORY)[-1]))
    assert (caught.value.file, caught.value.position) == (last, disk.file_size(last))
    assert caught.value.offset == 60


@pytest.mark.parametrize("behind", [0, 1, 3])
def test_a_read_that_comes_upon_damage_is_refused_wherever_its_segment_ends(
    disk: FaultyDisk, behind: int
) -> None:
    """The batches before it are whole; what is given to a follower must not end there as if nothing came."""
    log = SegmentedLog.open(disk, DIRECTORY, LogConfig())
    for offset in range(6):
        log.append(Batches.parse(batch(offset)))
    log.sync()
    size = len(batch(0))
    disk.flip_bit(join(DIRECTORY, segment_name(0)), (6 - behind) * size - 3, 1)
    for start in range(6):
        if start > 5 - behind:
            assert log.read(start, 10_000).next_offset == 6
            continue
        with pytest.raises(CorruptLogError):
            log.read(start, 10_000)


def test_an_epoch_table_that_cannot_be_read_is_told_and_made_again(disk: FaultyDisk) -> None:
    filled(disk).clean_close()
    path = join(DIRECTORY, "leader-epoch-checkpoint")
    write_atomically(disk, path, b"0\nx\n")
    warnings: list[str] = []
    log = SegmentedLog.open(disk, DIRECTORY, SMALL, warnings.append)
    assert log.epochs.entries == tuple((1 + base // 10, base) for base in range(0, 60, 10))
    assert [path in warning for warning in warnings] == [True]
    log.clean_close()
    del warnings[:]
    SegmentedLog.open(disk, DIRECTORY, SMALL, warnings.append).close()
    assert warnings == []


# --- small files


@pytest.mark.parametrize("fields", [b"", b"1", b"1 5", b"2", b"2 5"])
def test_a_note_of_too_few_words_is_no_note_whatever_its_checksum(fields: bytes) -> None:
    with pytest.raises(CorruptFileError, match="does not say what is committed"):
        decode(b"%b %08x\n" % (fields, zlib.crc32(fields)))


@pytest.mark.parametrize("clean", [True, False])
def test_the_note_of_what_is_committed_gives_its_file_back(disk: FaultyDisk, clean: bool) -> None:
    counting = CountingDisk(disk)
    known = KnownCommitted(counting, "/data", Known(LogPosition(1, 5)))  # type: ignore[arg-type]
    known.note(LogPosition(1, 6))
    known.end_write(known.begin_write())
    known.note(LogPosition(1, 7))
    known.close(clean=clean)
    assert counting.opened
    assert counting.still_open() == []


@pytest.mark.parametrize("text", ["\\u0663", "\\u00b2", "1\\u0663", "+1", "1_0", " ", "-0", "2147483648"])
def test_a_node_id_is_written_in_the_digits_0_to_9(text: str) -> None:
    with pytest.raises(CorruptFileError, match=r"node\.id"):
        MetaProperties.decode(f"version=1\ncluster.id=c\nnode.id={text}\n".encode(), "f")


def test_the_latest_snapshot_is_that_of_the_highest_offset(disk: FaultyDisk) -> None:
    assert latest_snapshot(disk, "/data") is None
    made = [LogPosition(2, 30), LogPosition(1, 10), LogPosition(2, 200), LogPosition(2, 99)]
    for at, one in enumerate(made, 1):
        writer = SnapshotWriter(disk, "/data", one)
        writer.append(b"x")
        writer.freeze()
        assert latest_snapshot(disk, "/data") == max(made[:at], key=lambda each: each.offset)


@pytest.mark.parametrize(
    ("offsets", "positions", "fits"),
    [
        ([100, 149], [0, 999], True),
        ([99, 149], [0, 999], False),
        ([100, 150], [0, 999], False),
        ([100, 149], [-1, 999], False),
        ([100, 149], [0, 1000], False),
        ([100, 100], [0, 999], False),
        ([100, 149], [5, 5], False),
    ],
)
def test_an_index_counts_up_to_the_ends_of_its_segment(
    offsets: list[int], positions: list[int], fits: bool
) -> None:
    found = decode_index(encode_index(100, offsets, positions), 100, end_offset=150, size=1000)
    assert (found is not None) == fits
    if found is not None:
        assert [list(each) for each in found] == [offsets, positions]


def test_a_segment_that_is_gone_needs_no_index_files(disk: FaultyDisk) -> None:
    indexes = LogIndexes(disk, "/data")
    indexes.begin(100)
    assert indexes.bytes_to_read([]) == 0
    indexes.remove(100)
    assert indexes.bytes_to_read([]) is None


# --- records


def test_more_records_than_are_known_by_heart() -> None:
    """The first 4,096 record numbers are kept encoded."""
    values = [b"%d" % at for at in range(4100)]
    (one,) = iter_batches(encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=0, values=values))
    assert [one.data[start:end] for start, end in batch_record_spans(one)] == values


@pytest.mark.parametrize("size", [0, 1, 20, 57, 100, 9000])
@pytest.mark.parametrize("timestamp_ms", [0, 1])
def test_a_record_of_a_negative_length_is_no_record(size: int, timestamp_ms: int) -> None:
    """Lengths are zigzag numbers: the lowest bit is the sign."""
    record = RawRecord(0, timestamp_ms, None, b"v" * size, (), 0)
    whole = bytearray(batch_of_records(plain_header(0, 0, 0, 1), [record]))
    whole[HEADER_BYTES] |= 1
    (wrong,) = iter_batches(seal_batch(plain_header(0, 0, 0, 1), bytes(whole[HEADER_BYTES:])))
    with pytest.raises(BatchError):
        wrong.records()
    with pytest.raises(BatchError):
        batch_record_spans(wrong)


# --- a clock that runs backwards inside a batch


def timed(base: int, times: list[int]) -> bytes:
    header = plain_header(base, 1, times[0], len(times))._replace(max_timestamp_ms=max(times))
    records = [RawRecord(base + at, time, None, b"v%d" % at, (), 0) for at, time in enumerate(times)]
    return batch_of_records(header, records)


TIMES = st.lists(st.lists(st.integers(100, 130), min_size=1, max_size=6), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(TIMES, st.integers(0, 20))
def test_a_time_is_found_whichever_way_the_clock_ran(batches: list[list[int]], start: int) -> None:
    """The answer is the first record that is not older and was not deleted, inside a batch too, where
    deltas of time may be negative."""
    disk = FaultyDisk(random.Random(5))
    disk.make_directory("/data")
    config = LogConfig(segment_bytes=300, index_interval_bytes=100)
    log = PartitionLog.load(disk, "/data", config, FilePool(disk, 4), disk.file_system("/data"))
    records: list[FoundRecord] = []
    for times in batches:
        data = timed(len(records), times)
        (one,) = iter_batches(data, expected_offset=len(records))
        assert [raw.timestamp_ms for raw in one.records()] == times
        log.append(Batches.parse(data))
        records += [FoundRecord(len(records) + at, time, 1) for at, time in enumerate(times)]
    first = log.start_at(start)
    for _ in range(2):
        for below in (len(records), max(1, len(records) - 2)):
            for time in range(99, 132):
                left = [each for each in records[first:below] if each.timestamp_ms >= time]
                assert log.find_offset(time, below) == (left[0] if left else None)
        log.close()
        log = PartitionLog.load(disk, "/data", config, FilePool(disk, 4), disk.file_system("/data"))
        first = log.start_at(start)
    log.close()


def test_a_range_holds_the_same_batches_in_a_log_that_was_opened_again() -> None:
    disk = FaultyDisk(random.Random(5))
    disk.make_directory("/data")
    config = LogConfig(segment_bytes=300, index_interval_bytes=100)
    log = PartitionLog.load(disk, "/data", config, FilePool(disk, 4), disk.file_system("/data"))
    batches: list[tuple[int, int, bytes]] = []
    for count in (1, 3, 2, 1, 1, 4, 1, 2, 2, 1, 3, 1):
        base = batches[-1][1] if batches else 0
        data = timed(base, [100] * count)
        log.append(Batches.parse(data))
        batches.append((base, base + count, data))
    assert len(log.segments()) > 3
    end = batches[-1][1]
    for _ in range(2):
        for start in range(end):
            for stop in range(start + 1, end + 1):
                expected = b"".join(
                    data for base, following, data in batches if following > start and base < stop
                )
                assert log.read_range(start, stop, 1 << 20) == expected, (start, stop)
        log.close()
        log = PartitionLog.load(disk, "/data", config, FilePool(disk, 4), disk.file_system("/data"))
    log.close()

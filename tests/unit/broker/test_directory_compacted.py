"""Logs with missing offsets, as Kafka's cleaner leaves them: opened, read, searched, copied, cut and trimmed.

Each law holds for every log that was recorded between passes of the cleaner, and for logs made here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.broker.replica.store.parts import DirectorySync
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, parse_header, seal_batch
from metaquorum.storage.batches.format import HEADER_BYTES, walk_batches
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import Disk, parent_of
from metaquorum.storage.errors import BatchError, CompressedBatchError, CorruptLogError
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.segment import list_segments, segment_name
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.conftest import shared_data_path
from tests.unit.broker.directory_bench import walked

COMPACTION = "kafka-3.7-wire/compaction"
PLACE = "/d/t-0"
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)


def recorded() -> list[str]:
    root = shared_data_path()
    return (
        []
        if root is None
        else sorted(str(one.relative_to(root)) for one in (root / COMPACTION).glob("*/*-0"))
    )


def empty() -> FaultyDisk:
    disk = FaultyDisk(random.Random(1))
    for place in ("/d", PLACE):
        disk.make_directory(place)
        disk.sync_directory(parent_of(place))
    return disk


def copied(shared_data: Path, name: str) -> FaultyDisk:
    disk = empty()
    for path in (shared_data / name).iterdir():
        if not path.name.endswith(".dump.txt"):
            file = disk.open_append(f"{PLACE}/{path.name}")
            file.append(path.read_bytes())
            file.sync()
    disk.sync_directory(PLACE)
    return disk


def loaded(disk: Disk, place: str = PLACE, *, verify: bool = False) -> PartitionLog:
    return PartitionLog.load(
        disk,
        place,
        CONFIG,
        FilePool(disk, 3),
        disk.file_system("/d"),
        pytest.fail,
        verify=verify,
    )


def stopped(log: PartitionLog) -> None:
    """As an orderly stop leaves it."""
    log.sync()
    checkpoint = log.checkpoint(indexes=True)
    assert checkpoint is None or checkpoint.log is log
    if checkpoint is not None:
        DirectorySync("/d", log._file_system, tickets=[], checkpoints=[checkpoint]).run()
        log.checkpointed(checkpoint)
    log.close()


def batches_in(disk: Disk) -> list[RecordBatch]:
    """By their lengths alone."""
    found = []
    for base in list_segments(disk, PLACE):
        file = disk.open_read(f"{PLACE}/{segment_name(base)}")
        data, at = file.read_at(0, file.size()), 0
        while at < len(data):
            header = parse_header(data, at)
            found.append(RecordBatch(header, data[at : at + header.size_bytes]))
            at += header.size_bytes
    return found


def check_reads(log: PartitionLog, batches: list[RecordBatch]) -> None:
    """From every offset: one batch, all there is, and what lies below the next offset and every seventh
    behind it."""
    check_reads_from(range(log.log_start_offset, log.end_offset), log, batches, every=7)


def check_reads_at_edges(log: PartitionLog, batches: list[RecordBatch]) -> None:
    """As `check_reads`, from where batches begin and end and what comes after them, with one end each."""
    headers = [one.header for one in batches]
    edges = {log.log_start_offset, *(at for one in headers for at in (one.base_offset, one.last_offset))}
    edges |= {one.next_offset for one in headers}
    inside = sorted(at for at in edges if log.log_start_offset <= at < log.end_offset)
    check_reads_from(inside, log, batches, every=log.end_offset)


def check_reads_from(
    offsets: Iterable[int], log: PartitionLog, batches: list[RecordBatch], *, every: int
) -> None:
    end = log.end_offset
    for offset in offsets:
        rest = [one.data for one in batches if one.header.next_offset > offset]
        assert log.read_range(offset, end, 1) == b"".join(rest[:1]), offset
        assert log.read_range(offset, end, 1 << 20) == b"".join(rest), offset
        for to in range(offset + 1, end, every):
            some = [x.data for x in batches if x.header.next_offset > offset and x.header.base_offset < to]
            assert log.read_range(offset, to, 1 << 20) == b"".join(some), (offset, to)


def check_epochs(log: PartitionLog, batches: list[RecordBatch]) -> None:
    for one in batches:
        assert log.epochs.epoch_at(one.header.base_offset) == one.header.leader_epoch
        assert log.epochs.epoch_at(one.header.last_offset) == one.header.leader_epoch


def check_times(log: PartitionLog, batches: list[RecordBatch]) -> None:
    for time_ms in {one.header.max_timestamp_ms for one in batches}:
        for wanted in (time_ms, time_ms + 1):
            expected = None
            for one in batches:
                header = one.header
                if header.max_timestamp_ms < wanted or not header.records_count:
                    continue
                try:
                    young = [each.offset for each in one.records() if each.timestamp_ms >= wanted]
                except CompressedBatchError:
                    young = [header.base_offset]
                if young:
                    expected = young[0]
                    break
            found = log.find_offset(wanted, log.end_offset)
            assert (None if found is None else found.offset) == expected, wanted


def check_all(make: Callable[[], FaultyDisk]) -> None:
    disk = make()
    batches = batches_in(disk)
    end = max([batches[-1].header.next_offset if batches else 0, list_segments(disk, PLACE)[-1]])
    for verify in (False, True, False):
        log = loaded(disk, verify=verify)
        assert log.end_offset == end
        check_reads(log, batches)
        check_epochs(log, batches)
        check_times(log, batches)
        stopped(log)
    check_copy(make, batches)
    for cut in range(list_segments(disk, PLACE)[0], end):
        check_cut(make(), batches, cut)
        check_trim(make(), batches, cut)


def check_copy(make: Callable[[], FaultyDisk], batches: list[RecordBatch]) -> None:
    """A follower takes the leader's batches as they are, from wherever its own log ends."""
    disk = make()
    leader = loaded(disk)
    disk.make_directory("/d/f-0")
    follower = loaded(disk, "/d/f-0")
    follower.start_over(leader.log_start_offset)
    while data := leader.read_range(follower.end_offset, leader.end_offset, 300):
        follower.append(walked(data))
    assert follower.end_offset == batches[-1].header.next_offset
    check_reads(follower, batches)
    check_epochs(follower, batches)
    stopped(follower)
    check_reads(loaded(disk, "/d/f-0"), batches)


def check_cut(disk: FaultyDisk, batches: list[RecordBatch], cut: int) -> None:
    log = loaded(disk)
    end = log.truncate_to(cut)
    kept = [one for one in batches if one.header.next_offset <= cut]
    assert end <= cut and end == log.end_offset
    assert end >= (kept[-1].header.next_offset if kept else log.start_offset)
    check_epochs(log, kept)
    more = encode_batch(base_offset=end, leader_epoch=99, timestamp_ms=5, values=[b"more"] * 2)
    log.append(walked(more))
    stopped(log)
    for again in (loaded(disk.crash()), loaded(disk.crash(), verify=True)):
        assert again.end_offset == end + 2
        check_reads_at_edges(again, [*kept, RecordBatch(parse_header(more), more)])


def check_trim(disk: FaultyDisk, batches: list[RecordBatch], start: int) -> None:
    log = loaded(disk)
    log.delete_segments_before(start)
    log.start_at(start)
    stopped(log)
    again = loaded(disk)
    assert again.start_offset == log.start_offset <= start
    left = [one for one in batches if one.header.base_offset >= again.start_offset]
    check_reads_at_edges(again, left)
    check_epochs(again, left)


@pytest.mark.parametrize("name", recorded())
def test_recorded_logs_that_were_cleaned(shared_data: Path, name: str) -> None:
    check_all(lambda: copied(shared_data, name))


def thinned(base: int, delta: int, kept: list[bool], *, epoch: int, time_ms: int) -> bytes:
    """A batch of which records were cleaned away; its offsets go on to say from where to where it went."""
    whole = encode_batch(
        base_offset=base, leader_epoch=epoch, timestamp_ms=time_ms, values=[b"v"] * (delta + 1)
    )
    each = (len(whole) - HEADER_BYTES) // (delta + 1)
    records = [whole[HEADER_BYTES + n * each : HEADER_BYTES + (n + 1) * each] for n in range(delta + 1)]
    left = b"".join(one for one, keep in zip(records, kept, strict=False) if keep)
    header = parse_header(whole)
    return seal_batch(header._replace(records_count=sum(kept[: delta + 1])), left)


GAPPY = st.lists(
    st.tuples(
        st.integers(0, 4),  # missing before it
        st.integers(0, 3),
        st.lists(st.booleans(), min_size=4, max_size=4),
        st.integers(0, 2),  # how much the epoch rises
        st.integers(0, 50),
    ),
    min_size=1,
    max_size=14,
)


def made(shape: list[tuple[int, int, list[bool], int, int]]) -> FaultyDisk:
    disk = empty()
    log = loaded(disk)
    disk.sync_directory(PLACE)
    epoch = 1
    for missing, delta, kept, rise, time_ms in shape:
        epoch += rise
        log.append(walked(thinned(log.end_offset + missing, delta, kept, epoch=epoch, time_ms=time_ms)))
    stopped(log)
    return disk


@settings(max_examples=25, deadline=None)
@given(GAPPY)
def test_any_log_with_gaps(shape: list[tuple[int, int, list[bool], int, int]]) -> None:
    check_all(lambda: made(shape))


@settings(max_examples=60, deadline=None)
@given(GAPPY, GAPPY, st.integers(0, 2**32))
def test_a_power_loss_takes_nothing_that_was_synced(
    first: list[tuple[int, int, list[bool], int, int]],
    then: list[tuple[int, int, list[bool], int, int]],
    seed: int,
) -> None:
    disk = made(first)
    log = loaded(disk)
    synced = batches_in(disk)
    for missing, delta, kept, rise, time_ms in then:
        epoch = log.epochs.last_epoch + rise
        log.append(walked(thinned(log.end_offset + missing, delta, kept, epoch=epoch, time_ms=time_ms)))
    written = batches_in(disk)
    disk.rng.seed(seed)
    after = disk.crash()
    log = PartitionLog.load(after, PLACE, CONFIG, FilePool(after, 3), after.file_system("/d"))
    left = batches_in(after)
    assert left == written[: len(left)] and len(left) >= len(synced)
    check_reads(log, left)
    check_epochs(log, left)


def test_an_epoch_that_began_where_records_are_missing_is_kept() -> None:
    disk = made([(0, 1, [True] * 4, 0, 1), (5, 1, [True] * 4, 2, 1)])
    file = disk.open_append(f"{PLACE}/leader-epoch-checkpoint")
    file.truncate(0)
    file.append(EpochTable(((1, 0), (2, 3), (3, 5))).encode())
    log = loaded(disk, verify=True)
    assert log.epochs == EpochTable(((1, 0), (2, 3), (3, 5)))


@pytest.mark.parametrize("base", [0, 2, 3])
def test_offsets_that_go_back_or_overlap_are_damage(base: int) -> None:
    disk = made([(0, 3, [True] * 4, 0, 1)])
    bad = thinned(base, 1, [True] * 4, epoch=1, time_ms=1)
    with pytest.raises(BatchError, match="expected base offset 4 or above"):
        loaded(disk).append(walked(bad))
    assert walk_batches(bad, expected_offset=4, min_epoch=0, gaps=True).problem is not None
    disk.open_append(f"{PLACE}/{segment_name(0)}").append(bad)
    disk.open_append(f"{PLACE}/{segment_name(0)}").append(thinned(6, 0, [True], epoch=1, time_ms=1))
    with pytest.raises(CorruptLogError, match="expected base offset 4 or above"):
        loaded(disk)


def test_retention_goes_on_behind_a_segment_that_was_cleaned_away() -> None:
    disk = made([(0, 3, [True] * 4, 0, 1)] * 14)
    first = disk.open_append(f"{PLACE}/{segment_name(0)}")
    first.truncate(0)
    log = loaded(disk, verify=True)
    assert log.size_bytes > 600 and log.start_offset == 0
    gone = log.enforce_retention(retention_bytes=-1, retention_ms=5, below_offset=log.end_offset, wall_ms=100)
    assert gone and log.start_offset == log.end_offset


def test_behind_a_gap_at_the_end_there_is_nothing_to_read_until_somebody_writes() -> None:
    """As in Kafka (`LocalLog.read`): a reader in the gap gets no records, and stays there."""
    disk = made([(0, 1, [True] * 2, 0, 1)])
    disk.open_append(f"{PLACE}/{segment_name(10)}").close()
    log = loaded(disk, verify=True)
    assert (log.start_offset, log.end_offset) == (0, 10)
    assert [log.read_range(at, 10, 1_000) for at in (2, 5, 9)] == [b"", b"", b""]
    log.append(walked(thinned(10, 0, [True], epoch=1, time_ms=1)))
    for at in (2, 10):
        assert parse_header(log.read_range(at, 11, 1_000)).base_offset == 10

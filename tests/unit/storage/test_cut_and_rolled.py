"""A log that was cut is, to the last byte, one that was never longer; and when a batch begins a segment."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.errors import DiskError, LogFailedError
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.storage.cleaner_bench import settle
from tests.unit.storage.test_what_returned_is_durable import LOG, tree

RECORDS = 8


def new_disk() -> FaultyDisk:
    disk = FaultyDisk(random.Random(1))
    disk.make_directory("/data")
    return disk


def metadata_log(disk: FaultyDisk, config: LogConfig) -> SegmentedLog:
    return SegmentedLog.open(disk, LOG, config)


def replica_log(disk: FaultyDisk, config: LogConfig) -> PartitionLog:
    disk.make_directory(LOG)
    return PartitionLog.load(disk, LOG, config, FilePool(disk, 3), disk.file_system("/data"))


Opens = Callable[[FaultyDisk, LogConfig], SegmentedLog]
KINDS = pytest.mark.parametrize("opens", [metadata_log, replica_log], ids=["metadata", "replica"])


# --- cutting


def fill(log: SegmentedLog, first: int, end: int, epoch: int = 1) -> None:
    for offset in range(first, end):
        data = encode_batch(
            base_offset=offset,
            leader_epoch=epoch + (offset - first) // 3,
            timestamp_ms=100 * offset,
            values=[b"v" * (offset - first)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=offset,
        )
        log.append(Batches.parse(data))


def closed(log: SegmentedLog) -> None:
    if isinstance(log, PartitionLog):
        settle(log)
        log.close()
    else:
        log.clean_close()


def what_is_known(log: SegmentedLog) -> tuple[object, ...]:
    """Of a log that is open: all that its methods tell."""
    producers = log.producers.all() if isinstance(log, PartitionLog) else ()
    infos = [(one.file, one.base_offset, one.end_offset, one.size_bytes) for one in log.segments()]
    times = [(one.first_timestamp_ms, one.last_timestamp_ms) for one in log.segments()]
    return (log.epochs, log.last_position, log.start_offset, log.start_epoch, producers, infos, times)


@KINDS
@pytest.mark.parametrize("start", [0, 50])
@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("kept", range(RECORDS))
def test_a_log_that_was_cut_is_one_that_was_never_longer(
    opens: Opens, kept: int, start: int, synced: bool
) -> None:
    """At the beginning too, where a log that follows a snapshot knows its epoch and a new one knows none; and
    what is appended from then on comes after the same things."""
    left = []
    for more in (0, RECORDS - kept):
        disk = new_disk()
        log = opens(disk, LogConfig())
        if start:
            log.reset_to(LogPosition(1, start))
        fill(log, start, start + kept + more)
        if synced:
            settle(log) if isinstance(log, PartitionLog) else log.sync()
        assert log.truncate_to(start + kept) == start + kept
        known = what_is_known(log)
        fill(log, start + kept, start + kept + 1, epoch=5)
        again = what_is_known(log)
        closed(log)
        left.append((known, again, tree(disk)))
    assert left[0] == left[1]


# --- the age of a segment


def made(offset: int, times: Sequence[int]) -> bytes:
    return encode_batch(
        base_offset=offset,
        leader_epoch=1,
        timestamp_ms=times[0],
        timestamps=times,
        keys=[None] * len(times),
        values=[b"v"] * len(times),
    )


@KINDS
@pytest.mark.parametrize(
    ("appends", "bases"),
    [
        # A batch is as young as its newest record, a segment as old as its first one.
        ([[[0]], [[90, 100]], [[90, 101]]], [0, 3]),
        ([[[0, 90]], [[100]], [[101]]], [0, 3]),
        ([[[50, 0]], [[150]], [[151]]], [0, 3]),
        ([[[0]], [[101, 5]]], [0, 1]),
        # The first of several batches decides; those that come with it stay beside it.
        ([[[0]], [[100], [101]]], [0]),
        ([[[0]], [[101], [50]]], [0, 1]),
        ([[[0], [900]], [[950]]], [0, 2]),
        # A segment that holds nothing takes what is as old as may be.
        ([[[900], [0]], [[1000]]], [0]),
        # Before the epoch of time, and back.
        ([[[-50]], [[50]], [[51]]], [0, 2]),
        ([[[900]], [[5]], [[1000]], [[1001]]], [0, 3]),
    ],
)
def test_a_segment_is_left_by_the_first_batch_that_is_too_young(
    opens: Opens, appends: list[list[list[int]]], bases: list[int]
) -> None:
    disk = new_disk()
    log = opens(disk, LogConfig(segment_ms=100))
    for batches in appends:
        offset, data = log.end_offset, b""
        for times in batches:
            data += made(offset, times)
            offset += len(times)
        log.append(Batches.parse(data))
    assert [one.base_offset for one in log.segments()] == bases
    times = (log.segments()[0].first_timestamp_ms, log.segments()[-1].last_timestamp_ms)
    assert times == (appends[0][0][0], max(appends[-1][-1]))
    closed(log)
    log = opens(disk, LogConfig())
    assert (log.segments()[0].first_timestamp_ms, log.segments()[-1].last_timestamp_ms) == times
    log.close()


# --- a disk that refuses


@KINDS
@pytest.mark.parametrize("operation", ["write", "sync", "open", "sync_directory"])
@pytest.mark.parametrize("rolls", [False, True])
def test_an_append_that_the_disk_refuses_tells_of_nothing(opens: Opens, operation: str, rolls: bool) -> None:
    """Neither its batches, nor their epoch or producer: readers go on with what was there before."""
    disk = new_disk()
    log = opens(disk, LogConfig(segment_bytes=250 if rolls else 10_000))
    fill(log, 0, 3)
    before = what_is_known(log)[:5]
    disk.inject("/data/log", operation=operation)
    try:
        fill(log, 3, 4, epoch=9)
    except DiskError:
        assert what_is_known(log)[:5] == before
        assert log.end_offset == 3
        assert log.read(2, 1000).next_offset == 3
        if isinstance(log, PartitionLog):
            whole = Batches.parse(log.read_range(0, 9, 10_000))
            assert (whole.base_offset, whole.next_offset) == (0, 3)
        with pytest.raises(LogFailedError):
            fill(log, 3, 4)
    else:
        assert operation != "write" and not rolls
    disk.heal()
    log.close()

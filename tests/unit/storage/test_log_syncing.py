"""A sync of the log in the background: what it covers, what waits for it, what a crash leaves."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.batches.parsed import Batches
from metaquorum.storage.errors import DiskError, LogFailedError
from metaquorum.storage.log.log import LogConfig, SegmentedLog
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faults import FaultProfile
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import FaultyBackgroundSync

DIRECTORY = "/data/__cluster_metadata-0"


def forgetful_disk() -> FaultyDisk:
    """A power loss takes everything that is not synced."""
    disk = FaultyDisk(random.Random(3), FaultProfile(keep_contents=0.0, zero_tail=0.0, garbage_tail=0.0))
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def opened(disk: FaultyDisk, *, point_bytes: int = 1 << 20) -> SegmentedLog:
    config = LogConfig(segment_bytes=1000, recovery_point_interval_bytes=point_bytes)
    return SegmentedLog.open(disk, DIRECTORY, config)


def append(log: SegmentedLog, *, epoch: int = 1, size: int = 20) -> None:
    base, values = log.end_offset, [bytes(size)]
    log.append(
        Batches.parse(encode_batch(base_offset=base, leader_epoch=epoch, timestamp_ms=0, values=values))
    )


def test_it_covers_what_was_there_when_it_was_prepared() -> None:
    log = opened(forgetful_disk())
    append(log)
    ticket = log.prepare_sync()
    assert ticket.begin(FaultyBackgroundSync())
    append(log)
    assert log.synced_offset == 0
    ticket.end()
    assert log.synced_offset == 0
    assert log.sync_completed(ticket) == 1 == log.synced_offset


@pytest.mark.parametrize("ended", [False, True], ids=["before", "after"])
def test_power_fails_before_and_after_its_end(*, ended: bool) -> None:
    disk = forgetful_disk()
    log = opened(disk)
    append(log)
    ticket = log.prepare_sync()
    assert ticket.begin(FaultyBackgroundSync())
    if ended:
        ticket.end()
    assert opened(disk.crash()).end_offset == (1 if ended else 0)


def test_what_raises_the_recovery_point_needs_a_thread() -> None:
    log = opened(forgetful_disk(), point_bytes=10)
    append(log)
    ticket = log.prepare_sync()
    assert ticket.point is not None and not ticket.begin(FaultyBackgroundSync())
    ticket.run()
    assert log.recovery_point.offset == 1


def test_of_a_log_that_was_cut_since_it_counts_for_nothing() -> None:
    log = opened(forgetful_disk())
    for _ in range(9):
        append(log)
    ticket = log.prepare_sync()
    assert ticket.begin(FaultyBackgroundSync())
    log.truncate_to(4)
    append(log, epoch=2)
    ticket.end()
    assert (log.sync_completed(ticket), log.end_offset) == (4, 5)


def cut(log: SegmentedLog) -> None:
    log.truncate_to(4)


def roll(log: SegmentedLog) -> None:
    append(log, size=900)


def reset(log: SegmentedLog) -> None:
    log.reset_to(LogPosition(7, 100))


@pytest.mark.parametrize("move", [cut, roll, reset], ids=lambda move: move.__name__)
def test_what_moves_the_log_waits_for_it_and_hears_of_its_failure(
    move: Callable[[SegmentedLog], None],
) -> None:
    """The kernel tells of a failed write once: a second sync that succeeds would prove nothing."""
    disk = forgetful_disk()
    log = opened(disk)
    for _ in range(3):
        append(log)
    log.sync()
    for _ in range(3):
        append(log)
    ticket = log.prepare_sync()
    assert ticket.begin(FaultyBackgroundSync())
    disk.inject("/data", operation="sync", count=1)
    with pytest.raises(DiskError, match="I/O error"):
        move(log)
    with pytest.raises(DiskError, match="I/O error"):
        ticket.end()
    assert log.synced_offset == 3
    with pytest.raises(LogFailedError):
        append(log)

"""What of a log is durable when: syncs in the background and the order of steps."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import DiskFile, read_file
from metaquorum.storage.errors import DiskError, LogFailedError
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.epochs import FILE_NAME as EPOCHS_FILE
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.log.recovery import load_recovery_point
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import FaultProfile, FaultyBackgroundSync
from tests.unit.storage.cleaner_bench import clean, settle
from tests.unit.storage.journal import Journal

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


class BusyDisk(FaultyBackgroundSync):
    """Takes no sync now."""

    def begin(self, file: DiskFile) -> bool:
        return False

    def wait(self) -> None:
        raise AssertionError("nothing was begun")


def test_a_sync_that_the_disk_does_not_take_is_run() -> None:
    disk = forgetful_disk()
    log = opened(disk)
    append(log)
    ticket = log.prepare_sync()
    assert not ticket.begin(BusyDisk())
    ticket.run()
    assert log.sync_completed(ticket) == 1
    log.truncate_to(1)
    assert opened(disk.crash()).end_offset == 1


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


# ---- the order of durable steps ---------------------------------------------------------------


PUT_EPOCHS, PUT_POINT = "put leader-epoch-checkpoint", "put recovery-point"
NAMES = "sync_directory ."


def journalled(*epochs: int, point_bytes: int = 1 << 20) -> tuple[Journal, SegmentedLog]:
    """A log whose segments hold two batches each."""
    disk = Journal(DIRECTORY)
    log = opened(disk, point_bytes=point_bytes)
    for epoch in epochs:
        append(log, epoch=epoch, size=400)
    return disk, log


def point_of(disk: Journal, log: SegmentedLog) -> tuple[int, int, int, int, int]:
    point = load_recovery_point(disk, DIRECTORY)
    assert point == log.recovery_point and not point.resetting
    return point.offset, point.segment, point.position, point.start_offset, point.start_epoch


def test_every_change_of_the_log_makes_its_steps_durable_in_order() -> None:
    """A roll: the full segment, then the next one's name, the epochs, the point. A trim: the point, the
    epochs, the segments. A cut below the point: the point, the segments above, the rest. A reset: the
    intent, then all else. Batches have 470 bytes, two to a segment."""
    disk, log = journalled()
    rolled = [NAMES, PUT_EPOCHS, PUT_POINT]
    began = ["mkdir .", "sync_directory data", NAMES, "open 0", NAMES, "put partition.metadata", *rolled[1:]]
    assert (disk.told(), point_of(disk, log)) == (began, (0, 0, 0, 0, 0))
    assert log.epochs.entries == ()

    def step(work: Callable[[], object], *wanted: object) -> None:
        work()
        found = (disk.told(), point_of(disk, log), (log.start_offset, log.end_offset, log.synced_offset))
        assert found == wanted

    def one(epoch: int) -> Callable[[], None]:
        return lambda: append(log, epoch=epoch, size=400)

    step(one(1), ["write 0"], (0, 0, 0, 0, 0), (0, 1, 0))
    step(one(1), ["write 0"], (0, 0, 0, 0, 0), (0, 2, 0))
    step(one(1), ["sync 0", "open 2", *rolled, "write 2"], (2, 2, 0, 0, 0), (0, 3, 2))
    step(one(2), ["write 2"], (2, 2, 0, 0, 0), (0, 4, 2))
    step(log.sync, ["sync 2"], (2, 2, 0, 0, 0), (0, 4, 4))
    step(one(2), ["sync 2", "open 4", *rolled, "write 4"], (4, 4, 0, 0, 0), (0, 5, 4))
    trim = [PUT_POINT, PUT_EPOCHS, "remove 0", NAMES]
    step(lambda: log.delete_segments_before(2), trim, (4, 4, 0, 2, 1), (2, 5, 4))
    step(lambda: log.delete_segments_before(3), [], (4, 4, 0, 2, 1), (2, 5, 4))
    step(lambda: log.truncate_to(5), [], (4, 4, 0, 2, 1), (2, 5, 4))
    step(lambda: log.truncate_to(4), ["truncate 4", "sync 4", PUT_POINT], (4, 4, 0, 2, 1), (2, 4, 4))
    cut = [PUT_POINT, "remove 4", NAMES, "truncate 2", "sync 2", PUT_EPOCHS, PUT_POINT]
    step(lambda: log.truncate_to(3), cut, (3, 2, 470, 2, 1), (2, 3, 3))
    step(one(1), ["write 2"], (3, 2, 470, 2, 1), (2, 4, 3))
    reset = [PUT_POINT, "remove 2", NAMES, "open 100", NAMES, PUT_EPOCHS, PUT_POINT]
    step(lambda: log.reset_to(LogPosition(7, 100)), reset, (100, 100, 0, 100, 7), (100, 100, 100))
    step(one(7), ["write 100"], (100, 100, 0, 100, 7), (100, 101, 100))
    step(log.clean_close, ["sync 100", PUT_POINT], (101, 100, 470, 100, 7), (100, 101, 101))
    log = opened(disk)
    step(
        log.clean_close, ["open 100", "sync 100", NAMES, "sync 100"], (101, 100, 470, 100, 7), (100, 101, 101)
    )


def test_a_sync_that_is_due_raises_the_point_after_the_epochs() -> None:
    disk, log = journalled(1, point_bytes=900)
    disk.told()
    log.sync()
    assert (disk.told(), point_of(disk, log)) == (["sync 0"], (0, 0, 0, 0, 0))
    append(log, epoch=2, size=400)
    log.sync()
    assert (disk.told(), point_of(disk, log)) == (
        ["write 0", "sync 0", PUT_EPOCHS, PUT_POINT],
        (2, 0, 940, 0, 0),
    )
    log.sync()
    assert disk.told() == ["sync 0"]


def test_what_a_sync_writes_of_epochs_is_of_records_that_it_covers() -> None:
    """Not of those that came while it ran."""
    disk, log = journalled(1, point_bytes=400)
    ticket = log.prepare_sync()
    append(log, epoch=2)
    ticket.run()
    assert EpochTable.decode(read_file(disk, f"{DIRECTORY}/{EPOCHS_FILE}")).entries == ((1, 0),)
    assert log.epochs.entries == ((1, 0), (2, 1))


def test_segments_go_from_the_end_that_the_log_does_not_keep() -> None:
    """So that what is there has no gap, whenever the power fails."""
    disk, log = journalled(*[1] * 12)
    disk.told()
    log.delete_segments_before(6)
    gone = ["remove 0", NAMES, "remove 2", NAMES, "remove 4", NAMES]
    assert disk.told() == [PUT_POINT, PUT_EPOCHS, *gone]
    log.truncate_to(7)
    gone = ["remove 10", NAMES, "remove 8", NAMES]
    assert disk.told() == [PUT_POINT, *gone, "truncate 6", "sync 6", PUT_POINT]


MOVES: dict[str, Callable[[SegmentedLog], object]] = {
    "roll": lambda log: append(log, epoch=9, size=900),
    "cut": lambda log: log.truncate_to(1),
    "trim": lambda log: log.delete_segments_before(4),
    "reset": lambda log: log.reset_to(LogPosition(9, 100)),
    "sync": lambda log: log.sync(),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_log_that_a_disk_failed_in_the_middle_of_a_change_takes_nothing_more(move: str) -> None:
    """At every step of every change; it opens again, and holds what was durable before."""
    failed = 0
    for after in range(40):
        disk, log = journalled(1, 1, 2, 2, 3, point_bytes=100)
        disk.told()
        disk.fails_at = after
        try:
            MOVES[move](log)
        except DiskError:
            failed += 1
        else:
            break
        disk.fails_at = -1
        with pytest.raises(LogFailedError):
            log.truncate_to(log.end_offset)
        with pytest.raises(LogFailedError):
            append(log, epoch=9)
        with pytest.raises(LogFailedError):
            log.sync()
        log.close()
        again = opened(disk.kill())
        assert again.end_offset in {"cut": (1, 2, 4, 5), "reset": (5, 100)}.get(move, (5, 6))
    assert failed >= 2 and after < 39


# ---- of a partition's log ---------------------------------------------------------------------

REPLICA = "/d/t-0"


def sealed(base: int, following: int) -> str:
    """A roll: the segment, its indexes and the producers are durable before the next one has its name."""
    beside = [f"{base}.index", f"{base}.timeindex", f"{following}.snapshot"]
    stages, places = [f"stage {one}.roll" for one in beside], [f"place {one}.roll" for one in beside]
    return "; ".join([f"sync {base}", *stages, "sync d", *places, f"open {following}; sync_directory ."])


def pointed(end: int) -> str:
    """A checkpoint: producers and epochs have their names before the recovery point vouches for them."""
    files = [f"{end}.snapshot.checkpoint", "leader-epoch-checkpoint.checkpoint", "recovery-point.checkpoint"]
    stages, places = "; ".join(f"stage {one}" for one in files), [f"place {one}" for one in files]
    return f"sync d; {stages}; sync d; {places[0]}; {places[1]}; sync d; {places[2]}; sync d"


def cleaned(base: int, *, holds: bool) -> str:
    """A cleaned segment is durable before it is swapped in, which has three durable steps."""
    files = [f"{base}.log", f"{base}.index", f"{base}.timeindex"]
    opens = [
        f"open {one}.cleaned" + f"; write {one}.cleaned" * (holds or at > 0) for at, one in enumerate(files)
    ]
    syncs = [f"sync {one}.cleaned" for one in files]
    swaps = [f"rename {one}.cleaned" for one in files]
    gone = [f"remove {base}", *(f"remove {one}" for one in files[1:])]
    names = [f"rename {one}.swap" for one in files]
    return "; ".join([*opens, *syncs, NAMES, *swaps, NAMES, *gone, NAMES, *names, NAMES])


def test_every_change_of_a_partition_s_log_makes_its_steps_durable_in_order() -> None:
    disk = Journal(REPLICA)
    disk.make_directory(REPLICA)
    disk.sync_directory("/d")
    disk.told()

    def load() -> PartitionLog:
        config = LogConfig(segment_bytes=1000, index_interval_bytes=100)
        return PartitionLog.load(disk, REPLICA, config, FilePool(disk, 10), disk.file_system("/d"))

    def write(epoch: int) -> None:
        values = [b"v" * 400]
        batch = encode_batch(
            base_offset=log.end_offset, leader_epoch=epoch, timestamp_ms=5, keys=[b"k"], values=values
        )
        log.append(Batches.parse(batch))

    def step(work: Callable[[], object], wanted: str, *offsets: int) -> None:
        work()
        assert "; ".join(disk.told()) == wanted
        point = load_recovery_point(disk, REPLICA)
        assert point is None or point == log.recovery_point
        assert (log.recovery_point.offset, log.start_offset, log.end_offset, log.synced_offset) == offsets

    log = load()
    assert disk.told() == ["open 0"] and log.needs_sync
    step(lambda: write(1), "write 0", 0, 0, 1, 0)
    step(lambda: write(1), "write 0", 0, 0, 2, 0)
    step(lambda: write(1), sealed(0, 2) + "; write 2", 0, 0, 3, 2)
    step(lambda: write(2), "write 2", 0, 0, 4, 2)
    step(lambda: write(2), sealed(2, 4) + "; write 4", 0, 0, 5, 4)
    step(lambda: write(2), "write 4", 0, 0, 6, 4)
    step(lambda: settle(log), "sync 4; " + pointed(6), 6, 0, 6, 6)
    step(lambda: settle(log), "sync 4", 6, 0, 6, 6)
    step(lambda: write(2), sealed(4, 6) + "; write 6", 6, 0, 7, 6)
    step(
        lambda: clean(log, None, 10**13),
        cleaned(0, holds=False) + "; " + cleaned(2, holds=True),
        *(6, 0, 7, 6),
    )
    cut = f"remove 6.snapshot; {NAMES}; remove 4.index; remove 4.timeindex; {PUT_POINT}; remove 6; {NAMES}"
    step(lambda: log.truncate_to(5), f"{cut}; truncate 4; sync 4; {PUT_POINT}", 5, 0, 5, 5)
    beside = "remove 0.index; remove 0.timeindex"
    trim = f"{PUT_POINT}; {PUT_EPOCHS}; {beside}; remove 0; {NAMES}"
    step(lambda: log.delete_segments_before(2), trim, 5, 2, 5, 5)
    gone = f"remove 2.snapshot; remove 4.snapshot; {NAMES}; remove 2.index; remove 2.timeindex"
    reset = f"{gone}; {PUT_POINT}; remove 4; remove 2; {NAMES}; open 50; {NAMES}; {PUT_EPOCHS}; {PUT_POINT}"
    step(lambda: log.start_over(50), reset, 50, 50, 50, 50)
    step(lambda: write(3), "write 50", 50, 50, 51, 50)
    step(lambda: settle(log), "sync 50; " + pointed(51), 51, 50, 51, 51)
    step(log.close, "", 51, 50, 51, 51)
    log = load()
    assert disk.told() == [] and not log.needs_sync
    assert log.epochs.entries == ((3, 50),)

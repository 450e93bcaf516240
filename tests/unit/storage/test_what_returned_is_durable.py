"""What is done to files is durable when it returns: a loss of power that takes all that is not synced, names
and contents, changes nothing."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from metaquorum.raft.store import create_directory
from metaquorum.raft.voters import Endpoint
from metaquorum.storage.archive import LogArchive
from metaquorum.storage.archive_writer import ArchiveSource, extract_archive, write_archive
from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import join, make_durable_directory, read_file, write_atomically
from metaquorum.storage.files.known_committed import Known, KnownCommitted
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.files.quorum_state import QuorumState, store_quorum_state
from metaquorum.storage.files.snapshots import (
    SnapshotWriter,
    clean_abandoned,
    delete_snapshot,
    delete_snapshots_before,
)
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.log.recovery import RecoveryPoint, load_recovery_point, store_recovery_point
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.partition.log_producers import ProducerSnapshots, encode_producers, snapshot_name
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.partition.producers import ProducerTable
from metaquorum.storage.partition.replica_directory import CLEAN_SHUTDOWN_FILE as FILE_NAME
from metaquorum.storage.partition.replica_directory import (
    leave_clean_shutdown,
    store_cleaned_offsets,
    store_high_watermarks,
    store_log_starts,
    take_clean_shutdown,
)
from metaquorum.storage.partition.swap import begin_cleaned, finish_cleaned, finish_swaps
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import FaultProfile
from tests.unit.storage.cleaner_bench import clean, settle

NOTHING_UNSYNCED = FaultProfile(keep_name=0.0, keep_contents=0.0, zero_tail=0.0, garbage_tail=0.0)
LOG = "/data/log"
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
Step = Callable[[], object]


def tree(disk: FaultyDisk, path: str = "/data") -> dict[str, bytes | None]:
    """Every file with its content, every directory."""
    found: dict[str, bytes | None] = {}
    for name in disk.list_directory(path):
        inner = join(path, name)
        if disk.is_directory(inner):
            found |= {inner: None, **tree(disk, inner)}
        else:
            found[inner] = read_file(disk, inner)
    return found


def batch(base: int, epoch: int = 1, time: int = 1) -> bytes:
    values = [b"v" * (40 + base % 7)]
    return encode_batch(base_offset=base, leader_epoch=epoch, timestamp_ms=time, keys=[b"k"], values=values)


def fill(log: SegmentedLog, end: int) -> None:
    for offset in range(log.end_offset, end):
        log.append(Batches.parse(batch(offset, 1 + offset // 4, offset)))


def metadata_log(disk: FaultyDisk) -> SegmentedLog:
    log = SegmentedLog.open(disk, LOG, CONFIG)
    fill(log, 14)
    log.sync()
    return log


def replica_log(disk: FaultyDisk) -> PartitionLog:
    disk.make_directory(LOG)
    disk.sync_directory("/data")
    log = PartitionLog.load(disk, LOG, CONFIG, FilePool(disk, 3), disk.file_system("/data"))
    fill(log, 14)
    settle(log)
    return log


def small_files(disk: FaultyDisk) -> list[Step]:
    state = QuorumState(epoch=3, voted_id=1)
    point = RecoveryPoint(offset=5, segment=0, position=9, start_offset=0, start_epoch=0)
    identity = MetaProperties(cluster_id="c", node_id=1)
    return [
        lambda: write_atomically(disk, "/data/x", b"one"),
        lambda: write_atomically(disk, "/data/x", b"other"),
        lambda: store_quorum_state(disk, "/data", state, 1),
        lambda: store_recovery_point(disk, "/data", point),
        lambda: store_meta_properties(disk, "/data", identity),
        lambda: store_high_watermarks(disk, "/data", [("t", 0, 5)]),
        lambda: store_log_starts(disk, "/data", {("t", 0): 5}),
        lambda: store_cleaned_offsets(disk, "/data", {("t", 0): 5}),
        lambda: leave_clean_shutdown(disk, ["/data"], 7),
        lambda: take_clean_shutdown(disk, ["/data"]),
        lambda: KnownCommitted(disk, "/data", Known(LogPosition(1, 5))).close(clean=False),
    ]


def directories(disk: FaultyDisk) -> list[Step]:
    """Of which some parents were not there either."""
    return [
        *(
            lambda path=path: make_durable_directory(disk, path)  # type: ignore[misc]
            for path in ("/data/one", "/data/one", "/data/a/b/c", "/data/a/b/d")
        ),
        *(
            lambda path=path, ends=ends: create_directory(  # type: ignore[misc]
                disk, path, cluster_id="c", node_id=1, rng=random.Random(1), endpoints=ends
            )
            for path, ends in (("/data/voter", ()), ("/data/x/y/voter", (Endpoint("L", "h", 9),)))
        ),
    ]


def notes(disk: FaultyDisk) -> list[Step]:
    known = KnownCommitted(disk, "/data", Known(LogPosition(1, 5)))

    def end() -> None:
        known.note(LogPosition(1, 6))
        known.close(clean=True)

    return [lambda: known.write(known.begin_write()), end]


def snapshots(disk: FaultyDisk) -> list[Step]:
    def write(offset: int) -> None:
        writer = SnapshotWriter(disk, "/data", LogPosition(1, offset))
        writer.append(b"content of %d" % offset)
        writer.freeze()

    def abandon() -> None:
        SnapshotWriter(disk, "/data", LogPosition(1, 99)).append(b"half")
        disk.sync_directory("/data")
        clean_abandoned(disk, "/data")

    return [
        *(lambda at=at: write(at) for at in (10, 20, 30, 40)),  # type: ignore[misc]
        lambda: delete_snapshot(disk, "/data", LogPosition(1, 20)),
        lambda: delete_snapshots_before(disk, "/data", 40),
        abandon,
    ]


def log_of_metadata(disk: FaultyDisk) -> list[Step]:
    log = metadata_log(disk)

    def synced(end: int) -> None:
        fill(log, end)
        log.sync()

    return [
        lambda: synced(17),
        lambda: synced(30),
        lambda: log.truncate_to(25),
        lambda: log.truncate_to(14),
        lambda: log.delete_segments_before(9),
        lambda: synced(19),
        lambda: log.reset_to(LogPosition(9, 100)),
        lambda: log.append(Batches.parse(batch(100, 9))) and log.sync(),
        log.clean_close,
    ]


def opened_again(disk: FaultyDisk) -> list[Step]:
    metadata_log(disk).close()
    last = join(LOG, segment_name(0))

    def torn() -> None:
        names = [name for name in disk.list_directory(LOG) if name.endswith(".log")]
        file = disk.open_append(join(LOG, max(names)))
        file.append(b"half a batch")
        file.close()
        SegmentedLog.open(disk, LOG, CONFIG).close()

    def killed() -> None:
        """What was appended and not synced is there when the next process opens it, and durable then."""
        log = SegmentedLog.open(disk, LOG, CONFIG)
        fill(log, log.end_offset + 2)
        log.close()
        SegmentedLog.open(disk, LOG, CONFIG).close()

    def trimmed() -> None:
        log = SegmentedLog.open(disk, LOG, CONFIG)
        base = log.segments()[1].base_offset
        log.clean_close()
        point = load_recovery_point(disk, LOG)
        assert point is not None and disk.exists(last)
        changed = RecoveryPoint(
            offset=point.offset,
            segment=point.segment,
            position=point.position,
            start_offset=base,
            start_epoch=1,
        )
        store_recovery_point(disk, LOG, changed)
        SegmentedLog.open(disk, LOG, CONFIG).close()
        assert not disk.exists(last)

    def reset() -> None:
        point = RecoveryPoint(
            offset=70, segment=70, position=0, start_offset=70, start_epoch=8, resetting=True
        )
        store_recovery_point(disk, LOG, point)
        SegmentedLog.open(disk, LOG, CONFIG).close()

    return [torn, killed, trimmed, reset, lambda: SegmentedLog.open(disk, "/data/a/new", CONFIG).close()]


def log_of_a_replica(disk: FaultyDisk) -> list[Step]:
    log = replica_log(disk)

    def settled(end: int) -> None:
        fill(log, end)
        settle(log)

    def retention() -> None:
        below = log.end_offset
        assert log.enforce_retention(retention_bytes=0, retention_ms=-1, below_offset=below, wall_ms=0)

    return [
        lambda: settled(30),
        lambda: log.truncate_to(25),
        lambda: log.truncate_to(14),
        lambda: settled(40),
        lambda: log.delete_segments_before(9),
        lambda: clean(log, None, 10**13),
        lambda: log.start_over(100),
        lambda: settled(120),
        retention,
    ]


def swaps(disk: FaultyDisk) -> list[Step]:
    whole = b"".join(batch(at) for at in range(10))
    for name in (segment_name(0), segment_name(5), segment_name(0) + ".swap", segment_name(10) + ".cleaned"):
        write_atomically(disk, f"/data/{name}", whole)
    return [lambda: finish_swaps(disk, "/data", disk.list_directory("/data"))]


def cleaned(disk: FaultyDisk) -> list[Step]:
    pool = FilePool(disk, 8)
    made = begin_cleaned(disk, "/data", pool, 0, index_interval_bytes=1)
    made.append(Batches.parse(batch(0)))
    return [lambda: finish_cleaned(disk, pool, made, b"aborted")]


def archives(disk: FaultyDisk) -> list[Step]:
    metadata_log(disk).clean_close()
    names = [name for name in disk.list_directory(LOG) if name.endswith(".log")]
    sources = [ArchiveSource(disk, join(LOG, name), f"n/{name}") for name in names]

    def extract() -> None:
        archive = LogArchive(disk.open_read("/data/a.mqa"))
        extract_archive(archive, disk, "/data/out", "1")
        archive.close()

    return [lambda: write_archive(disk, "/data/a.mqa", sources, "1"), extract]


KINDS: list[Callable[[FaultyDisk], list[Any]]] = [
    small_files,
    directories,
    notes,
    snapshots,
    log_of_metadata,
    opened_again,
    log_of_a_replica,
    swaps,
    cleaned,
    archives,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_returned_is_durable(kind: Callable[[FaultyDisk], list[Any]]) -> None:
    disk = FaultyDisk(random.Random(1), NOTHING_UNSYNCED)
    disk.make_directory("/data")
    disk.sync_directory("/")
    changed = 0
    before: dict[str, bytes | None] = {}
    for number, step in enumerate(kind(disk)):
        step()
        after = tree(disk)
        assert tree(copy.deepcopy(disk).crash()) == after, number  # the disk itself goes on
        changed += after != before
        before = after
    assert changed > 0


# --- what a pool of files and a list of snapshots promise


def forgetful() -> FaultyDisk:
    disk = FaultyDisk(random.Random(1), NOTHING_UNSYNCED)
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_pool_closes_no_file_whose_bytes_may_be_lost(limit: int) -> None:
    """What it closes to make room is durable before; what is staged is synced by the one who stages it."""
    disk = forgetful()
    pool = FilePool(disk, limit)
    for number in range(6):
        pool.file(f"/data/{number}", size=0).append(b"content of %d" % number)
        disk.sync_directory("/data")
        left = copy.deepcopy(disk).crash()
        for closed in range(number + 1 - limit):
            assert read_file(left, f"/data/{closed}") == b"content of %d" % closed
    staged = FilePool(disk, 1)
    for number in range(3):
        operations = disk.operations
        staged.staged(f"/data/s{number}", b"x", "who")
        assert disk.operations == operations + 2  # it is opened and written


@pytest.mark.parametrize("seed", range(20))
def test_snapshots_of_producers_are_those_in_the_directory(seed: int) -> None:
    """Whatever is forgotten, dropped or removed: the list is the files, and the newest is never forgotten."""
    rng = random.Random(seed)
    disk = forgetful()
    listed = ProducerSnapshots(disk, "/data")
    model: set[int] = set()
    for _ in range(30):
        offset = rng.randrange(12)
        match rng.randrange(4):
            case 0 | 1:
                write_atomically(disk, f"/data/{snapshot_name(offset)}", encode_producers(ProducerTable()))
                listed.note(offset)
                model.add(offset)
            case 2:
                bases = set(rng.sample(range(12), 3))
                listed.forget(bases)
                model = {one for one in model if one in bases or one == max(model)}
            case _:
                if rng.random() < 0.5:
                    listed.remove(offset)
                    model.discard(offset)
                else:
                    listed.drop(offset)
                    model = {one for one in model if one < offset}
        names = disk.list_directory("/data")
        assert names == [snapshot_name(one) for one in sorted(model)]
        assert listed.newest == max(model, default=None)
        found = ProducerSnapshots(disk, "/data")
        found.find(names)
        assert found._offsets == listed._offsets == sorted(model)


@pytest.mark.parametrize("appended", [0, 1, 9])
@pytest.mark.parametrize("garbled", [False, True])
def test_a_replica_s_log_that_needs_a_sync_says_so(appended: int, garbled: bool) -> None:
    """After a kill: what is not synced is told, and nothing else; a recovery point that says nothing goes."""
    disk = forgetful()
    log = replica_log(disk)
    fill(log, log.end_offset + appended)
    log.close()
    if garbled:
        write_atomically(disk, f"{LOG}/recovery-point", b"garbage")
    disk = disk.kill()
    log = PartitionLog.load(disk, LOG, CONFIG, FilePool(disk, 3), disk.file_system("/data"))
    assert log.needs_sync == (appended > 0 or garbled)
    assert disk.exists(f"{LOG}/recovery-point") != garbled
    assert log.needs_sync or tree(copy.deepcopy(disk).crash()) == tree(disk)
    log.close()


# The proof of an orderly stop: kept by every directory, taken once, and never by half.


DIRECTORIES = ("a", "b")


def disk() -> FaultyDisk:
    made = FaultyDisk(random.Random(1))
    for directory in DIRECTORIES:
        made.make_directory(directory)
    made.sync_directory(".")
    return made


@pytest.mark.parametrize("epoch", [0, 17])
def test_it_is_kafkas_file_and_survives_a_crash(epoch: int) -> None:
    at = disk()
    leave_clean_shutdown(at, DIRECTORIES, epoch)
    assert read_file(at, join("a", FILE_NAME)) == b'{"version":0,"brokerEpoch":%d}' % epoch
    at = at.crash()
    assert take_clean_shutdown(at, DIRECTORIES) == epoch


def test_it_is_taken_once_also_if_the_next_process_crashes() -> None:
    at = disk()
    leave_clean_shutdown(at, DIRECTORIES, 17)
    assert take_clean_shutdown(at, DIRECTORIES) == 17
    at = at.crash()
    assert take_clean_shutdown(at, DIRECTORIES) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"version":1,"brokerEpoch":17}',
        b'{"version":0,"brokerEpoch":-1}',
        b'{"version":0,"brokerEpoch":true}',
        b'{"version":0}',
        b"\xff",
    ],
)
def test_what_cannot_be_read_proves_nothing_and_goes(data: bytes) -> None:
    at = disk()
    leave_clean_shutdown(at, DIRECTORIES, 17)
    write_atomically(at, join("b", FILE_NAME), data)
    assert take_clean_shutdown(at, DIRECTORIES) is None
    assert not at.exists(join("a", FILE_NAME)) and not at.exists(join("b", FILE_NAME))


def test_directories_that_do_not_agree_prove_nothing() -> None:
    at = disk()
    leave_clean_shutdown(at, DIRECTORIES[:1], 17)
    assert take_clean_shutdown(at, DIRECTORIES) is None
    leave_clean_shutdown(at, DIRECTORIES[:1], 17)
    leave_clean_shutdown(at, DIRECTORIES[1:], 18)
    assert take_clean_shutdown(at, DIRECTORIES) is None


def test_a_directory_that_fails_proves_nothing_stops_nobody_and_is_not_believed_later() -> None:
    at = disk()
    leave_clean_shutdown(at, DIRECTORIES, 17)
    at.inject("b")
    assert take_clean_shutdown(at, DIRECTORIES) is None
    at.heal()
    assert at.exists(join("b", FILE_NAME)) and not at.exists(join("a", FILE_NAME))
    assert take_clean_shutdown(at, DIRECTORIES) is None
    leave_clean_shutdown(at, DIRECTORIES[:1], 18)
    assert take_clean_shutdown(at, DIRECTORIES) is None

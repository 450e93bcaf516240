"""A broker's log directory: what is created, read, cut, trimmed and removed, and what opening makes of it."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from metaquorum.broker.replica.disk_work import (
    AbandonDirectory,
    AppendPartition,
    ChangeLogSettings,
    CheckpointHighWatermarks,
    CreateReplica,
    CutPartition,
    EnforceRetention,
    FindOffset,
    LogAppended,
    LogCut,
    LogSettings,
    OffsetFound,
    PartitionRead,
    ReadPartition,
    RemoveReplica,
    ReplicaLogTrimmed,
    ReplicaRemoved,
    TrimTo,
)
from metaquorum.broker.replica.store.parts import ExpectedIdentity, StoreOptions
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.batches.batch import Batches, encode_batch, iter_batches
from metaquorum.storage.disk.interface import join, read_file, write_atomically
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import (
    BatchError,
    CorruptFileError,
    DiskError,
    LogDirectoryLockedError,
    StorageError,
)
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.log.recovery import FILE_NAME as POINT_FILE
from metaquorum.storage.partition.pooled_log import NEWEST
from tests.unit.broker.directory_bench import (
    DIRECTORY_ID,
    EXPECTED,
    OPTIONS,
    PATH,
    SMALL,
    Bench,
    key_of,
    walked,
)
from tests.unit.broker.filled_directory import batch, files, filled, read
from tests.unit.storage.reencoding import reencode_batch

TIMED = LogSettings(segment_bytes=300, retention_ms=1_000, file_delete_delay_ms=100)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def bases(data: bytes | None) -> list[int]:
    assert data is not None
    return [one.header.base_offset for one in iter_batches(data)]


# --- index files


def index_files(bench: Bench, name: str = "t1-0") -> list[str]:
    return [one for one in files(bench, name) if one.endswith("index")]


def test_an_orderly_stop_leaves_index_files_that_the_next_append_takes_away(bench: Bench) -> None:
    key = filled(bench, 18)
    bench.create()
    bench.restart()  # which looks at them
    whole = [one.replace(".log", "") for one in files(bench) if one.endswith(".log")]
    assert index_files(bench) == [f"{one}.{kind}" for one in whole for kind in ("index", "timeindex")]
    assert len(index_files(bench, "t2-0")) == 2
    bench.do(AppendPartition, key, batches=walked(batch(18, epoch=3)), sync=True)
    assert len(index_files(bench)) == 2 * len(whole) - 2
    bench.kill()
    assert len(index_files(bench)) == 2 * len(whole) - 2
    bench.restart()
    assert len(index_files(bench)) == 2 * len(whole)


def test_a_cut_takes_index_files_and_kafkas_aborted_transactions_along(bench: Bench) -> None:
    key = filled(bench, 4, LogSettings(segment_bytes=10**6))
    aborted = [struct.pack(">hqqqq", 0, 7, first, first, first) for first in (0, 1, 2)]
    write_atomically(bench.disk, join(PATH, "t1-0/00000000000000000000.txnindex"), b"".join(aborted))
    bench.restart()
    assert len(index_files(bench)) == 3
    bench.incarnation += 1
    bench.models[key].incarnation = bench.incarnation
    bench.do(CutPartition, key, end_offset=2)
    assert index_files(bench) == ["00000000000000000000.txnindex"]
    left = read_file(bench.disk, join(PATH, "t1-0/00000000000000000000.txnindex"))
    assert left == b"".join(aborted[:2])
    bench.do(CutPartition, key, end_offset=0)
    assert index_files(bench) == []
    bench.restart()
    assert len(index_files(bench)) == 2


def test_an_orderly_stop_reads_no_more_than_it_may_for_index_files() -> None:
    bench = Bench()
    keys = [filled(bench, 1, LogSettings(segment_bytes=10**6)) for _ in range(2)]
    sizes = {bench.disk.file_size(join(PATH, f"t{number}-0/00000000000000000000.log")) for number in (1, 2)}
    bench.kill()
    assert bench.store is not None and len(keys) == 2
    bench.store._options = replace(OPTIONS, index_bytes_at_stop=max(sizes))
    bench.store.close(clean=True)
    assert (len(index_files(bench)), len(index_files(bench, "t2-0"))) == (2, 0)


# --- Kafka on the same directory


def test_kafka_may_trim_and_append_between_two_starts(bench: Bench) -> None:
    """It removes whole segments, which our recovery point still names, and says so with a file of its own."""
    filled(bench)
    bench.opened().close(clean=True)
    bench.store = None
    first, second, *_ = [name for name in files(bench) if name.endswith(".log")]
    bench.disk.remove(join(PATH, "t1-0/" + first))
    last = bench.disk.open_append(join(PATH, "t1-0/00000000000000000015.log"))
    last.append(batch(20, epoch=9))
    last.close()
    store, found = DirectoryStore.open(bench.disk, PATH, EXPECTED, rng=random.Random(1))
    assert store is not None
    assert "expected the first segment of the log that recovery-point names" in found.damaged[0].problem
    store.close(clean=True)
    write_atomically(bench.disk, join(PATH, "recovery-point-offset-checkpoint"), b"0\n1\nt1 0 21\n")
    bench.opened()
    assert bench.found is not None
    (log,) = [one.log for one in bench.found.replicas]
    assert (log.start_offset, log.end_offset) == (int(second[:20]), 21)
    assert log.epochs.last_epoch == 9
    assert not bench.disk.exists(join(PATH, "recovery-point-offset-checkpoint"))
    bench.power_loss_now()
    assert bench.found is not None and bench.found.replicas[0].log.end_offset == 21


@pytest.mark.parametrize("after", range(12))
def test_a_crash_while_kafkas_recovery_points_go_trusts_no_wrong_one(after: int) -> None:
    """Ours says 20, and Kafka has cut the log to 10 and written other records."""
    bench = Bench()
    filled(bench, 20, LogSettings(segment_bytes=10**6))
    bench.opened().close(clean=True)
    bench.store = None
    path = join(PATH, "t1-0/00000000000000000000.log")
    log = bench.disk.open_append(path)
    log.truncate(bench.disk.file_size(path) // 2)
    log.append(b"".join(batch(base, epoch=7, size=60) for base in range(10, 15)))
    log.sync()
    write_atomically(bench.disk, join(PATH, "recovery-point-offset-checkpoint"), b"0\n0\n")
    bench.disk.crash_after = after
    with suppress(Exception):
        bench.opened()
    bench.power_loss_now()
    assert bench.found is not None
    (found,) = [one.log for one in bench.found.replicas]
    assert found.end_offset == 15 and found.epochs.entries[-1] == (7, 10)


# --- replicas come and go


def test_a_new_replica_has_kafkas_names_and_survives_a_power_loss(bench: Bench) -> None:
    bench.create()
    assert files(bench) == ["00000000000000000000.log", "partition.metadata"]
    text = read_file(bench.disk, join(PATH, "t1-0/partition.metadata"))
    assert text == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"
    bench.power_loss()
    assert list(bench.models) == [key_of(1)]


def test_the_same_replica_is_not_made_twice(bench: Bench) -> None:
    key = bench.create()
    with pytest.raises(StorageError, match="t1-0; remove it first"):
        bench.do(CreateReplica, key, topic="t1", settings=SMALL)


def test_many_replicas_are_made_with_one_sync(bench: Bench) -> None:
    store = bench.opened()
    before = bench.disk.operations
    works = [
        CreateReplica(directory_id=DIRECTORY_ID, key=key_of(n), incarnation=n, topic=f"t{n}", settings=SMALL)
        for n in range(1, 11)
    ]
    events = store.execute_all(works)
    assert [event.incarnation for event in events] == list(range(1, 11))  # type: ignore[union-attr]
    syncs = bench.disk.operations - before - 10 * 4  # mkdir, open and write of the metadata, open of the log
    assert syncs == 1
    bench.disk = bench.disk.crash()
    bench.store = None
    bench.opened()
    assert bench.found is not None and len(bench.found.replicas) == 10


def test_a_removed_replica_is_renamed_at_once_and_its_files_go_later(bench: Bench) -> None:
    key = filled(bench)
    assert bench.do(RemoveReplica, key, reason="deleted") == [
        ReplicaRemoved(directory_id=DIRECTORY_ID, key=key, incarnation=bench.models[key].incarnation)
    ]
    (away,) = [name for name in bench.disk.list_directory(PATH) if name.startswith("t1-0")]
    assert away.endswith("-delete") and len(away) == len("t1-0.") + 32 + len("-delete")
    left = bench.disk.list_directory(join(PATH, away))
    segments = [name for name in left if name.endswith(".log")]
    assert segments and all(name.replace(".log", ".index") in left for name in segments)  # Kafka's demand
    store = bench.opened()
    assert store.tick(1_000) is False and bench.disk.exists(join(PATH, away))
    assert store.tick(1_099) is False and bench.disk.exists(join(PATH, away))
    store.tick(1_100)
    assert not bench.disk.exists(join(PATH, away))
    assert read(bench, key, 0, 5).data is None


def test_files_of_a_removed_replica_go_after_a_restart_too(bench: Bench) -> None:
    filled(bench)
    bench.remove()
    bench.restart()
    store = bench.opened()
    store.tick(0)
    store.tick(100)
    assert not any(name.endswith("-delete") for name in bench.disk.list_directory(PATH))


def test_a_long_topic_name_is_cut_in_the_name_of_the_removed(bench: Bench) -> None:
    key, topic = key_of(1), "x" * 249
    store = bench.opened()
    store.execute(
        CreateReplica(directory_id=DIRECTORY_ID, key=key, incarnation=1, topic=topic, settings=SMALL)
    )
    store.execute(RemoveReplica(directory_id=DIRECTORY_ID, key=key, incarnation=1, reason=""))
    (name,) = [name for name in bench.disk.list_directory(PATH) if name.startswith("x")]
    assert len(name) == 255 and name.endswith("-delete")


def test_a_half_created_replica_is_removed_and_one_with_records_is_not(bench: Bench) -> None:
    bench.opened().close(clean=True)
    bench.store = None
    for name, content in (("half-0", b""), ("kept-0", batch(0))):
        bench.disk.make_directory(join(PATH, name))
        bench.disk.open_append(join(PATH, name) + "/00000000000000000000.log").append(content)
    bench.opened()
    assert "half-0" not in bench.disk.list_directory(PATH)
    assert "kept-0" in bench.disk.list_directory(PATH)
    assert any("half-0 is an incomplete replica" in line for line in bench.warnings)
    assert any("kept-0: has no partition.metadata" in line for line in bench.warnings)
    assert bench.found is not None and bench.found.replicas == ()


def test_what_is_in_the_way_of_a_new_replica_is_kept(bench: Bench) -> None:
    bench.opened()
    bench.disk.make_directory(join(PATH, "t1-0"))
    bench.disk.open_append(join(PATH, "t1-0/00000000000000000000.log")).append(batch(0))
    key = bench.create()
    assert bases(read(bench, key, 0, 0).data) == []
    (aside,) = [name for name in bench.disk.list_directory(PATH) if name.endswith("-stray")]
    assert read_file(bench.disk, join(PATH, aside) + "/00000000000000000000.log") == batch(0)
    bench.restart()
    assert any(aside in line and "set aside" in line for line in bench.warnings)


def test_two_directories_of_one_replica(bench: Bench) -> None:
    filled(bench)
    bench.opened().close(clean=True)
    bench.store = None
    bench.disk.make_directory(join(PATH, "u-0"))
    metadata = read_file(bench.disk, join(PATH, "t1-0/partition.metadata"))
    write_atomically(bench.disk, join(PATH, "u-0/partition.metadata"), metadata)
    bench.opened()
    assert bench.found is not None and [one.topic for one in bench.found.replicas] == ["t1"]
    assert any("u-0 holds the same replica" in line for line in bench.warnings)


# --- appending, syncing, reading


def test_appended_then_synced(bench: Bench) -> None:
    key = bench.create()
    incarnation = bench.models[key].incarnation
    store = bench.opened()
    assert store.prepare_sync() is None
    (event,) = bench.do(AppendPartition, key, batches=walked(batch(0)), sync=True)
    assert event == LogAppended(
        directory_id=DIRECTORY_ID,
        key=key,
        incarnation=incarnation,
        end_offset=1,
        size_bytes=len(batch(0)),
    )
    prepared = store.prepare_sync()
    bench.do(AppendPartition, key, batches=walked(batch(1)), sync=True)
    assert prepared is not None
    prepared.run()
    size = len(batch(0)) + len(batch(1))
    assert store.sync_completed(prepared).ends == ((key, incarnation, 1, size),)
    again = store.prepare_sync()
    assert again is not None
    again.run()
    assert store.sync_completed(again).ends == ((key, incarnation, 2, size),)


def test_what_nobody_waits_for_is_synced_by_a_checkpoint_only(bench: Bench) -> None:
    key = bench.create()
    bench.do(AppendPartition, key, batches=walked(batch(0)), sync=False)
    store = bench.opened()
    assert store.prepare_sync() is None
    prepared = store.prepare_sync(checkpoint=True)
    assert prepared is not None
    prepared.run()
    assert [each[2] for each in store.sync_completed(prepared).ends] == [1]
    assert store.prepare_sync(checkpoint=True) is None


def test_a_checkpoint_is_due_by_bytes() -> None:
    bench = Bench()
    key = bench.create()
    store = bench.opened()
    store._options = StoreOptions(checkpoint_bytes=3 * len(batch(0)))
    for base in range(3):
        assert not store.checkpoint_due
        bench.do(AppendPartition, key, batches=Batches.parse(batch(base)), sync=True)
    assert store.checkpoint_due
    assert store.prepare_sync(checkpoint=True) is not None
    assert not store.checkpoint_due


def test_batches_that_do_not_follow_are_refused_and_nothing_changes(bench: Bench) -> None:
    key = filled(bench, 3)
    for wrong in (batch(2), batch(0), batch(3)[:-1], batch(3, epoch=0), b""):
        with pytest.raises(BatchError):
            bench.do(AppendPartition, key, batches=Batches.sealed(wrong), sync=True)
    assert bases(read(bench, key, 0, 10).data) == [0, 1, 2]
    bench.do(AppendPartition, key, batches=walked(batch(3)), sync=True)


def test_work_of_an_older_incarnation_counts_for_nothing(bench: Bench) -> None:
    key = filled(bench, 5)
    old = bench.models[key].incarnation
    bench.models[key].incarnation = old + 1
    bench.do(CutPartition, key, end_offset=3)
    assert bench.do(AppendPartition, key, incarnation=old, batches=walked(batch(3)), sync=True) == []
    assert bench.do(RemoveReplica, key, incarnation=old, reason="") == []
    assert bench.do(CutPartition, key, incarnation=old, end_offset=1) == []
    assert bench.do(TrimTo, key, incarnation=old, start_offset=3) == []
    (event,) = bench.do(ReadPartition, key, incarnation=old, token=1, from_offset=0, to_offset=3, max_bytes=9)
    assert event == PartitionRead(token=1, data=None)
    assert bases(read(bench, key, 0, 9).data) == [0, 1, 2]


def test_a_read_gives_whole_batches_within_its_bounds(bench: Bench) -> None:
    key = filled(bench, 20)
    size = len(batch(0))
    assert bases(read(bench, key, 0, 100).data) == list(range(20))
    assert bases(read(bench, key, 3, 7).data) == [3, 4, 5, 6]
    assert bases(read(bench, key, 3, 20, max_bytes=2 * size).data) == [3, 4]
    assert bases(read(bench, key, 3, 20, max_bytes=2 * size + 1).data) == [3, 4]
    assert bases(read(bench, key, 3, 20, max_bytes=1).data) == [3]
    assert bases(read(bench, key, 5, 5).data) == []
    assert bases(read(bench, key, 20, 30).data) == []
    assert read(bench, key, 21, 30).data is None


def test_a_batch_that_holds_the_offset_comes_whole(bench: Bench) -> None:
    key = bench.create()
    data = batch(0, records=5) + batch(5, records=5)
    bench.do(AppendPartition, key, batches=walked(data), sync=True)
    assert bases(read(bench, key, 3, 100).data) == [0, 5]
    assert bases(read(bench, key, 7, 100).data) == [5]
    # None begins at or above the bound; one that ends above it may come.
    assert bases(read(bench, key, 0, 5).data) == [0]
    assert bases(read(bench, key, 0, 6).data) == [0, 5]


@pytest.mark.parametrize("restarted", [False, True])
def test_damage_is_found_where_this_process_did_not_write(bench: Bench, restarted: bool) -> None:
    """Bytes that were verified here are shipped with their CRC; older ones are checked on every read."""
    key = filled(bench, 5, LogSettings())
    if restarted:
        bench.restart()
    path = join(PATH, "t1-0/00000000000000000000.log")
    bench.disk.flip_bit(path, 2 * len(batch(0)) + 65)
    answer = read(bench, key, 1, 5)
    assert (answer.problem is not None) == restarted
    if restarted:
        assert answer.data is None and answer.problem is not None
        assert path in answer.problem and "offset 2" in answer.problem
        assert answer.problem in bench.warnings
    assert bases(read(bench, key, 3, 5).data) == [3, 4], "the rest is served"


# --- cutting and trimming


def test_cut_and_go_on(bench: Bench) -> None:
    key = filled(bench, 20)
    bench.models[key].incarnation += 1
    (event,) = bench.do(CutPartition, key, end_offset=9)
    assert isinstance(event, LogCut)
    assert (event.log.start_offset, event.log.end_offset) == (0, 9)
    assert event.log.epochs.entries == ((1, 0), (2, 8))
    assert event.log.size_bytes == 9 * len(batch(0))
    bench.do(AppendPartition, key, batches=walked(batch(9, epoch=5)), sync=True)
    assert bases(read(bench, key, 7, 30).data) == [7, 8, 9]


def test_a_segment_that_is_cut_loses_its_index_files(bench: Bench) -> None:
    """When it is full anew, and too small for new ones, the old ones would lead astray."""
    key = filled(bench, 20)
    assert {"00000000000000000000.index", "00000000000000000000.timeindex"} <= set(files(bench))
    bench.models[key].incarnation += 1
    bench.do(CutPartition, key, end_offset=1)
    assert not any(name.endswith("index") for name in files(bench))
    bench.do(ChangeLogSettings, key, settings=LogSettings(segment_bytes=150))
    for base in range(1, 12):
        bench.do(AppendPartition, key, batches=walked(batch(base, time_ms=5, size=base, epoch=4)), sync=True)
    assert bases(read(bench, key, 0, 12).data) == list(range(12))
    assert bases(read(bench, key, 1, 12, max_bytes=1).data) == [1]
    assert found(bench, key, 5) == (1, 5, 4)


def test_start_over_forgets_epochs_and_stays_so(bench: Bench) -> None:
    key = filled(bench, 20)
    bench.models[key].incarnation += 1
    (event,) = bench.do(CutPartition, key, end_offset=1000, start_over=True)
    assert isinstance(event, LogCut)
    assert (event.log.start_offset, event.log.end_offset, event.log.epochs.entries) == (1000, 1000, ())
    bench.power_loss_now()
    assert bench.found is not None
    (replica,) = bench.found.replicas
    assert (replica.log.start_offset, replica.log.epochs.entries) == (1000, ())
    bench.do(AppendPartition, key, batches=walked(batch(1000, epoch=7)), sync=True)
    bench.opened().close(clean=True)
    bench.store = None
    bench.opened()
    assert bench.found.replicas[0].log.epochs.entries == ((7, 1000),)


def test_retention_by_bytes(bench: Bench) -> None:
    key = filled(bench, 20)  # 500 bytes a segment, 1200 bytes are kept
    (event,) = bench.do(EnforceRetention, key, below_offset=20, wall_ms=0)
    assert isinstance(event, ReplicaLogTrimmed)
    assert 1200 <= event.size_bytes < 1200 + 500
    assert read(bench, key, event.start_offset - 1, 20).data is None
    assert bases(read(bench, key, event.start_offset, 20).data)[0] == event.start_offset
    assert bench.do(EnforceRetention, key, below_offset=20, wall_ms=0) == []
    bench.power_loss_now()
    assert bench.found is not None and bench.found.replicas[0].log.start_offset == event.start_offset


def test_retention_by_time_takes_the_newest_record_of_a_segment(bench: Bench) -> None:
    key = bench.create()
    bench.do(ChangeLogSettings, key, settings=TIMED)
    times = [0, 5_000, 10, 20, 30, 40, 50, 60, 70]  # the first segment holds one that is young
    for base, time_ms in enumerate(times):
        bench.do(AppendPartition, key, batches=walked(batch(base, time_ms=time_ms)), sync=True)
    assert bench.do(EnforceRetention, key, below_offset=9, wall_ms=5_900) == []
    (event,) = bench.do(EnforceRetention, key, below_offset=9, wall_ms=6_001)
    # All of it is old, the segment that is written to included: it makes room for an empty one.
    assert isinstance(event, ReplicaLogTrimmed) and (event.start_offset, event.size_bytes) == (9, 0)
    bench.do(AppendPartition, key, batches=walked(batch(9, epoch=3)), sync=True)
    assert bases(read(bench, key, 9, 10).data) == [9]


def test_retention_stays_below_the_high_watermark_and_leaves_compacted_topics(bench: Bench) -> None:
    key = filled(bench, 20, TIMED)
    assert bench.do(EnforceRetention, key, below_offset=0, wall_ms=10**9) == []
    (event,) = bench.do(EnforceRetention, key, below_offset=7, wall_ms=10**9)
    assert isinstance(event, ReplicaLogTrimmed) and 0 < event.start_offset <= 7
    compacted = LogSettings(segment_bytes=300, retention_ms=1_000, deletes=False)
    bench.do(ChangeLogSettings, key, settings=compacted)
    assert bench.do(EnforceRetention, key, below_offset=20, wall_ms=10**9) == []


def test_a_follower_trims_to_its_leaders_start(bench: Bench) -> None:
    key = filled(bench, 20)
    (event,) = bench.do(TrimTo, key, start_offset=12)
    assert isinstance(event, ReplicaLogTrimmed) and 6 < event.start_offset <= 12
    assert bench.do(TrimTo, key, start_offset=12) == []


def test_new_settings_hold_from_the_next_append_on(bench: Bench) -> None:
    key = filled(bench, 4, LogSettings())
    assert sum(name.endswith(".log") for name in files(bench)) == 1
    # 14 bytes is the least that Kafka allows: every append is a segment of its own.
    bench.do(ChangeLogSettings, key, settings=LogSettings(segment_bytes=14))
    for base in range(4, 8):
        bench.do(AppendPartition, key, batches=Batches.parse(batch(base)), sync=True)
    assert sum(name.endswith(".log") for name in files(bench)) == 5
    assert bases(read(bench, key, 0, 8).data) == list(range(8))
    bench.do(ChangeLogSettings, key, settings=LogSettings(segment_ms=50))
    bench.do(AppendPartition, key, batches=walked(batch(8, time_ms=1_000)), sync=True)
    bench.do(AppendPartition, key, batches=walked(batch(9, time_ms=1_040)), sync=True)
    bench.do(AppendPartition, key, batches=walked(batch(10, time_ms=1_060)), sync=True)
    assert [name for name in files(bench) if name.endswith(".log")][-2:] == [
        "00000000000000000008.log",
        "00000000000000000010.log",
    ]


# --- search by time


def found(bench: Bench, key: PartitionKey, time_ms: int, below: int = 10**6) -> tuple[int | None, int, int]:
    (event,) = bench.do(FindOffset, key, token=3, timestamp_ms=time_ms, below_offset=below)
    assert isinstance(event, OffsetFound) and event.problem is None
    return event.offset, event.timestamp_ms, event.leader_epoch


@pytest.mark.parametrize("restarted", [False, True])
def test_the_first_record_that_is_not_older(bench: Bench, restarted: bool) -> None:
    key = filled(bench, 40)
    if restarted:
        bench.restart()
    assert found(bench, key, -5) == (0, 0, 1)
    assert found(bench, key, 200) == (20, 200, 3)
    assert found(bench, key, 201) == (21, 210, 3)
    assert found(bench, key, 390) == (39, 390, 5)
    assert found(bench, key, 391) == (None, -1, -1)
    assert found(bench, key, 200, below=20) == (None, -1, -1)
    assert found(bench, key, NEWEST) == (39, 390, 5)
    assert found(bench, key, NEWEST, below=39) == (None, -1, -1)


def test_the_newest_record_is_the_first_of_the_highest_timestamp(bench: Bench) -> None:
    key = bench.create()
    assert found(bench, key, NEWEST) == (None, -1, -1)
    for base, time_ms in enumerate([5, 90, 7, 90, 3]):
        bench.do(AppendPartition, key, batches=walked(batch(base, time_ms=time_ms)), sync=True)
    assert found(bench, key, NEWEST) == (1, 90, 1)
    other = bench.create()
    bench.do(AppendPartition, other, batches=walked(batch(0, time_ms=-1)), sync=True)
    assert found(bench, other, NEWEST) == (None, -1, -1)


def test_within_a_batch_and_where_times_run_backwards(bench: Bench) -> None:
    key = bench.create()
    data = encode_batch(
        base_offset=0, leader_epoch=4, timestamp_ms=10, values=[b"a"] * 4, timestamps=[10, 40, 20, 30]
    )
    bench.do(AppendPartition, key, batches=walked(data + batch(4, time_ms=5, epoch=4)), sync=True)
    assert found(bench, key, 11) == (1, 40, 4)
    assert found(bench, key, 5) == (0, 10, 4)
    assert found(bench, key, 41) == (None, -1, -1)


def test_of_a_batch_in_an_unknown_codec_the_first_offset_is_told(bench: Bench) -> None:
    key = bench.create()
    plain = next(iter_batches(batch(0, time_ms=70, records=3)))
    packed = reencode_batch(plain)
    assert packed == plain.data
    unknown = encode_batch(
        base_offset=0, leader_epoch=1, timestamp_ms=70, values=[b"opaque"] * 3, attributes=7
    )
    bench.do(AppendPartition, key, batches=walked(unknown), sync=True)
    assert found(bench, key, 60) == (0, 70, 1)


# --- opening


def test_high_watermarks_are_kept_within_the_log(bench: Bench) -> None:
    key = filled(bench, 10)
    other = bench.create()
    bench.opened().execute(
        CheckpointHighWatermarks(
            directory_id=DIRECTORY_ID, high_watermarks=(("t1", 0, 7), ("t2", 0, 99), ("gone", 3, 5))
        )
    )
    text = read_file(bench.disk, join(PATH, "replication-offset-checkpoint"))
    assert text == b"0\n3\nt1 0 7\nt2 0 99\ngone 3 5\n"
    bench.restart()
    assert bench.found is not None
    assert {one.key: one.log.high_watermark for one in bench.found.replicas} == {key: 7, other: 0}
    write_atomically(bench.disk, join(PATH, "replication-offset-checkpoint"), b"0\n2\nt1 0 7\n")
    bench.restart()
    assert {one.key: one.log.high_watermark for one in bench.found.replicas} == {key: 0, other: 0}
    assert any(
        "replication-offset-checkpoint: announces 2 entries but has 1" in one for one in bench.warnings
    )


def test_a_clean_stop_leaves_nothing_to_verify_and_a_kill_what_came_since(bench: Bench) -> None:
    key = filled(bench, 10, LogSettings())
    bench.restart()
    path = join(PATH, "t1-0/00000000000000000000.log")
    point = read_file(bench.disk, join(PATH, "t1-0") + "/" + POINT_FILE)
    assert b'"offset": 10' in point
    bench.do(ChangeLogSettings, key, settings=LogSettings())
    bench.do(AppendPartition, key, batches=walked(batch(10, epoch=9)), sync=True)
    # Below the point nothing is read when the log is opened; above it every batch is.
    bench.disk.flip_bit(path, 3 * len(batch(0)) + 65)
    bench.kill()
    assert bench.found is not None and bench.found.replicas[0].log.end_offset == 11
    bench.disk.flip_bit(path, 10 * len(batch(0)) + 65)
    bench.kill()
    assert bench.found.replicas[0].log.end_offset == 10
    assert any("torn tail" in line for line in bench.warnings)


def test_a_damaged_snapshot_of_the_producers_is_told_and_they_are_found_in_the_log(bench: Bench) -> None:
    key = bench.create()
    for _ in range(6):
        bench.append(key)
    bench.opened().close(clean=True)
    bench.store = None
    snapshots = [name for name in files(bench) if name.endswith(".snapshot")]
    bench.disk.flip_bit(join(PATH, "t1-0") + "/" + snapshots[-1], 20)
    bench.opened()
    assert bench.found is not None
    (replica,) = bench.found.replicas
    bench.check_producers(replica.log.producers, key, 0, bench.models[key].end)
    assert len(replica.log.producers) == 3
    assert any(snapshots[-1] in line and "does not match its CRC" in line for line in bench.warnings)
    bench.warnings.clear()
    bench.restart()
    assert bench.warnings == []


def test_old_snapshots_of_producers_go(bench: Bench) -> None:
    """Those at a segment's start stay with the segment; of the others the newest alone."""
    key = bench.create()
    for _ in range(12):
        bench.append(key)
        bench.checkpoint()
    bases_of = [int(name[:20]) for name in files(bench) if name.endswith(".log")]
    kept = [int(name[:20]) for name in files(bench) if name.endswith(".snapshot")]
    assert len(bases_of) > 2 and set(kept) - {bench.models[key].end} <= set(bases_of)
    bench.trim()
    first = min(int(name[:20]) for name in files(bench) if name.endswith(".log"))
    assert all(int(name[:20]) >= first for name in files(bench) if name.endswith(".snapshot"))


def test_after_a_kill_the_next_orderly_stop_raises_the_recovery_point(bench: Bench) -> None:
    filled(bench, 10, LogSettings())
    bench.kill()
    bench.opened().close(clean=True)
    assert b'"offset": 10' in read_file(bench.disk, join(PATH, "t1-0") + "/" + POINT_FILE)


def test_another_brokers_directory_is_refused(bench: Bench) -> None:
    bench.opened().close(clean=True)
    before = bench.disk.list_directory(PATH)
    for wrong in (
        ExpectedIdentity(cluster_id="other", node_id=1),
        ExpectedIdentity(cluster_id="cluster", node_id=2),
        ExpectedIdentity(cluster_id="cluster", node_id=1, directory_id=bytes(16)),
    ):
        with pytest.raises(CorruptFileError, match=r"meta\.properties"):
            DirectoryStore.open(bench.disk, PATH, wrong, rng=random.Random(1))
    assert bench.disk.list_directory(PATH) == before
    bench.store = None
    bench.opened()


def test_one_broker_a_directory(bench: Bench) -> None:
    bench.opened()
    with pytest.raises(LogDirectoryLockedError, match="in use by another running process"):
        DirectoryStore.open(bench.disk, PATH, EXPECTED, rng=random.Random(1))
    store, _ = DirectoryStore.open(bench.disk, PATH, EXPECTED, rng=random.Random(1), locked=True)
    assert store is not None


@pytest.mark.parametrize("operation", ["list", "lock", "sync"])
def test_a_directory_that_fails_while_it_is_opened_is_bad_and_gives_its_lock_back(operation: str) -> None:
    bench = Bench()
    filled(bench)
    bench.disk = bench.disk.kill()
    bench.disk.inject(PATH, operation=operation)
    store, found = DirectoryStore.open(bench.disk, PATH, EXPECTED, rng=random.Random(1))
    assert store is None and found.replicas == ()
    assert found.problem is not None and PATH in found.problem and "I/O error" in found.problem
    bench.disk.heal()
    bench.store = None
    bench.disk = bench.disk.kill()
    bench.opened()


def test_a_directory_without_identity_is_bad(bench: Bench) -> None:
    filled(bench, 10, LogSettings())
    bench.opened().close(clean=True)
    bench.disk.remove(join(PATH, "meta.properties"))
    store, found = DirectoryStore.open(bench.disk, PATH, EXPECTED, rng=random.Random(1))
    assert store is None and found.directory_id is None
    assert found.problem is not None and "format" in found.problem


@pytest.mark.parametrize("operation", ["write", "sync", "open", "rename", "read"])
def test_an_io_error_names_the_directory(operation: str) -> None:
    bench = Bench()
    key = filled(bench, 12)
    bench.restart()
    bench.disk.inject(PATH, operation=operation)
    with pytest.raises(DiskError) as caught:
        for base in range(12, 20):
            read(bench, key, 0, 12)
            bench.do(AppendPartition, key, batches=walked(batch(base, epoch=2)), sync=True)
        bench.sync()
        bench.remove()
    assert caught.value.directory.startswith(PATH)
    assert bench.opened().execute(AbandonDirectory(directory_id=DIRECTORY_ID)) == []
    assert read(bench, key, 0, 1).data is None
    bench.opened().close(clean=True)


def test_a_directory_whose_files_vanish_is_bad(bench: Bench) -> None:
    key = filled(bench, 30)
    for name in files(bench):
        bench.disk.remove(join(PATH, "t1-0") + "/" + name)
    with pytest.raises(DiskError, match="has disappeared; restore the disk"):
        for base in range(30):
            read(bench, key, base, 30, max_bytes=1)


def test_room_is_measured() -> None:
    bench = Bench()
    bench.disk.profile = bench.disk.profile.__class__(capacity_bytes=10_000)
    measured = bench.opened().measure()
    assert measured.total_bytes == 10_000 and 0 < measured.usable_bytes < 10_000
    assert bench.found is not None and bench.found.total_bytes == 10_000


def test_few_files_are_open_however_many_replicas_there_are(tmp_path: Path) -> None:
    """On the real disk: 40 replicas, all written to and read, with 5 descriptors."""
    disk, path = PosixDisk(), str(tmp_path)
    store_meta_properties(
        disk, path, MetaProperties(cluster_id="cluster", node_id=1, directory_id=DIRECTORY_ID)
    )
    options = StoreOptions(max_open_files=5)
    store, _ = DirectoryStore.open(disk, path, EXPECTED, rng=random.Random(1), options=options)
    assert store is not None
    works = [
        CreateReplica(directory_id=DIRECTORY_ID, key=key_of(n), incarnation=1, topic=f"t{n}", settings=SMALL)
        for n in range(1, 41)
    ]
    store.execute_all(works)
    for base in range(12):
        for work in works:
            store.execute(
                AppendPartition(
                    directory_id=DIRECTORY_ID,
                    key=work.key,
                    incarnation=1,
                    batches=Batches.parse(batch(base)),
                    sync=True,
                )
            )
            assert len(store._opened.pool) <= 5
        prepared = store.prepare_sync(checkpoint=base % 4 == 0)
        assert prepared is not None
        prepared.run()
        assert len(store.sync_completed(prepared).ends) == 40
        assert len(store._opened.pool) <= 5
    store.close(clean=True)
    store, found = DirectoryStore.open(disk, path, EXPECTED, rng=random.Random(1), options=OPTIONS)
    assert store is not None and len(found.replicas) == 40 and len(store._opened.pool) == 0
    for replica in found.replicas:
        (event,) = store.execute(
            ReadPartition(
                token=1,
                directory_id=DIRECTORY_ID,
                key=replica.key,
                incarnation=replica.incarnation,
                from_offset=0,
                to_offset=12,
                max_bytes=10**6,
            )
        )
        assert isinstance(event, PartitionRead) and bases(event.data) == list(range(12))
    store.close(clean=False)

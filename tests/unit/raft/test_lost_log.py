"""A directory that comes back without a part of what a voter must not forget, at every crash point."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from metaquorum import raft
from metaquorum.raft.effects import AppendLog, NoteCommitted, PersistQuorumState, ResetLog
from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.disk.interface import join, read_file, write_atomically
from metaquorum.storage.errors import CorruptFileError, StorageError
from metaquorum.storage.files.meta_properties import OPENED_LOG_FILE as FILE_NAME
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.files.snapshots import SnapshotWriter
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import PowerLossError

HOME = "/r"
REPLICA = "/r/__cluster_metadata-0"
STATIC, DYNAMIC = (1, 2, 3), ()
GONE = "has no log, but this controller has opened one there"


def new_disk(seed: int = 1, *, directory_id: bytes = b"d" * 16) -> FaultyDisk:
    disk = FaultyDisk(random.Random(seed))
    disk.make_directory(HOME)
    disk.sync_directory("/")
    reformat(disk, directory_id)
    return disk


def reformat(disk: FaultyDisk, directory_id: bytes) -> None:
    store_meta_properties(disk, HOME, MetaProperties(cluster_id="c", node_id=1, directory_id=directory_id))


def opened(disk: FaultyDisk, voters: tuple[int, ...] = STATIC, *, may_vote: bool = True) -> raft.ReplicaStore:
    return raft.ReplicaStore.open(disk, HOME, voter_ids=voters, may_vote=may_vote)


def write(store: raft.ReplicaStore, offset: int, epoch: int) -> None:
    store.persist_quorum_state(
        PersistQuorumState(token=1, epoch=epoch, leader_id=2, voted_id=None, voted_directory_id=None)
    )
    data = encode_batch(base_offset=offset, leader_epoch=epoch, timestamp_ms=1, values=[b"v"])
    store.execute(AppendLog(batches=Batches.parse(data)))
    store.sync_completed(_run(store))
    store.execute(NoteCommitted(position=LogPosition(epoch, offset + 1), durably=True, acknowledged=()))


def _run(store: raft.ReplicaStore):  # type: ignore[no-untyped-def]
    ticket = store.prepare_sync()
    ticket.run()
    return ticket


def remove_log(disk: FaultyDisk) -> None:
    for name in disk.list_directory(REPLICA):
        disk.remove(join(REPLICA, name))
    disk.remove_directory(REPLICA)
    disk.sync_directory(HOME)


@pytest.mark.parametrize("voters", [STATIC, DYNAMIC, (1,)])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("is_filled", [True, False])
def test_a_voter_without_its_log_does_not_start(
    voters: tuple[int, ...], is_clean: bool, is_filled: bool
) -> None:
    disk = new_disk()
    store = opened(disk, voters)
    if is_filled:
        write(store, 0, 1)
    store.close(clean=is_clean)
    disk = disk.crash()
    remove_log(disk)
    before = disk.operations
    with pytest.raises(CorruptFileError, match=GONE) as raised:
        opened(disk, voters)
    assert ("--new-cluster" if voters else "replace-voter 1") in str(raised.value)
    assert disk.operations == before
    opened(disk, voters, may_vote=False).close()
    reformat(disk, b"e" * 16)
    remove_log(disk)
    opened(disk, voters).close()


def test_a_directory_that_kafka_had_starts_with_and_without_a_log() -> None:
    disk = new_disk()
    store = opened(disk)
    write(store, 0, 1)
    store.close()
    disk.remove(join(HOME, FILE_NAME))
    opened(disk).close()
    assert disk.exists(join(HOME, FILE_NAME))


def test_a_node_that_cannot_vote_leaves_no_note() -> None:
    disk = new_disk()
    opened(disk, may_vote=False).close()
    assert not disk.exists(join(HOME, FILE_NAME))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"version": 7}', b"\xff\xfe"])
def test_a_note_that_cannot_be_read_counts(content: bytes) -> None:
    disk = new_disk()
    write_atomically(disk, join(HOME, FILE_NAME), content)
    with pytest.raises(CorruptFileError, match=GONE):
        opened(disk)


def open_and_close(disk: FaultyDisk, voters: tuple[int, ...]) -> None:
    opened(disk, voters).close()


def crashes(work: Callable[[], object]) -> bool:
    try:
        work()
    except PowerLossError:
        return True
    return False


@pytest.mark.parametrize("by", ["kill", "crash"])
@pytest.mark.parametrize("voters", [STATIC, DYNAMIC, (1,)])
def test_a_first_start_that_ends_anywhere_is_followed_by_a_second(by: str, voters: tuple[int, ...]) -> None:
    for after in range(200):
        disk = new_disk(after)
        disk.crash_after = after
        has_crashed = crashes(partial(open_and_close, disk, voters))
        disk = disk.kill() if by == "kill" else disk.crash()
        noted = disk.exists(join(HOME, FILE_NAME))
        store = opened(disk, voters)
        write(store, 0, 1)
        store.close()
        assert has_crashed or noted
        if not has_crashed:
            return
    pytest.fail("the first start does not end within 200 operations")


@pytest.mark.parametrize("by", ["kill", "crash"])
def test_a_log_that_is_emptied_for_a_snapshot_is_not_one_that_is_gone(by: str) -> None:
    for after in range(200):
        disk = new_disk(after)
        store = opened(disk)
        write(store, 0, 1)
        writer = SnapshotWriter(disk, REPLICA, LogPosition(2, 50))
        writer.append(encode_batch(base_offset=0, leader_epoch=2, timestamp_ms=1, values=[b"v"]))
        writer.freeze()
        disk.crash_after = after
        has_crashed = crashes(partial(store.execute, ResetLog(position=LogPosition(2, 50))))
        disk = disk.kill() if by == "kill" else disk.crash()
        again = opened(disk)
        assert (again.log.start_offset, again.log.end_offset) == (50, 50)
        again.close()
        if not has_crashed:
            return
    pytest.fail("the reset does not end within 200 operations")


OPENS = ""
TABLE: dict[str, tuple[str, str, str]] = {
    # name: what a start says if the file is missing, foreign, or as it was at the first start
    "meta.properties": ("meta.properties: does not exist", "has no version line", OPENS),
    FILE_NAME: (OPENS, OPENS, OPENS),
    ".lock": (OPENS, OPENS, OPENS),
    "00000000000000000000.log": ("found no such file", "is damaged at byte", "is damaged at byte"),
    "quorum-state": ("is absent beside the log", "is not a quorum state", OPENS),
    "known-committed": (OPENS, "does not say what is committed", OPENS),
    "recovery-point": (OPENS, "is not a recovery point", OPENS),
    "leader-epoch-checkpoint": (OPENS, OPENS, OPENS),
    "partition.metadata": (OPENS, OPENS, OPENS),
}
"""An older quorum-state cannot be distinguished from the newest one: its epoch is raised to the log's, and no
vote of an older epoch counts."""


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("what", ["missing", "foreign", "rolled back"])
def test_every_file_of_the_metadata_directory(name: str, what: str) -> None:
    """Changed alone: a start opens the same log, or refuses with a line, and forgets no epoch."""
    disk = new_disk()
    store = opened(disk)
    write(store, 0, 1)
    store.close()
    first = {path: read_file(disk, path) for path in all_files(disk)}
    store = opened(disk)
    write(store, 1, 3)
    store.close()
    assert {path.rpartition("/")[2] for path in all_files(disk)} == set(TABLE) - {".lock"}
    path = next((path for path in all_files(disk) if path.endswith("/" + name)), join(HOME, name))
    if what == "missing" and disk.exists(path):
        disk.remove(path)
    elif what == "foreign":
        write_atomically(disk, path, b"\x13\x37" * 40)
    elif path in first:
        write_atomically(disk, path, first[path])
    says = TABLE[name][("missing", "foreign", "rolled back").index(what)]
    if says:
        with pytest.raises(StorageError, match=says):
            opened(disk)
        return
    again = opened(disk)
    found = again.recovered()
    assert (found.epoch, found.log_end_offset, found.epochs) == (3, 2, ((1, 0), (3, 1)))
    again.close()


def test_a_lost_quorum_state_is_refused_beside_a_snapshot_without_a_log() -> None:
    disk = new_disk()
    store = opened(disk)
    writer = SnapshotWriter(disk, REPLICA, LogPosition(2, 50))
    writer.append(encode_batch(base_offset=0, leader_epoch=2, timestamp_ms=1, values=[b"v"]))
    writer.freeze()
    store.execute(ResetLog(position=LogPosition(2, 50)))
    store.close()
    for path in all_files(disk):
        if path.endswith(("/quorum-state", ".log", "/leader-epoch-checkpoint")):
            disk.remove(path)
    with pytest.raises(StorageError, match=r"quorum-state: is absent beside the snapshot 0{18}50-0{9}2"):
        opened(disk)


def all_files(disk: FaultyDisk) -> list[str]:
    return [
        join(where, name)
        for where in (HOME, REPLICA)
        for name in disk.list_directory(where)
        if not disk.is_directory(join(where, name))
    ]

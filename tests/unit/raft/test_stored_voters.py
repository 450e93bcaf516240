"""What a directory says of voters."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from metaquorum import raft
from metaquorum.raft.effects import AppendLog, NoteCommitted, PersistQuorumState
from metaquorum.raft.stored_voters import read_changes, read_voters, with_voters
from metaquorum.raft.voters import VoterChange, VotersAt, encode_control_batch, voters_record
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.batches.encode import encode_batch
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import CorruptFileError, CorruptLogError
from metaquorum.storage.files.quorum_state import FILE_NAME, load_quorum_state
from metaquorum.storage.types import LogPosition
from tests.unit.raft.test_voters import voters

ENDPOINTS = (raft.Endpoint("CONTROLLER", "host1", 9093),)
SAID = VotersAt(1, voters(1, 2))


def standalone(path: Path) -> raft.ReplicaStore:
    """An open directory whose node is formatted as the only voter."""
    rng = random.Random(1)
    raft.create_directory(PosixDisk(), str(path), cluster_id="c", node_id=1, rng=rng, endpoints=ENDPOINTS)
    return raft.open_directory(PosixDisk(), str(path), ())


def test_formatting_is_read_and_the_log_behind_it_says_more(tmp_path: Path) -> None:
    store = standalone(tmp_path)
    level, first = store.recovered().voter_changes
    assert (level.offset, level.kraft_version) == (first.offset, 1) == (-1, 1)
    assert first.voters is not None and first.voters[1].endpoints == ENDPOINTS
    store.persist_quorum_state(
        PersistQuorumState(
            token=1, epoch=1, leader_id=1, voted_id=1, voted_directory_id=b"d" * 16, kraft_version=1
        )
    )
    batch = encode_control_batch([voters_record(voters(1, 2))], base_offset=0, epoch=1, timestamp_ms=0)
    store.execute(AppendLog(batches=Batches.sealed(batch)))
    store.close()
    again = raft.open_directory(PosixDisk(), str(tmp_path), ())
    assert again.recovered().voter_changes == (level, first, VoterChange(offset=0, voters=voters(1, 2)))
    assert again.recovered().voted_directory_id == b"d" * 16
    again.close()


def test_a_caller_that_has_read_the_log_saves_a_second_look(tmp_path: Path) -> None:
    """Of what it found, only what the recovered log still holds, behind the newest snapshot, counts."""
    store = standalone(tmp_path)
    for at in range(3):
        batch = encode_control_batch(
            [voters_record(voters(1, 3 + at))], base_offset=at, epoch=1, timestamp_ms=0
        )
        store.execute(AppendLog(batches=Batches.sealed(batch)))
    store.persist_quorum_state(
        PersistQuorumState(
            token=1, epoch=1, leader_id=1, voted_id=1, voted_directory_id=b"d" * 16, kraft_version=1
        )
    )
    store.close()
    found = [VoterChange(offset=at, voters=voters(1, 3 + at)) for at in range(-1, 5)]
    again = raft.ReplicaStore.open(PosixDisk(), str(tmp_path), voter_changes=found)
    changes = again.recovered().voter_changes
    again.close()
    plain = raft.ReplicaStore.open(PosixDisk(), str(tmp_path))
    assert changes == plain.recovered().voter_changes
    assert [change.offset for change in changes] == [-1, -1, 0, 1, 2]
    plain.close()


def test_of_a_batch_that_begins_below_the_newest_snapshot_only_what_is_behind_it_counts(
    tmp_path: Path,
) -> None:
    store = standalone(tmp_path)
    batch = encode_control_batch(
        [voters_record(voters(1, 3)), voters_record(voters(1, 4))], base_offset=0, epoch=1, timestamp_ms=0
    )
    store.execute(AppendLog(batches=Batches.sealed(batch)))
    store.write_snapshot(LogPosition(1, 1), with_voters([], VotersAt(1, voters(1, 3)), timestamp_ms=4))
    found = read_changes(PosixDisk(), store.log, LogPosition(1, 1))
    assert [(change.offset, change.voters) for change in found if change.voters is not None] == [
        (0, voters(1, 3)),
        (1, voters(1, 4)),
    ]
    store.close()


def test_quorum_state_has_the_version_of_kraft_version(tmp_path: Path) -> None:
    store = standalone(tmp_path)
    for level in (0, 1):
        store.persist_quorum_state(
            PersistQuorumState(
                token=1,
                epoch=3,
                leader_id=None,
                voted_id=2,
                voted_directory_id=b"d" * 16,
                kraft_version=level,
            )
        )
        state = load_quorum_state(PosixDisk(), store.replica_directory)
        assert state is not None and state.voted_directory_id == (b"d" * 16 if level else bytes(16))
    store.close()


def test_a_voter_of_its_log_does_not_start_without_its_vote(tmp_path: Path) -> None:
    store = standalone(tmp_path)
    data = encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=0, values=[b"v"])
    store.execute(AppendLog(batches=Batches.sealed(data)))
    store.execute(NoteCommitted(position=LogPosition(1, 1), durably=False))
    store.close()
    with pytest.raises(CorruptFileError, match=f"{FILE_NAME}: is absent beside the log"):
        raft.open_directory(PosixDisk(), str(tmp_path), ())


def test_the_only_voter_starts_again_when_its_first_start_ended_before_its_vote_was_written(
    tmp_path: Path,
) -> None:
    store = standalone(tmp_path)
    data = encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=0, values=[b"v"])
    store.execute(AppendLog(batches=Batches.sealed(data)))
    store.close(clean=False)
    again = raft.open_directory(PosixDisk(), str(tmp_path), ())
    assert again.recovered().epoch == 1
    again.close()


def test_voters_are_put_in_front_of_a_state_and_read_from_there(tmp_path: Path) -> None:
    path = tmp_path / "state"
    plain = [encode_batch(base_offset=at, leader_epoch=0, timestamp_ms=0, values=[b"v"]) for at in (0, 1)]
    path.write_bytes(b"".join(with_voters(plain, SAID, timestamp_ms=4)))
    assert read_voters(PosixDisk(), str(path)) == SAID
    batches = Batches.parse(path.read_bytes())
    assert [header.base_offset for header in batches.headers] == [0, 2, 3]
    assert list(with_voters(plain, VotersAt(), timestamp_ms=4)) == plain
    path.write_bytes(b"".join(plain))
    assert read_voters(PosixDisk(), str(path)) == VotersAt()


@pytest.mark.parametrize("at", [20, 70, -1])
def test_a_damaged_front_is_refused(tmp_path: Path, at: int) -> None:
    path = tmp_path / "state"
    data = bytearray(b"".join(with_voters([], SAID, timestamp_ms=4)))
    data[at] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(CorruptLogError):
        read_voters(PosixDisk(), str(path))

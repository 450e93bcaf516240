"""A driver uses the state of a fetched snapshot only if the core takes the snapshot (contract, point 14)."""

from __future__ import annotations

import random

import pytest

from metaquorum import raft
from metaquorum.metadata.image import MetadataImage, Provenance
from metaquorum.metadata.replica import MetadataReplica, MetadataReplicaConfig
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import ResetLog
from metaquorum.raft.events import SnapshotLoaded
from metaquorum.raft.messages import BeginQuorumEpochRequest, FetchRequest, FetchSnapshotRequest
from metaquorum.storage.batches.encode import encode_batch
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.raft.test_following import answer, batches, begin, chunk, load, redirected

SNAPSHOT = LogPosition(3, 9)
VOTERS = tuple(raft.Voter(node_id=at, host="127.0.0.1", port=9000 + at) for at in (1, 2, 3))
FILE = encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=1, values=[b"seen"])


def pass_snapshot(core: RaftCore) -> None:
    """Another leader sends the log past the snapshot."""
    fetch = begin(core, 3, 5, 3)
    core.on_response(3, fetch.correlation_id, answer(5, 3, records=batches(1, 12, 5)), now_ms=4)


@pytest.mark.parametrize("passed", [False, True])
def test_a_replica_of_metadata_keeps_its_state_if_the_log_has_passed_the_snapshot(passed: bool) -> None:
    core, request = redirected()
    load(core, request)
    replica = MetadataReplica(core, MetadataImage(), MetadataReplicaConfig(), now_ms=0)
    before = replica.state
    if passed:
        pass_snapshot(core)
    image = MetadataImage().with_provenance(Provenance(9, 3, 0))
    effects = replica.handle(SnapshotLoaded(position=SNAPSHOT, image=image), 6)
    assert any(isinstance(one, ResetLog) for one in effects) == (not passed)
    assert (replica.state is before) == passed
    assert replica.applied_offset == (0 if passed else 9)
    assert replica.snapshots.last_offset == (0 if passed else 9)


class Taking(raft.BlockingDriver):
    """Node 1, a follower of node 2. With `passed`, a message that moves the log past the snapshot is handled
    while the snapshot is read."""

    def __init__(self, *, passed: bool) -> None:
        disk = FaultyDisk(random.Random(1))
        raft.create_directory(disk, "/r", cluster_id="c", node_id=1, rng=random.Random(1))
        store = raft.ReplicaStore.open(disk, "/r", voter_ids=(1, 2, 3))
        super().__init__(store, VOTERS, raft.RaftConfig(), rng=random.Random(1), now_ms=lambda: 1000)
        self.passed, self.loaded, self.asked = passed, list[bytes](), list[tuple[int, raft.RaftRequest]]()
        self.committed: list[int] = []
        self.start()
        self.begin_epoch(4, 2)

    def begin_epoch(self, epoch: int, leader: int) -> None:
        self.on_request(
            epoch,
            BeginQuorumEpochRequest(
                cluster_id="c", epoch=epoch, leader_id=leader, voter_id=1, voter_directory_id=b""
            ),
        )

    def send(self, to: int, correlation_id: int, request: raft.RaftRequest, timeout_ms: int) -> None:
        self.asked.append((correlation_id, request))

    def respond(self, key: int, response: raft.RaftResponse) -> None:
        pass

    def on_committed(self, batches: raft.Batches) -> None:
        self.committed.append(batches.base_offset)

    def read_snapshot(self, position: LogPosition, path: str) -> bytes:
        if self.passed:
            self.begin_epoch(5, 3)
            (at,) = [key for key, one in self.core.state.in_flight.items() if one.to == 3]
            self.on_response(3, at, answer(5, 3, records=batches(0, 13, 5), high_watermark=13))
        return b"seen"

    def load_snapshot(self, state: bytes) -> None:
        self.loaded.append(state)


@pytest.mark.parametrize("passed", [False, True])
def test_the_blocking_driver_applies_the_log_that_has_passed_the_snapshot(passed: bool) -> None:
    driver = Taking(passed=passed)
    at, request = driver.asked[-1]
    assert isinstance(request, FetchRequest)
    driver.on_response(2, at, answer(snapshot=SNAPSHOT))
    at, request = driver.asked[-1]
    assert isinstance(request, FetchSnapshotRequest)
    driver.on_response(2, at, chunk(0, FILE, size=len(FILE)))
    assert driver.loaded == ([] if passed else [b"seen"])
    assert driver.committed == ([0] if passed else [])
    assert driver.applied_offset == (13 if passed else 9)

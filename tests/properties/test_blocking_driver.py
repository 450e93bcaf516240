"""Replicas on `BlockingDriver` keep what they acknowledged, whatever operation their power fails at."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable

import pytest

from metaquorum import raft
from metaquorum.raft.errors import RaftUsageError
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from metaquorum.storage.disk.interface import read_file
from metaquorum.storage.log.log import LogConfig
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faults import PowerLossError
from metaquorum.testing.faulty_disk import FaultyDisk

VOTERS = tuple(raft.Voter(node_id=at, host="127.0.0.1", port=1 + at) for at in range(3))
CONFIG = raft.RaftConfig(note_committed_ms=5, sync_committed_ms=50)
SMALL_SEGMENTS = LogConfig(segment_bytes=400)
STEPS = 600
DIRECTORY = "/replica"


class Replica(raft.BlockingDriver):
    """Keeps every committed value in order, and what its own clients were told."""

    def __init__(self, cluster: Cluster, node_id: int, disk: FaultyDisk) -> None:
        self.cluster = cluster
        self.committed: list[bytes] = []
        self.waiting: dict[int, bytes] = {}
        self.reads: dict[int, int] = {}
        self.disk = disk
        self.loaded: list[int] = []
        self.doubled: set[bytes] = set()
        super().__init__(
            raft.ReplicaStore.open(disk, DIRECTORY, SMALL_SEGMENTS, voter_ids=(0, 1, 2), retention_bytes=1),
            VOTERS,
            CONFIG,
            rng=random.Random(cluster.rng.random()),
            now_ms=lambda: cluster.now_ms,
            wall_ms=lambda: cluster.now_ms,
        )

    def send(self, to: int, correlation_id: int, request: raft.RaftRequest, timeout_ms: int) -> None:
        source, cluster = self.core.node_id, self.cluster

        def arrive() -> None:
            cluster.last_key += 1
            cluster.callers[cluster.last_key] = source, correlation_id
            cluster.input(to, lambda node: node.on_request(cluster.last_key, request))

        cluster.network.append(arrive)

    def respond(self, key: int, response: raft.RaftResponse) -> None:
        to, at = self.cluster.callers.pop(key)
        source = self.core.node_id
        self.cluster.network.append(
            lambda: self.cluster.input(to, lambda node: node.on_response(source, at, response))
        )

    def on_committed(self, batches: raft.Batches) -> None:
        for batch in batches.split():
            if not batch.header.is_control:
                self.committed += [record.value or b"" for record in batch.records()]
            value = self.waiting.pop(batch.header.base_offset, None)
            if value is not None:
                assert self.committed[-1] == value
                self.cluster.acknowledged.append(value)

            if value in self.doubled:
                self.append([b"again " + value])

    def load_snapshot(self, position: LogPosition, path: str) -> None:
        self.loaded.append(position.offset)
        batches = [b for b in iter_batches(read_file(self.disk, path)) if not b.header.is_control]
        self.committed = [record.value or b"" for batch in batches for record in batch.records()]

    def snapshot(self) -> LogPosition:
        return self.write_snapshot(
            [encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=1, values=self.committed)]
        )

    def on_role_changed(self, change: raft.RoleChanged) -> None:
        self.waiting.clear()

    def on_read(self, token: int, *, ready: bool) -> None:
        known = self.reads.pop(token)
        if ready:
            self.cluster.reads += 1
            assert set(self.cluster.acknowledged[:known]) <= set(self.committed), "a read misses a write"


class Cluster:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1000
        self.network: deque[Callable[[], None]] = deque()
        self.callers: dict[int, tuple[int, int]] = {}
        self.acknowledged: list[bytes] = []
        self.away: int | None = None
        self.last_key = self.written = self.reads = self.crashes = 0
        self.disks = {at: FaultyDisk(random.Random(seed * 10 + at)) for at in range(3)}
        self.nodes: dict[int, Replica] = {}
        for node_id, disk in self.disks.items():
            raft.create_directory(disk, DIRECTORY, cluster_id="c", node_id=node_id, rng=self.rng)
            disk.sync_directory("/")
            self.begin(node_id)

    def begin(self, node_id: int) -> None:
        """Opening can fail as any operation can: the machine starts once more then."""
        while node_id not in self.nodes:
            try:
                node = Replica(self, node_id, self.disks[node_id])
                self.nodes[node_id] = node
                node.start()
            except PowerLossError:
                self.lose_power(node_id)

    def lose_power(self, node_id: int) -> None:
        self.crashes += 1
        self.nodes.pop(node_id, None)
        self.disks[node_id] = self.disks[node_id].crash()

    def input(self, node_id: int, what: Callable[[Replica], object]) -> None:
        if node_id in self.nodes:
            try:
                what(self.nodes[node_id])
            except PowerLossError:
                self.lose_power(node_id)

    def step_without(self, away: int) -> None:
        """A step in which a node that was stopped stays away."""
        held, self.away = self.away, away
        self.step(faults=False)
        self.away = held

    def step(self, *, faults: bool) -> None:
        rng = self.rng
        if self.network and rng.random() < 0.9:
            arrive = self.network.popleft()
            if not (faults and rng.random() < 0.05):
                arrive()
        else:
            self.now_ms += rng.randint(1, 20)
        for node_id in range(3):
            if node_id not in self.nodes:
                if node_id == self.away:
                    continue
                if rng.random() < 0.1 or not faults:
                    self.begin(node_id)
            elif self.nodes[node_id].wait_ms() == 0:
                self.input(node_id, Replica.tick)
        if faults and rng.random() < 0.02:
            self.disks[rng.randrange(3)].crash_after = rng.randint(1, 12)
        leaders = [at for at, node in self.nodes.items() if node.core.is_leader]
        if leaders and rng.random() < 0.3:
            self.input(rng.choice(leaders), self.write if rng.random() < 0.7 else self.read)

    def write(self, node: Replica) -> None:
        self.written += 1
        value = b"%d" % self.written
        node.waiting[node.core.log_end_offset] = value
        node.append([value])

    def read(self, node: Replica) -> None:
        self.last_key += 1
        node.reads[self.last_key] = len(self.acknowledged)
        node.read(self.last_key)

    def check(self) -> None:
        logs = sorted((node.committed for node in self.nodes.values()), key=len)
        for shorter, longer in itertools.pairwise(logs):
            assert longer[: len(shorter)] == shorter, "two replicas applied different records"


@pytest.mark.parametrize("seed", range(12))
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    cluster = Cluster(seed)
    for _ in range(STEPS):
        cluster.step(faults=True)
        cluster.check()
    for disk in cluster.disks.values():
        disk.crash_after = None
    before = len(cluster.acknowledged)
    for _ in range(4 * STEPS):
        cluster.step(faults=False)
    cluster.check()
    assert len(cluster.acknowledged) > before and cluster.reads > 0 and cluster.crashes > 0
    assert len(cluster.nodes) == 3
    longest = max((node.committed for node in cluster.nodes.values()), key=len)
    assert set(cluster.acknowledged) <= set(longest)
    assert len(set(longest)) == len(longest)


def test_a_follower_refuses_to_append() -> None:
    cluster = Cluster(99)
    while not any(node.core.is_leader for node in cluster.nodes.values()):
        cluster.step(faults=False)
    follower = next(node for node in cluster.nodes.values() if not node.core.is_leader)
    with pytest.raises(RaftUsageError, match="only the leader appends"):
        follower.append([b"x"])


def led(seed: int) -> tuple[Cluster, Replica]:
    cluster = Cluster(seed)
    while not any(node.core.is_leader for node in cluster.nodes.values()):
        cluster.step(faults=False)
    return cluster, next(node for node in cluster.nodes.values() if node.core.is_leader)


def test_nothing_applied_is_no_snapshot() -> None:
    (node, *_) = Cluster(6).nodes.values()
    with pytest.raises(RaftUsageError, match="between inputs"):
        node.write_snapshot([])


def test_a_hook_may_append() -> None:
    cluster, leader = led(7)
    leader.doubled = {b"one"}
    offset = leader.append([b"one"])
    leader.waiting[offset] = b"one"
    for _ in range(300):
        cluster.step(faults=False)
    assert leader.committed.count(b"again one") == 1
    assert leader.committed.index(b"again one") > leader.committed.index(b"one")


class Counting(raft.BlockingDriver):
    """A voter alone: a record is committed as soon as it is synced, and makes the next, up to ten."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.seen: list[bytes] = []
        store = raft.open_directory(disk, DIRECTORY, VOTERS[:1])
        super().__init__(store, VOTERS[:1], CONFIG, rng=random.Random(1))

    def on_committed(self, batches: raft.Batches) -> None:
        for batch in batches.split():
            if not batch.header.is_control:
                self.seen += [record.value or b"" for record in batch.records()]
                if len(self.seen) < 10:
                    self.append([b"%d" % len(self.seen)])


def test_what_a_hook_appends_is_committed_once() -> None:
    disk = FaultyDisk(random.Random(1))
    raft.create_directory(disk, DIRECTORY, cluster_id="c", node_id=0, rng=random.Random(2))
    alone = Counting(disk)
    alone.start()
    assert alone.core.is_leader
    alone.append([b"0"])
    assert alone.seen == [b"%d" % number for number in range(10)]


def test_a_snapshot_brings_back_who_was_away() -> None:
    cluster, leader = led(8)
    away = next(at for at in cluster.nodes if at != leader.core.node_id)
    stopped = cluster.nodes.pop(away)
    stopped.store.close()
    for _ in range(600):
        cluster.step_without(away)
    assert leader.snapshot().offset == leader.applied_offset
    assert leader.core.log_start_offset > stopped.applied_offset
    cluster.begin(away)
    for _ in range(600):
        cluster.step(faults=False)
    cluster.check()
    back = cluster.nodes[away]
    assert back.loaded and back.applied_offset >= leader.core.log_start_offset
    assert set(cluster.acknowledged) <= set(max((n.committed for n in cluster.nodes.values()), key=len))


def test_a_replica_that_failed_takes_no_further_input() -> None:
    cluster, leader = led(9)
    cluster.disks[leader.core.node_id].crash_after = 1
    with pytest.raises(PowerLossError):
        leader.append([b"x"])
    with pytest.raises(RaftUsageError, match="stop the process"):
        leader.tick()

"""Replicas on `BlockingDriver` keep what they acknowledged, whatever operation their power fails at."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable

import pytest

from metaquorum import raft
from metaquorum.raft.errors import RaftUsageError
from metaquorum.testing.faulty_disk import FaultyDisk, PowerLossError

VOTERS = tuple(raft.Voter(node_id=at, host="127.0.0.1", port=1 + at) for at in range(3))
CONFIG = raft.RaftConfig(note_committed_ms=5, sync_committed_ms=50)
STEPS = 600
DIRECTORY = "/replica"


class Replica(raft.BlockingDriver):
    """Keeps every committed value in order, and what its own clients were told."""

    def __init__(self, cluster: Cluster, node_id: int, disk: FaultyDisk) -> None:
        self.cluster = cluster
        self.committed: list[bytes] = []
        self.waiting: dict[int, bytes] = {}
        self.reads: dict[int, int] = {}
        super().__init__(
            raft.open_directory(disk, DIRECTORY, VOTERS),
            VOTERS,
            CONFIG,
            rng=random.Random(cluster.rng.random()),
            monotonic_ms=lambda: cluster.now_ms,
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

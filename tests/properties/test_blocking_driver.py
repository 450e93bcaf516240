"""Replicas on `BlockingDriver` keep what they acknowledged, at whatever operation they lose power."""

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
from metaquorum.storage.files.known_committed import load_known
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import PowerLossError

VOTERS = tuple(raft.Voter(node_id=at, host="127.0.0.1", port=1 + at) for at in range(5))
CONFIG = raft.RaftConfig(note_committed_ms=5, sync_committed_ms=50)
SMALL_SEGMENTS = LogConfig(segment_bytes=400)
STEPS = 600
DIRECTORY = "/replica"


class Replica(raft.BlockingDriver):
    """Keeps every committed value in order, and what was acknowledged to its own clients."""

    def __init__(self, cluster: Cluster, node_id: int, disk: FaultyDisk) -> None:
        self.cluster = cluster
        self.committed: list[bytes] = []
        self.waiting: dict[int, bytes] = {}
        self.reads: dict[int, int] = {}
        self.disk = disk
        self.loaded: list[int] = []
        self.doubled: set[bytes] = set()
        store = raft.ReplicaStore.open(
            disk, DIRECTORY, SMALL_SEGMENTS, voter_ids=tuple(cluster.disks), retention_bytes=1
        )
        begin = store.latest_snapshot()
        if begin is not None:
            self.load_snapshot(self.read_snapshot(begin, store.snapshot_path(begin)))
        super().__init__(
            store,
            VOTERS[: len(cluster.disks)],
            CONFIG,
            rng=random.Random(cluster.rng.random()),
            now_ms=lambda: cluster.now_ms,
            wall_ms=lambda: cluster.wall_ms(node_id),
            applied_offset=0 if begin is None else begin.offset,
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
                assert batch.header.max_timestamp_ms == self.cluster.written_at_ms[value]
                self.cluster.acknowledged.append(value)
            if value in self.doubled:
                self.append([b"again " + value])

    def read_snapshot(self, position: LogPosition, path: str) -> list[bytes]:
        if self.cluster.rejections > 0:
            self.cluster.rejections -= 1
            raise ValueError("it is damaged")
        self.loaded.append(position.offset)
        batches = [b for b in iter_batches(read_file(self.disk, path)) if not b.header.is_control]
        return [record.value or b"" for batch in batches for record in batch.records()]

    def load_snapshot(self, state: list[bytes]) -> None:
        self.committed = state

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
    """`wall_ms` is the wall clock of a node, which a test may set; by default all nodes have the same
    time."""

    def __init__(
        self,
        seed: int,
        *,
        voters: int = 3,
        wall_ms: Callable[[int, int], int] = lambda now_ms, node_id: now_ms,
    ) -> None:
        self.rng = random.Random(seed)
        self._wall_ms = wall_ms
        self.written_at_ms: dict[bytes, int] = {}
        self.now_ms = 1000
        self.network: deque[Callable[[], None]] = deque()
        self.callers: dict[int, tuple[int, int]] = {}
        self.acknowledged: list[bytes] = []
        self.away: int | None = None
        self.last_key = self.written = self.reads = self.crashes = self.rejections = 0
        self.disks = {at: FaultyDisk(random.Random(seed * 10 + at)) for at in range(voters)}
        self.nodes: dict[int, Replica] = {}
        for node_id, disk in self.disks.items():
            raft.create_directory(disk, DIRECTORY, cluster_id="c", node_id=node_id, rng=self.rng)
            disk.sync_directory("/")
            self.begin(node_id)

    def wall_ms(self, node_id: int) -> int:
        return self._wall_ms(self.now_ms, node_id)

    def begin(self, node_id: int) -> None:
        """Opening can fail at any operation: the machine then starts once more."""
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
        """A step during which a stopped node stays down."""
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
        for node_id in self.disks:
            if node_id not in self.nodes:
                if node_id == self.away:
                    continue
                if rng.random() < 0.1 or not faults:
                    self.begin(node_id)
            elif self.nodes[node_id].wait_ms() == 0:
                self.input(node_id, Replica.tick)
        if faults and rng.random() < 0.02:
            self.disks[rng.choice(list(self.disks))].crash_after = rng.randint(1, 12)
        leaders = [at for at, node in self.nodes.items() if node.core.is_leader]
        if leaders and rng.random() < 0.3:
            self.input(rng.choice(leaders), self.write if rng.random() < 0.7 else self.read)

    def write(self, node: Replica) -> None:
        self.written += 1
        value = b"%d" % self.written
        node.waiting[node.core.log_end_offset] = value
        self.written_at_ms[value] = self.wall_ms(node.core.node_id)
        node.append([value])

    def read(self, node: Replica) -> None:
        self.last_key += 1
        node.reads[self.last_key] = len(self.acknowledged)
        node.read(self.last_key)

    def check(self) -> None:
        logs = sorted((node.committed for node in self.nodes.values()), key=len)
        for shorter, longer in itertools.pairwise(logs):
            assert longer[: len(shorter)] == shorter, "two replicas applied different records"


def heal(cluster: Cluster) -> None:
    """No more faults: all nodes return, writes continue, and nothing acknowledged is missing or
    duplicated."""
    for disk in cluster.disks.values():
        disk.crash_after = None
    before, steps = len(cluster.acknowledged), 0
    while len(cluster.nodes) < len(cluster.disks) or len(cluster.acknowledged) < before + 10:
        cluster.step(faults=False)
        steps += 1
        assert steps < 10 * STEPS, "no progress after healing"
    cluster.check()
    longest = max((node.committed for node in cluster.nodes.values()), key=len)
    assert set(cluster.acknowledged) <= set(longest)
    assert len(set(longest)) == len(longest)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("voters", [3, 5])
def test_nothing_acknowledged_is_lost(seed: int, voters: int) -> None:
    cluster = Cluster(seed, voters=voters)
    for _ in range(STEPS):
        cluster.step(faults=True)
        cluster.check()
    assert cluster.crashes > 0
    heal(cluster)
    while cluster.reads == 0:
        cluster.step(faults=False)
    for node_id, node in cluster.nodes.items():
        node.store.close(clean=False)  # a kill: the leader's notes include what its clients received
        known = load_known(cluster.disks[node_id], f"{DIRECTORY}/__cluster_metadata-0")
        assert known.position == node.core.state.log.noted
        assert known.position.offset > 0
        assert bool(known.acknowledged) == bool(node.core.state.acknowledged)
    assert any(node.core.state.acknowledged for node in cluster.nodes.values())


def test_power_may_fail_at_any_operation_of_a_disk() -> None:
    """One short history, and one voter that loses power at its first operation, its second, and so on,
    through elections, appends, syncs, notes and a snapshot."""
    sound = short_history(crash_after=None)
    assert sound.crashes == 0 and sound.nodes[0].core.log_start_offset > 0
    operations = sound.disks[0].operations
    assert operations > 100
    for crash_after in range(operations):
        crashed = short_history(crash_after=crash_after)
        assert crashed.crashes == 1, f"no power lost at operation {crash_after}"
        heal(crashed)


def short_history(*, crash_after: int | None) -> Cluster:
    """300 steps without any fault but this one. In the course of them, voter 0 writes a snapshot and trims
    its log."""
    cluster = Cluster(21)
    cluster.disks[0].operations, cluster.disks[0].crash_after = 0, crash_after
    for step in range(300):
        cluster.step(faults=False)
        if step == 250 and 0 in cluster.nodes and cluster.nodes[0].committed:
            cluster.input(0, Replica.snapshot)
    return cluster


@pytest.mark.parametrize("voters", [3, 5])
def test_wall_clocks_that_run_backwards_change_only_timestamps(voters: int) -> None:
    """Record timestamps are the wall clock of the leader that wrote them, whatever jumps it makes
    (`on_committed` compares them). Nothing else depends on it: a history with broken clocks is otherwise the
    same."""
    histories = []
    for clock in (lambda now_ms, node_id: now_ms, falling):
        cluster = Cluster(31, voters=voters, wall_ms=clock)
        for _ in range(STEPS):
            cluster.step(faults=True)
        logs = {at: (node.committed, node.core.epochs.entries) for at, node in cluster.nodes.items()}
        histories.append((cluster.acknowledged, logs, cluster.crashes, cluster.now_ms))
        times_ms = [cluster.written_at_ms[value] for value in cluster.acknowledged]
        assert (times_ms == sorted(times_ms)) == (clock is not falling)
    assert histories[0] == histories[1]
    assert len(histories[0][0]) > 20


def falling(now_ms: int, node_id: int) -> int:
    """Each node has another clock: it runs backwards, and every 50 ms it jumps ahead or back by a day."""
    return 10**12 - 3 * now_ms + (node_id + now_ms // 50) % 3 * 86_400_000


def test_a_follower_refuses_to_append() -> None:
    cluster = Cluster(99)
    while not any(node.core.is_leader for node in cluster.nodes.values()):
        cluster.step(faults=False)
    follower = next(node for node in cluster.nodes.values() if not node.core.is_leader)
    with pytest.raises(RaftUsageError, match="only the leader appends"):
        follower.append([b"x"])
    heal(cluster)


def led(seed: int) -> tuple[Cluster, Replica]:
    cluster = Cluster(seed)
    while not any(node.core.is_leader for node in cluster.nodes.values()):
        cluster.step(faults=False)
    return cluster, next(node for node in cluster.nodes.values() if node.core.is_leader)


def test_nothing_applied_is_no_snapshot() -> None:
    (node, *_) = Cluster(6).nodes.values()
    with pytest.raises(RaftUsageError, match="between inputs"):
        node.write_snapshot([])


class Snapshotting(Replica):
    """Tries to write a snapshot from a hook."""

    def on_committed(self, batches: raft.Batches) -> None:
        super().on_committed(batches)
        with pytest.raises(RaftUsageError, match="between inputs"):
            self.snapshot()


def test_a_hook_may_write_no_snapshot() -> None:
    cluster, leader = led(5)
    leader.__class__ = Snapshotting
    while len(leader.committed) < 5:
        cluster.step(faults=False)
    assert leader.store.latest_snapshot() is None


def test_a_hook_may_append() -> None:
    cluster, leader = led(7)
    leader.doubled = {b"one"}
    offset = leader.append([b"one"])
    leader.waiting[offset], cluster.written_at_ms[b"one"] = b"one", cluster.now_ms
    for _ in range(300):
        cluster.step(faults=False)
    assert leader.committed.count(b"again one") == 1
    assert leader.committed.index(b"again one") > leader.committed.index(b"one")


class Counting(raft.BlockingDriver):
    """A single voter: a record is committed as soon as it is synced, and causes the next one, up to ten."""

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


@pytest.mark.parametrize("rejections", [0, 2])
def test_a_snapshot_brings_back_who_was_away(rejections: int) -> None:
    """A snapshot that its owner finds damaged is fetched again."""
    cluster, leader = led(8)
    away = next(at for at in cluster.nodes if at != leader.core.node_id)
    stopped = cluster.nodes.pop(away)
    stopped.store.close()
    for _ in range(600):
        cluster.step_without(away)
    assert leader.snapshot().offset == leader.applied_offset
    assert leader.core.log_start_offset > stopped.applied_offset
    cluster.begin(away)
    cluster.rejections = rejections
    for _ in range(600 * (1 + rejections)):
        cluster.step(faults=False)
    cluster.check()
    back = cluster.nodes[away]
    assert cluster.rejections == 0 and len(back.loaded) == 1
    assert back.applied_offset >= leader.core.log_start_offset
    assert set(cluster.acknowledged) <= set(max((n.committed for n in cluster.nodes.values()), key=len))


def test_a_replica_that_failed_takes_no_further_input() -> None:
    cluster, leader = led(9)
    cluster.disks[leader.core.node_id].crash_after = 1
    with pytest.raises(PowerLossError):
        leader.append([b"x"])
    with pytest.raises(RaftUsageError, match="restart the process"):
        leader.tick()

"""A quorum on `BlockingDriver` that grows from one voter to three and shrinks to two others, on faulty disks.

One node is formatted as the only voter, the others observe until they are added. Snapshots trim the log, and
after every change all nodes lose power.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from metaquorum import raft
from metaquorum.raft.messages import AddVoterRequest, RaftError, RemoveVoterRequest, VoterChangeResponse
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.batches.encode import encode_batch
from metaquorum.storage.disk.interface import read_file
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk

DIRECTORY = "/meta"
CONFIG = raft.RaftConfig(bootstrap_ids=(-1,))
FIRST = 1


def endpoints(node_id: int) -> tuple[raft.Endpoint, ...]:
    return (raft.Endpoint("CONTROLLER", f"host{node_id}", 9093),)


class Replica(raft.BlockingDriver):
    def __init__(self, quorum: Quorum, node_id: int) -> None:
        self.quorum, self.node_id, self.disk = quorum, node_id, quorum.disks[node_id]
        self.values: list[bytes] = []
        store = raft.ReplicaStore.open(self.disk, DIRECTORY, LogConfig(segment_bytes=300), retention_bytes=1)
        newest = store.latest_snapshot()
        if newest is not None and newest.offset:
            self.load_snapshot(self.read_snapshot(newest, store.snapshot_path(newest)))
        super().__init__(
            store,
            (),
            CONFIG,
            rng=random.Random(quorum.rng.random()),
            now_ms=lambda: quorum.now_ms,
            wall_ms=lambda: quorum.now_ms,
            applied_offset=0 if newest is None else newest.offset,
            endpoints=endpoints(node_id),
        )

    def send(self, to: int, correlation_id: int, request: raft.RaftRequest, timeout_ms: int) -> None:
        assert to == -1 or self.core.endpoints_of(to) == endpoints(to)
        key = self.quorum.key()
        self.quorum.callers[key] = (self.node_id, to, correlation_id)
        target = FIRST if to == -1 else to
        self.quorum.input(target, lambda node: node.on_request(key, request))

    def respond(self, key: int, response: raft.RaftResponse) -> None:
        if key not in self.quorum.callers:
            self.quorum.answers[key] = response
            return
        caller, asked, correlation_id = self.quorum.callers.pop(key)
        self.quorum.input(caller, lambda node: node.on_response(asked, correlation_id, response))

    def on_committed(self, batches: raft.Batches) -> None:
        for batch in batches.split():
            if not batch.header.is_control:
                self.values += [record.value or b"" for record in batch.records()]

    def read_snapshot(self, position: LogPosition, path: str) -> list[bytes]:
        batches = [one for one in iter_batches(read_file(self.disk, path)) if not one.header.is_control]
        return [record.value or b"" for batch in batches for record in batch.records()]

    def load_snapshot(self, state: list[bytes]) -> None:
        self.values = state

    def snapshot(self) -> None:
        self.write_snapshot([encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=1, values=self.values)])


class Quorum:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1000
        self.network: deque[tuple[int, Callable[[Replica], None]]] = deque()
        self.callers: dict[int, tuple[int, int, int]] = {}
        self.answers: dict[int, raft.RaftResponse] = {}
        """To voter changes, which are not requests of a node."""
        self.disks = {node_id: FaultyDisk(random.Random(seed + node_id)) for node_id in (1, 2, 3, 4)}
        self.nodes: dict[int, Replica] = {}
        self.last_key = 0
        for node_id, disk in self.disks.items():
            first = endpoints(node_id) if node_id == FIRST else ()
            raft.create_directory(
                disk, DIRECTORY, cluster_id="c", node_id=node_id, rng=self.rng, endpoints=first
            )
            disk.sync_directory("/")
        self.begin()

    def begin(self) -> None:
        for node_id in self.disks:
            self.nodes[node_id] = Replica(self, node_id)
            self.nodes[node_id].start()

    def lose_power(self) -> None:
        self.network.clear()
        self.callers.clear()
        self.disks = {node_id: disk.crash() for node_id, disk in self.disks.items()}
        self.begin()

    def key(self) -> int:
        self.last_key += 1
        return self.last_key

    def input(self, node_id: int, what: Callable[[Replica], None]) -> None:
        self.network.append((node_id, what))

    def run(self, until: Callable[[], bool]) -> None:
        for _ in range(20_000):
            if until():
                return
            if self.network:
                node_id, what = self.network.popleft()
                what(self.nodes[node_id])
                continue
            self.now_ms += 5
            for node in self.nodes.values():
                if node.wait_ms() == 0:
                    node.tick()
        raise AssertionError([(node.core.role, str(node.core.voters)) for node in self.nodes.values()])

    def leader(self) -> Replica:
        def leaders() -> list[Replica]:
            return [node for node in self.nodes.values() if node.core.is_leader]

        self.run(
            lambda: any(node.core.high_watermark > (node.core.epoch_start_offset or 0) for node in leaders())
        )
        return max(leaders(), key=lambda node: node.core.epoch)

    def write(self, value: bytes) -> None:
        self.leader().append([value])
        self.run(lambda: all(value in node.values for node in self.nodes.values()))

    def change(self, request: Callable[[], raft.RaftRequest]) -> None:
        """Repeats the request until it succeeds, as a tool does."""
        while True:
            self.answers.clear()
            self.leader().on_request(self.key(), request())
            self.run(lambda: bool(self.answers))
            (answer,) = self.answers.values()
            assert isinstance(answer, VoterChangeResponse)
            if answer.error is RaftError.NONE:
                return
            assert answer.error is RaftError.REQUEST_TIMED_OUT, answer.message
            later_ms = self.now_ms + 100
            self.run(lambda later_ms=later_ms: self.now_ms >= later_ms)  # type: ignore[misc]

    def add(self, node_id: int) -> None:
        identity = self.nodes[node_id].store.raft_identity
        voter = raft.VoterNode(
            node_id=node_id,
            directory_id=identity.directory_id,
            endpoints=endpoints(node_id),
            versions=raft.VersionRange(0, 1),
        )
        self.change(lambda: AddVoterRequest(cluster_id="c", voter=voter, timeout_ms=5000))

    def remove(self, node_id: int) -> None:
        directory_id = self.nodes[node_id].store.raft_identity.directory_id
        self.change(
            lambda: RemoveVoterRequest(
                cluster_id="c", voter_id=node_id, voter_directory_id=directory_id, timeout_ms=5000
            )
        )


def test_a_quorum_grows_and_shrinks_and_loses_nothing() -> None:
    quorum, written = Quorum(7), []
    steps = [
        lambda: quorum.add(2),
        lambda: quorum.add(3),
        lambda: quorum.remove(FIRST),
        lambda: quorum.add(4),
        lambda: quorum.remove(2),
    ]
    for number, step in enumerate(steps):
        written.append(b"value %d" % number)
        quorum.write(written[-1])
        step()
        if number % 2:
            for node in quorum.nodes.values():
                node.snapshot()
        quorum.lose_power()
        quorum.write(b"after %d" % number)
        written.append(b"after %d" % number)
        assert all(node.values == written for node in quorum.nodes.values())
    assert {tuple(node.core.voters) for node in quorum.nodes.values()} == {(3, 4)}
    assert all(node.store.log.start_offset > 0 for node in quorum.nodes.values())


def test_an_emptied_disk_comes_back_as_an_observer_by_snapshot() -> None:
    quorum = Quorum(8)
    for node_id in (2, 3):
        quorum.add(node_id)
    quorum.write(b"before")
    for node in quorum.nodes.values():
        node.snapshot()
    lost = quorum.nodes[3].store.raft_identity.directory_id
    quorum.disks[3] = FaultyDisk(random.Random(99))
    raft.create_directory(quorum.disks[3], DIRECTORY, cluster_id="c", node_id=3, rng=quorum.rng)
    quorum.disks[3].sync_directory("/")
    quorum.lose_power()
    quorum.write(b"without it")
    assert quorum.nodes[3].core.is_observer and quorum.nodes[3].core.kraft_version == 1
    quorum.change(
        lambda: RemoveVoterRequest(cluster_id="c", voter_id=3, voter_directory_id=lost, timeout_ms=5000)
    )
    quorum.add(3)
    quorum.write(b"with it")
    assert not quorum.nodes[3].core.is_observer
    assert quorum.nodes[3].values == [b"before", b"without it", b"with it"]

"""A broker with two real log directories on one simulated disk, and a replica that moves between them.

The controller commits what it is asked for. Work is carried out one item at a time, so that a test can have
the power fail between any two changes of the disk: each directory does its own in order, reads and syncs go
on beside it, and who is next is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, get_args

from metaquorum.broker.channel import SendToController
from metaquorum.broker.replica.disk_work import AppendPartition, DirectoryFailed, DiskWork, ReadPartition
from metaquorum.broker.replica.events import (
    DataEffect,
    DataEvent,
    DataRequestArrived,
    DataRespond,
)
from metaquorum.broker.replica.manager import ReplicaManager
from metaquorum.broker.replica.store.parts import ExpectedIdentity
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import (
    AlterReplicaLogDirsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DescribeLogDirsRequest,
    LogDirDescription,
    PartitionKey,
    ProducePartition,
    ProduceRequest,
    WantedDirectory,
)
from metaquorum.metadata.requests.partitions import AssignReplicasToDirsRequest
from metaquorum.raft.effects import Warn
from metaquorum.storage.batches.batch import Batches, iter_batches
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.controllers import channel, reported
from tests.unit.broker.manager_world import ME, A, B, Cluster, accepted
from tests.unit.broker.replica_world import WALL_MS, batch

PATHS = {A: "/data/a", B: "/data/b"}
CHUNK_BYTES = 200
STEPS_MAX = 10_000


class MovingWorld:
    """Topic t has one partition and one replica, in directory A at first. `acked`: what a producer was told
    of, in order. `events`: what was done, for looking at."""

    def __init__(
        self,
        *,
        leader: int = ME,
        replicas: tuple[int, ...] = (ME,),
        seed: int = 1,
        disk: type[FaultyDisk] = FaultyDisk,
    ) -> None:
        self.disk = disk(random.Random(seed))
        self.rng = random.Random(seed)
        for directory_id, path in PATHS.items():
            self.disk.make_directory(path)
            identity = MetaProperties(cluster_id="c", node_id=ME, directory_id=directory_id)
            store_meta_properties(self.disk, path, identity)
        self.disk.sync_directory("/")
        self.disk.sync_directory("/data")
        self.cluster = Cluster()
        self.key: PartitionKey = self.cluster.topic("t", place=A, leader=leader, replicas=replicas)
        self.acked: list[bytes] = []
        self.sent = 0
        self.now_ms = 1_000
        self.queue: list[DataEffect] = []
        self.unsynced: set[bytes] = set()
        self.answers: dict[object, Any] = {}
        self.warnings: list[str] = []
        self.asked: list[SendToController] = []
        self.stores: dict[bytes, DirectoryStore] = {}
        self.image = MetadataImage()
        self.commits = True
        self.start()

    # ---- the process -----------------------------------------------------------------------------

    def start(self) -> None:
        self.queue, self.asked, self.stores = [], [], {}
        self.unsynced = set()
        found = []
        for directory_id, path in PATHS.items():
            store, each = DirectoryStore.open(
                self.disk,
                path,
                ExpectedIdentity(cluster_id="c", node_id=ME, directory_id=directory_id),
                self.warnings.append,
                rng=random.Random(3),
            )
            found.append(each)
            if store is not None:
                self.stores[directory_id] = store
        self.image = MetadataImage()
        config = ReplicaConfig(broker_id=ME, replica_fetch_max_bytes=CHUNK_BYTES)
        self.manager = ReplicaManager(
            config, found, channel=channel(), rng=random.Random(7), now_ms=self.now_ms
        )
        self.note(self.manager.start(now_ms=self.now_ms, wall_ms=WALL_MS))
        self.publish()

    def restart(self, *, power_loss: bool = True) -> None:
        self.disk = self.disk.crash() if power_loss else self.disk.kill()
        self.start()

    def publish(self) -> None:
        image, previous = self.cluster.image(), self.image
        self.image = image
        effects = self.manager.publish(
            image, previous, broker_epoch=100 + ME, now_ms=self.now_ms, wall_ms=WALL_MS
        )
        self.note(effects)

    def do(self, event: DataEvent) -> None:
        self.note(self.manager.handle(event, serving=True, now_ms=self.now_ms, wall_ms=WALL_MS))

    def tick(self, after_ms: int) -> None:
        self.now_ms += after_ms
        self.note(self.manager.tick(now_ms=self.now_ms, wall_ms=WALL_MS))

    def note(self, effects: list[DataEffect]) -> None:
        for each in effects:
            if isinstance(each, get_args(DiskWork)):
                self.queue.append(each)
            elif isinstance(each, SendToController):
                self.asked.append(each)
            elif isinstance(each, DataRespond):
                self._answered(each.key, each.response)
            elif isinstance(each, Warn):
                self.warnings.append(each.message)

    def _answered(self, key: object, response: Any) -> None:
        self.answers[key] = response
        if isinstance(key, bytes) and response.results[0].error is ErrorCode.NONE:
            self.acked.append(key)

    # ---- step by step ----------------------------------------------------------------------------

    def step(self) -> bool:
        """Work of a disk, or what the controller is asked; False: nothing is left to do."""
        heads: dict[object, Any] = {}
        for work in self.queue:
            where = getattr(work, "directory_id", b"")
            heads.setdefault((where, isinstance(work, ReadPartition)), work)
        heads |= dict.fromkeys(sorted(self.unsynced))
        if heads:
            chosen = self.rng.choice(list(heads))
            for event in self._sync(chosen) if isinstance(chosen, bytes) else self._work(heads[chosen]):
                self.do(event)
            return True
        if self.asked and self.commits:
            self.commit()
            return True
        return False

    def commit(self) -> None:
        """The controller does what it was asked for first."""
        if self.asked:
            asked = self.asked.pop(0)
            assert isinstance(asked.request, AssignReplicasToDirsRequest), asked
            for each in asked.request.assignments:
                self.cluster.change((each.topic_id, each.partition), place=each.directory_id)
            self.do(reported(asked, accepted(asked.request)))
            self.publish()

    def _work(self, work: Any) -> list[DataEvent]:
        self.queue.remove(work)
        store = self.stores.get(work.directory_id)
        if store is not None and isinstance(work, AppendPartition) and work.sync:
            self.unsynced.add(work.directory_id)
        return [] if store is None else store.execute(work)

    def _sync(self, directory_id: bytes) -> list[DataEvent]:
        self.unsynced.discard(directory_id)
        sync = self.stores[directory_id].prepare_sync() if directory_id in self.stores else None
        if sync is None:
            return []
        sync.run()
        return [self.stores[directory_id].sync_completed(sync)]

    def steps(self) -> Iterator[None]:
        """One after another, until nothing is left to do."""
        for _ in range(STEPS_MAX):
            if not self.step():
                return
            yield
        raise AssertionError("it does not come to rest")

    def settle(self) -> None:
        for _ in self.steps():
            pass

    def until(self, reached: Callable[[], object]) -> None:
        """Steps as far as that."""
        steps = self.steps()
        while not reached():
            assert next(steps, self) is None, "it comes to rest before that"

    # ---- clients ---------------------------------------------------------------------------------

    def produce(self) -> None:
        self.sent += 1
        value = b"value-%d" % self.sent
        part = ProducePartition(key=self.key, batch=Batches.arrived(batch(value + b"." * 60)))
        self.do(
            DataRequestArrived(
                key=value, request=ProduceRequest(acks=-1, timeout_ms=9_000, partitions=(part,))
            )
        )

    def delete(self, offset: int) -> None:
        asked = DeleteRecordsPartition(key=self.key, offset=offset)
        request = DeleteRecordsRequest(partitions=(asked,), timeout_ms=9_000)
        self.do(DataRequestArrived(key="delete", request=request))

    def move(self, path: str = "/data/b", topic: str = "t", partition: int = 0) -> ErrorCode:
        wanted = WantedDirectory(path=path, topic=topic, partition=partition)
        self.do(DataRequestArrived(key="move", request=AlterReplicaLogDirsRequest(wanted=(wanted,))))
        answer: ErrorCode = self.answers["move"].errors[0]
        return answer

    def directories(self) -> dict[str, LogDirDescription]:
        self.do(DataRequestArrived(key="describe", request=DescribeLogDirsRequest()))
        return {each.path: each for each in self.answers["describe"].directories}

    def fail(self, directory_id: bytes) -> None:
        self.queue = [each for each in self.queue if getattr(each, "directory_id", b"") != directory_id]
        self.stores.pop(directory_id).abandon()
        self.do(DirectoryFailed(directory_id=directory_id, reason="EIO"))

    # ---- what must be so -------------------------------------------------------------------------

    def names(self, topic: str = "t") -> dict[str, list[str]]:
        """The directories of a topic's replicas, but those that are removed."""
        return {
            path: sorted(
                name.split(".")[0] + name[-7:] if name.endswith("-future") else name
                for name in self.disk.list_directory(path)
                if name.startswith(f"{topic}-") and not name.endswith("-delete")
            )
            for path in PATHS.values()
        }

    def stored(self) -> list[bytes]:
        """The values in the log of the replica that runs."""
        partition = self.manager.partitions[self.key]
        store = self.stores[partition.directory_id]
        found: list[bytes] = []
        at = partition.start_offset
        while at < partition.end_offset:
            (event,) = store.execute(
                ReadPartition(
                    token=0,
                    directory_id=partition.directory_id,
                    key=self.key,
                    incarnation=partition.incarnation,
                    from_offset=at,
                    to_offset=partition.end_offset,
                    max_bytes=10_000,
                )
            )
            data = getattr(event, "data", None)
            assert data, event
            for one in iter_batches(data, expected_offset=at):
                found += [(record.value or b"").rstrip(b".") for record in one.records()]
                at = one.header.next_offset
        return found

    def check(self) -> None:
        """Nothing that a producer was told of is missing, and what the log names is what runs."""
        stored = self.stored()
        kept = [value for value in stored if value in set(self.acked)]
        assert kept == self.acked, (stored, self.acked)
        assert len(set(stored)) == len(stored), stored
        info = self.image.topics.partition(*self.key)
        assert info is not None
        assert info.directory_of(ME) == self.manager.partitions[self.key].directory_id

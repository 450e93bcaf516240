"""A replica manager in a cluster that a test writes down: images are edited, disks and peers wait to be told.

Nothing happens by itself. `Host.do` and `Host.publish` return the effects of one input, exactly; work for
disks is kept until `work` carries it out.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, get_args

from metaquorum.broker.channel import SendToController
from metaquorum.broker.replica import disk_work
from metaquorum.broker.replica.events import (
    DataEffect,
    DataEvent,
    DataRequestArrived,
    DataRespond,
)
from metaquorum.broker.replica.manager import ReplicaManager
from metaquorum.broker.replica.partition.values import ReadPlan
from metaquorum.broker.replica.requests.own_logs import NewLogUser
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import DEFAULT_METADATA_VERSION
from metaquorum.metadata.image import (
    METADATA_VERSION,
    UNASSIGNED,
    BrokerRegistration,
    ConfigResource,
    ImageBuilder,
    MetadataImage,
    NodeEndpoint,
    PartitionInfo,
)
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import DataRequest, PartitionKey
from metaquorum.metadata.requests.partitions import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignmentResult,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from tests.controllers import channel, reported
from tests.unit.broker.replica_world import WALL_MS, ListDisk

ME = 1
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
"""Directories of the broker under test; the others' are of no interest."""
ELSEWHERE = b"e" * 16
T = TypeVar("T")


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def key_of(name: str, index: int = 0) -> PartitionKey:
    return topic_id(name), index


class Cluster:
    """The metadata log as a test writes it: brokers 1 to 3 with epochs 101 to 103, and topics."""

    def __init__(self, level: int = DEFAULT_METADATA_VERSION) -> None:
        self._builder = ImageBuilder(MetadataImage())
        self._builder.set_feature(METADATA_VERSION, level)
        for broker_id in (1, 2, 3):
            self.broker(broker_id)

    def broker(
        self, broker_id: int, *, epoch: int | None = None, fenced: bool = False, rack: str | None = None
    ) -> None:
        self._builder.put_broker(
            BrokerRegistration(
                broker_id=broker_id,
                epoch=100 + broker_id if epoch is None else epoch,
                incarnation_id=bytes([broker_id]) * 16,
                endpoints=(NodeEndpoint("PLAINTEXT", f"host{broker_id}", 9000 + broker_id, 0),),
                fenced=fenced,
                rack=rack,
            )
        )

    def topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        place: bytes = UNASSIGNED,
        leader: int = ME,
        replicas: Sequence[int] = (1, 2, 3),
        isr: Sequence[int] | None = None,
        as_id: bytes | None = None,
    ) -> PartitionKey:
        """A topic whose replica on the broker under test lies in `place`; the key of its first partition."""
        identity = as_id or topic_id(name)
        self._builder.topics.add_topic(identity, name)
        for index in range(partitions):
            self._put(
                PartitionInfo(
                    topic_id=identity,
                    index=index,
                    replicas=tuple(replicas),
                    isr=tuple(replicas if isr is None else isr),
                    leader=leader,
                    leader_epoch=0,
                    partition_epoch=0,
                    leader_recovery_state=0,
                    directories=tuple([place if each == ME else ELSEWHERE for each in replicas]),
                )
            )
        return identity, 0

    def change(self, key: PartitionKey, *, place: bytes | None = None, **fields: Any) -> None:
        """A record that changes a partition; a leader that is named gets the next leader epoch."""
        info = self._builder.topics.partitions([key])[0]
        assert info is not None
        if "leader" in fields:
            fields["leader_epoch"] = info.leader_epoch + 1
        info = replace_info(info, partition_epoch=info.partition_epoch + 1, **fields)
        if place is not None or len(info.directories) != len(info.replicas):
            mine = (
                info.directory_of(ME)
                if place is None and ME in info.replicas[: len(info.directories)]
                else place
            )
            directories = tuple([mine or UNASSIGNED if each == ME else ELSEWHERE for each in info.replicas])
            info = replace_info(info, directories=directories)
        self._put(info)

    def delete(self, key: PartitionKey) -> None:
        entry = self._builder.topics.by_id.get(key[0])
        assert entry is not None
        self._builder.topics.remove_topic(entry)

    def configure(self, resource: ConfigResource, key: str, value: str | None) -> None:
        self._builder.set_config(resource, key, value)

    def image(self) -> MetadataImage:
        self._builder.offset += 1
        return self._builder.freeze()

    def _put(self, info: PartitionInfo) -> None:
        entry = self._builder.topics.by_id.get(info.topic_id)
        assert entry is not None
        self._builder.topics.put_partition(entry, info)


def replace_info(info: PartitionInfo, **fields: Any) -> PartitionInfo:
    values = {name: getattr(info, name) for name in info.__struct_fields__}
    return PartitionInfo(**(values | fields))


def found(
    directory_id: bytes | None,
    replicas: Iterable[tuple[str, int]] = (),
    *,
    problem: str | None = None,
    end: int = 0,
    usable_bytes: int = -1,
    size_bytes: int = 0,
    as_id: bytes | None = None,
    damaged: Iterable[str] = (),
) -> disk_work.FoundDirectory:
    """A directory at /data/<letter> with replicas of (topic, index), and `damaged` ones of topics."""
    letter = "x" if directory_id is None else chr(directory_id[0])
    return disk_work.FoundDirectory(
        path=f"/data/{letter}",
        directory_id=directory_id,
        problem=problem,
        usable_bytes=usable_bytes,
        damaged=tuple(
            disk_work.DamagedReplica(
                key=key_of(name), topic=name, problem=f"{name}.log is damaged", size_bytes=50
            )
            for name in damaged
        ),
        replicas=tuple(
            disk_work.FoundReplica(
                key=(as_id or topic_id(name), index),
                topic=name,
                incarnation=1,
                log=disk_work.ReplicaLog(end_offset=end, size_bytes=size_bytes),
            )
            for name, index in replicas
        ),
    )


class Host:
    """The broker under test. `directories` default: A and B, good and empty."""

    def __init__(
        self,
        cluster: Cluster,
        *directories: disk_work.FoundDirectory,
        broker_id: int = ME,
        metadata_directory: bytes | None = None,
        new_user: NewLogUser | None = None,
        **config: Any,
    ) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.now_ms = 1_000
        self.serving = True
        self.image = MetadataImage()
        self.disks: dict[tuple[bytes, PartitionKey], ListDisk] = {}
        self.queue: deque[DataEffect] = deque()
        self.config = ReplicaConfig(broker_id=broker_id, **config)
        self.found = directories or (found(A), found(B))
        self.manager = ReplicaManager(
            self.config,
            self.found,
            channel=channel(),
            rng=random.Random(7),
            now_ms=self.now_ms,
            metadata_directory=metadata_directory,
            new_user=new_user,
        )
        for directory in self.found:
            for each in directory.replicas:
                self.disks[directory.directory_id or b"", each.key] = ListDisk()

    # ---- inputs ----------------------------------------------------------------------------------

    def start(self) -> list[DataEffect]:
        return self._note(self.manager.start(now_ms=self.now_ms, wall_ms=WALL_MS))

    def publish(self, broker_epoch: int | None = None) -> list[DataEffect]:
        """What the cluster's metadata says now reaches the broker."""
        image, previous = self.cluster.image(), self.image
        self.image = image
        epoch = 100 + self.broker_id if broker_epoch is None else broker_epoch
        return self._note(
            self.manager.publish(image, previous, broker_epoch=epoch, now_ms=self.now_ms, wall_ms=WALL_MS)
        )

    def do(self, event: DataEvent) -> list[DataEffect]:
        effects = self.manager.handle(event, serving=self.serving, now_ms=self.now_ms, wall_ms=WALL_MS)
        return self._note(effects)

    def ask(self, request: DataRequest, key: object = "k") -> list[DataEffect]:
        return self.do(DataRequestArrived(key=key, request=request))

    def tick(self, after_ms: int = 0) -> list[DataEffect]:
        self.now_ms += after_ms
        return self._note(self.manager.tick(now_ms=self.now_ms, wall_ms=WALL_MS))

    def fail(self, directory_id: bytes, reason: str = "EIO") -> list[DataEffect]:
        self.queue = deque(
            [each for each in self.queue if getattr(each, "directory_id", b"") != directory_id]
        )
        return self.do(disk_work.DirectoryFailed(directory_id=directory_id, reason=reason))

    def answer_controller(self, effects: Iterable[DataEffect]) -> list[DataEffect]:
        """Accepts what the effects ask the controller for."""
        out: list[DataEffect] = []
        for each in effects:
            if isinstance(each, SendToController):
                out += self.do(reported(each, accepted(each.request)))
        return out

    # ---- disks -----------------------------------------------------------------------------------

    def _note(self, effects: list[DataEffect]) -> list[DataEffect]:
        self.queue.extend(each for each in effects if isinstance(each, get_args(disk_work.DiskWork)))
        return effects

    def work(self) -> list[DataEffect]:
        """The disks carry out everything, and what follows from that; effects that are not for disks."""
        out: list[DataEffect] = []
        while self.queue:
            for event in self._carry_out(self.queue.popleft()):
                out += [each for each in self.do(event) if not isinstance(each, get_args(disk_work.DiskWork))]
        return out

    def _carry_out(self, work: Any) -> list[DataEvent]:
        where = (work.directory_id, getattr(work, "key", (b"", 0)))
        match work:
            case disk_work.CreateReplica(directory_id=directory_id, key=key, incarnation=incarnation):
                self.disks[where] = ListDisk()
                return [disk_work.ReplicaCreated(directory_id=directory_id, key=key, incarnation=incarnation)]
            case disk_work.PromoteReplica(directory_id=directory_id, key=key, incarnation=incarnation):
                log = self.disks[where].opened()
                return [
                    disk_work.ReplicaPromoted(
                        directory_id=directory_id, key=key, incarnation=incarnation, log=log
                    )
                ]
            case disk_work.RemoveReplica(directory_id=directory_id, key=key, incarnation=incarnation):
                self.disks.pop(where, None)
                return [disk_work.ReplicaRemoved(directory_id=directory_id, key=key, incarnation=incarnation)]
            case disk_work.AppendPartition():
                return self._append(work, self.disks[where])
            case disk_work.CutPartition(directory_id=directory_id, key=key, incarnation=incarnation):
                disk = self.disks[where]
                if work.start_over:
                    disk.batches, disk.synced, disk.start = [], 0, work.end_offset
                disk.cut(work.end_offset)
                return [
                    disk_work.LogCut(
                        directory_id=directory_id, key=key, incarnation=incarnation, log=disk.opened()
                    )
                ]
            case disk_work.ReadPartition():
                plan = ReadPlan(
                    key=work.key,
                    from_offset=work.from_offset,
                    to_offset=work.to_offset,
                    max_bytes=work.max_bytes,
                    high_watermark=0,
                    last_stable_offset=0,
                    log_start_offset=0,
                    leader_epoch=0,
                )
                return [disk_work.PartitionRead(token=work.token, data=self.disks[where].read(plan))]
            case _:
                return []

    def _append(self, work: disk_work.AppendPartition, disk: ListDisk) -> list[DataEvent]:
        disk.append(work.batches.data)
        appended = disk_work.LogAppended(
            directory_id=work.directory_id,
            key=work.key,
            incarnation=work.incarnation,
            end_offset=disk.end,
            size_bytes=disk.size_bytes,
        )
        ends = ((work.key, work.incarnation, disk.end, disk.size_bytes),)
        synced = disk_work.LogsSynced(directory_id=work.directory_id, ends=ends)
        return [appended, synced] if work.sync else [appended]


def of_kind(effects: Iterable[DataEffect], kind: type[T]) -> list[T]:
    return [each for each in effects if isinstance(each, kind)]


def only(effects: Iterable[DataEffect], kind: type[T]) -> T:
    """The one effect of a kind."""
    chosen = of_kind(effects, kind)
    assert len(chosen) == 1, chosen
    return chosen[0]


def answer_to(effects: Iterable[DataEffect], key: object = "k") -> Any:
    """The answer to a request."""
    chosen = [each.response for each in of_kind(effects, DataRespond) if each.key == key]
    assert len(chosen) == 1, chosen
    return chosen[0]


def accepted(request: Any) -> AlterPartitionResponse | AssignReplicasToDirsResponse:
    match request:
        case AssignReplicasToDirsRequest(assignments=assignments):
            return AssignReplicasToDirsResponse(
                results=tuple(
                    AssignmentResult(
                        directory_id=each.directory_id,
                        topic_id=each.topic_id,
                        partition=each.partition,
                        error=ErrorCode.NONE,
                    )
                    for each in assignments
                )
            )
        case AlterPartitionRequest(partitions=partitions):
            return AlterPartitionResponse(
                results=tuple(
                    AlteredPartition(
                        topic_id=each.topic_id,
                        partition=each.partition,
                        error=ErrorCode.NONE,
                        leader=request.broker_id,
                        leader_epoch=each.leader_epoch,
                        partition_epoch=each.partition_epoch + 1,
                        isr=tuple(member.broker_id for member in each.isr),
                    )
                    for each in partitions
                )
            )
        case _:
            raise AssertionError(request)

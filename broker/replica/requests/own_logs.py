"""Partitions that this broker leads, for its own state machines: reads, and appends to all replicas in sync.

A `LogUser` decides what is stored, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from metaquorum.broker.replica.disk_work import PartitionRead, ReadPartition
from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import ProduceTicket, ReplicaRole
from metaquorum.broker.replica.requests.partitioned import Find, Produces
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.data import (
    ACKS_ALL,
    CoordinatorRequest,
    PartitionKey,
    ProducePartition,
    ProduceResult,
)
from metaquorum.raft.effects import Outbox
from metaquorum.storage.batches.batch import Batches, EndMarker
from metaquorum.storage.batches.format import BatchHeader

ReadDone = Callable[[bytes | None, str | None], None]
"""Takes whole batches, or None and, if the bytes are damaged, what is wrong with them."""


class LogBounds(NamedTuple):
    """Offsets of a log; all but `start` are exclusive ends. What is below `written` can be read."""

    start: int
    written: int
    end: int


class LogUser(Protocol):
    """A state machine of this broker that is stored in the logs of partitions that it leads (a coordinator).

    Learns of changes as they happen and acts in `settle`, at the end of every input.
    """

    def changed(self, partition: Partition, changes: int) -> None: ...

    def partition_changed(self, key: PartitionKey) -> None: ...

    def marked(self, key: PartitionKey, header: BatchHeader, marker: EndMarker) -> None:
        """A marker was appended."""
        ...

    def published(self, image: MetadataImage, previous: MetadataImage) -> None: ...

    def handle(self, key: object, request: CoordinatorRequest, *, now_ms: int, wall_ms: int) -> None: ...

    def cancel(self, key: object) -> bool: ...

    def take_waiting(self) -> list[object]: ...

    def settle(self, *, now_ms: int, wall_ms: int) -> None: ...

    def next_deadline_ms(self) -> int | None: ...


class OwnLogs:
    """See the module. Every method looks up the partition's current replica."""

    def __init__(
        self,
        find: Find,
        produces: Produces,
        next_token: Callable[[], int],
        out: Outbox[DataEffect],
    ) -> None:
        self._find = find
        self._produces = produces
        self._next_token = next_token
        self._out = out
        self._reads: dict[int, tuple[ReadPartition, ReadDone]] = {}

    def leader_epoch(self, key: PartitionKey) -> int | None:
        """The epoch in which this broker leads the partition; None if it does not."""
        found = self._leader(key)
        return None if found is None else found.leader_epoch

    def bounds(self, key: PartitionKey) -> LogBounds | None:
        found = self._leader(key)
        return None if found is None else LogBounds(found.start_offset, found.written_end, found.end_offset)

    def can_append(self, key: PartitionKey) -> bool:
        """Whether enough replicas are in sync."""
        found = self._leader(key)
        return found is not None and not found.is_under_min_isr

    def append(
        self,
        key: PartitionKey,
        epoch: int,
        records: bytes,
        ticket: ProduceTicket,
        *,
        wall_ms: int,
    ) -> ProduceResult | None:
        """Appends one batch with acks=all, as `Partition.produce`; refused in an epoch other than `epoch`."""
        leader = self._leader(key)
        if leader is None or leader.leader_epoch != epoch:
            text = f"this broker does not lead the partition in epoch {epoch}"
            return ProduceResult(key=key, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message=text)
        part = ProducePartition(key=key, batch=Batches.arrived(records))
        return self._produces.append(leader, ticket, part, ACKS_ALL, by_coordinator=True, wall_ms=wall_ms)

    def read(
        self, key: PartitionKey, from_offset: int, to_offset: int, max_bytes: int, done: ReadDone
    ) -> None:
        """Reads whole batches; `done` is called unless the replica is removed meanwhile."""
        leader = self._leader(key)
        if leader is None:
            return
        work = ReadPartition(
            token=self._next_token(),
            directory_id=leader.directory_id,
            key=key,
            incarnation=leader.incarnation,
            from_offset=from_offset,
            to_offset=to_offset,
            max_bytes=max_bytes,
        )
        self._reads[work.token] = work, done
        self._out.append(work)

    def take_read(self, event: PartitionRead) -> bool:
        """Whether the report is on one of these reads."""
        read = self._reads.pop(event.token, None)
        if read is None:
            return False
        work, done = read
        found = self._leader(work.key)
        if found is not None and found.incarnation == work.incarnation:
            done(event.data, event.problem)
        elif found is not None and found.directory_id != work.directory_id:  # it has moved
            self.read(work.key, work.from_offset, work.to_offset, work.max_bytes, done)
        return True

    def directory_failed(self, directory_id: bytes) -> None:
        """Its reads are never reported on. What has moved is read in its new directory."""
        lost = [token for token, (work, _) in self._reads.items() if work.directory_id == directory_id]
        for token in lost:
            self.take_read(PartitionRead(token=token, data=None))

    def _leader(self, key: PartitionKey) -> Partition | None:
        found = self._find(key)
        return found if isinstance(found, Partition) and found.role is ReplicaRole.LEADER else None


NewLogUser = Callable[[OwnLogs, Outbox[DataEffect]], LogUser]

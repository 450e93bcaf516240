"""One replica on its way to another log directory of its broker (KIP-113): a copy that follows the local log.

Owns what the copy holds and the next step; it follows as a replica on another broker would, so what was
truncated here is truncated there. Knows no other move, no image and no time.
"""

from __future__ import annotations

from metaquorum.broker.replica.disk_work import (
    LogAppended,
    LogCut,
    PartitionRead,
    PromoteReplica,
    ReadPartition,
    ReplicaLog,
    ReplicaLogTrimmed,
    TrimTo,
)
from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.partition.follower import Following
from metaquorum.broker.replica.partition.local_log import LocalLog
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import FollowerStep, ReadPlan
from metaquorum.broker.replica.placement.copies import Copy
from metaquorum.metadata.node_configs.replicas import ReplicaConfig
from metaquorum.metadata.requests.data import FetchedPartition, FetchPartition, PartitionKey
from metaquorum.raft.outbox import Outbox


class ReplicaMove:
    """From the copy `source`, which is the replica, to `copy`. `leaves`: the metadata log names the new
    directory. `is_near`: the last chunk reached the end of the log at that time. `problem`: why it must
    end."""

    def __init__(self, config: ReplicaConfig, source: Copy, copy: Copy, out: Outbox[DataEffect]) -> None:
        self.source = source
        self.copy = copy
        self.leaves = False
        self.is_near = False
        self.is_promoting = False
        self.problem: str | None = None
        self._out = out
        self._read: tuple[FetchPartition, ReadPlan, int] | None = None
        self._log = LocalLog(
            key=copy.key,
            topic=copy.topic,
            directory_id=copy.directory_id,
            incarnation=copy.incarnation,
            log=copy.log or ReplicaLog(),
            counts_synced=False,
            out=out,
        )
        self._following = Following(config, self._log, leader=config.broker_id, epoch=-1)

    @property
    def key(self) -> PartitionKey:
        return self.copy.key

    @property
    def end_offset(self) -> int:
        return self._log.end

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def incarnation(self) -> int:
        return self._log.incarnation

    @property
    def waits(self) -> bool:
        """Whether it waits for a read, or for its directory."""
        return self._read is not None or self.is_promoting or self._following.position() is None

    def next_plan(self, partition: Partition, *, wall_ms: int) -> ReadPlan | None:
        """The next read, which may be empty. None if the copy is being cut first, or cannot continue."""
        self._following.epoch = max(partition.leader_epoch, partition.epochs.last_epoch)
        position = self._following.position()
        if position is None:
            return None
        found = partition.copied(position)
        if isinstance(found, ReadPlan):
            return found
        self._take(found, position, wall_ms)
        return None

    def read(self, partition: Partition, plan: ReadPlan, token: int) -> None:
        position = self._following.position()
        if position is None:
            return
        self._read = (position, plan, partition.incarnation)
        self._out.append(
            ReadPartition(
                token=token,
                directory_id=partition.directory_id,
                key=self.key,
                incarnation=partition.incarnation,
                from_offset=plan.from_offset,
                to_offset=plan.to_offset,
                max_bytes=plan.max_bytes,
            )
        )

    def take_read(self, event: PartitionRead, *, wall_ms: int) -> None:
        """The data counts unless the log was cut meanwhile."""
        read, self._read = self._read, None
        partition = self.source.partition
        if event.problem is not None:
            self.problem = event.problem
        if read is None or partition is None or event.data is None or read[2] != partition.incarnation:
            return
        position, plan, _ = read
        part = FetchedPartition(
            key=self.key,
            high_watermark=plan.high_watermark,
            log_start_offset=plan.log_start_offset,
            records=event.data,
        )
        self._take(part, position, wall_ms)
        self.is_near = self._log.end >= plan.to_offset

    def _take(self, part: FetchedPartition, position: FetchPartition, wall_ms: int) -> None:
        outcome = self._following.take(part, position, wall_ms=wall_ms)
        if outcome.step is FollowerStep.BACK_OFF:
            self.problem = outcome.message

    def log_moved(self, event: LogAppended | LogCut | ReplicaLogTrimmed) -> None:
        """The copy's directory changed its log."""
        if isinstance(event, LogAppended):
            self._log.appended(event)
        elif isinstance(event, LogCut):
            self._log.was_cut(event)
        else:
            self._log.trimmed(event)

    def promote(self, partition: Partition) -> None:
        """Everything that the replica's directory was given is in the copy. What was deleted stays
        deleted."""
        self.is_promoting = True
        where = (self.copy.directory_id, self.key, self.incarnation)
        self._out.append(
            TrimTo(
                directory_id=where[0], key=where[1], incarnation=where[2], start_offset=partition.start_offset
            )
        )
        self._out.append(PromoteReplica(directory_id=where[0], key=where[1], incarnation=where[2]))

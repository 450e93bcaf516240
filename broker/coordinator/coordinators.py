"""All coordinators of a broker: one shard per partition of an internal topic that it leads.

Pure, and part of the replica manager's inputs (`LogUser`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from metaquorum.broker.coordinator.groups.state import GroupState
from metaquorum.broker.coordinator.shard import Shard
from metaquorum.broker.coordinator.state import BatchOrigin, CoordinatorState, Now
from metaquorum.broker.coordinator.transaction import TransactionState
from metaquorum.broker.replica.deadlines import Deadlines
from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import Changes
from metaquorum.broker.replica.requests.own_logs import OwnLogs
from metaquorum.metadata.authorizer import Authorizer
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import CoordinatorConfig
from metaquorum.metadata.requests.data import CoordinatorRequest, PartitionKey
from metaquorum.raft.effects import Outbox
from metaquorum.storage.batches.batch import EndMarker
from metaquorum.storage.batches.format import BatchHeader

NewState = Callable[[int], CoordinatorState]
"""The empty state of a partition, by its index."""


class CoordinatorKind:
    """How one internal topic is coordinated. `commit_timeout_ms`: how long an answer waits for the high
    watermark before it reports that the outcome is unknown."""

    def __init__(self, new_state: NewState, *, commit_timeout_ms: int) -> None:
        self.new_state = new_state
        self.commit_timeout_ms = commit_timeout_ms


class Coordinators:
    """See the module. `kinds`: by the name of their topic."""

    def __init__(self, kinds: Mapping[str, CoordinatorKind], logs: OwnLogs, out: Outbox[DataEffect]) -> None:
        self._kinds = kinds
        self._logs = logs
        self._out = out
        self._image = MetadataImage()
        self._shards: dict[PartitionKey, Shard] = {}
        self._moved: dict[PartitionKey, str] = {}
        self._deadlines: Deadlines[PartitionKey] = Deadlines()
        self._previous: MetadataImage | None = None

    # ---- what happens ----------------------------------------------------------------------------

    def changed(self, partition: Partition, changes: int) -> None:
        """The change is handled in `settle`."""
        if partition.topic in self._kinds and changes & (Changes.ROLE | Changes.END):
            shard = self._shards.get(partition.key)
            # An active shard has read its log: only the shard itself appends to it.
            if changes & Changes.ROLE or shard is None or not shard.is_active:
                self._moved[partition.key] = partition.topic

    def partition_changed(self, key: PartitionKey) -> None:
        """The replica began or ceased to lead or follow, or was replaced."""
        shard = self._shards.get(key)
        if shard is not None:
            self._moved[key] = shard.topic

    def published(self, image: MetadataImage, previous: MetadataImage) -> None:
        self._image = image
        self._previous = previous if self._previous is None else self._previous
        for key, shard in self._shards.items():
            self._moved[key] = shard.topic

    def settle(self, *, now_ms: int, wall_ms: int) -> None:
        """Starts, continues and ends shards as this broker leads their partitions, and carries out what is
        due. Returns when nothing moves."""
        due_ms = self._deadlines.next_ms()
        if not self._moved and self._previous is None and (due_ms is None or now_ms < due_ms):
            return
        now = Now(now_ms, wall_ms)
        while self._moved:
            key, topic = next(iter(self._moved.items()))
            del self._moved[key]
            self._look(key, topic, now)
        previous, self._previous = self._previous, None
        if previous is not None:
            for shard in list(self._shards.values()):
                shard.image_moved(self._image, previous, now)
                self._arm(shard)
        for key in self._deadlines.take_due(now_ms):
            due = self._shards.get(key)
            if due is not None:
                due.tick(now)
                self._arm(due)

    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms()

    def _look(self, key: PartitionKey, topic: str, now: Now) -> None:
        epoch = self._logs.leader_epoch(key)
        shard = self._shards.get(key)
        if epoch is None:
            if shard is not None:
                self._end(shard)
            return
        if shard is None:
            kind = self._kinds[topic]
            state = kind.new_state(key[1])
            shard = Shard(
                key,
                topic,
                epoch,
                state,
                self._logs,
                kind.commit_timeout_ms,
                lambda: self._moved.update({key: topic}),
                self._out,
            )
            self._shards[key] = shard
        # A leader that continues in a newer epoch already has the whole log.
        shard.epoch = epoch
        shard.load(self._image, now)
        self._arm(shard)

    def _end(self, shard: Shard) -> None:
        del self._shards[shard.key]
        self._deadlines.disarm(shard.key)
        shard.resign()

    def _arm(self, shard: Shard) -> None:
        due_ms = shard.next_deadline_ms()
        if due_ms is None:
            self._deadlines.disarm(shard.key)
        else:
            self._deadlines.arm(shard.key, due_ms)

    def marked(self, key: PartitionKey, header: BatchHeader, marker: EndMarker) -> None:
        shard = self._shards.get(key)
        if shard is not None:
            origin = BatchOrigin(header.base_offset, header.producer_id, header.producer_epoch)
            shard.marked(origin, committed=marker.committed)

    # ---- requests --------------------------------------------------------------------------------

    def handle(self, key: object, request: CoordinatorRequest, *, now_ms: int, wall_ms: int) -> None:
        topic = self._image.topics.topic_named(request.topic)
        shard = None if topic is None else self._shards.get((topic.topic_id, request.partition))
        if shard is None:
            text = f"this broker does not lead {request.topic}-{request.partition}: look it up again"
            self._out.append(DataRespond(key=key, response=ApiError(ErrorCode.NOT_COORDINATOR, text)))
            return
        shard.handle(key, request, Now(now_ms, wall_ms))
        self._arm(shard)

    def cancel(self, key: object) -> bool:
        return any(shard.cancel(key) for shard in self._shards.values())

    def take_waiting(self) -> list[object]:
        return [key for shard in self._shards.values() for key in shard.take_waiting()]


# The internal topics that have coordinators, and of what kind.
# List: the only place where groups and transactions meet.


def coordinator_kinds(
    config: CoordinatorConfig, rng: random.Random, authorizer: Authorizer | None = None
) -> dict[str, CoordinatorKind]:
    """The kinds of coordinators, by the name of their topic."""
    return {
        config.offsets_topic.name: CoordinatorKind(
            lambda _: GroupState(config.groups, rng, authorizer),
            commit_timeout_ms=config.offsets_commit_timeout_ms,
        ),
        config.transactions_topic.name: CoordinatorKind(
            lambda partition: TransactionState(partition, config.transactions),
            commit_timeout_ms=config.offsets_commit_timeout_ms,
        ),
    }

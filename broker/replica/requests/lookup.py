"""The answer to a request for a partition that does not run on this broker, and which broker leads it
instead.

Owns the order of the reasons. Knows no log.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.placement.placement import Placement
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import NO_LEADER
from metaquorum.metadata.requests.data import FetchedPartition, ListedOffset, PartitionKey, ProduceResult
from metaquorum.metadata.requests.log_ends import DeletedRecords


class NotHosted(msgspec.Struct, frozen=True):
    """Why a partition cannot serve requests here."""

    error: ErrorCode
    message: str
    leader: int | None = None
    leader_epoch: int = -1

    def as_produced(self, key: PartitionKey) -> ProduceResult:
        return ProduceResult(
            key=key,
            error=self.error,
            message=self.message,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
        )

    def as_deleted(self, key: PartitionKey) -> DeletedRecords:
        return DeletedRecords(key=key, error=self.error, message=self.message)

    def as_fetched(self, key: PartitionKey) -> FetchedPartition:
        return FetchedPartition(
            key=key,
            error=self.error,
            message=self.message,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
        )

    def as_listed(self, key: PartitionKey) -> ListedOffset:
        return ListedOffset(
            key=key,
            error=self.error,
            message=self.message,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
        )


Find = Callable[[PartitionKey], Partition | NotHosted]
"""The partition, or why it cannot serve requests here."""
Touched = Callable[[Partition], None]
"""Called after a partition changed while it handled a request: carries out the consequences."""


def absence(placement: Placement, broker_id: int, key: PartitionKey) -> NotHosted:
    """For a partition that is not running."""
    image = placement.image
    if image is None:
        text = f"broker {broker_id} has no metadata yet: try again"
        return NotHosted(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
    if image.topics.topic(key[0]) is None:
        text = f"broker {broker_id} has no topic with the id {key[0].hex()}: refresh the metadata"
        return NotHosted(ErrorCode.UNKNOWN_TOPIC_ID, text)
    info = image.topics.partition(*key)
    if info is None:
        text = f"the topic has no partition {key[1]}: refresh the metadata"
        return NotHosted(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    leader = None if info.leader in (NO_LEADER, broker_id) else info.leader
    why = placement.offline.get(key)
    if why is not None:
        text = f"the replica on broker {broker_id} is offline: {why}"
        return NotHosted(ErrorCode.KAFKA_STORAGE_ERROR, text, leader, info.leader_epoch)
    if info.leader == broker_id:
        text = f"broker {broker_id} is about to lead this partition: try again"
    elif leader is None:
        text = "this partition has no leader now: try again later"
    else:
        text = f"broker {leader} leads this partition: send the request there"
    return NotHosted(ErrorCode.NOT_LEADER_OR_FOLLOWER, text, leader, info.leader_epoch)

"""What the records of topics and partitions mean.

Owns this for single records. Every function checks before it edits. Knows no bytes, no batches and no
transactions; many records at once are for `columnar`.
"""

from __future__ import annotations

from typing import TypeVar

from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.image import (
    MIGRATING,
    RECOVERED,
    RECOVERING,
    TOPIC_RESOURCE,
    UNASSIGNED,
    ConfigResource,
    ImageBuilder,
    PartitionInfo,
    TopicsImage,
)
from metaquorum.metadata.records.types import (
    ClearElrRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.storage.uuids import uuid_to_text

INT32_BITS = 32


MAX_REPLICAS = 32767
"""Kafka's replication factor is an int16."""

R = TypeVar("R")


def add_topic(builder: ImageBuilder, record: TopicRecord, offset: int) -> None:
    topics = builder.topics
    if record.topic_id in topics.by_id:
        raise ReplayError(offset, record, f"topic id {uuid_to_text(record.topic_id)} already exists")
    if record.name in topics.by_name:
        raise ReplayError(offset, record, f"a topic named {record.name} already exists, with another id")
    topics.add_topic(record.topic_id, record.name)


def remove_topic(builder: ImageBuilder, record: RemoveTopicRecord, offset: int) -> None:
    entry = builder.topics.by_id.get(record.topic_id)
    if entry is None:
        raise ReplayError(offset, record, f"no topic has the id {uuid_to_text(record.topic_id)}")
    builder.topics.remove_topic(entry)
    builder.configs.remove(ConfigResource(TOPIC_RESOURCE, entry.info.name))


def add_partition(builder: ImageBuilder, record: PartitionRecord, offset: int) -> None:
    entry = builder.topics.by_id.get(record.topic_id)
    if entry is None:
        raise ReplayError(offset, record, f"no topic has the id {uuid_to_text(record.topic_id)}")
    directories = record.directories or (MIGRATING,) * len(record.replicas)
    info = PartitionInfo(
        topic_id=record.topic_id,
        index=record.partition_id,
        replicas=record.replicas,
        isr=record.isr,
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        leader_recovery_state=record.leader_recovery_state,
        directories=directories,
        removing=record.removing_replicas,
        adding=record.adding_replicas,
        elr=record.eligible_leader_replicas or (),
        last_known_elr=record.last_known_elr or (),
    )
    _check_partition(info, record, offset)
    builder.topics.put_partition(entry, info)


def _check_partition(info: PartitionInfo, record: object, offset: int) -> None:
    if info.index < 0:
        raise ReplayError(offset, record, f"partition index {info.index} is negative")
    if len(info.directories) != len(info.replicas):
        raise ReplayError(
            offset,
            record,
            f"{len(info.directories)} directories for {len(info.replicas)} replicas; each replica needs one",
        )
    if info.leader_recovery_state not in (RECOVERED, RECOVERING):
        raise ReplayError(
            offset,
            record,
            f"leader recovery state {info.leader_recovery_state} is not {RECOVERED} or {RECOVERING}",
        )
    if max(len(info.replicas), len(info.isr)) > MAX_REPLICAS:
        raise ReplayError(offset, record, f"a replica list is longer than {MAX_REPLICAS}")


def change_partition(builder: ImageBuilder, record: PartitionChangeRecord, offset: int) -> None:
    topics = builder.topics
    entry = topics.by_id.get(record.topic_id)
    if entry is None:
        raise ReplayError(offset, record, f"no topic has the id {uuid_to_text(record.topic_id)}")
    row = entry.row_of(record.partition_id)
    if row < 0:
        raise ReplayError(offset, record, f"topic {entry.info.name} has no partition {record.partition_id}")
    info = merge_change(topics.at(row), record, offset)
    _check_partition(info, record, offset)
    topics.write(row, entry.slot, info)


def clear_elr(builder: ImageBuilder, record: ClearElrRecord, offset: int) -> None:
    # A change of each partition that has something to clear, as in Kafka: the partition epoch rises.
    topics = builder.topics
    if record.topic_name and record.topic_name not in topics.by_name:
        raise ReplayError(offset, record, f"no topic is named {record.topic_name}")
    for before in with_elr(topics.freeze(), record.topic_name):
        topic_id = before.topic_id
        change = PartitionChangeRecord(before.index, topic_id, eligible_leader_replicas=(), last_known_elr=())
        topics.put_partition(topics.by_id[topic_id], merge_change(before, change, offset))


def with_elr(topics: TopicsImage, name: str) -> list[PartitionInfo]:
    """What a ClearElrRecord with this topic name changes: the topic's partitions that have an eligible or a
    last known leader; with "", those of all topics, by topic name."""
    topic_id = topics.by_name.get(name)
    if topic_id is not None:
        found = topics.partitions_of(topic_id)
    elif name:
        found = []
    else:
        found = [topics.at(row) for row, _ in topics.columns.rare.items_sorted()]
        found.sort(key=lambda info: (topics.by_id[info.topic_id].info.name, info.index))
    return [info for info in found if info.elr or info.last_known_elr]


def merge_change(before: PartitionInfo, record: PartitionChangeRecord, offset: int) -> PartitionInfo:
    """The partition after `record`.

    Every change raises the partition epoch; a record that names a leader raises the leader epoch even if the
    leader is the same. New replicas without directories keep the directories of those that stay.
    """
    replicas = before.replicas if record.replicas is None else record.replicas
    led = record.leader is not None
    return PartitionInfo(
        topic_id=before.topic_id,
        index=before.index,
        replicas=replicas,
        isr=_or(record.isr, before.isr),
        leader=_or(record.leader, before.leader),
        leader_epoch=_next_int32(before.leader_epoch) if led else before.leader_epoch,
        partition_epoch=_next_int32(before.partition_epoch),
        leader_recovery_state=_or(record.leader_recovery_state, before.leader_recovery_state),
        directories=_directories_after(before, record, offset),
        removing=_or(record.removing_replicas, before.removing),
        adding=_or(record.adding_replicas, before.adding),
        elr=_or(record.eligible_leader_replicas, before.elr),
        last_known_elr=_or(record.last_known_elr, before.last_known_elr),
    )


def _or(changed: R | None, before: R) -> R:
    return before if changed is None else changed


def _next_int32(value: int) -> int:
    """The next number, with 32-bit overflow."""
    half = 1 << (INT32_BITS - 1)
    return (value + 1 + half) % (2 * half) - half


def _directories_after(
    before: PartitionInfo, record: PartitionChangeRecord, offset: int
) -> tuple[bytes, ...]:
    if record.directories:
        return record.directories
    if record.replicas is None:
        return before.directories
    assigned = dict(zip(before.replicas, before.directories, strict=True))
    if len(assigned) != len(before.replicas):
        raise ReplayError(
            offset, record, "the partition lists a replica twice, so directories cannot be stored"
        )
    return tuple(assigned.get(replica, UNASSIGNED) for replica in record.replicas)

"""What each record means: one function per record type, from a record to edits of an ImageBuilder.

Every function checks before it edits, so that a refused record leaves no trace.

Meanings follow KIP-631 and its successors as Apache Kafka 3.7 applies them (its `image` deltas and control
managers); if those two differ, the stricter one applies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.image import (
    METADATA_VERSION,
    MIGRATING,
    RECOVERED,
    RECOVERING,
    TOPIC_RESOURCE,
    UNASSIGNED,
    Acl,
    BrokerRegistration,
    ConfigResource,
    ControllerRegistration,
    DelegationToken,
    FeatureRange,
    ImageBuilder,
    NodeEndpoint,
    PartitionInfo,
    ProducerIds,
    QuotaEntity,
    ScramCredential,
    TopicsImage,
)
from metaquorum.metadata.records.types import (
    FENCED,
    IN_CONTROLLED_SHUTDOWN,
    UNFENCED,
    AccessControlEntryRecord,
    BrokerRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    ControllerRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from metaquorum.storage.uuids import uuid_to_text

# What the records of topics and partitions mean.
# Every function checks before it edits.

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
        partitions = topics.partitions_of(topic_id)
    elif name:
        partitions = []
    else:
        partitions = [topics.at(row) for row, _ in topics.columns.rare.items_sorted()]
        partitions.sort(key=lambda info: (topics.by_id[info.topic_id].info.name, info.index))
    return [info for info in partitions if info.elr or info.last_known_elr]


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


LAST_ZK_MIGRATION_STATE = 4

Meaning = Callable[[ImageBuilder, Any, int], None]


def apply_record(builder: ImageBuilder, record: object, offset: int) -> None:
    """Applies one record that is not a transaction marker.

    Raises ReplayError, which names `offset` and the record, if the record does not fit the state; the builder
    is then unchanged.
    """
    meaning = MEANINGS.get(type(record))
    if meaning is None:
        raise ReplayError(
            offset, record, "this release cannot apply this record; read the log with a newer release"
        )
    meaning(builder, record, offset)


def _broker(builder: ImageBuilder, record: BrokerRecord, offset: int) -> None:
    builder.put_broker(
        BrokerRegistration(
            broker_id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            is_migrating_zk_broker=record.is_migrating_zk_broker,
            directories=_sorted_directories(record.log_dirs),
        )
    )
    builder.note_registration(record.broker_id, offset)


def _endpoints(listed: tuple[Any, ...]) -> tuple[NodeEndpoint, ...]:
    # Sort by name: Kafka keeps listeners and features in maps, and its snapshots list them in map order.
    found = [NodeEndpoint(at.name, at.host, at.port, at.security_protocol) for at in listed]
    return tuple(sorted(found, key=lambda endpoint: endpoint.name))


def _features(listed: tuple[Any, ...]) -> tuple[FeatureRange, ...]:
    found = [FeatureRange(at.name, at.min_supported_version, at.max_supported_version) for at in listed]
    return tuple(sorted(found, key=lambda feature: feature.name))


def _sorted_directories(directories: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """In Kafka's order of uuids (two signed 64-bit numbers), which its snapshots use."""
    return tuple(
        sorted(
            directories,
            key=lambda uuid: (
                int.from_bytes(uuid[:8], "big", signed=True),
                int.from_bytes(uuid[8:], "big", signed=True),
            ),
        )
    )


def _registered(
    builder: ImageBuilder, record: object, offset: int, broker_id: int, epoch: int
) -> BrokerRegistration:
    """The registration for a record, which must be the generation in force (S2.30)."""
    registration = builder.brokers.get(broker_id)
    if registration is None:
        raise ReplayError(offset, record, f"broker {broker_id} is not registered")
    if registration.epoch != epoch:
        raise ReplayError(
            offset,
            record,
            f"it names epoch {epoch} of broker {broker_id}, but epoch {registration.epoch} is registered",
        )
    return registration


def _unregister_broker(builder: ImageBuilder, record: UnregisterBrokerRecord, offset: int) -> None:
    _registered(builder, record, offset, record.broker_id, record.broker_epoch)
    builder.remove_broker(record.broker_id)


def _fence_broker(builder: ImageBuilder, record: FenceBrokerRecord, offset: int) -> None:
    # The log itself removes brokers from ISRs, with PartitionChangeRecords before this one (S2.29).
    registration = _registered(builder, record, offset, record.id, record.epoch)
    builder.put_broker(msgspec.structs.replace(registration, fenced=True))


def _unfence_broker(builder: ImageBuilder, record: UnfenceBrokerRecord, offset: int) -> None:
    registration = _registered(builder, record, offset, record.id, record.epoch)
    builder.put_broker(msgspec.structs.replace(registration, fenced=False))


def _broker_change(builder: ImageBuilder, record: BrokerRegistrationChangeRecord, offset: int) -> None:
    registration = _registered(builder, record, offset, record.broker_id, record.broker_epoch)
    changes: dict[str, Any] = {}
    match record.fenced:
        case None:
            pass
        case 1 | -1:
            changes["fenced"] = record.fenced == FENCED
        case _:
            raise ReplayError(offset, record, f"fenced is {record.fenced}; it is {FENCED} or {UNFENCED}")
    match record.in_controlled_shutdown:
        case None:
            pass
        case 1:
            changes["in_controlled_shutdown"] = record.in_controlled_shutdown == IN_CONTROLLED_SHUTDOWN
        case other:
            raise ReplayError(
                offset, record, f"in_controlled_shutdown is {other}; it is {IN_CONTROLLED_SHUTDOWN}"
            )
    if record.log_dirs:
        changes["directories"] = _sorted_directories(record.log_dirs)
    if changes:
        builder.put_broker(msgspec.structs.replace(registration, **changes))


def _controller(builder: ImageBuilder, record: ControllerRecord, offset: int) -> None:
    builder.put_controller(
        ControllerRegistration(
            controller_id=record.controller_id,
            incarnation_id=record.incarnation_id,
            zk_migration_ready=record.zk_migration_ready,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
        )
    )


def _unregister_controller(builder: ImageBuilder, record: UnregisterControllerRecord, offset: int) -> None:
    if record.controller_id not in builder.controllers:
        raise ReplayError(offset, record, f"controller {record.controller_id} is not registered")
    builder.remove_controller(record.controller_id)


def _config(builder: ImageBuilder, record: ConfigRecord, offset: int) -> None:
    builder.set_config(ConfigResource(record.resource_type, record.resource_name), record.name, record.value)


def _feature_level(builder: ImageBuilder, record: FeatureLevelRecord, offset: int) -> None:
    if record.feature_level < 0 or (record.name == METADATA_VERSION and record.feature_level == 0):
        raise ReplayError(offset, record, f"{record.name} cannot have level {record.feature_level}")
    builder.set_feature(record.name, record.feature_level)


def _zk_migration_state(builder: ImageBuilder, record: ZkMigrationStateRecord, offset: int) -> None:
    if not 0 <= record.zk_migration_state <= LAST_ZK_MIGRATION_STATE:
        raise ReplayError(
            offset, record, f"there is no ZooKeeper migration state {record.zk_migration_state}"
        )
    builder.set_zk_migration_state(record.zk_migration_state)


def quota_entity(record: ClientQuotaRecord) -> QuotaEntity:
    """The whole entity of a quota, its parts in canonical order."""
    return tuple(
        sorted(
            ((part.entity_type, part.entity_name) for part in record.entity),
            key=lambda part: (part[0], part[1] is not None, part[1] or ""),
        )
    )


def _client_quota(builder: ImageBuilder, record: ClientQuotaRecord, offset: int) -> None:
    builder.set_quota(quota_entity(record), record.key, None if record.remove else record.value)


def _producer_ids(builder: ImageBuilder, record: ProducerIdsRecord, offset: int) -> None:
    known = builder.producer_ids.next_producer_id
    if record.next_producer_id <= known:
        raise ReplayError(offset, record, f"next producer id {record.next_producer_id} is not above {known}")
    builder.producer_ids = ProducerIds(record.next_producer_id)


def _acl(builder: ImageBuilder, record: AccessControlEntryRecord, offset: int) -> None:
    builder.acls.put(
        record.id,
        Acl(
            resource_type=record.resource_type,
            resource_name=record.resource_name,
            pattern_type=record.pattern_type,
            principal=record.principal,
            host=record.host,
            operation=record.operation,
            permission_type=record.permission_type,
        ),
    )


def _remove_acl(builder: ImageBuilder, record: RemoveAccessControlEntryRecord, offset: int) -> None:
    if record.id not in builder.acls:
        raise ReplayError(offset, record, f"no access control entry has the id {uuid_to_text(record.id)}")
    builder.acls.remove(record.id)


def _scram(builder: ImageBuilder, record: UserScramCredentialRecord, offset: int) -> None:
    builder.scram.put(
        (record.mechanism, record.name),
        ScramCredential(
            salt=record.salt,
            stored_key=record.stored_key,
            server_key=record.server_key,
            iterations=record.iterations,
        ),
    )


def _remove_scram(builder: ImageBuilder, record: RemoveUserScramCredentialRecord, offset: int) -> None:
    key = (record.mechanism, record.name)
    if key not in builder.scram:
        raise ReplayError(
            offset, record, f"user {record.name} has no credential of mechanism {record.mechanism}"
        )
    builder.scram.remove(key)


def _token(builder: ImageBuilder, record: DelegationTokenRecord, offset: int) -> None:
    builder.tokens.put(
        record.token_id,
        DelegationToken(
            owner=record.owner,
            requester=record.requester,
            renewers=record.renewers,
            issue_timestamp_ms=record.issue_timestamp,
            max_timestamp_ms=record.max_timestamp,
            expiration_timestamp_ms=record.expiration_timestamp,
            token_id=record.token_id,
        ),
    )


def _remove_token(builder: ImageBuilder, record: RemoveDelegationTokenRecord, offset: int) -> None:
    # Kafka writes this for an expired token that it may already have removed: absence is not an error.
    builder.tokens.remove(record.token_id)


def _no_op(builder: ImageBuilder, record: NoOpRecord, offset: int) -> None:
    """Only moves the offset, which the batch does anyway."""


MEANINGS: dict[type, Meaning] = {
    BrokerRecord: _broker,
    UnregisterBrokerRecord: _unregister_broker,
    FenceBrokerRecord: _fence_broker,
    UnfenceBrokerRecord: _unfence_broker,
    BrokerRegistrationChangeRecord: _broker_change,
    ControllerRecord: _controller,
    UnregisterControllerRecord: _unregister_controller,
    TopicRecord: add_topic,
    RemoveTopicRecord: remove_topic,
    PartitionRecord: add_partition,
    PartitionChangeRecord: change_partition,
    ClearElrRecord: clear_elr,
    ConfigRecord: _config,
    FeatureLevelRecord: _feature_level,
    ZkMigrationStateRecord: _zk_migration_state,
    ClientQuotaRecord: _client_quota,
    ProducerIdsRecord: _producer_ids,
    AccessControlEntryRecord: _acl,
    RemoveAccessControlEntryRecord: _remove_acl,
    UserScramCredentialRecord: _scram,
    RemoveUserScramCredentialRecord: _remove_scram,
    DelegationTokenRecord: _token,
    RemoveDelegationTokenRecord: _remove_token,
    NoOpRecord: _no_op,
}

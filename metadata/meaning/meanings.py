"""What each record means: one function per record type, from a record to edits of an ImageBuilder.

Owns this for single records (with `partitions`); `columnar` does the same for many partition records at once,
and a property test checks that the two agree. Every function checks before it edits, so that a refused record
leaves no trace. Knows no bytes, no batches and no transactions (`replay`).

Meanings follow KIP-631 and its successors as Apache Kafka 3.7 applies them (its `image` deltas and control
managers); if those two differ, the stricter one applies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.image import (
    METADATA_VERSION,
    Acl,
    BrokerRegistration,
    ConfigResource,
    ControllerRegistration,
    DelegationToken,
    FeatureRange,
    ImageBuilder,
    NodeEndpoint,
    ProducerIds,
    QuotaEntity,
    ScramCredential,
)
from metaquorum.metadata.meaning.partitions import (
    add_partition,
    add_topic,
    change_partition,
    clear_elr,
    remove_topic,
)
from metaquorum.metadata.records.parts import FENCED, IN_CONTROLLED_SHUTDOWN, UNFENCED
from metaquorum.metadata.records.types import (
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

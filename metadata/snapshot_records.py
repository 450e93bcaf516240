"""The records of a snapshot except topics and partitions, in the order in which Kafka writes them."""

from __future__ import annotations

from collections.abc import Iterator

from metaquorum.metadata.features import MIN_FINALIZED_METADATA_VERSION
from metaquorum.metadata.image import (
    METADATA_VERSION,
    BrokerRegistration,
    ControllerRegistration,
    MetadataImage,
    quota_sort_key,
)
from metaquorum.metadata.records.types import (
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRecord,
    ClientQuotaRecord,
    ConfigRecord,
    ControllerEndpoint,
    ControllerFeature,
    ControllerRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
    QuotaEntity,
    Record,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)

_ZK_MIGRATION_LEVEL = 8
"""3.4-IV0: from this level on, a snapshot has the state of the ZooKeeper migration (KIP-866)."""
_NO_ZK_LEVEL = 22
"""4.0-IV0: from this level on, Kafka has no ZooKeeper, and its snapshots lack the migration's state."""


def records_before_topics(image: MetadataImage, level: int) -> Iterator[Record]:
    """Feature levels (metadata.version first: it determines how to read the rest), brokers, controllers."""
    features = image.features
    if level >= MIN_FINALIZED_METADATA_VERSION:
        yield FeatureLevelRecord(METADATA_VERSION, level)
    for name in sorted(features.finalized):
        if name != METADATA_VERSION:
            yield FeatureLevelRecord(name, features.finalized[name])
    if _ZK_MIGRATION_LEVEL <= level < _NO_ZK_LEVEL or features.zk_migration_state:
        yield ZkMigrationStateRecord(features.zk_migration_state)
    for registration in image.brokers.values():
        yield broker_record(registration)
    for controller_id in sorted(image.controllers):
        yield controller_record(image.controllers[controller_id])


def broker_record(registration: BrokerRegistration) -> BrokerRecord:
    """The record with a whole registration."""
    return BrokerRecord(
        broker_id=registration.broker_id,
        incarnation_id=registration.incarnation_id,
        broker_epoch=registration.epoch,
        end_points=tuple(
            BrokerEndpoint(at.name, at.host, at.port, at.security_protocol) for at in registration.endpoints
        ),
        features=tuple(
            BrokerFeature(at.name, at.min_supported_version, at.max_supported_version)
            for at in registration.features
        ),
        rack=registration.rack,
        fenced=registration.fenced,
        in_controlled_shutdown=registration.in_controlled_shutdown,
        is_migrating_zk_broker=registration.is_migrating_zk_broker,
        log_dirs=registration.directories,
    )


def controller_record(registration: ControllerRegistration) -> ControllerRecord:
    """The record with a controller's whole registration."""
    return ControllerRecord(
        controller_id=registration.controller_id,
        incarnation_id=registration.incarnation_id,
        zk_migration_ready=registration.zk_migration_ready,
        end_points=tuple(
            ControllerEndpoint(at.name, at.host, at.port, at.security_protocol)
            for at in registration.endpoints
        ),
        features=tuple(
            ControllerFeature(at.name, at.min_supported_version, at.max_supported_version)
            for at in registration.features
        ),
    )


def records_after_topics(image: MetadataImage) -> Iterator[Record]:
    """Configs, quotas, the next producer id, ACLs, SCRAM credentials, delegation tokens."""
    for resource, entries in image.configs.items_sorted():
        for name in sorted(entries):
            yield ConfigRecord(resource.resource_type, resource.name, name, entries[name])
    for entity, quotas in image.quotas.items_sorted(quota_sort_key):
        for key in sorted(quotas):
            yield ClientQuotaRecord(
                tuple(QuotaEntity(kind, name) for kind, name in entity), key, quotas[key], False
            )
    if image.producer_ids.next_producer_id >= 0:
        yield ProducerIdsRecord(-1, -1, image.producer_ids.next_producer_id)
    for acl_id, acl in image.acls.items_sorted():
        yield AccessControlEntryRecord(
            acl_id,
            acl.resource_type,
            acl.resource_name,
            acl.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
    for (mechanism, user), credential in image.scram.items_sorted():
        yield UserScramCredentialRecord(
            user,
            mechanism,
            credential.salt,
            credential.stored_key,
            credential.server_key,
            credential.iterations,
        )
    for _, token in image.delegation_tokens.items_sorted():
        yield DelegationTokenRecord(
            token.owner,
            token.requester,
            token.renewers,
            token.issue_timestamp_ms,
            token.max_timestamp_ms,
            token.expiration_timestamp_ms,
            token.token_id,
        )

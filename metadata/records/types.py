"""The records of the metadata log, one immutable class per record type, as Apache Kafka shipped them.

`records.fields` has the names of the wire types. The same for every class:

* uuids are 16 bytes (`storage.uuids`), arrays are tuples;
* `None` means null, absent or unchanged; the sentinels that represent it on the wire stay in the codec;
* `unknown_tags` holds the tagged fields that none of our schemas has, as (tag, bytes) in ascending order, so
  that a newer writer's additions survive being read and written again;
* `api_key` and `type_name` are the record type's number and its name in Kafka's dump.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias, Union

import msgspec

from metaquorum.metadata.records.fields import (
    SETTING_VALUE,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    UInt16,
    UnknownTags,
    Uuid,
    Wire,
)
from metaquorum.storage.uuids import ZERO_UUID

NO_LEADER = -1
"""The leader of a partition that has none."""

LEADER_RECOVERED = 0
LEADER_RECOVERING = 1
"""Values of `leader_recovery_state` (KIP-704): recovering means elected uncleanly and not yet settled."""

FENCED = 1
UNFENCED = -1
"""Values of `BrokerRegistrationChangeRecord.fenced`; `None` means unchanged."""

IN_CONTROLLED_SHUTDOWN = 1
"""The value of `BrokerRegistrationChangeRecord.in_controlled_shutdown`; `None` means unchanged."""


class BrokerEndpoint(msgspec.Struct, frozen=True, gc=False):
    """Where a broker listens. `port` is 0..65535; `security_protocol` 0 PLAINTEXT, 1 SSL, 2 and 3 SASL."""

    name: String
    host: String
    port: UInt16
    security_protocol: Int16
    unknown_tags: UnknownTags = ()


class BrokerFeature(msgspec.Struct, frozen=True, gc=False):
    """The levels of one feature that a broker supports, both ends included (KIP-584)."""

    name: String
    min_supported_version: Int16
    max_supported_version: Int16
    unknown_tags: UnknownTags = ()


class ControllerEndpoint(msgspec.Struct, frozen=True, gc=False):
    """Where a controller listens."""

    name: String
    host: String
    port: UInt16
    security_protocol: Int16
    unknown_tags: UnknownTags = ()


class ControllerFeature(msgspec.Struct, frozen=True, gc=False):
    """The levels of one feature that a controller supports, both ends included."""

    name: String
    min_supported_version: Int16
    max_supported_version: Int16
    unknown_tags: UnknownTags = ()


class QuotaEntity(msgspec.Struct, frozen=True, gc=False):
    """One part of a quota's entity: type `user`, `client-id` or `ip`; name None is the default entity."""

    entity_type: String
    entity_name: Annotated[String | None, Wire(default="")]
    unknown_tags: UnknownTags = ()


class BrokerRecord(msgspec.Struct, frozen=True, gc=False):
    """A broker registered (Kafka's RegisterBrokerRecord); it replaces an earlier registration of the id."""

    api_key: ClassVar[int] = 0
    type_name: ClassVar[str] = "REGISTER_BROKER_RECORD"
    latest_version: ClassVar[int] = 4

    broker_id: Int32
    incarnation_id: Uuid
    broker_epoch: Int64
    end_points: tuple[BrokerEndpoint, ...] = ()
    features: tuple[BrokerFeature, ...] = ()
    rack: String | None = None
    fenced: Bool = True
    in_controlled_shutdown: Annotated[Bool, Wire(since=1)] = False
    is_migrating_zk_broker: Annotated[Bool, Wire(since=2, position=1)] = False
    log_dirs: Annotated[tuple[Uuid, ...], Wire(since=3, tag=0)] = ()
    unknown_tags: UnknownTags = ()


class UnregisterBrokerRecord(msgspec.Struct, frozen=True, gc=False):
    """A broker's registration was removed."""

    api_key: ClassVar[int] = 1
    type_name: ClassVar[str] = "UNREGISTER_BROKER_RECORD"
    latest_version: ClassVar[int] = 0

    broker_id: Int32
    broker_epoch: Int64
    unknown_tags: UnknownTags = ()


class TopicRecord(msgspec.Struct, frozen=True, gc=False):
    """A topic was created."""

    api_key: ClassVar[int] = 2
    type_name: ClassVar[str] = "TOPIC_RECORD"
    latest_version: ClassVar[int] = 0

    name: String
    topic_id: Uuid
    unknown_tags: UnknownTags = ()


class PartitionRecord(msgspec.Struct, frozen=True, gc=False):
    """The whole state of one partition. `directories` has one entry per replica, in order (KIP-858)."""

    api_key: ClassVar[int] = 3
    type_name: ClassVar[str] = "PARTITION_RECORD"
    latest_version: ClassVar[int] = 2

    partition_id: Annotated[Int32, Wire(default=-1)]
    topic_id: Uuid
    replicas: tuple[Int32, ...] = ()
    isr: tuple[Int32, ...] = ()
    removing_replicas: tuple[Int32, ...] = ()
    adding_replicas: tuple[Int32, ...] = ()
    leader: Int32 = NO_LEADER
    leader_recovery_state: Annotated[Int8, Wire(tag=0)] = LEADER_RECOVERED
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: Annotated[tuple[Uuid, ...], Wire(since=1)] = ()
    eligible_leader_replicas: Annotated[tuple[Int32, ...] | None, Wire(since=2, tag=1)] = None
    last_known_elr: Annotated[tuple[Int32, ...] | None, Wire(since=2, tag=2, kafka_name="lastKnownELR")] = (
        None
    )
    unknown_tags: UnknownTags = ()


class ConfigRecord(msgspec.Struct, frozen=True, gc=False):
    """One configuration key was set, or removed if `value` is None."""

    api_key: ClassVar[int] = 4
    type_name: ClassVar[str] = "CONFIG_RECORD"
    latest_version: ClassVar[int] = 0

    resource_type: Int8
    resource_name: String
    name: String
    value: Annotated[String | None, Wire(default="", secret=SETTING_VALUE)]
    unknown_tags: UnknownTags = ()


class PartitionChangeRecord(msgspec.Struct, frozen=True, gc=False):
    """A change of one partition. A field that is None did not change; `leader` -1 means no leader."""

    api_key: ClassVar[int] = 5
    type_name: ClassVar[str] = "PARTITION_CHANGE_RECORD"
    latest_version: ClassVar[int] = 2

    partition_id: Annotated[Int32, Wire(default=-1)]
    topic_id: Uuid
    isr: Annotated[tuple[Int32, ...] | None, Wire(tag=0)] = None
    leader: Annotated[Int32 | None, Wire(tag=1, none_on_wire=-2)] = None
    replicas: Annotated[tuple[Int32, ...] | None, Wire(tag=2)] = None
    removing_replicas: Annotated[tuple[Int32, ...] | None, Wire(tag=3)] = None
    adding_replicas: Annotated[tuple[Int32, ...] | None, Wire(tag=4)] = None
    leader_recovery_state: Annotated[Int8 | None, Wire(tag=5, none_on_wire=-1)] = None
    directories: Annotated[tuple[Uuid, ...] | None, Wire(since=1, tag=8)] = None
    eligible_leader_replicas: Annotated[tuple[Int32, ...] | None, Wire(since=2, tag=6)] = None
    last_known_elr: Annotated[tuple[Int32, ...] | None, Wire(since=2, tag=7, kafka_name="lastKnownELR")] = (
        None
    )
    unknown_tags: UnknownTags = ()


class FenceBrokerRecord(msgspec.Struct, frozen=True, gc=False):
    """The registration `epoch` of broker `id` is fenced."""

    api_key: ClassVar[int] = 7
    type_name: ClassVar[str] = "FENCE_BROKER_RECORD"
    latest_version: ClassVar[int] = 0

    id: Int32
    epoch: Int64
    unknown_tags: UnknownTags = ()


class UnfenceBrokerRecord(msgspec.Struct, frozen=True, gc=False):
    """The registration `epoch` of broker `id` is no longer fenced."""

    api_key: ClassVar[int] = 8
    type_name: ClassVar[str] = "UNFENCE_BROKER_RECORD"
    latest_version: ClassVar[int] = 0

    id: Int32
    epoch: Int64
    unknown_tags: UnknownTags = ()


class RemoveTopicRecord(msgspec.Struct, frozen=True, gc=False):
    """A topic, all its partitions and its configuration were removed."""

    api_key: ClassVar[int] = 9
    type_name: ClassVar[str] = "REMOVE_TOPIC_RECORD"
    latest_version: ClassVar[int] = 0

    topic_id: Uuid
    unknown_tags: UnknownTags = ()


class DelegationTokenRecord(msgspec.Struct, frozen=True, gc=False):
    """A delegation token was created (KIP-900). Times are milliseconds since 1970, named as in Kafka."""

    api_key: ClassVar[int] = 10
    type_name: ClassVar[str] = "DELEGATION_TOKEN_RECORD"
    latest_version: ClassVar[int] = 0

    owner: String
    requester: String
    renewers: tuple[String, ...]
    issue_timestamp: Int64
    max_timestamp: Int64
    expiration_timestamp: Int64
    token_id: String
    unknown_tags: UnknownTags = ()


class UserScramCredentialRecord(msgspec.Struct, frozen=True, gc=False):
    """A user's SCRAM credential (KIP-900). `mechanism` 1 is SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    api_key: ClassVar[int] = 11
    type_name: ClassVar[str] = "USER_SCRAM_CREDENTIAL_RECORD"
    latest_version: ClassVar[int] = 0

    name: String
    mechanism: Int8
    salt: Annotated[Bytes, Wire(secret=True)]
    stored_key: Annotated[Bytes, Wire(secret=True)]
    server_key: Annotated[Bytes, Wire(secret=True)]
    iterations: Int32
    unknown_tags: UnknownTags = ()


class FeatureLevelRecord(msgspec.Struct, frozen=True, gc=False):
    """The finalized level of a feature; level 0 removes it."""

    api_key: ClassVar[int] = 12
    type_name: ClassVar[str] = "FEATURE_LEVEL_RECORD"
    latest_version: ClassVar[int] = 0

    name: String
    feature_level: Int16
    unknown_tags: UnknownTags = ()


class ClientQuotaRecord(msgspec.Struct, frozen=True, gc=False):
    """One quota value of an entity was set, or removed if `remove` is true (then `value` is 0)."""

    api_key: ClassVar[int] = 14
    type_name: ClassVar[str] = "CLIENT_QUOTA_RECORD"
    latest_version: ClassVar[int] = 0

    entity: tuple[QuotaEntity, ...]
    key: String
    value: Float64
    remove: Bool
    unknown_tags: UnknownTags = ()


class ProducerIdsRecord(msgspec.Struct, frozen=True, gc=False):
    """A block of producer ids was allocated to a broker; `next_producer_id` is the first one after it."""

    api_key: ClassVar[int] = 15
    type_name: ClassVar[str] = "PRODUCER_IDS_RECORD"
    latest_version: ClassVar[int] = 0

    broker_id: Int32
    broker_epoch: Annotated[Int64, Wire(default=-1)]
    next_producer_id: Int64
    unknown_tags: UnknownTags = ()


class BrokerRegistrationChangeRecord(msgspec.Struct, frozen=True, gc=False):
    """A change of a registration. `fenced`, `in_controlled_shutdown`, `log_dirs`: None is unchanged."""

    api_key: ClassVar[int] = 17
    type_name: ClassVar[str] = "BROKER_REGISTRATION_CHANGE_RECORD"
    latest_version: ClassVar[int] = 3

    broker_id: Int32
    broker_epoch: Int64
    fenced: Annotated[Int8 | None, Wire(tag=0, none_on_wire=0)] = None
    in_controlled_shutdown: Annotated[Int8 | None, Wire(since=1, tag=1, none_on_wire=0)] = None
    log_dirs: Annotated[tuple[Uuid, ...] | None, Wire(since=2, tag=2, none_on_wire=())] = None
    unknown_tags: UnknownTags = ()


class AccessControlEntryRecord(msgspec.Struct, frozen=True, gc=False):
    """An access control entry was created. Its numbers are Kafka's codes for resources and operations."""

    api_key: ClassVar[int] = 18
    type_name: ClassVar[str] = "ACCESS_CONTROL_ENTRY_RECORD"
    latest_version: ClassVar[int] = 0

    id: Uuid
    resource_type: Int8
    resource_name: String
    pattern_type: Int8
    principal: String
    host: String
    operation: Int8
    permission_type: Int8
    unknown_tags: UnknownTags = ()


class RemoveAccessControlEntryRecord(msgspec.Struct, frozen=True, gc=False):
    """An access control entry was removed."""

    api_key: ClassVar[int] = 19
    type_name: ClassVar[str] = "REMOVE_ACCESS_CONTROL_ENTRY_RECORD"
    latest_version: ClassVar[int] = 0

    id: Uuid
    unknown_tags: UnknownTags = ()


class NoOpRecord(msgspec.Struct, frozen=True, gc=False):
    """Changes nothing; it advances the high watermark when the cluster is idle (KIP-835)."""

    api_key: ClassVar[int] = 20
    type_name: ClassVar[str] = "NO_OP_RECORD"
    latest_version: ClassVar[int] = 0

    unknown_tags: UnknownTags = ()


class ZkMigrationStateRecord(msgspec.Struct, frozen=True, gc=False):
    """The state of the migration from ZooKeeper (KIP-866): 0 none, 1 running, 2 before it, 3 after it."""

    api_key: ClassVar[int] = 21
    type_name: ClassVar[str] = "ZK_MIGRATION_STATE_RECORD"
    latest_version: ClassVar[int] = 0

    zk_migration_state: Int8
    unknown_tags: UnknownTags = ()


class RemoveUserScramCredentialRecord(msgspec.Struct, frozen=True, gc=False):
    """A user's SCRAM credential was removed."""

    api_key: ClassVar[int] = 22
    type_name: ClassVar[str] = "REMOVE_USER_SCRAM_CREDENTIAL_RECORD"
    latest_version: ClassVar[int] = 0

    name: String
    mechanism: Int8
    unknown_tags: UnknownTags = ()


class BeginTransactionRecord(msgspec.Struct, frozen=True, gc=False):
    """The records after this one are a metadata transaction (KIP-868), visible only after its end."""

    api_key: ClassVar[int] = 23
    type_name: ClassVar[str] = "BEGIN_TRANSACTION_RECORD"
    latest_version: ClassVar[int] = 0

    name: Annotated[String | None, Wire(tag=0)] = None
    unknown_tags: UnknownTags = ()


class EndTransactionRecord(msgspec.Struct, frozen=True, gc=False):
    """The open metadata transaction becomes visible."""

    api_key: ClassVar[int] = 24
    type_name: ClassVar[str] = "END_TRANSACTION_RECORD"
    latest_version: ClassVar[int] = 0

    unknown_tags: UnknownTags = ()


class AbortTransactionRecord(msgspec.Struct, frozen=True, gc=False):
    """The open metadata transaction is dropped."""

    api_key: ClassVar[int] = 25
    type_name: ClassVar[str] = "ABORT_TRANSACTION_RECORD"
    latest_version: ClassVar[int] = 0

    reason: Annotated[String | None, Wire(tag=0)] = None
    unknown_tags: UnknownTags = ()


class RemoveDelegationTokenRecord(msgspec.Struct, frozen=True, gc=False):
    """A delegation token was removed."""

    api_key: ClassVar[int] = 26
    type_name: ClassVar[str] = "REMOVE_DELEGATION_TOKEN_RECORD"
    latest_version: ClassVar[int] = 0

    token_id: String
    unknown_tags: UnknownTags = ()


class ControllerRecord(msgspec.Struct, frozen=True, gc=False):
    """A controller registered (Kafka's RegisterControllerRecord, KIP-919)."""

    api_key: ClassVar[int] = 27
    type_name: ClassVar[str] = "REGISTER_CONTROLLER_RECORD"
    latest_version: ClassVar[int] = 0

    controller_id: Int32
    incarnation_id: Uuid = ZERO_UUID
    zk_migration_ready: Bool = False
    end_points: tuple[ControllerEndpoint, ...] = ()
    features: tuple[ControllerFeature, ...] = ()
    unknown_tags: UnknownTags = ()


class ClearElrRecord(msgspec.Struct, frozen=True, gc=False):
    """The eligible and last known leaders of a topic's partitions, or of all ("" as name), were cleared
    (KIP-966)."""

    api_key: ClassVar[int] = 28
    type_name: ClassVar[str] = "CLEAR_ELR_RECORD"
    latest_version: ClassVar[int] = 0

    topic_name: String
    unknown_tags: UnknownTags = ()


class UnregisterControllerRecord(msgspec.Struct, frozen=True, gc=False):
    """A controller's registration was removed (KIP-1312)."""

    api_key: ClassVar[int] = 29
    type_name: ClassVar[str] = "UNREGISTER_CONTROLLER_RECORD"
    latest_version: ClassVar[int] = 0

    controller_id: Int32
    unknown_tags: UnknownTags = ()


class UnknownRecord(msgspec.Struct, frozen=True, gc=False):
    """A record that this code has no schema for: the tools show it and continue, a node stops.

    `body` is what follows the frame (frame version, api key, version).
    """

    type_name: ClassVar[str] = "UNKNOWN_RECORD"

    api_key: int
    version: int
    body: bytes


Record: TypeAlias = Union[  # noqa: UP007 -- a Union survives get_args in the order written here
    BrokerRecord,
    UnregisterBrokerRecord,
    TopicRecord,
    PartitionRecord,
    ConfigRecord,
    PartitionChangeRecord,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
    RemoveTopicRecord,
    DelegationTokenRecord,
    UserScramCredentialRecord,
    FeatureLevelRecord,
    ClientQuotaRecord,
    ProducerIdsRecord,
    BrokerRegistrationChangeRecord,
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    NoOpRecord,
    ZkMigrationStateRecord,
    RemoveUserScramCredentialRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    AbortTransactionRecord,
    RemoveDelegationTokenRecord,
    ControllerRecord,
    ClearElrRecord,
    UnregisterControllerRecord,
]
"""Any record of the metadata log except control records (`control`)."""

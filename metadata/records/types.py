"""The records of the metadata log, one immutable class per record type.

Owns the Python form of every record of KIP-631 and its successors, as Apache Kafka shipped them. Does not
know bytes (see `codec`), versions (`schema`), or what a record means (`replay`).

Conventions, the same for every class:

* uuids are 16 bytes (`storage.uuids`), arrays are tuples, text is `str`, opaque data is `bytes`;
* `None` means null, absent or unchanged; the sentinels that represent it on the wire stay in the codec;
* `unknown_tags` holds the tagged fields that none of our schemas has, as (tag, bytes) in ascending order, so
  that a newer writer's additions survive being read and written again;
* `api_key` and `type_name` are the record type's number and its name in Kafka's dump.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias, Union

import msgspec

from metaquorum.metadata.records.access_types import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from metaquorum.metadata.records.parts import (
    LEADER_RECOVERED,
    NO_LEADER,
    BrokerEndpoint,
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    QuotaEntity,
    UnknownTags,
)
from metaquorum.storage.uuids import ZERO_UUID

__all__ = [
    "AbortTransactionRecord",
    "AccessControlEntryRecord",
    "BeginTransactionRecord",
    "BrokerRecord",
    "BrokerRegistrationChangeRecord",
    "ClearElrRecord",
    "ClientQuotaRecord",
    "ConfigRecord",
    "ControllerRecord",
    "DelegationTokenRecord",
    "EndTransactionRecord",
    "FeatureLevelRecord",
    "FenceBrokerRecord",
    "NoOpRecord",
    "PartitionChangeRecord",
    "PartitionRecord",
    "ProducerIdsRecord",
    "Record",
    "RemoveAccessControlEntryRecord",
    "RemoveDelegationTokenRecord",
    "RemoveTopicRecord",
    "RemoveUserScramCredentialRecord",
    "TopicRecord",
    "UnfenceBrokerRecord",
    "UnknownRecord",
    "UnregisterBrokerRecord",
    "UnregisterControllerRecord",
    "UserScramCredentialRecord",
    "ZkMigrationStateRecord",
]


class BrokerRecord(msgspec.Struct, frozen=True, gc=False):
    """A broker registered (Kafka's RegisterBrokerRecord); it replaces an earlier registration of the id."""

    api_key: ClassVar[int] = 0
    type_name: ClassVar[str] = "REGISTER_BROKER_RECORD"

    broker_id: int
    incarnation_id: bytes
    broker_epoch: int
    end_points: tuple[BrokerEndpoint, ...] = ()
    features: tuple[BrokerFeature, ...] = ()
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    is_migrating_zk_broker: bool = False
    log_dirs: tuple[bytes, ...] = ()
    unknown_tags: UnknownTags = ()


class UnregisterBrokerRecord(msgspec.Struct, frozen=True, gc=False):
    """A broker's registration was removed."""

    api_key: ClassVar[int] = 1
    type_name: ClassVar[str] = "UNREGISTER_BROKER_RECORD"

    broker_id: int
    broker_epoch: int
    unknown_tags: UnknownTags = ()


class TopicRecord(msgspec.Struct, frozen=True, gc=False):
    """A topic was created."""

    api_key: ClassVar[int] = 2
    type_name: ClassVar[str] = "TOPIC_RECORD"

    name: str
    topic_id: bytes
    unknown_tags: UnknownTags = ()


class PartitionRecord(msgspec.Struct, frozen=True, gc=False):
    """The whole state of one partition. `directories` has one entry per replica, in order (KIP-858)."""

    api_key: ClassVar[int] = 3
    type_name: ClassVar[str] = "PARTITION_RECORD"

    partition_id: int
    topic_id: bytes
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_recovery_state: int = LEADER_RECOVERED
    leader_epoch: int = -1
    partition_epoch: int = -1
    directories: tuple[bytes, ...] = ()
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    unknown_tags: UnknownTags = ()


class ConfigRecord(msgspec.Struct, frozen=True, gc=False):
    """One configuration key was set, or removed if `value` is None."""

    api_key: ClassVar[int] = 4
    type_name: ClassVar[str] = "CONFIG_RECORD"

    resource_type: int
    resource_name: str
    name: str
    value: str | None
    unknown_tags: UnknownTags = ()


class PartitionChangeRecord(msgspec.Struct, frozen=True, gc=False):
    """A change of one partition. A field that is None did not change; `leader` -1 means no leader."""

    api_key: ClassVar[int] = 5
    type_name: ClassVar[str] = "PARTITION_CHANGE_RECORD"

    partition_id: int
    topic_id: bytes
    isr: tuple[int, ...] | None = None
    leader: int | None = None
    replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    leader_recovery_state: int | None = None
    directories: tuple[bytes, ...] | None = None
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    unknown_tags: UnknownTags = ()


class FenceBrokerRecord(msgspec.Struct, frozen=True, gc=False):
    """The registration `epoch` of broker `id` is fenced."""

    api_key: ClassVar[int] = 7
    type_name: ClassVar[str] = "FENCE_BROKER_RECORD"

    id: int
    epoch: int
    unknown_tags: UnknownTags = ()


class UnfenceBrokerRecord(msgspec.Struct, frozen=True, gc=False):
    """The registration `epoch` of broker `id` is no longer fenced."""

    api_key: ClassVar[int] = 8
    type_name: ClassVar[str] = "UNFENCE_BROKER_RECORD"

    id: int
    epoch: int
    unknown_tags: UnknownTags = ()


class RemoveTopicRecord(msgspec.Struct, frozen=True, gc=False):
    """A topic, all its partitions and its configuration were removed."""

    api_key: ClassVar[int] = 9
    type_name: ClassVar[str] = "REMOVE_TOPIC_RECORD"

    topic_id: bytes
    unknown_tags: UnknownTags = ()


class FeatureLevelRecord(msgspec.Struct, frozen=True, gc=False):
    """The finalized level of a feature; level 0 removes it."""

    api_key: ClassVar[int] = 12
    type_name: ClassVar[str] = "FEATURE_LEVEL_RECORD"

    name: str
    feature_level: int
    unknown_tags: UnknownTags = ()


class ClientQuotaRecord(msgspec.Struct, frozen=True, gc=False):
    """One quota value of an entity was set, or removed if `remove` is true (then `value` is 0)."""

    api_key: ClassVar[int] = 14
    type_name: ClassVar[str] = "CLIENT_QUOTA_RECORD"

    entity: tuple[QuotaEntity, ...]
    key: str
    value: float
    remove: bool
    unknown_tags: UnknownTags = ()


class ProducerIdsRecord(msgspec.Struct, frozen=True, gc=False):
    """A block of producer ids was allocated to a broker; `next_producer_id` is the first one after it."""

    api_key: ClassVar[int] = 15
    type_name: ClassVar[str] = "PRODUCER_IDS_RECORD"

    broker_id: int
    broker_epoch: int
    next_producer_id: int
    unknown_tags: UnknownTags = ()


class BrokerRegistrationChangeRecord(msgspec.Struct, frozen=True, gc=False):
    """A change of a registration. `fenced`, `in_controlled_shutdown`, `log_dirs`: None is unchanged."""

    api_key: ClassVar[int] = 17
    type_name: ClassVar[str] = "BROKER_REGISTRATION_CHANGE_RECORD"

    broker_id: int
    broker_epoch: int
    fenced: int | None = None
    in_controlled_shutdown: int | None = None
    log_dirs: tuple[bytes, ...] | None = None
    unknown_tags: UnknownTags = ()


class NoOpRecord(msgspec.Struct, frozen=True, gc=False):
    """Changes nothing; it advances the high watermark when the cluster is idle (KIP-835)."""

    api_key: ClassVar[int] = 20
    type_name: ClassVar[str] = "NO_OP_RECORD"

    unknown_tags: UnknownTags = ()


class ZkMigrationStateRecord(msgspec.Struct, frozen=True, gc=False):
    """The state of the migration from ZooKeeper (KIP-866): 0 none, 1 running, 2 before it, 3 after it."""

    api_key: ClassVar[int] = 21
    type_name: ClassVar[str] = "ZK_MIGRATION_STATE_RECORD"

    zk_migration_state: int
    unknown_tags: UnknownTags = ()


class BeginTransactionRecord(msgspec.Struct, frozen=True, gc=False):
    """The records after this one are a metadata transaction (KIP-868), visible only after its end."""

    api_key: ClassVar[int] = 23
    type_name: ClassVar[str] = "BEGIN_TRANSACTION_RECORD"

    name: str | None = None
    unknown_tags: UnknownTags = ()


class EndTransactionRecord(msgspec.Struct, frozen=True, gc=False):
    """The open metadata transaction becomes visible."""

    api_key: ClassVar[int] = 24
    type_name: ClassVar[str] = "END_TRANSACTION_RECORD"

    unknown_tags: UnknownTags = ()


class AbortTransactionRecord(msgspec.Struct, frozen=True, gc=False):
    """The open metadata transaction is dropped."""

    api_key: ClassVar[int] = 25
    type_name: ClassVar[str] = "ABORT_TRANSACTION_RECORD"

    reason: str | None = None
    unknown_tags: UnknownTags = ()


class ControllerRecord(msgspec.Struct, frozen=True, gc=False):
    """A controller registered (Kafka's RegisterControllerRecord, KIP-919)."""

    api_key: ClassVar[int] = 27
    type_name: ClassVar[str] = "REGISTER_CONTROLLER_RECORD"

    controller_id: int
    incarnation_id: bytes = ZERO_UUID
    zk_migration_ready: bool = False
    end_points: tuple[ControllerEndpoint, ...] = ()
    features: tuple[ControllerFeature, ...] = ()
    unknown_tags: UnknownTags = ()


class ClearElrRecord(msgspec.Struct, frozen=True, gc=False):
    """The eligible and last known leaders of a topic's partitions, or of all ("" as name), were cleared
    (KIP-966)."""

    api_key: ClassVar[int] = 28
    type_name: ClassVar[str] = "CLEAR_ELR_RECORD"

    topic_name: str
    unknown_tags: UnknownTags = ()


class UnregisterControllerRecord(msgspec.Struct, frozen=True, gc=False):
    """A controller's registration was removed (KIP-1312)."""

    api_key: ClassVar[int] = 29
    type_name: ClassVar[str] = "UNREGISTER_CONTROLLER_RECORD"

    controller_id: int
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

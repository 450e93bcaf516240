"""Values that an image holds and returns.

They know neither records (`records.types` has those) nor how they are stored (`chunk`, `maps`).
"""

from __future__ import annotations

import msgspec

NO_LEADER = -1
RECOVERED = 0
RECOVERING = 1
MIGRATING = bytes(16)
"""Directory id of a replica whose placement was never recorded (KIP-858)."""
UNASSIGNED = bytes(15) + b"\x01"
"""Directory id of a replica that no broker has placed yet (KIP-858)."""
LOST = bytes(15) + b"\x02"
"""Directory id of a replica in an unknown offline directory (KIP-858)."""


class Provenance(msgspec.Struct, frozen=True, order=True):
    """How far the log was replayed to reach an image.

    `offset` is exclusive: the offset of the next record. `epoch` is the leader epoch of the last record
    before it, `timestamp_ms` that record's batch timestamp; -1 if nothing was replayed.
    """

    offset: int = 0
    epoch: int = -1
    timestamp_ms: int = -1


class NodeEndpoint(msgspec.Struct, frozen=True):
    """A listener of a broker or controller. `port` is 0..65535; `security_protocol` is Kafka's id."""

    name: str
    host: str
    port: int
    security_protocol: int


GRPC_LISTENER = "GRPC"
"""Prefix of the names of a broker's gRPC listeners; all others speak Kafka's protocol."""


class FeatureRange(msgspec.Struct, frozen=True):
    """Levels of one feature that a node supports, both inclusive."""

    name: str
    min_supported_version: int
    max_supported_version: int


class BrokerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's registration and state. `directories` is sorted by id and holds only online ones."""

    broker_id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[NodeEndpoint, ...] = ()
    features: tuple[FeatureRange, ...] = ()
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    is_migrating_zk_broker: bool = False
    directories: tuple[bytes, ...] = ()

    @property
    def grpc_endpoint(self) -> NodeEndpoint | None:
        """Where this program's own commands reach the broker; None if it has no gRPC listener."""
        return next((each for each in self.endpoints if each.name.startswith(GRPC_LISTENER)), None)

    def endpoint(self, listener: str) -> NodeEndpoint | None:
        """The endpoint of this listener; None if there is none."""
        return next((each for each in self.endpoints if each.name == listener), None)

    @property
    def is_active(self) -> bool:
        """Unfenced and not shutting down: may join an ISR and lead (KIP-841)."""
        return not self.fenced and not self.in_controlled_shutdown


class ControllerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    controller_id: int
    incarnation_id: bytes
    zk_migration_ready: bool = False
    endpoints: tuple[NodeEndpoint, ...] = ()
    features: tuple[FeatureRange, ...] = ()


class TopicInfo(msgspec.Struct, frozen=True, gc=False):
    """A topic's identity: `topic_id` is a uuid of 16 bytes. Part of no reference cycle, so the garbage
    collector need not look at it: there may be a million."""

    topic_id: bytes
    name: str


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One partition's state. `directories` has one id per replica, in the order of `replicas`."""

    topic_id: bytes
    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    leader_recovery_state: int
    directories: tuple[bytes, ...]
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def directory_of(self, broker_id: int) -> bytes | None:
        """The directory id of `broker_id`'s replica; None if the broker has none."""
        for replica, directory in zip(self.replicas, self.directories, strict=True):
            if replica == broker_id:
                return directory
        return None


class ConfigResource(msgspec.Struct, frozen=True, order=True):
    """The owner of a configuration. Types: 2 topic, 4 broker ('' = all), 16 client metrics, 32 group."""

    resource_type: int
    name: str


TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
BROKER_LOGGER_RESOURCE = 8
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32
RESOURCE_KINDS = {
    TOPIC_RESOURCE: "topic",
    BROKER_RESOURCE: "broker",
    BROKER_LOGGER_RESOURCE: "broker-logger",
    CLIENT_METRICS_RESOURCE: "client-metrics",
    GROUP_RESOURCE: "group",
}
"""What has settings, as users name it."""


class Acl(msgspec.Struct, frozen=True, kw_only=True):
    """One access control entry; the numbers are Kafka's ids of resource, pattern, operation, permission."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class ScramCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A user's credential of one mechanism (1 = SCRAM-SHA-256, 2 = SCRAM-SHA-512)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class DelegationToken(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiration_timestamp_ms: int
    token_id: str


class ProducerIds(msgspec.Struct, frozen=True):
    """The next producer id to allocate, and the broker that got the last block; -1 if there is none."""

    next_producer_id: int = -1


QuotaEntity = tuple[tuple[str, str | None], ...]
"""(entity type, entity name or None for the default), sorted by type."""


def quota_sort_key(entity: QuotaEntity) -> tuple[tuple[str, bool, str], ...]:
    """Orders quota entities, defaults first."""
    return tuple((kind, name is not None, name or "") for kind, name in entity)

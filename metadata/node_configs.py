"""The configurations of the cores, which read no file. Names are Kafka's keys in snake case, where a key
fills the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import cast

import msgspec

from metaquorum.metadata.broker_ids import key_problem
from metaquorum.metadata.records.types import BrokerEndpoint, BrokerFeature, ControllerEndpoint, Record
from metaquorum.metadata.settings.broker_keys import broker_default
from metaquorum.metadata.settings.resource_keys import (
    GROUP_KEYS,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    GroupBounds,
)

# The configuration of a node's replica of the metadata log, in any role.


class MetadataReplicaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a node follows the metadata log. Durations in ms, sizes in bytes of record batches."""

    metadata_log_max_record_bytes_between_snapshots: int = 20 * 1024 * 1024
    """metadata.log.max.record.bytes.between.snapshots: the number of record bytes after which a
    snapshot is written."""
    metadata_log_max_snapshot_interval_ms: int = 3_600_000
    """metadata.log.max.snapshot.interval.ms: the longest time between two snapshots while records
    arrive; 0 disables it."""
    apply_slice_bytes: int = 64 * 1024
    """Maximum size of the log slice that is read and replayed in one step (at least one batch), so that a
    voter's fetches and votes never wait long."""
    catch_up_slice_bytes: int = 1024 * 1024
    """The same while the replica is more than `catch_up_records` behind: fewer steps, while
    nothing depends on it yet."""
    catch_up_records: int = 100_000


# The configuration of a controller node. 0 switches off periodic work where noted.

VOTER_REPLICA = MetadataReplicaConfig()
_GROUP_BOUNDS = GroupBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """`bootstrap` is the content of bootstrap.checkpoint from `storage format`, without its control records:
    the first active controller writes it to an empty log, in one batch, before it serves clients."""

    cluster_id: str
    node_id: int
    bootstrap: tuple[Record, ...] = ()
    broker_session_timeout_ms: int = 9_000
    """broker.session.timeout.ms: how long a lease lasts without a heartbeat (S2.11)."""
    broker_metadata_lag_timeout_ms: int = 30_000
    """broker.metadata.lag.timeout.ms: fenced when behind and applying nothing for this long (S2.21)."""
    metadata_max_idle_interval_ms: int = 500
    """metadata.max.idle.interval.ms: the silence after which a NoOp record is written (KIP-835); 0: never."""
    metadata_log_causes_enable: bool = True
    """metadata.log.causes.enable: each batch begins with its cause: a caller or a rule."""
    metadata_replica: MetadataReplicaConfig = VOTER_REPLICA
    """How it follows the metadata log."""
    min_insync_replicas: int | None = None
    """min.insync.replicas, which eligible.leader.replicas.version writes for the cluster; None: not set."""
    endpoints: tuple[ControllerEndpoint, ...] = ()
    """Where this controller listens, as it registers it (KIP-919)."""
    delegation_token_secret_key: str | None = field(default=None, repr=False)
    """delegation.token.secret.key: the same on all controllers; None turns tokens off (KIP-48)."""
    delegation_token_max_lifetime_ms: int = 604_800_000
    """delegation.token.max.lifetime.ms: no token lives longer, however often it is renewed."""
    delegation_token_expiry_time_ms: int = 86_400_000
    """delegation.token.expiry.time.ms: how long a token lives without being renewed."""
    delegation_token_expiry_check_interval_ms: int = 3_600_000
    """delegation.token.expiry.check.interval.ms: how often expired tokens are removed."""
    reserved_broker_max_id: int = 1_000
    """reserved.broker.max.id: generated ids are above it (S0.10)."""
    broker_id_reuse_grace_ms: int = 300_000
    """broker.id.reuse.grace.ms: how long an id must be unused before another broker may take it over
    (S0.22)."""
    broker_id_gc_interval_ms: int = 60_000
    """broker.id.gc.interval.ms: how often unused bindings are removed (S0.18); 0: never."""
    num_partitions: int = 1
    """num.partitions: for a topic created without a number of partitions."""
    default_replication_factor: int = 1
    """default.replication.factor: for a topic created without a replication factor."""
    auto_leader_rebalance_enable: bool = True
    """auto.leader.rebalance.enable: leadership returns to preferred replicas automatically."""
    leader_imbalance_check_interval_ms: int = 300_000
    """leader.imbalance.check.interval.seconds: how often leaders are balanced; 0: never."""
    unclean_leader_election_enable: bool = broker_default("unclean.leader.election.enable")
    """unclean.leader.election.enable: for topics without a value, if the cluster's default has none
    either."""
    controller_quota_window_num: int = 11
    """controller.quota.window.num: the windows of a client's controller_mutation_rate (KIP-599)."""
    controller_quota_window_size_seconds: int = 1
    """controller.quota.window.size.seconds: the length of such a window."""
    group_bounds: GroupBounds = _GROUP_BOUNDS
    """group.consumer.min.* and max.*: the allowed values of a group's settings."""
    records_per_request_max: int = 50_000
    """A request that would write more is refused with POLICY_VIOLATION."""
    records_per_slice_max: int = 5_000
    """The most partition changes that fencing, unfencing and similar work write in one batch and step."""
    answers_max: int = 10_000
    """Requests that wait for a commit or a read; more are refused as retriable (THROTTLING_QUOTA_EXCEEDED).
    """
    waiting_requests_max: int = 1_000
    """Requests that wait while a new leader catches up; more are refused as retriable."""

    @property
    def controller_quota_span_ms(self) -> int:
        """A client may use the controller_mutation_rate of this time at once."""
        return 1_000 * self.controller_quota_window_num * self.controller_quota_window_size_seconds


# The configuration of a broker's core.

CONTROLLER_REQUEST_TIMEOUT_MS = 1_000
"""Of every request to the controllers, also those about replicas."""

OBSERVER_REPLICA = MetadataReplicaConfig(apply_slice_bytes=1024 * 1024)
"""No client waits for an observer's fetches and votes, so it replays in larger steps than a voter."""


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in ms, sizes in bytes; the broker's identity, and what its registration says about it.

    `registration_lease_timeout_ms` (the draft of KIP-631) is an upper bound of the lease: each answer of the
    controller states a session timeout, and the shorter of the two counts. `controller_request_timeout_ms`
    must be well below the lease, or one lost answer ends it. `self_fencing_enable` False: a serving broker
    continues when its lease ends, as Kafka's do; what the controller says to it still counts.
    """

    node_id: int
    cluster_id: str
    endpoints: tuple[BrokerEndpoint, ...]
    features: tuple[BrokerFeature, ...] = ()
    directories: tuple[bytes, ...] = ()
    rack: str | None = None
    binding_key: str | None = None
    min_insync_replicas: int = broker_default("min.insync.replicas")
    initial_broker_registration_timeout_ms: int = 60_000
    broker_heartbeat_interval_ms: int = 2_000
    registration_lease_timeout_ms: int = 18_000
    self_fencing_enable: bool = True
    controller_request_timeout_ms: int = CONTROLLER_REQUEST_TIMEOUT_MS
    retry_backoff_ms: int = 50
    retry_backoff_max_ms: int = 1_000
    controlled_shutdown_poll_ms: int = 100
    controlled_shutdown_timeout_ms: int = 30_000
    metadata_replica: MetadataReplicaConfig = OBSERVER_REPLICA

    def problems(self) -> list[str]:
        """What is wrong with these values, one line per problem, naming the key. Empty if they are valid."""
        positive = {
            "initial.broker.registration.timeout.ms": self.initial_broker_registration_timeout_ms,
            "broker.heartbeat.interval.ms": self.broker_heartbeat_interval_ms,
            "registration.lease.timeout.ms": self.registration_lease_timeout_ms,
            "controller.request.timeout.ms": self.controller_request_timeout_ms,
            "retry.backoff.ms": self.retry_backoff_ms,
            "controlled.shutdown.poll.ms": self.controlled_shutdown_poll_ms,
            "controlled.shutdown.timeout.ms": self.controlled_shutdown_timeout_ms,
        }
        lines = [f"{key} is {value}: set it to 1 or more" for key, value in positive.items() if value < 1]
        if self.node_id < 0:
            lines.append(f"node.id is {self.node_id}: set it to 0 or more")
        if self.retry_backoff_max_ms < self.retry_backoff_ms:
            lines.append("retry.backoff.max.ms is below retry.backoff.ms: raise it")
        if self.broker_heartbeat_interval_ms >= self.registration_lease_timeout_ms:
            lines.append(
                f"broker.heartbeat.interval.ms ({self.broker_heartbeat_interval_ms}) must be below "
                f"registration.lease.timeout.ms ({self.registration_lease_timeout_ms}), or the lease "
                "ends between two heartbeats"
            )
        if self.controller_request_timeout_ms >= self.registration_lease_timeout_ms:
            lines.append(
                f"controller.request.timeout.ms ({self.controller_request_timeout_ms}) must be below "
                f"registration.lease.timeout.ms ({self.registration_lease_timeout_ms}), or one lost "
                "answer costs the lease"
            )
        problem = None if self.binding_key is None else key_problem(self.binding_key)
        if problem is not None:
            lines.append(f"broker.id.binding.key: {problem}")
        if not self.endpoints:
            lines.append("listeners is empty: a broker needs at least one listener")
        return lines


# The configuration of a broker's replicas.


class ReplicaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in ms, sizes in bytes. `inter_broker_listener`: the name of the listener through which
    followers reach leaders. `log_flush_before_ack`: a replica counts towards acks=all, and a follower
    acknowledges a record, only when the record is durable; False is what Kafka does.
    `log_dir_assignment_timeout_ms`: how long a lost directory may go unreported before the broker stops
    (S3.6).
    """

    broker_id: int
    inter_broker_listener: str = "PLAINTEXT"
    log_flush_before_ack: bool = True
    replica_lag_time_max_ms: int = 30_000
    replica_fetch_max_bytes: int = 1024 * 1024
    replica_fetch_response_max_bytes: int = 10 * 1024 * 1024
    replica_fetch_min_bytes: int = 1
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_backoff_ms: int = 1_000
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    replica_request_timeout_ms: int = 30_000
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_backoff_ms: int = broker_default("log.cleaner.backoff.ms")
    log_dir_assignment_timeout_ms: int = 30_000
    controller_request_timeout_ms: int = CONTROLLER_REQUEST_TIMEOUT_MS
    fetch_max_bytes: int = 55 * 1024 * 1024
    max_incremental_fetch_session_cache_slots: int = 1_000
    replica_selector_is_rack_aware: bool = False
    producer_id_expiration_ms: int = broker_default("producer.id.expiration.ms")
    produce_purgatory_max_requests: int = 10_000
    fetch_purgatory_max_requests: int = 10_000
    log_tail_cache_max_bytes: int = 32 * 1024 * 1024
    """The memory for recent appends to partitions that this broker leads."""
    replication_quota_window_num: int = 11
    replication_quota_window_ms: int = 1_000
    topic_defaults: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The broker's configuration file for topics that set nothing, by the broker's names of the keys
    (log.retention.hours)."""


# The configuration of a broker's coordinators: groups, transactions, and the internal topics of both.


class TransactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """In ms, by Kafka's keys: `max_timeout_ms` is `transaction.max.timeout.ms`, `id_expiration_ms`
    `transactional.id.expiration.ms`; the intervals are those at which timed-out transactions are aborted and
    expired ids removed."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    abort_interval_ms: int = 10_000
    removal_interval_ms: int = 3_600_000


class MigrationPolicy(Enum):
    """The protocols between which a group with members may change (KIP-848)."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        """Whether a group may change from the classic protocol to the new one."""
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in ms, `offset_metadata_max_bytes` in characters, as Kafka. `offsets_retention_ms`: how long
    offsets are kept if the group has no members, or no longer consumes the topic."""

    group_initial_rebalance_delay_ms: int = 3_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_coordinator_max_groups: int = 100_000
    group_max_size: int = 2**31 - 1
    group_consumer_session_timeout_ms: int = cast(int, GROUP_KEYS[SESSION_TIMEOUT].default)
    group_consumer_heartbeat_interval_ms: int = cast(int, GROUP_KEYS[HEARTBEAT_INTERVAL].default)
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_regex_refresh_interval_ms: int = 600_000
    group_consumer_migration_policy: MigrationPolicy = MigrationPolicy.DISABLED
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 86_400_000
    offsets_retention_check_interval_ms: int = 600_000


class InternalTopic(msgspec.Struct, frozen=True, kw_only=True):
    """An internal topic, created with these values on first use. `configs`: its settings, as (key, value)."""

    name: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]


class CoordinatorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`offsets_commit_timeout_ms`: how long an answer waits for the replicas in sync."""

    offsets_topic: InternalTopic
    transactions_topic: InternalTopic
    offsets_commit_timeout_ms: int = 5_000
    groups: GroupConfig = msgspec.field(default_factory=GroupConfig)
    transactions: TransactionConfig = msgspec.field(default_factory=TransactionConfig)

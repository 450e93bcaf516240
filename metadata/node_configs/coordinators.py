"""The configuration of a broker's coordinators: groups, transactions, and the internal topics of both."""

from __future__ import annotations

from enum import Enum
from typing import cast

import msgspec

from metaquorum.metadata.settings.resource_keys import GROUP_KEYS, HEARTBEAT_INTERVAL, SESSION_TIMEOUT


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

"""The configuration of groups.

Owns the values; names are Kafka's keys in snake case. Does not know what is set on a single group:
`metadata.settings.effective` finds that.
"""

from __future__ import annotations

from enum import Enum

import msgspec


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
    """Durations in ms, `offset_metadata_max_bytes` in bytes of UTF-8. `offsets_retention_ms`: how long
    offsets are kept if the group has no members, or no longer consumes the topic."""

    group_initial_rebalance_delay_ms: int = 3_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_coordinator_max_groups: int = 100_000
    group_max_size: int = 2**31 - 1
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_regex_refresh_interval_ms: int = 600_000
    group_consumer_migration_policy: MigrationPolicy = MigrationPolicy.DISABLED
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 86_400_000
    offsets_retention_check_interval_ms: int = 600_000

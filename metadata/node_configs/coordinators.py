"""The configuration of a broker's coordinators.

Owns what groups and transactions share, and their internal topics. Does not read files, or know the rules of
either, which have configurations of their own.
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.node_configs.groups import GroupConfig
from metaquorum.metadata.node_configs.transactions import TransactionConfig


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

"""Requests about one group whose Kafka message names several: the part for one coordinator.

Owns these values, and no others: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit and OffsetDelete
name only one group anyway. Knows no rule about groups.
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.errors import ErrorCode

TopicPartition = tuple[str, int]
"""(topic, partition)."""


class FetchOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """`partitions` None: all of the group. `require_stable`: wait for offsets of an open transaction
    (KIP-447)."""

    group_id: str
    partitions: tuple[TopicPartition, ...] | None
    require_stable: bool = False


class FetchedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """`offset` -1: there is no committed offset."""

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE


class DescribeGroup(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str


class DescribeConsumerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of the new protocol (KIP-848)."""

    group_id: str


class ListGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of one partition. Empty sets: of any state or type. Compared case-insensitively."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


class DeleteGroup(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str

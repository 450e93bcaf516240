"""What is asked about one group where Kafka's message asks about several: the part for one coordinator.

JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit and OffsetDelete are about one group as they come.
"""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.metadata.errors import ErrorCode

TopicPartition = tuple[str, int]
"""(topic, partition)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOffsets:
    """`partitions` None: all of the group. `require_stable`: offsets of an open transaction are waited for
    (KIP-447)."""

    group_id: str
    partitions: tuple[TopicPartition, ...] | None
    require_stable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedOffset:
    """`offset` -1: none is committed."""

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup:
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConsumerGroup:
    """A group of the new protocol (KIP-848)."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroups:
    """The groups of one partition. Empty sets: of any state or type. Compared without case."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    group_id: str

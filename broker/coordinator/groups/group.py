"""A group of the classic protocol: its members, its phase, and what follows from them.

The rules about one group at one moment: which protocols all members support, which member leads, whether all
have joined. Source: KIP-62, KIP-345, KIP-394.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from metaquorum.broker.coordinator.state import BatchOrigin, Decision, Now, Reply
from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire.embedded import subscribed_topics
from metaquorum.wire.messages import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from metaquorum.wire.stored import StoredRecord

CONSUMER = "consumer"
"""The protocol type of consumers: their metadata names the topics that they subscribe to."""

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) in order of preference."""


class Phase(Enum):
    """EMPTY: no members. PREPARING: members join. COMPLETING: the leader assigns. STABLE: all consume."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True, kw_only=True)
class GroupMember:
    """`join_key`, `sync_key`: the caller whose JoinGroup or SyncGroup is not answered yet. `is_new`: it has
    not received its id, and cannot send heartbeats."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols = ()
    assignment: bytes = b""
    join_key: object | None = None
    sync_key: object | None = None
    is_new: bool = False

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(slots=True, kw_only=True)
class Group:
    """One group. `pending`: ids that were given out and have not joined (KIP-394). `not_synced`: members of
    the current generation whose SyncGroup has not arrived. `state_since_ms`: the time of day at which the
    phase began."""

    group_id: str
    phase: Phase = Phase.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    state_since_ms: int = -1
    members: dict[str, GroupMember] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    not_synced: set[str] = field(default_factory=set)
    is_first_join: bool = False
    delay_left_ms: int = 0
    someone_joined: bool = False

    # ---- members ---------------------------------------------------------------------------------

    def static_id(self, instance_id: str | None) -> str | None:
        """The id of the member with an instance id (KIP-345)."""
        if instance_id is None:
            return None
        return next(
            (each.member_id for each in self.members.values() if each.instance_id == instance_id), None
        )

    def add(self, member: GroupMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        self.members.pop(member_id, None)
        self.pending.discard(member_id)
        self.not_synced.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, old_id: str, new_id: str) -> GroupMember:
        """A static member gets another id and keeps its place."""
        member = self.members[old_id]
        member.member_id = new_id
        self.members = {each.member_id: each for each in self.members.values()}
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.not_synced:
            self.not_synced.discard(old_id)
            self.not_synced.add(new_id)
        return member

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    @property
    def awaiting_join(self) -> int:
        return sum(each.join_key is not None for each in self.members.values())

    @property
    def has_all_joined(self) -> bool:
        return not self.pending and self.awaiting_join == len(self.members)

    def accepts(self, member_id: str, max_size: int) -> bool:
        """Whether there is room for the sender of a JoinGroup."""
        member = self.members.get(member_id)
        if self.phase is Phase.EMPTY:
            return True
        if self.phase is Phase.PREPARING:
            return (member is not None and member.join_key is not None) or self.awaiting_join < max_size
        return member is not None or len(self.members) < max_size

    def elect(self) -> bool:
        """Returns whether there is a leader: the old one has joined, or another member that has joined now
        leads."""
        leader = None if self.leader is None else self.members.get(self.leader)
        if not self.members or (leader is not None and leader.join_key is not None):
            return True
        joined = next((each.member_id for each in self.members.values() if each.join_key is not None), None)
        if joined is not None:
            self.leader = joined
        return joined is not None

    # ---- protocols -------------------------------------------------------------------------------

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols can be in the group."""
        names = tuple(names)
        if not self.members:
            return bool(protocol_type) and bool(names)
        shared = self._shared()
        return protocol_type == self.protocol_type and any(name in shared for name in names)

    def select_protocol(self) -> str | None:
        """The shared protocol that most members prefer; in a tie, the one that the first member prefers."""
        shared = self._shared()
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes.update([next(name for name, _ in member.protocols if name in shared)] if shared else ())
        return max(votes, key=lambda name: votes[name]) if votes else None

    def _shared(self) -> set[str]:
        named = [{name for name, _ in each.protocols} for each in self.members.values()]
        return set.intersection(*named) if named else set()

    def subscribed(self) -> frozenset[str] | None:
        """The topics that members consume; None if they are unknown."""
        if self.protocol_type != CONSUMER or self.protocol is None:
            return None
        names: set[str] = set()
        for member in self.members.values():
            topics = subscribed_topics(member.metadata(self.protocol))
            if topics is None:
                return None
            names.update(topics)
        return frozenset(names)


# Requests about one group whose Kafka message names several: the part for one coordinator.
# These values, and no others: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit and OffsetDelete
# name only one group anyway.

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


# Groups and offsets to and from records of `__consumer_offsets`, in the versions that Kafka 3.7 writes.

_GROUP_KEY, _GROUP_VALUE = 2, 3
_OFFSET_KEY, _OFFSET_VALUE, _OFFSET_VALUE_WITH_EXPIRY = 1, 3, 1


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """`commit_ms`: the time of day of the commit. `expire_ms`: when it expires at the client's request; -1:
    with the group's retention. `log_offset`: where it is stored; the later of two counts."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int = -1
    log_offset: int = -1


def group_record(group: Group, assignments: dict[str, bytes], state_since_ms: int) -> StoredRecord:
    """The group's present state, with these assignments by member id."""
    members = tuple(
        GroupMetadataValue.MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol),
            assignment=assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    )
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=state_since_ms,
        members=members,
    )
    return StoredRecord(GroupMetadataKey(group=group.group_id), value, _GROUP_KEY, _GROUP_VALUE)


def group_tombstone(group_id: str) -> StoredRecord:
    return StoredRecord(GroupMetadataKey(group=group_id), None, _GROUP_KEY)


def group_of(group_id: str, value: GroupMetadataValue) -> Group:
    """The group that a record describes: empty, or stable, or without a leader, which is found when all have
    joined again."""
    members = {
        member.member_id: GroupMember(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=_rebalance_timeout_ms(member),
            session_timeout_ms=member.session_timeout,
            protocols=() if value.protocol is None else ((value.protocol, member.subscription),),
            assignment=member.assignment,
        )
        for member in value.members
    }
    return Group(
        group_id=group_id,
        phase=Phase.EMPTY if not members else Phase.STABLE if value.leader else Phase.PREPARING,
        generation=value.generation,
        protocol_type=value.protocol_type or None,
        protocol=value.protocol,
        leader=value.leader or None,
        state_since_ms=value.current_state_timestamp,
        members=members,
    )


def _rebalance_timeout_ms(member: GroupMetadataValue.MemberMetadata) -> int:
    """Version 0 has none; the session timeout is used instead, as in the JoinGroup of that time."""
    return member.session_timeout if member.rebalance_timeout < 0 else member.rebalance_timeout


def offset_record(group_id: str, partition: TopicPartition, committed: CommittedOffset) -> StoredRecord:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_ms,
        expire_timestamp=committed.expire_ms,
    )
    version = _OFFSET_VALUE if committed.expire_ms < 0 else _OFFSET_VALUE_WITH_EXPIRY
    return StoredRecord(_offset_key(group_id, partition), value, _OFFSET_KEY, version)


def offset_tombstone(group_id: str, partition: TopicPartition) -> StoredRecord:
    return StoredRecord(_offset_key(group_id, partition), None, _OFFSET_KEY)


def _offset_key(group_id: str, partition: TopicPartition) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=partition[0], partition=partition[1])


def offset_of(value: OffsetCommitValue, log_offset: int) -> CommittedOffset:
    """The commit that a record describes."""
    return CommittedOffset(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_ms=value.commit_timestamp,
        expire_ms=value.expire_timestamp,
        log_offset=log_offset,
    )


# The results of one input, collected while it is handled.


class Work:
    """Records and replies in their order. `refused` is called for each part that must be undone if the log
    does not take the records; it gets new work and the error. `origin`: the transaction they belong to."""

    def __init__(self, now: Now) -> None:
        self.now = now
        self.records: list[StoredRecord] = []
        self.drafts: dict[str, Any] = {}
        """States on which decisions continue, by group."""
        self._replies: list[Reply] = []
        self._refused: list[Callable[[Work, ErrorCode], None]] = []
        self.origin = BatchOrigin()

    @property
    def replies(self) -> tuple[Reply, ...]:
        return tuple(self._replies)

    def reply(self, key: object | None, body: Any) -> None:
        """Answers a caller; None: there is none."""
        if key is not None:
            self._replies.append(Reply(key, body))

    def store(self, record: StoredRecord, refused: Callable[[Work, ErrorCode], None] | None = None) -> None:
        self.records.append(record)
        if refused is not None:
            self.if_refused(refused)

    def if_refused(self, refused: Callable[[Work, ErrorCode], None]) -> None:
        self._refused.append(refused)

    def decision(self, *, at_once: bool = False) -> Decision:
        return Decision(
            records=tuple(self.records),
            replies=tuple(self._replies),
            at_once=at_once,
            origin=self.origin,
            if_refused=self._taken_back if self._refused else None,
        )

    def _taken_back(self, error: ErrorCode) -> Decision:
        work = Work(self.now)
        for refused in self._refused:
            refused(work, error)
        return work.decision()

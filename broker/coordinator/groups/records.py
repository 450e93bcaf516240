"""Groups and offsets to and from records of `__consumer_offsets`, in the versions that Kafka 3.7 writes.

Owns the mapping between values and records. Knows no bytes, which `wire.stored` encodes, and no records of
the new protocol, which `consumer.group` has.
"""

from __future__ import annotations

import msgspec

from metaquorum.broker.coordinator.groups.group import Group, GroupMember, Phase
from metaquorum.broker.coordinator.groups.requests import TopicPartition
from metaquorum.wire.messages import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from metaquorum.wire.stored import StoredRecord

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
            member_id=each.member_id,
            group_instance_id=each.instance_id,
            client_id=each.client_id,
            client_host=each.client_host,
            rebalance_timeout=each.rebalance_timeout_ms,
            session_timeout=each.session_timeout_ms,
            subscription=each.metadata(group.protocol),
            assignment=assignments.get(each.member_id, b""),
        )
        for each in group.members.values()
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
        each.member_id: GroupMember(
            member_id=each.member_id,
            instance_id=each.group_instance_id,
            client_id=each.client_id,
            client_host=each.client_host,
            rebalance_timeout_ms=_rebalance_timeout_ms(each),
            session_timeout_ms=each.session_timeout,
            protocols=() if value.protocol is None else ((value.protocol, each.subscription),),
            assignment=each.assignment,
        )
        for each in value.members
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


def offset_record(group_id: str, at: TopicPartition, committed: CommittedOffset) -> StoredRecord:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_ms,
        expire_timestamp=committed.expire_ms,
    )
    version = _OFFSET_VALUE if committed.expire_ms < 0 else _OFFSET_VALUE_WITH_EXPIRY
    return StoredRecord(_offset_key(group_id, at), value, _OFFSET_KEY, version)


def offset_tombstone(group_id: str, at: TopicPartition) -> StoredRecord:
    return StoredRecord(_offset_key(group_id, at), None, _OFFSET_KEY)


def _offset_key(group_id: str, at: TopicPartition) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=at[0], partition=at[1])


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

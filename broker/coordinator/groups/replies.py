"""Answers of the classic group protocol that do not depend on the version of the request.

Owns their fields. Does not decide what is answered, or know versions: the handlers of the Kafka listener
adapt an answer to its version.
"""

from __future__ import annotations

from metaquorum.broker.coordinator.groups.group import Group, GroupMember, Phase
from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire.messages import (
    DescribeGroupsResponse,
    JoinGroupResponse,
    ListGroupsResponse,
    SyncGroupResponse,
)


def joined(
    group: Group, member: GroupMember, *, has_come_back: bool = False, old_leader: str | None = None
) -> JoinGroupResponse:
    """A member is in the generation; the leader's answer lists the others. `has_come_back`: a static member
    is in a stable group again, and there is nothing to assign."""
    leads = group.leader == member.member_id and old_leader is None
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=old_leader or group.leader or "",
        skip_assignment=leads and has_come_back,
        member_id=member.member_id,
        members=tuple(
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                metadata=each.metadata(group.protocol),
            )
            for each in (group.members.values() if leads else ())
        ),
    )


def not_joined(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=None)


def synced(group: Group, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment
    )


def not_synced(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error)


def listed(group: Group) -> ListGroupsResponse.ListedGroup:
    return ListGroupsResponse.ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.phase.value,
        group_type="classic",
    )


def described(group_id: str, group: Group | None) -> DescribeGroupsResponse.DescribedGroup:
    """A group for an operator; members' metadata is shown while it is stable, as in Kafka. A group that does
    not exist is dead."""
    if group is None:
        return DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state="Dead")
    stable = group.phase is Phase.STABLE
    return DescribeGroupsResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.phase.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=tuple(
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.metadata(group.protocol) if stable else b"",
                member_assignment=each.assignment if stable else b"",
            )
            for each in group.members.values()
        ),
    )

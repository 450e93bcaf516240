"""Requests of a classic group's members: whether they are allowed, before `rebalance` carries them out.

Owns the refusals. Does not change a group or set timers; members of the classic protocol in a group of the
new one are in `consumer.classic`.
"""

from __future__ import annotations

from metaquorum.broker.coordinator.groups.group import Group, GroupMember, Phase
from metaquorum.broker.coordinator.groups.rebalance import Rebalances
from metaquorum.broker.coordinator.groups.replies import not_joined, not_synced
from metaquorum.broker.coordinator.groups.work import Work
from metaquorum.broker.coordinator.state import Ask
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.node_configs.groups import GroupConfig
from metaquorum.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)


class ClassicRequests:
    """See the module."""

    def __init__(self, config: GroupConfig, rebalances: Rebalances) -> None:
        self._config = config
        self._rebalances = rebalances

    def join(self, work: Work, ask: Ask, group: Group, member: GroupMember) -> None:
        """`member`: the member that the JoinGroup describes."""
        body: JoinGroupRequest = ask.body
        if not group.accepts(body.member_id, self._config.group_max_size):
            self._rebalances.drop(group, body.member_id)
            work.reply(ask.key, not_joined("", ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif not group.supports(body.protocol_type, (each.name for each in body.protocols)):
            work.reply(ask.key, not_joined(body.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif body.member_id:
            self._rebalances.join_known(work, group, member, ask)
        else:
            self._rebalances.join_new(work, group, member, ask)

    def sync(self, work: Work, key: object, group: Group, body: SyncGroupRequest) -> None:
        error = self._rebalances.stranger(group, body.member_id, body.group_instance_id)
        if error is None and body.generation_id != group.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        if error is None:
            said = ((body.protocol_type, group.protocol_type), (body.protocol_name, group.protocol))
            if any(theirs is not None and theirs != ours for theirs, ours in said):
                error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is not None:
            work.reply(key, not_synced(error))
            return
        given = {each.member_id: each.assignment for each in body.assignments}
        self._rebalances.sync(work, group, key, body.member_id, given)

    def heartbeat(self, work: Work, group: Group, body: HeartbeatRequest) -> ErrorCode:
        error = self._rebalances.stranger(group, body.member_id, body.group_instance_id)
        if error is not None:
            return error
        if body.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.phase is Phase.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._rebalances.alive(work, group, body.member_id)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.phase is Phase.PREPARING else ErrorCode.NONE

    def leave(self, work: Work, group: Group, who: LeaveGroupRequest.MemberIdentity) -> ErrorCode:
        """An operator may name a static member by its instance id alone."""
        member_id = who.member_id
        if not member_id:
            member_id = group.static_id(who.group_instance_id) or ""
        error = None
        if member_id not in group.pending:
            error = self._rebalances.stranger(group, member_id, who.group_instance_id)
        if error is not None:
            return error
        self._rebalances.leave(work, group, member_id)
        return ErrorCode.NONE


def member_of(ask: Ask) -> GroupMember:
    """The member that a JoinGroup describes. Version 0 has no rebalance timeout: the session timeout is used
    instead."""
    body: JoinGroupRequest = ask.body
    rebalance_ms = body.rebalance_timeout_ms
    return GroupMember(
        member_id=body.member_id,
        instance_id=body.group_instance_id,
        client_id=ask.request.client_id,
        client_host=ask.request.client_host,
        rebalance_timeout_ms=body.session_timeout_ms if rebalance_ms < 0 else rebalance_ms,
        session_timeout_ms=body.session_timeout_ms,
        protocols=tuple((each.name, each.metadata) for each in body.protocols),
        join_key=ask.key,
    )

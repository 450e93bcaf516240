"""Members of the classic protocol in a group of the new one (KIP-848): JoinGroup, SyncGroup, Heartbeat,
LeaveGroup.

The coordinator assigns, and no member leads. A member joins again for each step towards its target.
"""

from __future__ import annotations

import random

from msgspec.structs import replace

from metaquorum.broker.coordinator.groups.consumer.group import (
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from metaquorum.broker.coordinator.groups.consumer.groups import ConsumerGroups, GroupChange, topics_of
from metaquorum.broker.coordinator.groups.consumer.migration import assignment_of, owned_parts
from metaquorum.broker.coordinator.groups.group import CONSUMER, GroupMember, Work
from metaquorum.broker.coordinator.groups.rebalance import (
    MEMBER_ID_REQUIRED,
    new_member_id,
    not_joined,
    not_synced,
)
from metaquorum.broker.coordinator.state import Ask
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.node_configs.coordinators import GroupConfig
from metaquorum.wire import messages
from metaquorum.wire.embedded import consumer_subscription


class ClassicMembers:
    """See the module. Every request concerns a group that has members."""

    def __init__(self, config: GroupConfig, consumers: ConsumerGroups, rng: random.Random) -> None:
        self._config = config
        self._consumers = consumers
        self._rng = rng

    # ---- joining ---------------------------------------------------------------------------------

    def join(self, work: Work, ask: Ask, joining: GroupMember) -> None:
        """`joining`: the member that the JoinGroup describes."""
        body: messages.JoinGroupRequest = ask.body
        group = self._consumers.groups[body.group_id]
        error = self._join_error(group, joining, body.protocol_type)
        if error is not None:
            is_full = error is ErrorCode.GROUP_MAX_SIZE_REACHED
            work.reply(ask.key, not_joined("" if is_full else joining.member_id, error))
            return
        new_id = joining.member_id or new_member_id(self._rng, joining)
        is_new = not joining.member_id and joining.instance_id is None
        if is_new and ask.request.version >= MEMBER_ID_REQUIRED:
            work.reply(ask.key, not_joined(new_id, ErrorCode.MEMBER_ID_REQUIRED))
            return
        change = self._consumers.change(work, body.group_id)
        before = change.group.members.get(new_id)
        static = change.group.static_member(joining.instance_id)
        if before is None and static is not None:
            before = change.rejoin(static, new_id)
            self._consumers.forget(change.group, static.member_id)
        before = before or ConsumerMember(member_id=new_id)
        self._joined(ask, change, before, joining)

    def _join_error(self, group: ConsumerGroup, joining: GroupMember, protocol_type: str) -> ErrorCode | None:
        static = group.static_member(joining.instance_id)
        known = group.members.get(joining.member_id)
        is_new = known is None and static is None
        if is_new and len(group.members) >= self._config.group_consumer_max_size:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        old_id = joining.member_id if static is None else static.member_id
        names = [name for name, _ in joining.protocols]
        readable = joining.protocols and consumer_subscription(joining.protocols[0][1]) is not None
        if protocol_type != CONSUMER or not readable or not group.supports(old_id, names):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if joining.instance_id is not None and joining.member_id:
            if static is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if static.member_id != joining.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return None

    def _joined(self, ask: Ask, change: GroupChange, before: ConsumerMember, joining: GroupMember) -> None:
        name, metadata = joining.protocols[0]
        subscription = consumer_subscription(metadata)
        assert subscription is not None, "was read before"
        member = replace(
            before,
            instance_id=joining.instance_id,
            rack_id=subscription.value.rack_id or before.rack_id,
            client_id=joining.client_id,
            client_host=joining.client_host,
            topics=tuple(sorted(set(subscription.value.topics))),
            pattern=None,
            rebalance_timeout_ms=joining.rebalance_timeout_ms,
            classic=ClassicMember(session_timeout_ms=joining.session_timeout_ms, protocols=joining.protocols),
        )
        after = change.update(before, member, owned_parts(subscription.value, self._consumers.image))
        self._consumers.heard(change.work, change.group, after, is_new_step=True)
        self._consumers.must_sync(change.work, change.group, after)
        self._consumers.settle(change.work, change.group)
        change.work.reply(
            ask.key,
            messages.JoinGroupResponse(
                generation_id=after.epoch,
                protocol_type=CONSUMER,
                protocol_name=name,
                leader="",
                member_id=after.member_id,
            ),
        )

    # ---- existing members ------------------------------------------------------------------------

    def sync(self, work: Work, key: object, body: messages.SyncGroupRequest) -> None:
        """Answers with the assignment that the coordinator made."""
        group = self._consumers.groups[body.group_id]
        member = _member(group, body.member_id, body.group_instance_id, body.generation_id)
        if isinstance(member, ErrorCode):
            work.reply(key, not_synced(member))
            return
        assert member.classic is not None, "was seen before"
        name, metadata = member.classic.protocols[0]
        said = ((body.protocol_type, CONSUMER), (body.protocol_name, name))
        if any(theirs is not None and theirs != ours for theirs, ours in said):
            work.reply(key, not_synced(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._consumers.must_join(work, group, member)
            work.reply(key, not_synced(ErrorCode.REBALANCE_IN_PROGRESS))
            return
        self._consumers.has_synced(group, member)
        self._consumers.heard(work, group, member, is_new_step=False)
        assignment = assignment_of(member, metadata, self._consumers.image)
        work.reply(
            key, messages.SyncGroupResponse(protocol_type=CONSUMER, protocol_name=name, assignment=assignment)
        )

    def heartbeat(self, work: Work, body: messages.HeartbeatRequest) -> ErrorCode:
        """A member joins again when its epoch has passed, when it must give something up, and when it can
        have what it waits for."""
        group = self._consumers.groups[body.group_id]
        member = _member(group, body.member_id, body.group_instance_id, body.generation_id)
        if isinstance(member, ErrorCode):
            return member
        self._consumers.heard(work, group, member, is_new_step=False)
        if (
            member.epoch == group.epoch
            and member.state is not MemberState.UNREVOKED
            and (member.state is MemberState.STABLE or group.awaits_others(member))
            and topics_of(group, self._consumers.image) == group.topics
        ):
            return ErrorCode.NONE
        self._consumers.must_join(work, group, member)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave(self, work: Work, body: messages.LeaveGroupRequest) -> tuple[ErrorCode, ...]:
        """One code per member; an operator may name a static member by its instance id alone."""
        change = self._consumers.change(work, body.group_id)
        codes = []
        for leaving in body.members:
            group = change.group
            static = group.static_member(leaving.group_instance_id)
            by_instance = static is not None and not leaving.member_id
            member_id = static.member_id if static is not None and by_instance else leaving.member_id
            member = _member(group, member_id, leaving.group_instance_id, None)
            if not isinstance(member, ErrorCode):
                change.remove(member.member_id)
                self._consumers.forget(group, member.member_id)
            codes.append(member if isinstance(member, ErrorCode) else ErrorCode.NONE)
        if work.records:
            change.raise_epoch(must=True)
        return tuple(codes)


def _member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int | None
) -> ConsumerMember | ErrorCode:
    """The classic member that sent the request, or why it is refused."""
    if instance_id is not None:
        static = group.static_member(instance_id)
        if static is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if static.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation is not None and member.epoch != generation:
        return ErrorCode.ILLEGAL_GENERATION
    return member

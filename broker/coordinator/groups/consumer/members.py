"""What members of a consumer group ask: the heartbeat of KIP-848, and requests of the classic protocol."""

from __future__ import annotations

import random
import uuid

from msgspec.structs import replace

from metaquorum.broker.coordinator.groups.consumer.assignors import ASSIGNORS
from metaquorum.broker.coordinator.groups.consumer.group import (
    AWAY,
    LEFT,
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    assignment_record,
    flat,
    parts_of,
)
from metaquorum.broker.coordinator.groups.consumer.groups import ConsumerGroups, GroupChange, topics_of
from metaquorum.broker.coordinator.groups.consumer.migration import assignment_of, owned_parts
from metaquorum.broker.coordinator.groups.consumer.patterns import pattern_problem
from metaquorum.broker.coordinator.groups.group import CONSUMER, GroupMember, Work
from metaquorum.broker.coordinator.groups.rebalance import (
    MEMBER_ID_REQUIRED,
    new_member_id,
    not_joined,
    not_synced,
)
from metaquorum.broker.coordinator.state import Ask
from metaquorum.metadata.authorizer import Caller
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.storage.uuids import random_uuid
from metaquorum.wire import messages
from metaquorum.wire.embedded import consumer_subscription
from metaquorum.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from metaquorum.wire.stored import StoredRecord

# ConsumerGroupHeartbeat: members join, report what they own, and receive their assignment (KIP-848).

_CLIENTS_MAKE_IDS = 1
"""From this version on a member generates its own id (KIP-1082)."""


class ConsumerHeartbeats:
    """See the module."""

    def __init__(self, config: GroupConfig, consumers: ConsumerGroups, rng: random.Random) -> None:
        self._config = config
        self._consumers = consumers
        self._rng = rng

    def handle(self, work: Work, ask: Ask, first: tuple[StoredRecord, ...] = ()) -> bool:
        """Returns whether the sender is now a member; if not, nothing is stored. `first`: the records that
        turn the group into one of the new protocol."""
        body: ConsumerGroupHeartbeatRequest = ask.body
        problem = _problem(body, ask.request.version)
        if problem is None and body.group_id not in self._consumers.groups and body.member_epoch != 0:
            problem = ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {body.group_id}"
        if problem is not None:
            work.reply(ask.key, heartbeat_refused(*problem))
            return False
        change = self._consumers.change(work, body.group_id)
        for record in first:
            change.put(record)
        leaves = body.member_epoch in (LEFT, AWAY)
        error = self._leave(change, ask) if leaves else self._alive(change, ask)
        if error is not None:
            work.records.clear()
            work.reply(ask.key, heartbeat_refused(error, _words(error, body)))
            return False
        for member in change.group.members.values() if first else ():
            if member.classic is not None:
                self._consumers.heard(work, change.group, member, is_new_step=True)
        return True

    def _alive(self, change: GroupChange, ask: Ask) -> ErrorCode | None:
        body: ConsumerGroupHeartbeatRequest = ask.body
        before = self._member(change, ask)
        if isinstance(before, ErrorCode):
            return before
        if body.subscribed_topic_regex and pattern_problem(body.subscribed_topic_regex) is not None:
            return ErrorCode.INVALID_REGULAR_EXPRESSION
        member = _updated(before, ask)
        owned = None if body.topic_partitions is None else parts_of(body.topic_partitions)
        after = change.update(before, member, owned)
        self._consumers.heard(change.work, change.group, after, is_new_step=after != member)
        is_full = body.member_epoch == 0 or (
            body.rebalance_timeout_ms >= 0 and _names_topics(body) and body.topic_partitions is not None
        )
        with_assignment = is_full or after.assigned != before.assigned
        change.work.reply(ask.key, self._answer(body.group_id, after, with_assignment=with_assignment))
        request = ask.request
        caller = Caller(request.principal, request.client_host.removeprefix("/"))
        self._consumers.look_up(change.work, change.group, caller)
        return None

    def _member(self, change: GroupChange, ask: Ask) -> ConsumerMember | ErrorCode:
        """The sender as a known or new member, or why it is refused. A static member takes the place of one
        that left for a while, and of a classic one, which never announces that it leaves."""
        body: ConsumerGroupHeartbeatRequest = ask.body
        draft = change.group
        member = draft.members.get(body.member_id)
        static = draft.static_member(body.instance_id)
        if body.member_epoch == 0 and static is not None and _is_replaceable(static, body.member_id):
            self._consumers.forget(draft, static.member_id)
            return change.rejoin(static, body.member_id or self._new_id())
        if static is not None and static.member_id != body.member_id:
            return (
                ErrorCode.UNRELEASED_INSTANCE_ID if body.member_epoch == 0 else ErrorCode.FENCED_INSTANCE_ID
            )
        if member is None:
            if body.member_epoch != 0:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if len(draft.members) >= self._config.group_consumer_max_size:
                return ErrorCode.GROUP_MAX_SIZE_REACHED
            return ConsumerMember(
                member_id=body.member_id or self._new_id(),
                instance_id=body.instance_id,
                client_id=ask.request.client_id,
                client_host=ask.request.client_host,
            )
        return ErrorCode.FENCED_MEMBER_EPOCH if _is_fenced(member, body) else member

    def _leave(self, change: GroupChange, ask: Ask) -> ErrorCode | None:
        body: ConsumerGroupHeartbeatRequest = ask.body
        member = change.group.members.get(body.member_id)
        static = change.group.static_member(body.instance_id)
        if static is not None and static.member_id != body.member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member is None or (body.instance_id is not None and static is None):
            return ErrorCode.UNKNOWN_MEMBER_ID
        if body.member_epoch == AWAY:
            change.put(assignment_record(body.group_id, replace(member, epoch=AWAY)))
        else:
            self._consumers.expel(change, member.member_id)
        change.work.reply(
            ask.key,
            ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=body.member_epoch),
        )
        return None

    def _new_id(self) -> str:
        return str(uuid.UUID(bytes=random_uuid(self._rng)))

    def _answer(
        self, group_id: str, member: ConsumerMember, *, with_assignment: bool
    ) -> ConsumerGroupHeartbeatResponse:
        kinds = ConsumerGroupHeartbeatResponse
        assignment = None
        if with_assignment:
            assignment = kinds.Assignment(
                topic_partitions=tuple(
                    kinds.TopicPartitions(topic_id=topic, partitions=tuple(sorted(indexes)))
                    for topic, indexes in sorted(member.assigned.items())
                )
            )
        return kinds(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._consumers.heartbeat_interval_ms(group_id),
            assignment=assignment,
        )


_WORDS = {
    ErrorCode.UNKNOWN_MEMBER_ID: "the group does not know this member: join again with member epoch 0",
    ErrorCode.FENCED_MEMBER_EPOCH: "the member's epoch is not current: join again with member epoch 0",
    ErrorCode.FENCED_INSTANCE_ID: "another member has this group.instance.id now",
    ErrorCode.UNRELEASED_INSTANCE_ID: "another member still has this group.instance.id: wait until it leaves",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group is full (group.consumer.max.size)",
}


def _words(error: ErrorCode, body: ConsumerGroupHeartbeatRequest) -> str:
    if error is ErrorCode.INVALID_REGULAR_EXPRESSION:
        pattern = body.subscribed_topic_regex or ""
        return f"SubscribedTopicRegex {pattern[:200]} {pattern_problem(pattern)}"
    return _WORDS.get(error, error.name)


def too_many_groups() -> ConsumerGroupHeartbeatResponse:
    """The answer if no other group may begin."""
    text = "too many groups in this partition (group.coordinator.max.groups): delete some"
    return heartbeat_refused(ErrorCode.GROUP_MAX_SIZE_REACHED, text)


def heartbeat_refused(error: ErrorCode, text: str) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=text)


def _problem(body: ConsumerGroupHeartbeatRequest, version: int) -> tuple[ErrorCode, str] | None:
    """What is wrong with a request on its own."""
    checks = (
        (body.member_epoch < AWAY, "the member epoch is below -2"),
        (
            not body.member_id and (body.member_epoch != 0 or version >= _CLIENTS_MAKE_IDS),
            "MemberId is missing",
        ),
        (body.instance_id == "", "InstanceId may be null, and not empty"),
        (body.rack_id == "", "RackId may be null, and not empty"),
        (body.member_epoch == AWAY and body.instance_id is None, "InstanceId is missing"),
        (body.member_epoch == 0 and body.rebalance_timeout_ms < 0, "RebalanceTimeoutMs is missing"),
        (
            body.member_epoch == 0 and body.topic_partitions != (),
            "TopicPartitions must be empty when joining",
        ),
    )
    for is_wrong, text in checks:
        if is_wrong:
            return ErrorCode.INVALID_REQUEST, text
    if body.member_epoch == 0 and not _names_topics(body):
        return ErrorCode.INVALID_REQUEST, "SubscribedTopicNames and SubscribedTopicRegex are missing"
    if body.server_assignor is not None and body.server_assignor not in ASSIGNORS:
        return ErrorCode.UNSUPPORTED_ASSIGNOR, f"use one of the assignors {', '.join(ASSIGNORS)}"
    return None


def _names_topics(body: ConsumerGroupHeartbeatRequest) -> bool:
    """Perhaps an empty list: a member may subscribe later."""
    return body.subscribed_topic_names is not None or body.subscribed_topic_regex is not None


def _is_replaceable(static: ConsumerMember, member_id: str) -> bool:
    return static.epoch == AWAY or (static.classic is not None and static.member_id != member_id)


def _is_fenced(member: ConsumerMember, body: ConsumerGroupHeartbeatRequest) -> bool:
    """A member may be one epoch behind if the last answer was lost, while it reports no more than it was
    assigned; and it may always start over with epoch 0 (KAFKA-19233)."""
    if body.member_epoch in (0, member.epoch):
        return False
    if body.member_epoch > member.epoch or body.member_epoch != member.previous_epoch:
        return True
    if body.topic_partitions is None:
        return True
    return not set(flat(parts_of(body.topic_partitions))) <= set(flat(member.assigned))


def _updated(member: ConsumerMember, ask: Ask) -> ConsumerMember:
    """The member with the request's values; null changes nothing."""
    body: ConsumerGroupHeartbeatRequest = ask.body
    topics = member.topics
    if body.subscribed_topic_names is not None:
        topics = tuple(sorted(set(body.subscribed_topic_names)))
    return replace(
        member,
        instance_id=member.instance_id if body.instance_id is None else body.instance_id,
        rack_id=member.rack_id if body.rack_id is None else body.rack_id,
        client_id=ask.request.client_id,
        client_host=ask.request.client_host,
        topics=topics,
        pattern=(
            member.pattern if body.subscribed_topic_regex is None else body.subscribed_topic_regex or None
        ),
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if body.rebalance_timeout_ms < 0 else body.rebalance_timeout_ms
        ),
        assignor=member.assignor if body.server_assignor is None else body.server_assignor,
        classic=None,
    )


# Members of the classic protocol in a group of the new one (KIP-848): JoinGroup, SyncGroup, Heartbeat,
# LeaveGroup.
#
# The coordinator assigns, and no member leads. A member joins again for each step towards its target.


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

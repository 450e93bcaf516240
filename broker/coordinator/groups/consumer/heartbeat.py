"""ConsumerGroupHeartbeat: members come, say what they have, and hear what they are to have (KIP-848).

Owns the consumer groups of one partition and the timers of their members. Everything is decided on a draft of
the group, to which each record is replayed as it is decided; the group itself changes when the log has them.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import replace

from metaquorum.broker.coordinator.groups.config import GroupConfig
from metaquorum.broker.coordinator.groups.consumer.assignors import ASSIGNORS, Subscriber
from metaquorum.broker.coordinator.groups.consumer.group import (
    AWAY,
    LEFT,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    assignment_record,
    flat,
    member_record,
    member_tombstones,
    parts_of,
    target_record,
)
from metaquorum.broker.coordinator.groups.consumer.reconcile import reconciled
from metaquorum.broker.coordinator.groups.consumer.replies import consumer_described, consumer_listed
from metaquorum.broker.coordinator.groups.rebalance import Timer
from metaquorum.broker.coordinator.groups.requests import ListGroups
from metaquorum.broker.coordinator.groups.work import Work
from metaquorum.broker.coordinator.state import Ask
from metaquorum.broker.replica.deadlines import Deadlines
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.storage.uuids import random_uuid
from metaquorum.wire.messages import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    ListGroupsResponse,
)
from metaquorum.wire.stored import StoredRecord

_CLIENTS_MAKE_IDS = 1
"""From this version on a member brings its id (KIP-1082)."""
_NO_REGEX = "a subscription by regular expression is not supported: subscribe to topics by name"

CONSUMER_TIMERS = ("consumer session", "revocation")
"""Of a member: it was silent, or has not given up what it must."""

Put = Callable[[StoredRecord], None]


class ConsumerGroups:
    """See the module. `image`: the newest metadata."""

    def __init__(self, config: GroupConfig, timers: Deadlines[Timer], rng: random.Random) -> None:
        self._config = config
        self._timers = timers
        self._rng = rng
        self.image = MetadataImage()
        self.groups: dict[str, ConsumerGroup] = {}

    def replay(self, record: StoredRecord) -> None:
        group_id = record.key.group_id
        if isinstance(record.key, ConsumerGroupMetadataKey) and record.value is None:
            self.groups.pop(group_id, None)
            return
        group = self.groups.get(group_id)
        if group is None and record.value is not None:
            group = self.groups[group_id] = ConsumerGroup(group_id=group_id)
        if group is not None:
            group.replay(record)

    def begin(self, work: Work) -> None:
        """The log was read: members have their session's time to be heard."""
        for group in self.groups.values():
            for member in group.members.values():
                self._arm(work, group, member, is_new_step=True)

    # ---- heartbeats ------------------------------------------------------------------------------

    def heartbeat(self, work: Work, ask: Ask) -> None:
        body: ConsumerGroupHeartbeatRequest = ask.body
        problem = _problem(body, ask.request.version)
        if problem is not None:
            work.reply(ask.key, _refused(*problem))
            return
        group = self.groups.get(body.group_id)
        if group is None and body.member_epoch != 0:
            text = f"there is no consumer group {body.group_id}"
            work.reply(ask.key, _refused(ErrorCode.GROUP_ID_NOT_FOUND, text))
            return
        draft = ConsumerGroup(group_id=body.group_id) if group is None else group.draft()

        def put(record: StoredRecord) -> None:
            work.store(record)
            draft.replay(record)

        if body.member_epoch in (LEFT, AWAY):
            self._leave(work, ask, draft, put)
        else:
            self._alive(work, ask, draft, put)

    def _alive(self, work: Work, ask: Ask, draft: ConsumerGroup, put: Put) -> None:
        body: ConsumerGroupHeartbeatRequest = ask.body
        owned = None if body.topic_partitions is None else parts_of(body.topic_partitions)
        before = self._member(draft, ask, put)
        if isinstance(before, ErrorCode):
            work.reply(ask.key, _refused(before, _WORDS.get(before, before.name)))
            return
        is_new = before.member_id not in draft.members
        member = _updated(before, ask)
        if is_new or member != before:
            put(member_record(draft.group_id, member))
        self._raise_epoch(draft, put, must=is_new or set(member.topics) != set(before.topics))
        if draft.epoch > draft.target_epoch:
            self._assign(draft, put)
        known = draft.members[member.member_id]
        after = reconciled(draft, known, owned)
        if after != known or is_new:
            put(assignment_record(draft.group_id, after))
        self._arm(work, draft, after, is_new_step=after != known)
        is_full = body.member_epoch == 0 or (
            body.rebalance_timeout_ms >= 0
            and body.subscribed_topic_names is not None
            and body.topic_partitions is not None
        )
        tell = is_full or after.assigned != before.assigned
        work.reply(ask.key, self._answer(after, tell=tell))

    def _member(self, draft: ConsumerGroup, ask: Ask, put: Put) -> ConsumerMember | ErrorCode:
        """The sender as it is known, or new; or why it is refused."""
        body: ConsumerGroupHeartbeatRequest = ask.body
        known = draft.members.get(body.member_id)
        static = draft.static_member(body.instance_id)
        if body.member_epoch == 0 and static is not None and static.epoch == AWAY:
            return self._come_back(draft, static, body.member_id or self._new_id(), put)
        if static is not None and static.member_id != body.member_id:
            return (
                ErrorCode.UNRELEASED_INSTANCE_ID if body.member_epoch == 0 else ErrorCode.FENCED_INSTANCE_ID
            )
        if known is None:
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
        return ErrorCode.FENCED_MEMBER_EPOCH if _is_fenced(known, body) else known

    def _come_back(self, draft: ConsumerGroup, old: ConsumerMember, new_id: str, put: Put) -> ConsumerMember:
        """A static member returns to what it had, perhaps under another id."""
        member = replace(old, member_id=new_id, epoch=0, previous_epoch=-1)
        target = draft.targets.get(old.member_id, {})
        if new_id != old.member_id:
            for record in member_tombstones(draft.group_id, old.member_id):
                put(record)
            self._disarm(draft.group_id, old.member_id)
        put(member_record(draft.group_id, member))
        put(target_record(draft.group_id, new_id, target))
        put(assignment_record(draft.group_id, member))
        return member

    def _raise_epoch(self, draft: ConsumerGroup, put: Put, *, must: bool) -> None:
        """A new epoch where members or their topics are others than those of the last one."""
        topics = self._topics_of(draft)
        if topics != draft.topics:
            must = True
            kinds = ConsumerGroupPartitionMetadataValue
            value = kinds(
                topics=tuple(
                    kinds.TopicMetadata(topic_id=topic_id, topic_name=name, num_partitions=count)
                    for name, (topic_id, count) in sorted(topics.items())
                )
            )
            put(StoredRecord(ConsumerGroupPartitionMetadataKey(group_id=draft.group_id), value, 4))
        if must:
            key = ConsumerGroupMetadataKey(group_id=draft.group_id)
            put(StoredRecord(key, ConsumerGroupMetadataValue(epoch=draft.epoch + 1), 3))

    def _topics_of(self, draft: ConsumerGroup) -> dict[str, tuple[bytes, int]]:
        topics = self.image.topics
        found = {name: topics.topic_named(name) for name in draft.subscribed()}
        return {
            name: (topic.topic_id, topics.partition_count_of(topic.topic_id))
            for name, topic in found.items()
            if topic is not None
        }

    def _assign(self, draft: ConsumerGroup, put: Put) -> None:
        """A target for everyone in the group's epoch, by the assignor that most members name."""
        named = sorted(each.assignor for each in draft.members.values() if each.assignor)
        name = max(named, key=named.count) if named else next(iter(ASSIGNORS))
        ids = {topic: topic_id for topic, (topic_id, _) in draft.topics.items()}
        subscribers = tuple(
            Subscriber(
                member_id=each.member_id,
                instance_id=each.instance_id,
                topics=frozenset(ids[topic] for topic in each.topics if topic in ids),
                has=draft.targets.get(each.member_id, {}),
            )
            for each in draft.members.values()
        )
        targets = ASSIGNORS[name](subscribers, dict(draft.topics.values()))
        for member_id, target in sorted(targets.items()):
            if draft.targets.get(member_id) != target:
                put(target_record(draft.group_id, member_id, target))
        value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=draft.epoch)
        put(StoredRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=draft.group_id), value, 6))

    # ---- leaving ---------------------------------------------------------------------------------

    def _leave(self, work: Work, ask: Ask, draft: ConsumerGroup, put: Put) -> None:
        body: ConsumerGroupHeartbeatRequest = ask.body
        member = draft.members.get(body.member_id)
        static = draft.static_member(body.instance_id)
        error = None
        if static is not None and static.member_id != body.member_id:
            error = ErrorCode.FENCED_INSTANCE_ID
        elif member is None or (body.instance_id is not None and static is None):
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not None or member is None:
            error = error or ErrorCode.UNKNOWN_MEMBER_ID
            work.reply(ask.key, _refused(error, _WORDS[error]))
            return
        if body.member_epoch == AWAY:
            put(assignment_record(draft.group_id, replace(member, epoch=AWAY)))
        else:
            self._remove(draft, member.member_id, put)
        work.reply(
            ask.key,
            ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=body.member_epoch),
        )

    def _remove(self, draft: ConsumerGroup, member_id: str, put: Put) -> None:
        for record in member_tombstones(draft.group_id, member_id):
            put(record)
        self._disarm(draft.group_id, member_id)
        self._raise_epoch(draft, put, must=True)

    def is_due(self, work: Work, group_id: str, member_id: str) -> None:
        """A member was silent, or has not given up in time what it must: it is thrown out."""
        group = self.groups.get(group_id)
        if group is None or member_id not in group.members:
            return
        draft = work.drafts.setdefault(group_id, group.draft())

        def put(record: StoredRecord) -> None:
            work.store(record)
            draft.replay(record)

        self._remove(draft, member_id, put)

    # ---- operators -------------------------------------------------------------------------------

    def listed(self, asked: ListGroups) -> list[ListGroupsResponse.ListedGroup]:
        if asked.types and "consumer" not in asked.types:
            return []
        found = self.groups.values()
        return [
            consumer_listed(each)
            for each in found
            if not asked.states or each.state_name.lower() in asked.states
        ]

    def described(self, group_id: str) -> ConsumerGroupDescribeResponse.DescribedGroup:
        return consumer_described(group_id, self.groups.get(group_id), self.image)

    # ---- the rest --------------------------------------------------------------------------------

    def _arm(self, work: Work, group: ConsumerGroup, member: ConsumerMember, *, is_new_step: bool) -> None:
        now_ms = work.now.ms
        at = (group.group_id, member.member_id)
        self._timers.arm(("consumer session", *at), now_ms + self._config.group_consumer_session_timeout_ms)
        if member.state is not MemberState.UNREVOKED:
            self._timers.disarm(("revocation", *at))
        elif is_new_step:
            self._timers.arm(("revocation", *at), now_ms + max(0, member.rebalance_timeout_ms))

    def _disarm(self, group_id: str, member_id: str) -> None:
        for name in CONSUMER_TIMERS:
            self._timers.disarm((name, group_id, member_id))

    def _new_id(self) -> str:
        return str(uuid.UUID(bytes=random_uuid(self._rng)))

    def _answer(self, member: ConsumerMember, *, tell: bool) -> ConsumerGroupHeartbeatResponse:
        kinds = ConsumerGroupHeartbeatResponse
        assignment = None
        if tell:
            assignment = kinds.Assignment(
                topic_partitions=tuple(
                    kinds.TopicPartitions(topic_id=topic, partitions=tuple(sorted(indexes)))
                    for topic, indexes in sorted(member.assigned.items())
                )
            )
        return kinds(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._config.group_consumer_heartbeat_interval_ms,
            assignment=assignment,
        )


_WORDS = {
    ErrorCode.UNKNOWN_MEMBER_ID: "the group does not know this member: join again with member epoch 0",
    ErrorCode.FENCED_MEMBER_EPOCH: "the member's epoch is not current: join again with member epoch 0",
    ErrorCode.FENCED_INSTANCE_ID: "another member has this group.instance.id now",
    ErrorCode.UNRELEASED_INSTANCE_ID: "another member still has this group.instance.id: wait until it leaves",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group is full (group.consumer.max.size)",
}


def too_many_groups() -> ConsumerGroupHeartbeatResponse:
    """The answer where no other group may begin."""
    text = "there are too many groups here (group.coordinator.max.groups): delete some"
    return _refused(ErrorCode.GROUP_MAX_SIZE_REACHED, text)


def _refused(error: ErrorCode, text: str) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=text)


def _problem(body: ConsumerGroupHeartbeatRequest, version: int) -> tuple[ErrorCode, str] | None:
    """What is wrong with a request by itself."""
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
    if body.subscribed_topic_regex:
        return ErrorCode.INVALID_REQUEST, _NO_REGEX
    if body.member_epoch == 0 and not body.subscribed_topic_names:
        return ErrorCode.INVALID_REQUEST, "SubscribedTopicNames is missing"
    if body.server_assignor is not None and body.server_assignor not in ASSIGNORS:
        return ErrorCode.UNSUPPORTED_ASSIGNOR, f"use one of the assignors {', '.join(ASSIGNORS)}"
    return None


def _is_fenced(member: ConsumerMember, body: ConsumerGroupHeartbeatRequest) -> bool:
    """A member may be one epoch behind where the last answer was lost, with nothing but what it has; and it
    may always begin again with epoch 0 (KAFKA-19233)."""
    if body.member_epoch in (0, member.epoch):
        return False
    if body.member_epoch > member.epoch or body.member_epoch != member.previous_epoch:
        return True
    if body.topic_partitions is None:
        return True
    return not set(flat(parts_of(body.topic_partitions))) <= set(flat(member.assigned))


def _updated(member: ConsumerMember, ask: Ask) -> ConsumerMember:
    """With what the request says; null leaves it as it is."""
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
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if body.rebalance_timeout_ms < 0 else body.rebalance_timeout_ms
        ),
        assignor=member.assignor if body.server_assignor is None else body.server_assignor,
    )

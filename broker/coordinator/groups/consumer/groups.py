"""The consumer groups of one partition: their members' timers, and what happens when a member leaves."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from metaquorum.broker.coordinator.groups.consumer.assignors import ASSIGNORS, Parts, Subscriber
from metaquorum.broker.coordinator.groups.consumer.group import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    ResolvedPattern,
    assignment_record,
    flat,
    gathered,
    group_record,
    member_record,
    member_tombstones,
    pattern_record,
    target_record,
    targets_record,
)
from metaquorum.broker.coordinator.groups.consumer.migration import downgrade_records
from metaquorum.broker.coordinator.groups.consumer.patterns import Patterns
from metaquorum.broker.coordinator.groups.group import ListGroups, Work
from metaquorum.broker.coordinator.groups.rebalance import Timer
from metaquorum.broker.replica.deadlines import Deadlines
from metaquorum.metadata.authorizer import Authorizer, Caller
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.metadata.settings.configs import group_setting
from metaquorum.metadata.settings.resource_keys import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from metaquorum.wire.messages import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ListGroupsResponse,
)
from metaquorum.wire.stored import StoredRecord

_SESSION, _REVOCATION, _JOIN, _SYNC = "consumer session", "revocation", "classic join", "classic sync"
_DOWNGRADE, _PATTERNS = "downgrade", "patterns"
CONSUMER_TIMERS = (_SESSION, _REVOCATION, _JOIN, _SYNC, _DOWNGRADE, _PATTERNS)
"""Of a member: it was silent, has not given up what it must, or, if classic, has not joined again or not
requested its assignment. Of a group: only classic members are left in it. Of all: patterns are looked up."""


class ConsumerGroups:
    """See the module. `image`: the newest metadata."""

    def __init__(self, config: GroupConfig, timers: Deadlines[Timer], authorizer: Authorizer | None) -> None:
        self._config = config
        self._timers = timers
        self._patterns = Patterns(config, authorizer)
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

    def published(self, image: MetadataImage) -> None:
        self.image = image
        self._patterns.published(image)

    def begin(self, work: Work) -> None:
        """The log was read: members have a session timeout in which to send a heartbeat."""
        for group in self.groups.values():
            for member in group.members.values():
                self.heard(work, group, member, is_new_step=True)
            self.settle(work, group)

    def change(self, work: Work, group_id: str) -> GroupChange:
        """A change of a group, which may be new."""
        group = self.groups.get(group_id)
        draft = ConsumerGroup(group_id=group_id) if group is None else group.draft()
        return GroupChange(work, draft, self.image)

    # ---- leaving members -------------------------------------------------------------------------

    def expel(self, change: GroupChange, member_id: str) -> None:
        """A member leaves, or is removed. When the last member of the new protocol leaves, the group becomes
        a classic one."""
        if change.group.members[member_id].classic is None and self._downgrade(change, member_id):
            return
        change.remove(member_id)
        self.forget(change.group, member_id)
        change.raise_epoch(must=True)

    def settle(self, work: Work, group: ConsumerGroup) -> None:
        """A group that all members of the new protocol have left becomes a classic one, soon."""
        if group.is_all_classic and self._config.group_consumer_migration_policy.downgrades:
            self._timers.arm((_DOWNGRADE, group.group_id, ""), work.now.ms)

    def _downgrade(self, change: GroupChange, leaving: str | None = None) -> bool:
        group = change.group
        rest = [each for each in group.members.values() if each.member_id != leaving]
        if (
            not self._config.group_consumer_migration_policy.downgrades
            or not 0 < len(rest) <= self._config.group_max_size
            or any(each.classic is None for each in rest)
        ):
            return False
        records = downgrade_records(group, leaving, self.image, change.work.now.wall_ms)
        if records is None:
            return False
        for member_id in group.members:
            self.forget(group, member_id)
        for record in records:
            change.put(record)
        return True

    def is_due(self, work: Work, timer: Timer) -> None:
        """A member was silent, or has not done in time what it must: it is removed."""
        name, group_id, member_id = timer
        if name == _PATTERNS:
            self._look_on(work)
        if group_id not in self.groups:
            return
        change = self._draft(work, group_id)
        if name == _DOWNGRADE:
            self._downgrade(change)
        elif member_id in change.group.members:
            self.expel(change, member_id)

    # ---- timers ----------------------------------------------------------------------------------

    def heard(self, work: Work, group: ConsumerGroup, member: ConsumerMember, *, is_new_step: bool) -> None:
        """A member sent a request. `is_new_step`: what it must do now began with this one."""
        member_key = (group.group_id, member.member_id)
        timeout_ms = group_setting(self.image, group.group_id, SESSION_TIMEOUT)
        if timeout_ms is None:
            timeout_ms = self._config.group_consumer_session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            self._timers.disarm((_JOIN, *member_key))
            self._timers.disarm((_SYNC, *member_key))
        self._timers.arm((_SESSION, *member_key), work.now.ms + timeout_ms)
        if member.state is not MemberState.UNREVOKED or member.classic is not None:
            self._timers.disarm((_REVOCATION, *member_key))
        elif is_new_step:
            self._timers.arm((_REVOCATION, *member_key), work.now.ms + max(0, member.rebalance_timeout_ms))

    def heartbeat_interval_ms(self, group_id: str) -> int:
        own_ms = group_setting(self.image, group_id, HEARTBEAT_INTERVAL)
        return self._config.group_consumer_heartbeat_interval_ms if own_ms is None else own_ms

    def look_up(self, work: Work, group: ConsumerGroup, caller: Caller) -> None:
        """A member sent a request: the topics that match the group's patterns may have changed."""
        if self._patterns.heard(group, caller, work.now.wall_ms):
            self._timers.arm((_PATTERNS, "", ""), work.now.ms)

    def _look_on(self, work: Work) -> None:
        group_id, topic_names = self._patterns.advance(work.now.wall_ms)
        if self._patterns.is_looking:
            self._timers.arm((_PATTERNS, "", ""), work.now.ms)
        if topic_names and group_id in self.groups:
            self._draft(work, group_id).resolved(topic_names)

    def _draft(self, work: Work, group_id: str) -> GroupChange:
        draft: GroupChange = work.drafts.setdefault(group_id, self.change(work, group_id))
        return draft

    def must_join(self, work: Work, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A classic member is asked to join again."""
        timer = (_JOIN, group.group_id, member.member_id)
        if timer not in self._timers:
            self._timers.arm(timer, work.now.ms + member.rebalance_timeout_ms)

    def must_sync(self, work: Work, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A classic member has joined, and must now request its assignment."""
        at = (group.group_id, member.member_id)
        self._timers.disarm((_JOIN, *at))
        self._timers.arm((_SYNC, *at), work.now.ms + member.rebalance_timeout_ms)

    def has_synced(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        self._timers.disarm((_SYNC, group.group_id, member.member_id))

    def forget(self, group: ConsumerGroup, member_id: str) -> None:
        for name in CONSUMER_TIMERS:
            self._timers.disarm((name, group.group_id, member_id))

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


# Descriptions, for operators, of groups of the new protocol.
# Those of classic groups are in `groups.rebalance`.

_CLASSIC, _NEW_PROTOCOL = 0, 1
"""The type of a member in version 1 of ConsumerGroupDescribe."""


def consumer_listed(group: ConsumerGroup) -> ListGroupsResponse.ListedGroup:
    return ListGroupsResponse.ListedGroup(
        group_id=group.group_id, protocol_type="consumer", group_state=group.state_name, group_type="consumer"
    )


def consumer_described(
    group_id: str, group: ConsumerGroup | None, image: MetadataImage
) -> ConsumerGroupDescribeResponse.DescribedGroup:
    kinds = ConsumerGroupDescribeResponse
    if group is None:
        text = f"Group {group_id} not found."
        return kinds.DescribedGroup(
            group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=text
        )

    def assignment(parts: Parts) -> ConsumerGroupDescribeResponse.Assignment:
        topics = []
        for topic_id, indexes in sorted(parts.items()):
            topic = image.topics.topic(topic_id)
            if topic is not None:
                name, partitions = topic.name, tuple(sorted(indexes))
                topics.append(
                    kinds.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=partitions)
                )
        return kinds.Assignment(topic_partitions=tuple(topics))

    named = sorted(each.assignor for each in group.members.values() if each.assignor)
    return kinds.DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=max(named, key=named.count) if named else next(iter(ASSIGNORS)),
        members=tuple(
            kinds.Member(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=member.epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=member.topics,
                subscribed_topic_regex=member.pattern,
                assignment=assignment(member.assigned),
                target_assignment=assignment(group.targets.get(member.member_id, {})),
                member_type=_NEW_PROTOCOL if member.classic is None else _CLASSIC,
            )
            for member in group.members.values()
        ),
    )


# One change of a consumer group in the making.
# Everything is decided on a draft of the group, to which each record is replayed as it is decided; the
# group itself changes when the log has the records.


class GroupChange:
    """`group`: the draft. Its records go into `work`."""

    def __init__(self, work: Work, group: ConsumerGroup, image: MetadataImage) -> None:
        self.work = work
        self.group = group
        self._image = image

    def put(self, record: StoredRecord) -> None:
        self.work.store(record)
        self.group.replay(record)

    def update(self, before: ConsumerMember, member: ConsumerMember, owned: Parts | None) -> ConsumerMember:
        """The member that was `before`, perhaps a new one, becomes `member`; it reports that it owns `owned`
        (None: it does not report it). Returns it after one step towards its target."""
        draft = self.group
        is_new = before.member_id not in draft.members
        topics = draft.topics_of(before)
        if is_new or member != before:
            self.put(member_record(draft.group_id, member))
            self._forget_pattern(before.pattern)
        self.raise_epoch(must=is_new or draft.topics_of(member) != topics)
        if draft.epoch > draft.target_epoch:
            self._assign()
        after = reconciled(draft, member, owned)
        if after != member or is_new:
            self.put(assignment_record(draft.group_id, after))
        return after

    def rejoin(self, old: ConsumerMember, new_id: str) -> ConsumerMember:
        """A static member returns to what it had, perhaps under another id."""
        draft = self.group
        member = replace(old, member_id=new_id, epoch=0, previous_epoch=-1)
        target = draft.targets.get(old.member_id, {})
        if new_id != old.member_id:
            for record in member_tombstones(draft.group_id, old.member_id):
                self.put(record)
        self.put(member_record(draft.group_id, member))
        self.put(target_record(draft.group_id, new_id, target))
        self.put(assignment_record(draft.group_id, member))
        return member

    def remove(self, member_id: str) -> None:
        pattern = self.group.members[member_id].pattern
        for record in member_tombstones(self.group.group_id, member_id):
            self.put(record)
        self._forget_pattern(pattern)

    def _forget_pattern(self, pattern: str | None) -> None:
        """Forgets the pattern unless a member still subscribes to it."""
        if pattern in self.group.patterns and pattern not in self.group.subscribed_patterns():
            self.put(pattern_record(self.group.group_id, pattern, None))

    def resolved(self, resolved: Mapping[str, ResolvedPattern]) -> None:
        """The topics that patterns now match, for patterns that members still subscribe to."""
        before = self.group.patterns.copy()
        for pattern in sorted(resolved.keys() & self.group.subscribed_patterns()):
            self.put(pattern_record(self.group.group_id, pattern, resolved[pattern]))
        self.raise_epoch(
            must=any(
                each.topics != (before[pattern].topics if pattern in before else frozenset())
                for pattern, each in self.group.patterns.items()
            )
        )

    def raise_epoch(self, *, must: bool) -> None:
        """A new epoch if members or their topics changed since the last one."""
        draft = self.group
        topics = topics_of(draft, self._image)
        if topics != draft.topics:
            must = True
            kinds = ConsumerGroupPartitionMetadataValue
            value = kinds(
                topics=tuple(
                    kinds.TopicMetadata(topic_id=topic_id, topic_name=name, num_partitions=count)
                    for name, (topic_id, count) in sorted(topics.items())
                )
            )
            self.put(StoredRecord(ConsumerGroupPartitionMetadataKey(group_id=draft.group_id), value, 4))
        if must:
            self.put(group_record(draft.group_id, draft.epoch + 1))

    def _assign(self) -> None:
        """A target for every member in the group's epoch, by the assignor that most members name."""
        draft = self.group
        named = sorted(each.assignor for each in draft.members.values() if each.assignor)
        name = max(named, key=named.count) if named else next(iter(ASSIGNORS))
        ids = {topic: topic_id for topic, (topic_id, _) in draft.topics.items()}
        subscribers = tuple(
            Subscriber(
                member_id=member.member_id,
                instance_id=member.instance_id,
                topics=frozenset(ids[topic] for topic in draft.topics_of(member) if topic in ids),
                has=draft.targets.get(member.member_id, {}),
            )
            for member in draft.members.values()
        )
        targets = ASSIGNORS[name](subscribers, dict(draft.topics.values()))
        for member_id, target in sorted(targets.items()):
            if draft.targets.get(member_id) != target:
                self.put(target_record(draft.group_id, member_id, target))
        self.put(targets_record(draft.group_id, draft.epoch))


def topics_of(group: ConsumerGroup, image: MetadataImage) -> dict[str, tuple[bytes, int]]:
    """(topic id, number of partitions) of the topics that the group subscribes to and that exist."""
    topics = image.topics
    found = {name: topics.topic_named(name) for name in group.subscribed()}
    return {
        name: (topic.topic_id, topics.partition_count_of(topic.topic_id))
        for name, topic in found.items()
        if topic is not None
    }


# One step of a member from what it has towards its target (KIP-848).
# Step, for one member. A member first gives up what is not in its target, then takes what others have
# given up; it is in the target's epoch as soon as it has nothing left to give up. So no partition ever
# has two owners.


def reconciled(group: ConsumerGroup, member: ConsumerMember, owned: Parts | None) -> ConsumerMember:
    """The member after this heartbeat. `owned`: what it reports to own; None: it does not report it, and has
    what it had."""
    if member.state is MemberState.STABLE and member.epoch == group.target_epoch:
        return member
    if member.state is MemberState.UNREVOKED and _still_has(member.revoking, owned):
        return member
    target = set(flat(group.targets.get(member.member_id, {})))
    assigned = set(flat(member.assigned))
    kept, leaving = assigned & target, assigned - target
    if leaving and _still_has(gathered(leaving), owned):
        return replace(
            member, state=MemberState.UNREVOKED, assigned=gathered(kept), revoking=gathered(leaving)
        )
    missing = target - kept
    taken = missing & group.owned_by_others(member.member_id)
    epoch = group.target_epoch
    return replace(
        member,
        epoch=epoch,
        previous_epoch=member.previous_epoch if member.epoch == epoch else member.epoch,
        state=MemberState.UNRELEASED if taken else MemberState.STABLE,
        assigned=gathered(kept | (missing - taken)),
        revoking={},
    )


def _still_has(parts: Parts, owned: Parts | None) -> bool:
    return owned is None or any(owned.get(topic, frozenset()) & indexes for topic, indexes in parts.items())

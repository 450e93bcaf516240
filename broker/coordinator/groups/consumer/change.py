"""One change of a consumer group in the making.

Owns the draft and its records. Does not know requests or timers: `heartbeat`, `classic` and `groups` do.
Everything is decided on a draft of the group, to which each record is replayed as it is decided; the group
itself changes when the log has the records.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from metaquorum.broker.coordinator.groups.consumer.assignors import ASSIGNORS, Parts, Subscriber
from metaquorum.broker.coordinator.groups.consumer.group import (
    ConsumerGroup,
    ConsumerMember,
    ResolvedPattern,
    assignment_record,
    group_record,
    member_record,
    member_tombstones,
    pattern_record,
    target_record,
    targets_record,
)
from metaquorum.broker.coordinator.groups.consumer.reconcile import reconciled
from metaquorum.broker.coordinator.groups.work import Work
from metaquorum.metadata.image import MetadataImage
from metaquorum.wire.messages import ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue
from metaquorum.wire.stored import StoredRecord


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

    def come_back(self, old: ConsumerMember, new_id: str) -> ConsumerMember:
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

    def resolved(self, found: Mapping[str, ResolvedPattern]) -> None:
        """The topics that patterns now match, for patterns that members still subscribe to."""
        before = self.group.patterns.copy()
        for pattern in sorted(found.keys() & self.group.subscribed_patterns()):
            self.put(pattern_record(self.group.group_id, pattern, found[pattern]))
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
                member_id=each.member_id,
                instance_id=each.instance_id,
                topics=frozenset(ids[topic] for topic in draft.topics_of(each) if topic in ids),
                has=draft.targets.get(each.member_id, {}),
            )
            for each in draft.members.values()
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

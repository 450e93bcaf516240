"""A group of KIP-848: the state that its records describe, and what can be derived from it.

Source: KIP-848; the records are those of Kafka 3.8 and later.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.broker.coordinator.groups.consumer.assignors import Parts
from metaquorum.broker.coordinator.groups.group import CONSUMER, Phase, Protocols
from metaquorum.wire import messages
from metaquorum.wire.stored import StoredRecord

LEFT, AWAY = -1, -2
"""Member epochs: a member leaves; a static member leaves for a while and will come back."""

CONSUMER_RECORDS = (
    messages.ConsumerGroupMetadataKey,
    messages.ConsumerGroupPartitionMetadataKey,
    messages.ConsumerGroupMemberMetadataKey,
    messages.ConsumerGroupTargetAssignmentMetadataKey,
    messages.ConsumerGroupTargetAssignmentMemberKey,
    messages.ConsumerGroupCurrentMemberAssignmentKey,
    messages.ConsumerGroupRegularExpressionKey,
)


class MemberState(IntEnum):
    """As stored. STABLE: it has its target. UNREVOKED: it must give something up first. UNRELEASED: it waits
    for what others must give up."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


class ClassicMember(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes that only a member of the classic protocol has."""

    session_timeout_ms: int
    protocols: Protocols


class ResolvedPattern(msgspec.Struct, frozen=True):
    """The topics that a pattern matched and its subscriber may describe, at offset `version` of the metadata
    log and time of day `wall_ms`."""

    topics: frozenset[str]
    version: int
    wall_ms: int


class ConsumerMember(msgspec.Struct, frozen=True, kw_only=True):
    """It subscribes to `topics` and to those that match `pattern`. `assigned`: what it may consume,
    `revoking`: what it must stop consuming. `previous_epoch`: that of the previous answer, which it may not
    have received. `classic` None: it uses the new protocol."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Parts = msgspec.field(default_factory=dict)
    revoking: Parts = msgspec.field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class ConsumerGroup:
    """`epoch` rises when members or topics change, `target_epoch` is the one for which `targets` were made.
    `topics`: (topic id, number of partitions) by name when the epoch was last raised. `patterns`: those of
    members that have been looked up."""

    group_id: str
    protocol_type = CONSUMER
    epoch: int = 0
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Parts] = field(default_factory=dict)
    topics: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    patterns: dict[str, ResolvedPattern] = field(default_factory=dict)

    def draft(self) -> ConsumerGroup:
        """A copy to decide on."""
        found = copy.copy(self)
        found.members, found.targets = dict(self.members), dict(self.targets)
        found.patterns = dict(self.patterns)
        return found

    # ---- records ---------------------------------------------------------------------------------

    def replay(self, record: StoredRecord) -> None:
        key, value = record.key, record.value
        match key:
            case messages.ConsumerGroupMetadataKey():
                self.epoch = 0 if value is None else value.epoch
            case messages.ConsumerGroupPartitionMetadataKey():
                found = () if value is None else value.topics
                self.topics = {each.topic_name: (each.topic_id, each.num_partitions) for each in found}
            case messages.ConsumerGroupTargetAssignmentMetadataKey():
                self.target_epoch = 0 if value is None else value.assignment_epoch
            case messages.ConsumerGroupTargetAssignmentMemberKey(member_id=member_id):
                self.targets.pop(member_id, None)
                if value is not None:
                    self.targets[member_id] = parts_of(value.topic_partitions)
            case messages.ConsumerGroupMemberMetadataKey(member_id=member_id):
                self._replay_member(member_id, value)
            case messages.ConsumerGroupCurrentMemberAssignmentKey(member_id=member_id):
                self._replay_assignment(member_id, value)
            case messages.ConsumerGroupRegularExpressionKey(regular_expression=pattern):
                self.patterns.pop(pattern, None)
                if value is not None:
                    topics = frozenset(value.topics)
                    self.patterns[pattern] = ResolvedPattern(topics, value.version, value.timestamp)

    def _replay_member(self, member_id: str, value: messages.ConsumerGroupMemberMetadataValue | None) -> None:
        if value is None:
            self.members.pop(member_id, None)
            return
        self.members[member_id] = replace(
            self.members.get(member_id, ConsumerMember(member_id=member_id)),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=value.subscribed_topic_names,
            pattern=value.subscribed_topic_regex or None,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=_classic_of(value.classic_member_metadata),
        )

    def _replay_assignment(
        self, member_id: str, value: messages.ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        member = self.members.get(member_id)
        if member is None and value is None:
            return
        member = ConsumerMember(member_id=member_id) if member is None else member
        if value is None:
            changed = replace(
                member, epoch=0, previous_epoch=-1, state=MemberState.STABLE, assigned={}, revoking={}
            )
        else:
            is_known_state = value.state in (state.value for state in MemberState)
            changed = replace(
                member,
                epoch=value.member_epoch,
                previous_epoch=value.previous_member_epoch,
                state=MemberState(value.state) if is_known_state else MemberState.STABLE,
                assigned=parts_of(value.assigned_partitions),
                revoking=parts_of(value.partitions_pending_revocation),
            )
        self.members[member_id] = changed

    # ---- derived ---------------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        """The name that operators see."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        settled = all(
            each.state is MemberState.STABLE and each.epoch == self.target_epoch
            for each in self.members.values()
        )
        return "Stable" if settled else "Reconciling"

    @property
    def phase(self) -> Phase:
        """In the terms of the classic protocol."""
        return Phase.STABLE if self.members else Phase.EMPTY

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        if instance_id is None:
            return None
        return next((each for each in self.members.values() if each.instance_id == instance_id), None)

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Subscribed by name, or matched by its pattern."""
        found = None if member.pattern is None else self.patterns.get(member.pattern)
        return frozenset(member.topics) if found is None else found.topics.union(member.topics)

    def subscribed(self) -> frozenset[str]:
        names = {name for each in self.members.values() for name in each.topics}
        return frozenset(names.union(*(each.topics for each in self.patterns.values())))

    def subscribed_patterns(self) -> frozenset[str]:
        return frozenset(each.pattern for each in self.members.values() if each.pattern is not None)

    @property
    def is_all_classic(self) -> bool:
        """Whether there are members, and none uses the new protocol."""
        return bool(self.members) and all(each.classic is not None for each in self.members.values())

    def supports(self, member_id: str, names: Iterable[str]) -> bool:
        """Whether every other classic member supports one of these protocols, so that the group can become
        a classic one."""
        others = [
            {name for name, _ in each.classic.protocols}
            for each in self.members.values()
            if each.classic is not None and each.member_id != member_id
        ]
        return bool(set(names).intersection(*others))

    def awaits_others(self, member: ConsumerMember) -> bool:
        """Whether part of its target has not been given up yet."""
        missing = set(flat(self.targets.get(member.member_id, {}))) - set(flat(member.assigned))
        return not missing.isdisjoint(self.owned_by_others(member.member_id))

    def owned_by_others(self, member_id: str) -> set[tuple[bytes, int]]:
        """Partitions that other members have, or have not given up yet."""
        return {
            partition
            for each in self.members.values()
            if each.member_id != member_id
            for held in (each.assigned, each.revoking)
            for partition in flat(held)
        }


# ---- values of records ---------------------------------------------------------------------------


def flat(parts: Parts) -> Iterator[tuple[bytes, int]]:
    return ((topic, index) for topic, indexes in parts.items() for index in indexes)


def parts_of(listed: Iterable[Any]) -> dict[bytes, frozenset[int]]:
    """From structures with a topic's id and partitions."""
    return {each.topic_id: frozenset(each.partitions) for each in listed if each.partitions}


def gathered(flattened: Iterable[tuple[bytes, int]]) -> dict[bytes, frozenset[int]]:
    found: dict[bytes, set[int]] = {}
    for topic, index in flattened:
        found.setdefault(topic, set()).add(index)
    return {topic: frozenset(indexes) for topic, indexes in found.items()}


def _classic_of(
    value: messages.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None,
) -> ClassicMember | None:
    if value is None:
        return None
    protocols = tuple((each.name, each.metadata) for each in value.supported_protocols)
    return ClassicMember(session_timeout_ms=value.session_timeout_ms, protocols=protocols)


def member_record(group_id: str, member: ConsumerMember) -> StoredRecord:
    kinds, classic = messages.ConsumerGroupMemberMetadataValue, member.classic
    value = kinds(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topics,
        subscribed_topic_regex=member.pattern,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None
        if classic is None
        else kinds.ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=tuple(
                kinds.ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols
            ),
        ),
    )
    return StoredRecord(
        messages.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value, 5
    )


def assignment_record(group_id: str, member: ConsumerMember) -> StoredRecord:
    kinds = messages.ConsumerGroupCurrentMemberAssignmentValue
    value = kinds(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=tuple(
            kinds.TopicPartitions(topic_id=topic, partitions=tuple(sorted(indexes)))
            for topic, indexes in sorted(member.assigned.items())
        ),
        partitions_pending_revocation=tuple(
            kinds.TopicPartitions(topic_id=topic, partitions=tuple(sorted(indexes)))
            for topic, indexes in sorted(member.revoking.items())
        ),
    )
    key = messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return StoredRecord(key, value, 8)


def target_record(group_id: str, member_id: str, target: Parts) -> StoredRecord:
    kinds = messages.ConsumerGroupTargetAssignmentMemberValue
    value = kinds(
        topic_partitions=tuple(
            kinds.TopicPartition(topic_id=topic, partitions=tuple(sorted(indexes)))
            for topic, indexes in sorted(target.items())
        )
    )
    key = messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return StoredRecord(key, value, 7)


def member_tombstones(group_id: str, member_id: str) -> tuple[StoredRecord, ...]:
    """Removes everything stored about a member, in this order."""
    current = messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
    target = messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    metadata = messages.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
    return StoredRecord(current, None, 8), StoredRecord(target, None, 7), StoredRecord(metadata, None, 5)


def group_record(group_id: str, epoch: int) -> StoredRecord:
    key = messages.ConsumerGroupMetadataKey(group_id=group_id)
    return StoredRecord(key, messages.ConsumerGroupMetadataValue(epoch=epoch), 3)


def targets_record(group_id: str, epoch: int) -> StoredRecord:
    """The targets of all members are for this epoch."""
    key = messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
    return StoredRecord(key, messages.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch), 6)


def pattern_record(group_id: str, pattern: str, resolved: ResolvedPattern | None) -> StoredRecord:
    """None: no member still subscribes to it."""
    key = messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    value = None
    if resolved is not None:
        value = messages.ConsumerGroupRegularExpressionValue(
            topics=tuple(sorted(resolved.topics)), version=resolved.version, timestamp=resolved.wall_ms
        )
    return StoredRecord(key, value, 16)


def group_tombstones(group: ConsumerGroup) -> tuple[StoredRecord, ...]:
    """Removes everything stored about a group; the last record ends it."""
    group_id = group.group_id
    return (
        *(record for each in group.members for record in member_tombstones(group_id, each)),
        *(pattern_record(group_id, each, None) for each in sorted(group.patterns)),
        StoredRecord(messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None, 6),
        StoredRecord(messages.ConsumerGroupPartitionMetadataKey(group_id=group_id), None, 4),
        StoredRecord(messages.ConsumerGroupMetadataKey(group_id=group_id), None, 3),
    )

"""A group with members changes its protocol (KIP-848): the records that turn a classic group into one of the
new protocol, and back.

No partition gets a second owner: what a member may be consuming stays its own until it gives it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from metaquorum.broker.coordinator.groups.consumer.assignors import Parts
from metaquorum.broker.coordinator.groups.consumer.group import (
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    assignment_record,
    flat,
    gathered,
    group_tombstones,
    member_record,
    target_record,
    targets_record,
)
from metaquorum.broker.coordinator.groups.consumer.group import group_record as consumer_group_record
from metaquorum.broker.coordinator.groups.group import (
    CONSUMER,
    Group,
    GroupMember,
    Phase,
    group_record,
    group_tombstone,
)
from metaquorum.metadata.image import MetadataImage
from metaquorum.wire.embedded import (
    assigned_partitions,
    consumer_subscription,
    embedded_version,
    encode_assignment,
)
from metaquorum.wire.stored import StoredRecord

_Held = set[tuple[bytes, int]]

# ---- from the classic protocol to the new one ----------------------------------------------------


def upgrade_records(group: Group, image: MetadataImage) -> tuple[StoredRecord, ...] | None:
    """Turns a classic group into one of the new protocol, in the same generation. Returns None if the
    members' metadata is not that of consumers."""
    subscriptions = {each.member_id: _subscription(group, each) for each in group.members.values()}
    held = _held(group, subscriptions, image)
    if held is None or group.protocol_type != CONSUMER:
        return None
    members = [
        _upgraded(group, each, subscriptions[each.member_id], gathered(held[each.member_id]))
        for each in group.members.values()
    ]
    group_id = group.group_id
    return (
        group_tombstone(group_id),
        *(member_record(group_id, each) for each in members),
        consumer_group_record(group_id, group.generation),
        *(target_record(group_id, each.member_id, each.assigned) for each in members),
        targets_record(group_id, group.generation),
        *(assignment_record(group_id, each) for each in members),
    )


def _subscription(group: Group, member: GroupMember) -> Any:
    """In the protocol of the generation; before the first generation in any, since all name the same
    topics."""
    metadata = member.metadata(group.protocol) or next((each for _, each in member.protocols), b"")
    found = consumer_subscription(metadata)
    return None if found is None else found.value


def _upgraded(group: Group, member: GroupMember, subscription: Any, assigned: Parts) -> ConsumerMember:
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMember(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned=assigned,
    )


def _held(group: Group, subscriptions: dict[str, Any], image: MetadataImage) -> dict[str, _Held] | None:
    """What each member may be consuming, no partition twice. A member that has joined and has not received
    its assignment has what it reported when joining; any other has its assignment, or what it had before,
    while it has not read the answer."""
    joined, assigned, before = [], [], []
    for member in group.members.values():
        subscription, member_id = subscriptions[member.member_id], member.member_id
        assignment = assigned_partitions(member.assignment) if member.assignment else ([], b"")
        if subscription is None or assignment is None:
            return None
        owned = set(flat(owned_parts(subscription, image)))
        unheard = group.phase is Phase.COMPLETING or member_id in group.not_synced
        if member.join_key is not None or unheard:
            joined.append((member_id, owned))
        else:
            assigned.append((member_id, set(_ids(assignment[0], image))))
            before.append((member_id, owned))
    held: dict[str, _Held] = {member_id: set() for member_id in group.members}
    taken: _Held = set()
    for member_id, claimed in (*joined, *assigned, *before):
        held[member_id] |= claimed - taken
        taken |= claimed
    return held


def owned_parts(subscription: Any, image: MetadataImage) -> Parts:
    """The partitions that a subscription says its member owns; none of topics that do not exist."""
    listed = ((each.topic, index) for each in subscription.owned_partitions for index in each.partitions)
    return gathered(_ids(listed, image))


def _ids(listed: Iterable[tuple[str, int]], image: MetadataImage) -> Iterator[tuple[bytes, int]]:
    for name, index in listed:
        topic = image.topics.topic_named(name)
        if topic is not None:
            yield topic.topic_id, index


# ---- and back ------------------------------------------------------------------------------------


def downgrade_records(
    group: ConsumerGroup, leaving: str | None, image: MetadataImage, wall_ms: int
) -> tuple[StoredRecord, ...] | None:
    """Turns a group whose members are all classic, except the one that leaves, into a classic group in the
    same generation. It has no leader: its coordinator lets everyone join again. Returns None if there is no
    protocol that all support."""
    classic = Group(
        group_id=group.group_id, generation=group.epoch, protocol_type=CONSUMER, state_since_ms=wall_ms
    )
    for member in group.members.values():
        if member.classic is not None and member.member_id != leaving:
            classic.members[member.member_id] = _downgraded(member, member.classic)
    classic.protocol = classic.select_protocol()
    if classic.protocol is None:
        return None
    assignments = {
        each.member_id: assignment_of(
            group.members[each.member_id], each.metadata(classic.protocol), image, with_revoking=True
        )
        for each in classic.members.values()
    }
    return (
        *group_tombstones(group),
        group_record(classic, assignments, wall_ms),
    )


def _downgraded(member: ConsumerMember, classic: ClassicMember) -> GroupMember:
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        protocols=classic.protocols,
    )


def assignment_of(
    member: ConsumerMember, metadata: bytes, image: MetadataImage, *, with_revoking: bool = False
) -> bytes:
    """What a member may consume, in the form that a classic member reads, in the version of its metadata."""
    parts = set(flat(member.assigned)) | (set(flat(member.revoking)) if with_revoking else set())
    named: dict[str, list[int]] = {}
    for topic_id, index in parts:
        topic = image.topics.topic(topic_id)
        if topic is not None:
            named.setdefault(topic.name, []).append(index)
    return encode_assignment(named, embedded_version(metadata))

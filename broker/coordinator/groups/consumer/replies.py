"""Descriptions, for operators, of groups of the new protocol.

Owns their fields. Does not look up a group: `groups` does. Those of classic groups are in `groups.replies`.
"""

from __future__ import annotations

from metaquorum.broker.coordinator.groups.consumer.assignors import ASSIGNORS, Parts
from metaquorum.broker.coordinator.groups.consumer.group import ConsumerGroup
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.wire.messages import ConsumerGroupDescribeResponse, ListGroupsResponse

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
        found = []
        for topic_id, indexes in sorted(parts.items()):
            topic = image.topics.topic(topic_id)
            if topic is not None:
                name, partitions = topic.name, tuple(sorted(indexes))
                found.append(kinds.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=partitions))
        return kinds.Assignment(topic_partitions=tuple(found))

    named = sorted(each.assignor for each in group.members.values() if each.assignor)
    return kinds.DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=max(named, key=named.count) if named else next(iter(ASSIGNORS)),
        members=tuple(
            kinds.Member(
                member_id=each.member_id,
                instance_id=each.instance_id,
                rack_id=each.rack_id,
                member_epoch=each.epoch,
                client_id=each.client_id,
                client_host=each.client_host,
                subscribed_topic_names=each.topics,
                subscribed_topic_regex=each.pattern,
                assignment=assignment(each.assigned),
                target_assignment=assignment(group.targets.get(each.member_id, {})),
                member_type=_NEW_PROTOCOL if each.classic is None else _CLASSIC,
            )
            for each in group.members.values()
        ),
    )

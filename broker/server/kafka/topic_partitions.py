"""DescribeTopicPartitions (KIP-966): topics by name with their partitions, a bounded number per answer.

Owns the paging. Does not know how a client sees a leader or a broker: `cluster` does.
"""

from __future__ import annotations

from collections.abc import Iterator

from metaquorum.broker.server.kafka.cluster import (
    INTERNAL_TOPICS,
    TOPIC_OPERATIONS,
    ClusterSeen,
    Viewpoint,
    absence_of,
)
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import NO_LEADER, PartitionInfo
from metaquorum.wire.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

PARTITIONS_MAX = 2000
"""Partitions of one answer (Kafka: max.request.partition.size.limit)."""
_NEWEST_METADATA = 13
"""Errors of leaders are those of the newest Metadata version."""

Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic


def answer_describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, view: Viewpoint
) -> DescribeTopicPartitionsResponse:
    """The named topics, or all, by name, from the cursor on. If not all fit, the answer's cursor is where the
    next request begins."""
    cursor = request.cursor
    names = sorted({each.name for each in request.topics})
    if cursor is not None and cursor.partition_index < 0:
        return DescribeTopicPartitionsResponse(
            topics=tuple(Topic(error_code=ErrorCode.INVALID_REQUEST, name=name) for name in names)
        )
    if not request.topics:
        names = sorted(each.name for each in view.image.topics.all())
    begin = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
    seen = ClusterSeen(view.image, view.listener)
    room = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    topics: list[Topic] = []
    for name in names:
        if name < begin[0]:
            continue
        if room == 0:
            return _answer(topics, name, 0)
        first = begin[1] if name == begin[0] else 0
        topic, left = _topic(name, first, room, seen)
        topics.append(topic)
        room -= len(topic.partitions)
        if left is not None:
            return _answer(topics, name, left)
    return DescribeTopicPartitionsResponse(topics=tuple(topics))


def _answer(topics: list[Topic], name: str, index: int) -> DescribeTopicPartitionsResponse:
    cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=index)
    return DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=cursor)


def _topic(name: str, first: int, room: int, seen: ClusterSeen) -> tuple[Topic, int | None]:
    """The topic with at most `room` partitions from `first` on, and the index of the first that remains."""
    topics = seen.image.topics
    found = topics.topic_named(name)
    if found is None:
        return Topic(error_code=absence_of(name), name=name), None
    count = topics.partition_count_of(found.topic_id)
    end = min(first + room, count)
    shown = Topic(
        name=name,
        topic_id=found.topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=tuple(_partitions(found.topic_id, range(first, end), seen)),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
    return shown, end if end < count else None


def _partitions(
    topic_id: bytes, indexes: range, seen: ClusterSeen
) -> Iterator[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition]:
    for index in indexes:
        partition = seen.image.topics.partition(topic_id, index)
        if partition is not None:
            yield _partition(partition, seen)


def _partition(
    partition: PartitionInfo, seen: ClusterSeen
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
        error_code=seen.leader_error(partition, _NEWEST_METADATA),
        partition_index=partition.index,
        leader_id=partition.leader if seen.is_reachable(partition.leader) else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=partition.elr,
        last_known_elr=partition.last_known_elr,
        offline_replicas=tuple(each for each in partition.replicas if seen.is_offline(partition, each)),
    )

"""Metadata and DescribeCluster from an image: what clients learn of brokers, topics and partitions.

A client sees the endpoints of the listener that it uses, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from metaquorum.listeners.answers import Prepared
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import (
    NO_LEADER,
    BrokerRegistration,
    BrokersImage,
    MetadataImage,
    NodeEndpoint,
    PartitionInfo,
    TopicInfo,
    TopicsImage,
)
from metaquorum.metadata.offline import directory_online
from metaquorum.metadata.requests.common import BROKERS, CONTROLLERS
from metaquorum.metadata.settings.topic_names import INTERNAL_TOPICS, name_problem
from metaquorum.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)

TOPIC_OPERATIONS = 3576
"""Read, write, create, delete, alter, describe, and both of configurations: no authorizer forbids any."""
CLUSTER_OPERATIONS = 8096
_NOT_ASKED = -(2**31)
_ZERO = bytes(16)


class Viewpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How a client sees the cluster. `serves`: whether this broker serves clients now; if not, the image is
    what it knew last."""

    image: MetadataImage
    cluster_id: str
    node_id: int
    listener: str
    serves: bool = True


def answer_metadata(request: MetadataRequest, version: int, view: Viewpoint) -> MetadataResponse:
    """The answer to Metadata of this version; a fenced broker's last known one, as in Kafka. Some clients
    drop all brokers that an answer does not name, and would never ask them again."""
    seen = ClusterSeen(view.image, view.listener)
    return MetadataResponse(
        brokers=tuple(
            MetadataResponse.MetadataResponseBroker(
                node_id=broker.broker_id, host=at.host, port=at.port, rack=broker.rack
            )
            for broker, at in seen.alive()
        ),
        cluster_id=view.cluster_id,
        controller_id=view.node_id,
        topics=tuple(_topics(request, version, seen)),
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED
        ),
    )


def endpoint_of(image: MetadataImage, broker_id: int, listener: str) -> NodeEndpoint | None:
    """The endpoint of a broker for a listener's clients; None if it has none now."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return None
    return next((each for each in broker.endpoints if each.name == listener), None)


class ClusterSeen:
    """An image seen through one listener."""

    def __init__(self, image: MetadataImage, listener: str) -> None:
        self.image = image
        self._listener = listener
        self._endpoints = {broker.broker_id: at for broker, at in self.alive()}

    def alive(self) -> Iterator[tuple[BrokerRegistration, NodeEndpoint]]:
        """The unfenced brokers that have this listener."""
        for broker in self.image.brokers.values():
            at = endpoint_of(self.image, broker.broker_id, self._listener)
            if at is not None:
                yield broker, at

    def is_reachable(self, broker_id: int) -> bool:
        return broker_id in self._endpoints

    def leader_error(self, partition: PartitionInfo, version: int) -> ErrorCode:
        """The error that keeps a client from using the leader."""
        if self.is_reachable(partition.leader):
            return ErrorCode.NONE
        leader = self.image.brokers.get(partition.leader)
        if leader is None or leader.fenced or version < 6:
            return ErrorCode.LEADER_NOT_AVAILABLE
        return ErrorCode.LISTENER_NOT_FOUND

    def is_offline(self, partition: PartitionInfo, broker_id: int) -> bool:
        """Whether a replica's broker or directory is offline."""
        if not self.is_reachable(broker_id):
            return True
        directory = partition.directory_of(broker_id)
        return directory is not None and not directory_online(self.image.brokers, broker_id, directory)


def _topics(
    request: MetadataRequest, version: int, seen: ClusterSeen
) -> Iterator[MetadataResponse.MetadataResponseTopic]:
    topics = seen.image.topics
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else _NOT_ASKED
    # Version 0 has no null: an empty list means all topics.
    if request.topics is None or (version == 0 and not request.topics):
        for topic in sorted(topics.all(), key=lambda each: each.name):
            yield _topic(topic, version, seen, operations)
        return
    for asked in _once(request.topics):
        by_id = asked.topic_id != _ZERO and version >= 12
        found = topics.topic(asked.topic_id) if by_id else topics.topic_named(asked.name or "")
        if found is not None:
            yield _topic(found, version, seen, operations)
        elif by_id:
            yield MetadataResponse.MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id
            )
        else:
            yield MetadataResponse.MetadataResponseTopic(
                error_code=absence_of(asked.name or ""),
                name=asked.name or "",
                is_internal=asked.name in INTERNAL_TOPICS,
                topic_authorized_operations=operations,
            )


def absence_of(name: str) -> ErrorCode:
    """Why there is no such topic: the name is unused, or invalid."""
    if name_problem(name) is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _once(
    asked: Iterable[MetadataRequest.MetadataRequestTopic],
) -> Iterable[MetadataRequest.MetadataRequestTopic]:
    return {(each.name, each.topic_id): each for each in asked}.values()


def _topic(
    topic: TopicInfo, version: int, seen: ClusterSeen, operations: int
) -> MetadataResponse.MetadataResponseTopic:
    partitions = seen.image.topics.partitions_of(topic.topic_id)
    return MetadataResponse.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple([_partition(each, version, seen) for each in partitions]),
        topic_authorized_operations=operations,
    )


def _partition(
    partition: PartitionInfo, version: int, seen: ClusterSeen
) -> MetadataResponse.MetadataResponsePartition:
    error = seen.leader_error(partition, version)
    replicas, isr = partition.replicas, partition.isr
    if version == 0:
        # Its clients know no offline replicas, so these are left out.
        replicas = tuple(each for each in replicas if seen.is_reachable(each))
        isr = tuple(each for each in isr if seen.is_reachable(each))
        if error is ErrorCode.NONE and (replicas, isr) != (partition.replicas, partition.isr):
            error = ErrorCode.REPLICA_NOT_AVAILABLE
    return MetadataResponse.MetadataResponsePartition(
        error_code=error,
        partition_index=partition.index,
        leader_id=partition.leader if seen.is_reachable(partition.leader) else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=tuple(each for each in replicas if seen.is_offline(partition, each)),
    )


def answer_describe_cluster(request: DescribeClusterRequest, view: Viewpoint) -> DescribeClusterResponse:
    """The answer to DescribeCluster. Includes fenced brokers on request (KIP-1073)."""
    if request.endpoint_type != BROKERS:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        if request.endpoint_type == CONTROLLERS:
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        return DescribeClusterResponse(
            error_code=code, error_message="brokers describe only brokers: set endpoint type 1"
        )
    brokers = []
    fenced_itself = request.include_fenced_brokers and not view.serves
    for broker in view.image.brokers.values():
        endpoint = next((each for each in broker.endpoints if each.name == view.listener), None)
        if endpoint is not None and (request.include_fenced_brokers or not broker.fenced):
            brokers.append(
                DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=broker.broker_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced or (broker.broker_id == view.node_id and fenced_itself),
                )
            )
    return DescribeClusterResponse(
        endpoint_type=BROKERS,
        cluster_id=view.cluster_id,
        controller_id=view.node_id,
        brokers=tuple(brokers),
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED
        ),
    )


# DescribeTopicPartitions (KIP-966): topics by name with their partitions, a bounded number per answer.

PARTITIONS_MAX = 2000
"""Partitions of one answer (Kafka: max.request.partition.size.limit)."""
MISSING_MAX = 500
"""Topics that do not exist in one answer: all of it is made in one turn of the loop."""
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
            topics=tuple(
                Topic(error_code=ErrorCode.INVALID_REQUEST, name=name) for name in names[:PARTITIONS_MAX]
            )
        )
    if not request.topics:
        names = sorted(each.name for each in view.image.topics.all())
    begin = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
    seen = ClusterSeen(view.image, view.listener)
    room = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    topics: list[Topic] = []
    missing = 0
    for name in names:
        if name < begin[0]:
            continue
        if room == 0 or missing == MISSING_MAX:
            return _answer(topics, name, 0)
        first = begin[1] if name == begin[0] else 0
        topic, left = _described_topic(name, first, room, seen)
        topics.append(topic)
        room -= len(topic.partitions)
        missing += bool(topic.error_code)
        if left is not None:
            return _answer(topics, name, left)
    return DescribeTopicPartitionsResponse(topics=tuple(topics))


def _answer(topics: list[Topic], name: str, index: int) -> DescribeTopicPartitionsResponse:
    cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=index)
    return DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=cursor)


def _described_topic(name: str, first: int, room: int, seen: ClusterSeen) -> tuple[Topic, int | None]:
    """The topic with at most `room` partitions from `first` on, and the index of the first that remains."""
    topics = seen.image.topics
    topic_id = topics.topic_named(name)
    if topic_id is None:
        return Topic(error_code=absence_of(name), name=name), None
    count = topics.partition_count_of(topic_id.topic_id)
    end = min(first + room, count)
    shown = Topic(
        name=name,
        topic_id=topic_id.topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=tuple(_partitions(topic_id.topic_id, range(first, end), seen)),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
    return shown, end if end < count else None


def _partitions(
    topic_id: bytes, indexes: range, seen: ClusterSeen
) -> Iterator[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition]:
    for index in indexes:
        partition = seen.image.topics.partition(topic_id, index)
        if partition is not None:
            yield _described_partition(partition, seen)


def _described_partition(
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


ANSWERS_MAX = 1000
"""Different requests that are cached; beyond that all are forgotten."""


class KnownAnswer(msgspec.Struct, frozen=True):
    """An answer, and the names in it of topics that do not exist but could."""

    body: MetadataResponse
    missing: tuple[str, ...]


class MetadataCache:
    """A cache of Metadata answers, valid while their brokers, topics and missing topics are unchanged in
    the newest image.

    Clients send the same request again and again: it gets the same answer, with the bytes that were sent
    before.

    `prepared` has the bytes.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._of: tuple[TopicsImage, BrokersImage] | None = None
        self._answers: dict[tuple[str, int, MetadataRequest], KnownAnswer] = {}

    def answer(self, request: MetadataRequest, version: int, view: Viewpoint) -> KnownAnswer:
        """The answer to Metadata of this version."""
        topics, brokers = view.image.topics, view.image.brokers
        is_same = self._of is not None and self._of[0] is topics and self._of[1] is brokers
        if not is_same or len(self._answers) >= ANSWERS_MAX:
            self._of = topics, brokers
            self._answers.clear()
            self._prepared.forget()
        key = view.listener, version, request
        answer = self._answers.get(key)
        if answer is None:
            body = answer_metadata(request, version, view)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            missing = tuple(each.name for each in body.topics if each.error_code == code and each.name)
            answer = self._answers[key] = KnownAnswer(body, missing)
            self._prepared.add(body)
        return answer

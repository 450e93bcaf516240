"""Metadata and DescribeCluster from an image: what clients learn of brokers, topics and partitions.

Owns the contents of these answers, and does not keep them: `metadata_cache` does. Pure: the image, and
whether this broker serves it, are arguments. A client sees the endpoints of the listener that it uses, as in
Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import (
    NO_LEADER,
    BrokerRegistration,
    MetadataImage,
    NodeEndpoint,
    PartitionInfo,
    TopicInfo,
)
from metaquorum.metadata.offline import directory_online
from metaquorum.metadata.settings.topic_names import name_problem
from metaquorum.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
TOPIC_OPERATIONS = 3576
"""Read, write, create, delete, alter, describe, and both of configurations: no authorizer forbids any."""
CLUSTER_OPERATIONS = 8096
_NOT_ASKED = -(2**31)
_BROKERS, _CONTROLLERS = 1, 2
_ZERO = bytes(16)


class Viewpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How a client sees the cluster."""

    image: MetadataImage
    cluster_id: str
    node_id: int
    listener: str


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
    if request.endpoint_type != _BROKERS:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        if request.endpoint_type == _CONTROLLERS:
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        return DescribeClusterResponse(
            error_code=code, error_message="brokers describe only brokers: set endpoint type 1"
        )
    found = []
    for broker in view.image.brokers.values():
        at = next((each for each in broker.endpoints if each.name == view.listener), None)
        if at is not None and (request.include_fenced_brokers or not broker.fenced):
            found.append(
                DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=broker.broker_id,
                    host=at.host,
                    port=at.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced,
                )
            )
    return DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=view.cluster_id,
        controller_id=view.node_id,
        brokers=tuple(found),
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED
        ),
    )

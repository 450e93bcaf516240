"""The Metadata service: brokers, topics and partitions from one committed image, as of its offset."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec

from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.types import TOPIC_RESOURCE, ConfigResource, TopicInfo
from metaquorum.proto import metadata_pb2 as pb
from metaquorum.proto.metadata_pb2_grpc import MetadataServicer
from metaquorum.rpc.messages.errors import Hints, error_to_pb
from metaquorum.rpc.messages.image import BROKER, PARTITION, READ_INFO, ReadInfo

TOPICS_PER_ANSWER_MAX = 10_000
PARTITIONS_PER_ANSWER_MAX = 20_000
"""Limits of one response, well below the largest message; clients continue where it ended."""


class ImageRead(msgspec.Struct, frozen=True, kw_only=True):
    """An image, and the offset that it is at."""

    image: MetadataImage
    offset: int
    leader_id: int | None
    epoch: int
    linearizable: bool

    def info(self, node_id: int) -> pb.ReadInfo:
        """The origin of the image, for the response of node `node_id`."""
        info = ReadInfo(
            offset=self.offset,
            node_id=node_id,
            leader_id=self.leader_id,
            epoch=self.epoch,
            linearizable=self.linearizable,
        )
        return READ_INFO.to_pb(info)


class ImageSource(Protocol):
    """The source of a node's image."""

    def read(self, consistency: pb.Consistency.ValueType) -> Awaitable[ImageRead | ApiError]: ...


class MetadataService(MetadataServicer):
    """See the module."""

    def __init__(self, source: ImageSource, *, node_id: int, cluster_id: str, hints: Hints) -> None:
        self._source = source
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._hints = hints

    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, context: Any
    ) -> pb.DescribeClusterResponse:
        read = await self._source.read(request.consistency)
        if isinstance(read, ApiError):
            return pb.DescribeClusterResponse(error=error_to_pb(read, self._hints))
        brokers = read.image.brokers.values()
        return pb.DescribeClusterResponse(
            read=read.info(self._node_id),
            cluster_id=self._cluster_id,
            controllers=self._hints.all(),
            broker_count=len(brokers),
            fenced_broker_count=sum(broker.fenced for broker in brokers),
            topic_count=len(read.image.topics),
            partition_count=read.image.topics.partition_count,
            features=[
                pb.FinalizedFeature(name=name, level=level)
                for name, level in sorted(read.image.features.finalized.items())
            ],
        )

    async def ListBrokers(self, request: pb.ListBrokersRequest, context: Any) -> pb.ListBrokersResponse:
        read = await self._source.read(request.consistency)
        if isinstance(read, ApiError):
            return pb.ListBrokersResponse(error=error_to_pb(read, self._hints))
        brokers = read.image.brokers
        wanted = sorted(set(request.broker_ids)) or list(brokers)
        found = [brokers.get(broker_id) for broker_id in wanted]
        return pb.ListBrokersResponse(
            read=read.info(self._node_id),
            brokers=[BROKER.to_pb(broker) for broker in found if broker is not None],
            unknown_ids=[broker_id for broker_id in wanted if broker_id not in brokers],
        )

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Any) -> pb.ListTopicsResponse:
        read = await self._source.read(request.consistency)
        if isinstance(read, ApiError):
            return pb.ListTopicsResponse(error=error_to_pb(read, self._hints))
        topics = read.image.topics
        ordered = sorted(topics.all(), key=_name)
        first = bisect_right(ordered, request.after, key=_name) if request.after else 0
        limit = min(request.limit, TOPICS_PER_ANSWER_MAX) if request.limit > 0 else TOPICS_PER_ANSWER_MAX
        return pb.ListTopicsResponse(
            read=read.info(self._node_id),
            topics=[
                pb.Topic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_count=topics.partition_count_of(topic.topic_id),
                )
                for topic in ordered[first : first + limit]
            ],
            more=first + limit < len(ordered),
        )

    async def DescribeTopics(
        self, request: pb.DescribeTopicsRequest, context: Any
    ) -> pb.DescribeTopicsResponse:
        read = await self._source.read(request.consistency)
        if isinstance(read, ApiError):
            return pb.DescribeTopicsResponse(error=error_to_pb(read, self._hints))
        answer = pb.DescribeTopicsResponse(read=read.info(self._node_id))
        _describe_topics(read.image, request, answer)
        return answer


def _name(topic: TopicInfo) -> str:
    return topic.name


def _wanted_topics(
    image: MetadataImage, request: pb.DescribeTopicsRequest, answer: pb.DescribeTopicsResponse
) -> list[TopicInfo]:
    """The requested topics, by ascending name, each once; adds those that do not exist to the response."""
    if not request.names and not request.topic_ids:
        return sorted(image.topics.all(), key=_name)
    wanted: dict[bytes, TopicInfo] = {}
    for name in request.names:
        topic = image.topics.topic_named(name)
        if topic is None:
            answer.unknown_names.append(name)
        else:
            wanted[topic.topic_id] = topic
    for topic_id in request.topic_ids:
        topic = image.topics.topic(topic_id)
        if topic is None:
            answer.unknown_ids.append(topic_id)
        else:
            wanted[topic.topic_id] = topic
    return sorted(wanted.values(), key=_name)


def _describe_topics(
    image: MetadataImage, request: pb.DescribeTopicsRequest, answer: pb.DescribeTopicsResponse
) -> None:
    topics = _wanted_topics(image, request, answer)
    limit = PARTITIONS_PER_ANSWER_MAX
    if 0 < request.partition_limit < limit:
        limit = request.partition_limit
    start, first_partition = request.start.name, request.start.partition
    for topic in topics:
        if topic.name < start:
            continue
        if limit <= 0 or len(answer.topics) >= TOPICS_PER_ANSWER_MAX:
            answer.next.name = topic.name
            return
        first = first_partition if topic.name == start else 0
        partitions = [each for each in image.topics.partitions_of(topic.topic_id) if each.index >= first]
        answer.topics.append(
            pb.Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_count=image.topics.partition_count_of(topic.topic_id),
                partitions=[PARTITION.to_pb(each) for each in partitions[:limit]],
                configs=image.configs.get(ConfigResource(TOPIC_RESOURCE, topic.name)) or {},
            )
        )
        if len(partitions) > limit:
            answer.next.name, answer.next.partition = topic.name, partitions[limit].index
            return
        limit -= len(partitions)

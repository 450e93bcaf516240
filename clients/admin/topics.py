"""Calls about topics and their partitions: create, list, describe, add partitions, delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.clients.admin.replicas import ongoing_moves
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import TOPIC_RESOURCE
from metaquorum.metadata.requests.common import NewTopic, TopicResult
from metaquorum.metadata.requests.partitions import TopicGrowth
from metaquorum.metadata.settings.configs import ConfigSource
from metaquorum.storage.uuids import ZERO_UUID
from metaquorum.wire.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
)

TOPICS_PER_REQUEST = 1_000
_DEFAULT = -1


class DescribedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition. `elr` and `last_known_elr`: eligible leader replicas, if the cluster reports them
    (KIP-966); `adding` and `removing`: replicas of an ongoing reassignment. `leader` -1: no leader is
    available."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class DescribedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic. `configs`: what is set on it, by key; `topic_id` None: the cluster does not report it."""

    name: str
    topic_id: bytes | None
    partitions: tuple[DescribedPartition, ...]
    configs: Mapping[str, str] = msgspec.field(default_factory=dict)


async def list_topics(client: KafkaClient) -> list[DescribedTopic]:
    """All topics by name, without their configurations and reassignments."""
    return await look_up_topics(client, None)


async def describe_topics(client: KafkaClient, names: Sequence[str] = ()) -> list[DescribedTopic]:
    """The existing topics with these names, by name; all topics if `names` is empty. Raises ApiError."""
    if await client.version("DescribeTopicPartitions") is not None:
        described = await _by_cursor(client, names)
    else:
        described = await look_up_topics(client, tuple(dict.fromkeys(names)) or None)
    configs = await _own_configs(client, [each.name for each in described])
    moves = await ongoing_moves(client)
    return [
        replace(
            topic,
            configs=configs.get(topic.name, {}),
            partitions=tuple(
                replace(part, adding=move.adding, removing=move.removing)
                if (move := moves.get((topic.name, part.index))) is not None
                else part
                for part in topic.partitions
            ),
        )
        for topic in described
    ]


async def look_up_topics(client: KafkaClient, names: Sequence[str] | None) -> list[DescribedTopic]:
    """The existing topics with these names (None: all), from a Metadata request."""
    Topic = MetadataRequest.MetadataRequestTopic
    asked = None if names is None else tuple(Topic(name=each) for each in names)
    # From version 1 on, null means all; from 4 on, a query need not create topics.
    body = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
    answer = await client.ask(body, lowest=4)
    return _existing(
        DescribedTopic(
            name=topic.name or "",
            topic_id=None if topic.topic_id == ZERO_UUID else topic.topic_id,
            partitions=tuple(map(_partition, topic.partitions)),
        )
        for topic in _checked(client, answer.topics)
    )


async def _by_cursor(client: KafkaClient, names: Sequence[str]) -> list[DescribedTopic]:
    """The topics from DescribeTopicPartitions, a bounded number of partitions per request (KIP-966)."""
    Topic = DescribeTopicPartitionsRequest.TopicRequest
    body = DescribeTopicPartitionsRequest(topics=tuple(Topic(name=each) for each in dict.fromkeys(names)))
    described: dict[str, DescribedTopic] = {}
    while True:
        answer = await client.ask(body)
        for topic in _checked(client, answer.topics):
            earlier = described.get(topic.name)
            parts = tuple(map(_partition, topic.partitions))
            described[topic.name] = DescribedTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=(earlier.partitions if earlier else ()) + parts,
            )
        cursor = answer.next_cursor
        if cursor is None:
            return _existing(described.values())
        from_cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=cursor.topic_name, partition_index=cursor.partition_index
        )
        # A request with names must start with the cursor's topic.
        left = tuple(each for each in body.topics if each.name >= cursor.topic_name)
        body = DescribeTopicPartitionsRequest(topics=left, cursor=from_cursor)


def _checked(client: KafkaClient, topics: Iterable[Any]) -> Iterable[Any]:
    """The topics that exist. Raises ApiError for one that this client must not see."""
    for topic in topics:
        if topic.error_code in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION}:
            continue
        client.refuse(topic.error_code, f"topic {topic.name}")
        yield topic


def _existing(topics: Iterable[DescribedTopic]) -> list[DescribedTopic]:
    return sorted(topics, key=lambda each: each.name)


def _partition(part: Any) -> DescribedPartition:
    return DescribedPartition(
        index=part.partition_index,
        leader=part.leader_id,
        leader_epoch=part.leader_epoch,
        replicas=part.replica_nodes,
        isr=part.isr_nodes,
        offline=part.offline_replicas,
        elr=getattr(part, "eligible_leader_replicas", None) or (),
        last_known_elr=getattr(part, "last_known_elr", None) or (),
    )


async def _own_configs(client: KafkaClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """The configuration set on each topic: value by key, by topic."""
    configs: dict[str, dict[str, str]] = {}
    Resource = DescribeConfigsRequest.DescribeConfigsResource
    for first in range(0, len(names), TOPICS_PER_REQUEST):
        resources = tuple(
            Resource(resource_type=TOPIC_RESOURCE, resource_name=each, configuration_keys=None)
            for each in names[first : first + TOPICS_PER_REQUEST]
        )
        answer = await client.ask(DescribeConfigsRequest(resources=resources), lowest=1)
        for result in answer.results:
            # Without the right to see a topic's configuration, the topic is still shown, as in Kafka's tool.
            if result.error_code == ErrorCode.NONE:
                own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
                set_on = {one.name: one.value or "" for one in result.configs if one.config_source == own}
                configs[result.resource_name] = dict(sorted(set_on.items()))
    return configs


async def create_topics(
    client: KafkaClient, topics: Sequence[NewTopic], *, validate_only: bool = False
) -> tuple[TopicResult, ...]:
    """Creates topics; each result has its own error."""
    # Before version 4 a request cannot ask for the default numbers.
    answer = await client.ask(
        CreateTopicsRequest(
            topics=tuple(map(_new_topic, topics)), timeout_ms=client.timeout_ms, validate_only=validate_only
        ),
        lowest=4,
    )
    return tuple(_result(each) for each in answer.topics)


def _new_topic(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    Assignment = CreateTopicsRequest.CreatableReplicaAssignment
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=_DEFAULT if topic.partitions is None else topic.partitions,
        replication_factor=_DEFAULT if topic.replication_factor is None else topic.replication_factor,
        assignments=tuple(
            Assignment(partition_index=index, broker_ids=held)
            for index, held in enumerate(topic.assignments or ())
        ),
        configs=tuple(
            CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs
        ),
    )


def _result(answer: Any) -> TopicResult:
    """A result. metaquorum's brokers may put a note about a success into the field of the error text."""
    error = ErrorCode.of(answer.error_code)
    text = answer.error_message or None
    done = error is ErrorCode.NONE
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return TopicResult(
        name=answer.name,
        topic_id=answer.topic_id if done and answer.topic_id != ZERO_UUID else None,
        error=error,
        message=None if done else text,
        partitions=max(0, answer.num_partitions),
        replication_factor=max(0, answer.replication_factor),
        configs=tuple(
            (each.name, each.value or "") for each in answer.configs or () if each.config_source == own
        ),
        note=text if done else None,
    )


async def delete_topics(client: KafkaClient, names: Sequence[str]) -> tuple[TopicResult, ...]:
    """Deletes topics by name; each result has its own error."""
    if not names:
        return ()
    body = DeleteTopicsRequest(topic_names=tuple(names), timeout_ms=client.timeout_ms)
    if (await client.version("DeleteTopics") or 0) >= 6:
        State = DeleteTopicsRequest.DeleteTopicState
        states = tuple(State(name=each) for each in names)
        body = DeleteTopicsRequest(topics=states, timeout_ms=client.timeout_ms)
    answer = await client.ask(body)
    return tuple(
        TopicResult(
            name=result.name,
            topic_id=None if result.topic_id == ZERO_UUID else result.topic_id,
            error=ErrorCode.of(result.error_code),
            message=result.error_message,
        )
        for result in answer.responses
    )


async def create_partitions(
    client: KafkaClient, topics: Sequence[TopicGrowth], *, validate_only: bool = False
) -> tuple[TopicResult, ...]:
    """Adds partitions to topics; each result has its own error."""
    Topic, Lists = (
        CreatePartitionsRequest.CreatePartitionsTopic,
        CreatePartitionsRequest.CreatePartitionsAssignment,
    )
    answer = await client.ask(
        CreatePartitionsRequest(
            topics=tuple(
                Topic(
                    name=topic.name,
                    count=topic.count,
                    assignments=None
                    if topic.assignments is None
                    else tuple(Lists(broker_ids=held) for held in topic.assignments),
                )
                for topic in topics
            ),
            timeout_ms=client.timeout_ms,
            validate_only=validate_only,
        )
    )
    counts = {each.name: each.count for each in topics}
    return tuple(
        TopicResult(
            name=result.name,
            topic_id=None,
            error=ErrorCode.of(result.error_code),
            message=result.error_message,
            partitions=0 if result.error_code else counts.get(result.name, 0),
        )
        for result in answer.results
    )

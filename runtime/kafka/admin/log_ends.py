"""Leaders of partitions, and offsets of their logs: first, last, and by time.

Owns the conversion of Metadata and ListOffsets to values. Does not know groups or what an offset is needed
for.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping

from metaquorum.metadata.errors import ErrorCode
from metaquorum.runtime.kafka.client.cluster import KafkaClient
from metaquorum.wire.messages import ListOffsetsRequest, MetadataRequest

LATEST, EARLIEST = -1, -2
"""Timestamps that stand for the high watermark and for the log's start."""
Place = tuple[str, int]
"""(topic, partition)."""

_TRIES = 3
_PAUSE_S = 0.3
_CURABLE = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
_CONSUMER = -1


async def leaders_of(client: KafkaClient, topics: Iterable[str]) -> dict[str, dict[int, int] | ErrorCode]:
    """By topic, the leader of each partition (-1 if none is alive), or the error code of the topic."""
    Topic = MetadataRequest.MetadataRequestTopic
    names = tuple(Topic(name=each) for each in dict.fromkeys(topics))
    # From version 4 on, a query need not create topics.
    answer = await client.ask(MetadataRequest(topics=names, allow_auto_topic_creation=False), lowest=4)
    alive = {each.node_id for each in answer.brokers}
    return {
        topic.name: {
            each.partition_index: each.leader_id if each.leader_id in alive else -1
            for each in topic.partitions
        }
        if not topic.error_code
        else ErrorCode.of(topic.error_code)
        for topic in answer.topics
    }


async def by_leader(
    client: KafkaClient, places: Iterable[Place]
) -> tuple[dict[int, list[Place]], dict[Place, ErrorCode]]:
    """Returns the partitions by leader, and the error codes of those that have no leader or do not exist."""
    places = list(places)
    topics = await leaders_of(client, [topic for topic, _ in places])
    led: dict[int, list[Place]] = defaultdict(list)
    refused: dict[Place, ErrorCode] = {}
    for topic, index in places:
        found = topics.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if isinstance(found, ErrorCode):
            refused[topic, index] = found
        elif index not in found:
            refused[topic, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif found[index] < 0:
            refused[topic, index] = ErrorCode.LEADER_NOT_AVAILABLE
        else:
            led[found[index]].append((topic, index))
    return led, refused


async def log_offsets(client: KafkaClient, wanted: Mapping[Place, int]) -> dict[Place, int | ErrorCode]:
    """By partition, the first offset whose record is at least as new as a time in ms (-1 if there is none),
    or the offset that LATEST or EARLIEST stands for, or an error code."""
    found: dict[Place, int | ErrorCode] = {}
    left = dict(wanted)
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE_S)
        led, refused = await by_leader(client, left)
        found |= refused
        for broker, places in led.items():
            found |= await _at_leader(client, broker, {place: left[place] for place in places})
        left = {place: time_ms for place, time_ms in left.items() if _may_heal(found.get(place))}
        if not left:
            break
    return found


def _may_heal(found: int | ErrorCode | None) -> bool:
    return isinstance(found, ErrorCode) and found in _CURABLE


async def _at_leader(
    client: KafkaClient, broker: int, wanted: Mapping[Place, int]
) -> dict[Place, int | ErrorCode]:
    message = ListOffsetsRequest
    by_topic: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
    for (topic, index), time_ms in wanted.items():
        by_topic[topic].append(message.ListOffsetsPartition(partition_index=index, timestamp=time_ms))
    body = message(
        replica_id=_CONSUMER,
        topics=tuple(
            message.ListOffsetsTopic(name=name, partitions=tuple(parts)) for name, parts in by_topic.items()
        ),
        timeout_ms=client.timeout_ms,
    )
    answer = await client.ask(body, at=broker, lowest=1)
    return {
        (topic.name, each.partition_index): ErrorCode.of(each.error_code) if each.error_code else each.offset
        for topic in answer.topics
        for each in topic.partitions
    }


def grouped(places: Iterable[Place]) -> dict[str, list[int]]:
    """The partitions by topic."""
    found: dict[str, list[int]] = defaultdict(list)
    for topic, index in places:
        found[topic].append(index)
    return found

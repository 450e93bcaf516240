"""What the logs of partitions hold, at their leaders: offsets, and records that coordinators cannot read."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from metaquorum.clients.kafka.cluster import CREATES_NO_TOPIC, LEADER_MOVES, KafkaClient, PartitionLeader
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.wire.errors import DecodeError
from metaquorum.wire.messages import FetchRequest, ListOffsetsRequest, MetadataRequest, ProduceRequest
from metaquorum.wire.stored import decode_stored

LATEST, EARLIEST = -1, -2
"""Timestamps that stand for the high watermark and for the log's start."""
TopicPartition = tuple[str, int]
"""(topic, partition)."""

_TRIES = 3
_PAUSE_S = 0.3
_CONSUMER = -1


async def leaders_of(client: KafkaClient, topics: Iterable[str]) -> dict[str, dict[int, int] | ErrorCode]:
    """By topic, the leader of each partition (-1 if none is alive), or the error code of the topic."""
    Topic = MetadataRequest.MetadataRequestTopic
    names = tuple(Topic(name=each) for each in dict.fromkeys(topics))
    asked = MetadataRequest(topics=names, allow_auto_topic_creation=False)
    answer = await client.ask(asked, lowest=CREATES_NO_TOPIC)
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
    client: KafkaClient, places: Iterable[TopicPartition]
) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, ErrorCode]]:
    """Returns the partitions by leader, and the error codes of those that have no leader or do not exist."""
    places = list(places)
    topics = await leaders_of(client, [topic for topic, _ in places])
    led: dict[int, list[TopicPartition]] = defaultdict(list)
    refused: dict[TopicPartition, ErrorCode] = {}
    for topic, index in places:
        topic_partitions = topics.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if isinstance(topic_partitions, ErrorCode):
            refused[topic, index] = topic_partitions
        elif index not in topic_partitions:
            refused[topic, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif topic_partitions[index] < 0:
            refused[topic, index] = ErrorCode.LEADER_NOT_AVAILABLE
        else:
            led[topic_partitions[index]].append((topic, index))
    return led, refused


async def log_offsets(
    client: KafkaClient, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | ErrorCode]:
    """By partition, the first offset whose record is at least as new as a time in ms (-1 if there is none),
    or the offset that LATEST or EARLIEST stands for, or an error code."""
    offsets: dict[TopicPartition, int | ErrorCode] = {}
    left = dict(wanted)
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE_S)
        led, refused = await by_leader(client, left)
        offsets |= refused
        for places in led.values():
            offsets |= await _at_leader(client, {place: left[place] for place in places})
        left = {place: time_ms for place, time_ms in left.items() if _may_heal(offsets.get(place))}
        if not left:
            break
    return offsets


def _may_heal(offset: int | ErrorCode | None) -> bool:
    return isinstance(offset, ErrorCode) and offset in LEADER_MOVES


async def _at_leader(
    client: KafkaClient, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | ErrorCode]:
    """Offsets of partitions with one leader."""
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
    answer = await client.ask(body, target=PartitionLeader(*next(iter(wanted))), lowest=1)
    return {
        (topic.name, each.partition_index): ErrorCode.of(each.error_code) if each.error_code else each.offset
        for topic in answer.topics
        for each in topic.partitions
    }


def grouped(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions by topic."""
    found: dict[str, list[int]] = defaultdict(list)
    for topic, index in places:
        found[topic].append(index)
    return found


ADMIN_CLIENT = "__admin_client"
"""The client id that may write to internal topics, as in Kafka."""
_BY_NAME = 12
"""The last version of Fetch and Produce with topic names."""
_READ_BYTES = 16 * 1024 * 1024


async def discard_record(
    client: KafkaClient, topic: str, partition: int, offset: int, *, readable: bool, now_ms: int
) -> bytes:
    """Deletes the key of the record at this offset; returns the key. `readable`: also a record that this
    release can read. Raises ApiError."""
    _, refused = await by_leader(client, [(topic, partition)])
    if refused:
        client.refuse(refused[topic, partition], f"{topic}-{partition}")
    leader = PartitionLeader(topic, partition)
    key, value = await _record(client, leader, offset)
    if not readable and _is_readable(topic, key, value):
        text = f"the record at offset {offset} can be read: use --readable to delete it nevertheless"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    batch = encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=now_ms, keys=[key], values=[None])
    message = ProduceRequest
    part = message.PartitionProduceData(index=partition, records=batch)
    body = message(
        acks=-1,
        timeout_ms=client.timeout_ms,
        topic_data=(message.TopicProduceData(name=topic, partition_data=(part,)),),
    )
    answer = await client.ask(body, target=leader, lowest=3, highest=_BY_NAME)
    ((result,),) = [each.partition_responses for each in answer.responses]
    client.refuse(
        result.error_code, result.error_message or f"{topic}-{partition} does not take the deletion"
    )
    return key


async def _record(client: KafkaClient, leader: PartitionLeader, offset: int) -> tuple[bytes, bytes | None]:
    topic, partition = leader.topic, leader.partition
    message: Any = FetchRequest
    part = message.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=_READ_BYTES)
    body = message(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_READ_BYTES,
        topics=(message.FetchTopic(topic=topic, partitions=(part,)),),
    )
    answer = await client.ask(body, target=leader, lowest=4, highest=_BY_NAME)
    ((found,),) = [each.partitions for each in answer.responses]
    client.refuse(found.error_code, f"{topic}-{partition} cannot be read from offset {offset}")
    for batch in Batches.sealed(_whole(bytes(found.records or b""))).split():
        for record in batch.records():
            if record.offset == offset and record.key is not None and not batch.header.is_control:
                return record.key, record.value
    raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{topic}-{partition} has no record at offset {offset}")


def _whole(data: bytes) -> bytes:
    """The first batch: the last one of a fetch may be cut off."""
    size = 12 + int.from_bytes(data[8:12], "big")
    return data[:size] if len(data) >= size else b""


def _is_readable(topic: str, key: bytes, value: bytes | None) -> bool:
    try:
        return decode_stored(topic, key, value) is not None
    except DecodeError:
        return False

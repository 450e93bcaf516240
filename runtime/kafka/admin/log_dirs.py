"""Calls about brokers' log directories, and about replicas that move between those of one broker.

Owns that each broker is queried for its own, so that an unresponsive broker does not hide the others.
Does not move replicas between brokers: `moving` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.runtime.client.admin import ClientError
from metaquorum.runtime.kafka.client.cluster import KafkaClient
from metaquorum.wire.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

Directory = DescribeLogDirsResponse.DescribeLogDirsResult
"""A directory as its broker describes it. The tagged fields are metaquorum's: other brokers leave them at
their defaults."""


class BrokerDirectories(msgspec.Struct, frozen=True, kw_only=True):
    """The response of one broker, or the reason why there is none in `problem`."""

    broker_id: int
    directories: tuple[Directory, ...] = ()
    problem: str = ""


async def describe_log_dirs(
    client: KafkaClient, broker_ids: Iterable[int], partitions: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[BrokerDirectories, ...]:
    """One result per broker, by id. `partitions`, by topic: only these replicas; None: all."""
    topics = None
    if partitions is not None:
        Topic = DescribeLogDirsRequest.DescribableLogDirTopic
        topics = tuple(Topic(topic=name, partitions=indexes) for name, indexes in partitions.items())
    request = DescribeLogDirsRequest(topics=topics, include_details=True)

    async def ask(broker_id: int) -> BrokerDirectories:
        try:
            answer: DescribeLogDirsResponse = await client.ask(request, at=broker_id)
            client.refuse(answer.error_code)
        except (ApiError, ClientError) as error:
            return BrokerDirectories(broker_id=broker_id, problem=str(error))
        return BrokerDirectories(broker_id=broker_id, directories=answer.results)

    return tuple(await asyncio.gather(*map(ask, sorted(broker_ids))))


async def alter_replica_log_dirs(
    client: KafkaClient, broker_id: int, path: str, topic: str, partitions: Sequence[int]
) -> dict[int, ErrorCode]:
    """Requests that a broker moves replicas to its directory `path`; returns an error code per partition. The
    moves then continue in the background."""
    Path = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    Topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic
    named = (Topic(name=topic, partitions=tuple(partitions)),)
    request = AlterReplicaLogDirsRequest(dirs=(Path(path=path, topics=named),))
    answer: AlterReplicaLogDirsResponse = await client.ask(request, at=broker_id)
    return {
        part.partition_index: ErrorCode.of(part.error_code)
        for each in answer.results
        if each.topic_name == topic
        for part in each.partitions
    }

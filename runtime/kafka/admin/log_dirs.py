"""Brokers' log directories, each broker asked for its own: one silent broker hides no other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from metaquorum.metadata.errors import ApiError
from metaquorum.runtime.client.admin import ClientError
from metaquorum.runtime.kafka.client.cluster import KafkaClient
from metaquorum.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse

Directory = DescribeLogDirsResponse.DescribeLogDirsResult
"""As a broker describes it. Tagged fields are ours: other brokers leave them at their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDirectories:
    """What one broker said; `problem` says why it said nothing."""

    broker_id: int
    directories: tuple[Directory, ...] = ()
    problem: str = ""


async def describe_log_dirs(
    client: KafkaClient, broker_ids: Iterable[int], partitions: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[BrokerDirectories, ...]:
    """One answer for each broker, by id. `partitions`, by topic: with the replicas of these alone."""
    topics = None
    if partitions is not None:
        Topic = DescribeLogDirsRequest.DescribableLogDirTopic
        topics = tuple(Topic(topic=name, partitions=indexes) for name, indexes in partitions.items())
    request = DescribeLogDirsRequest(topics=topics)

    async def ask(broker_id: int) -> BrokerDirectories:
        try:
            answer: DescribeLogDirsResponse = await client.ask(request, at=broker_id)
            client.refuse(answer.error_code)
        except (ApiError, ClientError) as error:
            return BrokerDirectories(broker_id=broker_id, problem=str(error))
        return BrokerDirectories(broker_id=broker_id, directories=answer.results)

    return tuple(await asyncio.gather(*map(ask, sorted(broker_ids))))

"""Calls about replicas: reassignments (KIP-455), log directories, and moves between those of one broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.clients.search import ClientError
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.partitions import ReassignmentResult, WantedReplicas
from metaquorum.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ListPartitionReassignmentsRequest,
)

PARTITIONS_PER_REQUEST = 2_000
"""A plan may have more partitions than a batch can have records. Partitions are independent, so a plan is
sent in several requests, between which the controller can handle heartbeats."""
_WITHOUT_ANSWER = frozenset({ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION})


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas that an ongoing reassignment adds and removes."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


async def list_moves(client: KafkaClient) -> dict[tuple[str, int], Move]:
    """All ongoing reassignments, by topic and index. Raises ApiError."""
    body = ListPartitionReassignmentsRequest(timeout_ms=client.timeout_ms, topics=None)
    answer = await client.ask(body)
    client.refuse(answer.error_code, answer.error_message)
    return {
        (topic.name, part.partition_index): Move(
            replicas=part.replicas, adding=part.adding_replicas, removing=part.removing_replicas
        )
        for topic in sorted(answer.topics, key=lambda each: each.name)
        for part in sorted(topic.partitions, key=lambda each: each.partition_index)
    }


async def ongoing_moves(client: KafkaClient) -> dict[tuple[str, int], Move]:
    """The same, but empty if this client is not authorized, as in Kafka's tools."""
    try:
        return await list_moves(client)
    except ApiError as error:
        if error.code in _WITHOUT_ANSWER:
            return {}
        raise


async def alter_reassignments(
    client: KafkaClient, wanted: Sequence[WantedReplicas], *, keeps_factor: bool = False
) -> tuple[ReassignmentResult, ...]:
    """Requests reassignments, in several requests; one result per partition. Repeating it is safe, because it
    names the target replicas."""
    results: list[ReassignmentResult] = []
    Topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    Part = AlterPartitionReassignmentsRequest.ReassignablePartition
    for first in range(0, len(wanted), PARTITIONS_PER_REQUEST):
        named: dict[str, list[AlterPartitionReassignmentsRequest.ReassignablePartition]] = {}
        for each in wanted[first : first + PARTITIONS_PER_REQUEST]:
            part = Part(partition_index=each.partition, replicas=each.replicas)
            named.setdefault(each.topic, []).append(part)
        body = AlterPartitionReassignmentsRequest(
            timeout_ms=client.timeout_ms,
            allow_replication_factor_change=not keeps_factor,
            topics=tuple(Topic(name=name, partitions=tuple(parts)) for name, parts in named.items()),
        )
        answer = await client.ask(body, lowest=1 if keeps_factor else 0)
        client.refuse(answer.error_code, answer.error_message)
        results += [
            ReassignmentResult(
                topic=topic.name,
                partition=part.partition_index,
                error=ErrorCode.of(part.error_code),
                message=part.error_message,
            )
            for topic in answer.responses
            for part in topic.partitions
        ]
    return tuple(results)


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
            answer: DescribeLogDirsResponse = await client.ask(request, target=broker_id)
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
    answer: AlterReplicaLogDirsResponse = await client.ask(request, target=broker_id)
    return {
        part.partition_index: ErrorCode.of(part.error_code)
        for each in answer.results
        if each.topic_name == topic
        for part in each.partitions
    }

"""Calls about reassignments of replicas (KIP-455): those in progress, and changes.

Owns the conversion of these requests and responses to values. Does not compute a plan: the command does.
Does not move replicas between directories (`log_dirs`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.reassignments import ReassignmentResult, WantedReplicas
from metaquorum.runtime.kafka.client.cluster import KafkaClient
from metaquorum.wire.messages import AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest

PARTITIONS_PER_REQUEST = 2_000
"""A plan may have more partitions than a batch can have records. Partitions are independent, so a plan is
sent in several requests, between which the controller can handle heartbeats."""
_NOT_TOLD = frozenset({ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION})


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
        if error.code in _NOT_TOLD:
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

"""What `AdminClient` asks about moving replicas. Answers are values, never protobuf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from metaquorum.metadata.requests.reassignments import (
    AlterReassignmentsRequest,
    OngoingReassignment,
    ReassignmentResult,
)
from metaquorum.proto import reassignments_pb2 as pb
from metaquorum.proto.reassignments_pb2_grpc import ReassignmentsStub
from metaquorum.runtime.api import reassignments as codec
from metaquorum.runtime.client.admin import AdminClient

PARTITIONS_PER_REQUEST = 2_000
"""A plan may name more partitions than a batch holds records. Each is decided for itself: in parts, so that
heartbeats need not wait for all of them."""


async def alter_reassignments(
    client: AdminClient, request: AlterReassignmentsRequest
) -> tuple[ReassignmentResult, ...]:
    """A result for each partition, asked for in parts. Repeating it is safe: it says where replicas are to
    be."""
    results: list[ReassignmentResult] = []
    for first in range(0, len(request.wanted), PARTITIONS_PER_REQUEST):
        part = replace(request, wanted=request.wanted[first : first + PARTITIONS_PER_REQUEST])
        message = codec.ALTER.to_pb(part)
        answer = await client.ask(lambda channel: ReassignmentsStub(channel).Alter, message)
        results += codec.ALTERED.from_pb(answer).results
    return tuple(results)


async def list_reassignments(
    client: AdminClient, partitions: Sequence[tuple[str, int]] = ()
) -> tuple[OngoingReassignment, ...]:
    """Partitions whose replicas are moving, by topic and index, read linearizably; of those named, or all."""
    request = pb.ListReassignmentsRequest(
        partitions=[pb.ReassigningPartition(topic=topic, partition=index) for topic, index in partitions]
    )
    answer = await client.ask(lambda channel: ReassignmentsStub(channel).List, request)
    return codec.LISTING.from_pb(answer).reassignments

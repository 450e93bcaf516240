"""What `AdminClient` asks about moving replicas. Answers are values, never protobuf."""

from __future__ import annotations

from collections.abc import Sequence

from metadata.requests_reassignments import (
    AlterReassignmentsRequest,
    OngoingReassignment,
    ReassignmentResult,
)
from proto import reassignments_pb2 as pb
from proto.reassignments_pb2_grpc import ReassignmentsStub
from runtime import reassignments_codec as codec
from runtime.client import AdminClient


async def alter_reassignments(
    client: AdminClient, request: AlterReassignmentsRequest
) -> tuple[ReassignmentResult, ...]:
    """A result for each partition. Repeating it is safe: it says where replicas are to be."""
    answer = await client.ask(lambda channel: ReassignmentsStub(channel).Alter, codec.alter_to_pb(request))
    return codec.altered_from_pb(answer).results


async def list_reassignments(
    client: AdminClient, partitions: Sequence[tuple[str, int]] = ()
) -> tuple[OngoingReassignment, ...]:
    """Partitions whose replicas are moving, by topic and index, read linearizably; of those named, or all."""
    request = pb.ListReassignmentsRequest(
        partitions=[pb.ReassigningPartition(topic=topic, partition=index) for topic, index in partitions]
    )
    answer = await client.ask(lambda channel: ReassignmentsStub(channel).List, request)
    return codec.listed_from_pb(answer)

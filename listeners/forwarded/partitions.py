"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments."""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.listeners.access.steps import CLUSTER, Each, RightNeeded, Whole, on_cluster
from metaquorum.listeners.forwarded.api import Call, answers, by_name
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import partitions as moves
from metaquorum.metadata.requests.common import ReadImageRequest, ReadImageResponse
from metaquorum.metadata.requests.partitions import ElectionResult
from metaquorum.metadata.requests.partitions import ElectLeadersRequest as Elect
from metaquorum.metadata.requests.partitions import ElectLeadersResponse as Elected
from metaquorum.metadata.settings.acls import Operation as Op
from metaquorum.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

_PREFERRED, _UNCLEAN = 0, 1


@answers(
    "ElectLeaders",
    Whole((RightNeeded(Op.ALTER, CLUSTER),), when=lambda body: body.topic_partitions is None),
    Each("topic_partitions", "replica_election_results", (RightNeeded(Op.ALTER, CLUSTER),), whole_since=1),
    things=((("topic_partitions", "replica_election_results"), ("partitions", "partition_result")),),
)
async def elect_leaders(body: ElectLeadersRequest, call: Call) -> ElectLeadersResponse:
    named = None
    if body.topic_partitions is not None:
        named = tuple((each.topic, index) for each in body.topic_partitions for index in each.partitions)
    if body.election_type not in {_PREFERRED, _UNCLEAN}:
        text = f"{body.election_type} is not an election: 0 elects preferred leaders, 1 unclean ones"
        return _elected(ApiError(ErrorCode.INVALID_REQUEST, text), named, call.version)
    request = Elect(unclean=body.election_type == _UNCLEAN, partitions=named)
    results: list[ElectionResult] = []
    while True:
        answer = await call.answer(request, Elected)
        if isinstance(answer, ApiError):
            return _elected(answer, named, call.version)
        results += [
            each
            for each in answer.results
            if named is not None or each.error is not ErrorCode.ELECTION_NOT_NEEDED
        ]
        if not answer.more:
            return ElectLeadersResponse(
                replica_election_results=_results(
                    [(each.topic, each.partition, each.error, each.message) for each in results]
                )
            )


def _elected(
    refusal: ApiError, named: tuple[tuple[str, int], ...] | None, version: int
) -> ElectLeadersResponse:
    parts = [(topic, index, refusal.code, refusal.message) for topic, index in named or ()]
    # Version 0 only has error codes of partitions.
    code = refusal.code if version >= 1 else ErrorCode.NONE
    return ElectLeadersResponse(error_code=code, replica_election_results=_results(parts))


def _results(
    parts: Sequence[tuple[str, int, ErrorCode, str | None]],
) -> tuple[ElectLeadersResponse.ReplicaElectionResult, ...]:
    return tuple(
        ElectLeadersResponse.ReplicaElectionResult(topic=topic, partition_result=tuple(found))
        for topic, found in by_name(
            (
                topic,
                ElectLeadersResponse.PartitionResult(
                    partition_id=index, error_code=code, error_message=message
                ),
            )
            for topic, index, code, message in parts
        ).items()
    )


@answers(
    "AlterPartitionReassignments",
    on_cluster(Op.ALTER),
    things=((("topics", "responses"), ("partitions", "partitions")),),
)
async def alter_partition_reassignments(
    body: AlterPartitionReassignmentsRequest, call: Call
) -> AlterPartitionReassignmentsResponse:
    request = moves.AlterReassignmentsRequest(
        wanted=tuple(
            moves.WantedReplicas(
                topic=topic.name,
                partition=part.partition_index,
                replicas=None if part.replicas is None else tuple(part.replicas),
            )
            for topic in body.topics
            for part in topic.partitions
        ),
        allow_replication_factor_change=body.allow_replication_factor_change,
    )
    answer = await call.answer(request, moves.AlterReassignmentsResponse)
    if isinstance(answer, ApiError):
        return AlterPartitionReassignmentsResponse(error_code=answer.code, error_message=answer.message)
    responses = by_name(
        (
            result.topic,
            AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                partition_index=result.partition, error_code=result.error, error_message=result.message
            ),
        )
        for result in answer.results
    )
    return AlterPartitionReassignmentsResponse(
        error_message=None,
        allow_replication_factor_change=body.allow_replication_factor_change,
        responses=tuple(
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=name, partitions=tuple(found))
            for name, found in responses.items()
        ),
    )


@answers("ListPartitionReassignments", on_cluster(Op.DESCRIBE))
async def list_partition_reassignments(
    body: ListPartitionReassignmentsRequest, call: Call
) -> ListPartitionReassignmentsResponse:
    read = await call.answer(ReadImageRequest(), ReadImageResponse)
    if isinstance(read, ApiError):
        return ListPartitionReassignmentsResponse(error_code=read.code, error_message=read.message)
    named = None
    if body.topics is not None:
        named = [(topic.name, index) for topic in body.topics for index in topic.partition_indexes]
    moving = by_name(
        (
            moved.topic,
            ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                partition_index=moved.partition,
                replicas=moved.replicas,
                adding_replicas=moved.adding,
                removing_replicas=moved.removing,
            ),
        )
        for moved in moves.ongoing_reassignments(read.image, named)
    )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=tuple(
            ListPartitionReassignmentsResponse.OngoingTopicReassignment(name=name, partitions=tuple(found))
            for name, found in moving.items()
        ),
    )

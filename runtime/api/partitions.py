"""Requests about partitions and their answers, between values and protobuf, both directions.

Owns the mapping only. An id that is not 16 bytes raises `ApiError` INVALID_REQUEST.
"""

from __future__ import annotations

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import partitions as api
from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto import partitions_pb2 as pb
from metaquorum.runtime.api.api import Hints, error_from_pb, error_to_pb
from metaquorum.storage.uuids import UUID_BYTES


def _id(value: bytes, what: str) -> bytes:
    if len(value) != UUID_BYTES:
        text = f"{what} has {len(value)} bytes: give the {UUID_BYTES} of a uuid"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    return value


def _error(code: ErrorCode, message: str | None, hints: Hints) -> common.Error | None:
    if code is ErrorCode.NONE:
        return None
    return error_to_pb(ApiError(code, message or code.name), hints)


def _refusal(error: common.Error, *, present: bool) -> tuple[ErrorCode, str | None]:
    if not present:
        return ErrorCode.NONE, None
    decoded = error_from_pb(error)
    return decoded.code, decoded.message


# ---- growth


def create_to_pb(request: api.CreatePartitionsRequest) -> pb.CreatePartitionsRequest:
    return pb.CreatePartitionsRequest(
        topics=[
            pb.TopicGrowth(
                name=each.name,
                count=each.count,
                assignments=[admin.ReplicaList(broker_ids=replicas) for replicas in each.assignments or ()],
            )
            for each in request.topics
        ],
        validate_only=request.validate_only,
    )


def create_from_pb(request: pb.CreatePartitionsRequest) -> api.CreatePartitionsRequest:
    return api.CreatePartitionsRequest(
        topics=tuple(
            api.TopicGrowth(
                name=each.name,
                count=each.count,
                assignments=tuple(tuple(one.broker_ids) for one in each.assignments) or None,
            )
            for each in request.topics
        ),
        validate_only=request.validate_only,
    )


# ---- elections


def elect_to_pb(request: api.ElectLeadersRequest) -> pb.ElectLeadersRequest:
    return pb.ElectLeadersRequest(
        unclean=request.unclean,
        all=request.partitions is None,
        partitions=[
            pb.NamedPartition(topic=topic, partition=index) for topic, index in request.partitions or ()
        ],
    )


def elect_from_pb(request: pb.ElectLeadersRequest) -> api.ElectLeadersRequest:
    named = tuple((each.topic, each.partition) for each in request.partitions)
    return api.ElectLeadersRequest(unclean=request.unclean, partitions=None if request.all else named)


def elected_to_pb(response: api.ElectLeadersResponse, hints: Hints) -> pb.ElectLeadersResponse:
    return pb.ElectLeadersResponse(
        results=[
            pb.ElectionResult(
                topic=each.topic,
                partition=each.partition,
                error=_error(each.error, each.message, hints),
                leader=each.leader,
            )
            for each in response.results
        ],
        more=response.more,
    )


def elected_from_pb(response: pb.ElectLeadersResponse) -> api.ElectLeadersResponse:
    results = []
    for each in response.results:
        code, message = _refusal(each.error, present=each.HasField("error"))
        results.append(
            api.ElectionResult(
                topic=each.topic,
                partition=each.partition,
                error=code,
                message=message,
                leader=each.leader if each.HasField("leader") else None,
            )
        )
    return api.ElectLeadersResponse(results=tuple(results), more=response.more)


# ---- ISRs


def alter_to_pb(request: api.AlterPartitionRequest) -> pb.AlterPartitionRequest:
    return pb.AlterPartitionRequest(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        partitions=[
            pb.PartitionAlteration(
                topic_id=each.topic_id,
                partition=each.partition,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                isr=[
                    pb.IsrMember(broker_id=member.broker_id, broker_epoch=member.broker_epoch)
                    for member in each.isr
                ],
                leader_recovery_state=each.leader_recovery_state,
            )
            for each in request.partitions
        ],
    )


def alter_from_pb(request: pb.AlterPartitionRequest) -> api.AlterPartitionRequest:
    """Raises ApiError INVALID_REQUEST."""
    return api.AlterPartitionRequest(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        partitions=tuple(
            api.PartitionAlteration(
                topic_id=_id(each.topic_id, "a topic id"),
                partition=each.partition,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                isr=tuple(
                    api.IsrMember(
                        broker_id=member.broker_id,
                        broker_epoch=member.broker_epoch if member.HasField("broker_epoch") else None,
                    )
                    for member in each.isr
                ),
                leader_recovery_state=each.leader_recovery_state,
            )
            for each in request.partitions
        ),
    )


def altered_to_pb(response: api.AlterPartitionResponse, hints: Hints) -> pb.AlterPartitionResponse:
    return pb.AlterPartitionResponse(
        results=[
            pb.AlteredPartition(
                topic_id=each.topic_id,
                partition=each.partition,
                error=_error(each.error, each.message, hints),
                leader=each.leader,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                isr=each.isr,
                leader_recovery_state=each.leader_recovery_state,
            )
            for each in response.results
        ]
    )


def altered_from_pb(response: pb.AlterPartitionResponse) -> api.AlterPartitionResponse:
    results = []
    for each in response.results:
        code, message = _refusal(each.error, present=each.HasField("error"))
        results.append(
            api.AlteredPartition(
                topic_id=each.topic_id,
                partition=each.partition,
                error=code,
                message=message,
                leader=each.leader if each.HasField("leader") else None,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                isr=tuple(each.isr),
                leader_recovery_state=each.leader_recovery_state,
            )
        )
    return api.AlterPartitionResponse(results=tuple(results))


# ---- log directories


def assign_to_pb(request: api.AssignReplicasToDirsRequest) -> pb.AssignReplicasToDirsRequest:
    return pb.AssignReplicasToDirsRequest(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        assignments=[
            pb.ReplicaAssignment(
                directory_id=each.directory_id, topic_id=each.topic_id, partition=each.partition
            )
            for each in request.assignments
        ],
    )


def assign_from_pb(request: pb.AssignReplicasToDirsRequest) -> api.AssignReplicasToDirsRequest:
    """Raises ApiError INVALID_REQUEST."""
    return api.AssignReplicasToDirsRequest(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        assignments=tuple(
            api.ReplicaAssignment(
                directory_id=_id(each.directory_id, "a directory id"),
                topic_id=_id(each.topic_id, "a topic id"),
                partition=each.partition,
            )
            for each in request.assignments
        ),
    )


def assigned_to_pb(
    response: api.AssignReplicasToDirsResponse, hints: Hints
) -> pb.AssignReplicasToDirsResponse:
    return pb.AssignReplicasToDirsResponse(
        results=[
            pb.AssignmentResult(
                assignment=pb.ReplicaAssignment(
                    directory_id=each.directory_id, topic_id=each.topic_id, partition=each.partition
                ),
                error=_error(each.error, each.message, hints),
            )
            for each in response.results
        ]
    )


def assigned_from_pb(response: pb.AssignReplicasToDirsResponse) -> api.AssignReplicasToDirsResponse:
    results = []
    for each in response.results:
        code, message = _refusal(each.error, present=each.HasField("error"))
        results.append(
            api.AssignmentResult(
                directory_id=each.assignment.directory_id,
                topic_id=each.assignment.topic_id,
                partition=each.assignment.partition,
                error=code,
                message=message,
            )
        )
    return api.AssignReplicasToDirsResponse(results=tuple(results))

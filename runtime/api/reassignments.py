"""Requests about moving replicas and their answers, between values and protobuf. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.reassignments import (
    AlterReassignmentsRequest,
    AlterReassignmentsResponse,
    OngoingReassignment,
    ReassignmentResult,
    WantedReplicas,
)
from metaquorum.proto import reassignments_pb2 as pb


def alter_to_pb(request: AlterReassignmentsRequest) -> pb.AlterReassignmentsRequest:
    return pb.AlterReassignmentsRequest(
        wanted=[
            pb.WantedReplicas(
                topic=one.topic,
                partition=one.partition,
                cancel=one.replicas is None,
                replicas=one.replicas or (),
            )
            for one in request.wanted
        ],
        keep_replication_factor=not request.allow_replication_factor_change,
        validate_only=request.validate_only,
    )


def alter_from_pb(request: pb.AlterReassignmentsRequest) -> AlterReassignmentsRequest:
    return AlterReassignmentsRequest(
        wanted=tuple(
            [
                WantedReplicas(
                    topic=one.topic,
                    partition=one.partition,
                    replicas=None if one.cancel else tuple(one.replicas),
                )
                for one in request.wanted
            ]
        ),
        allow_replication_factor_change=not request.keep_replication_factor,
        validate_only=request.validate_only,
    )


def altered_to_pb(response: AlterReassignmentsResponse) -> pb.AlterReassignmentsResponse:
    return pb.AlterReassignmentsResponse(
        results=[
            pb.ReassignmentResult(
                topic=one.topic, partition=one.partition, error_code=int(one.error), message=one.message or ""
            )
            for one in response.results
        ]
    )


def altered_from_pb(response: pb.AlterReassignmentsResponse) -> AlterReassignmentsResponse:
    known = {int(code) for code in ErrorCode}
    return AlterReassignmentsResponse(
        results=tuple(
            [
                ReassignmentResult(
                    topic=one.topic,
                    partition=one.partition,
                    error=ErrorCode(one.error_code)
                    if one.error_code in known
                    else ErrorCode.UNKNOWN_SERVER_ERROR,
                    message=one.message or None,
                )
                for one in response.results
            ]
        )
    )


def listed_to_pb(found: Iterable[OngoingReassignment]) -> pb.ListReassignmentsResponse:
    return pb.ListReassignmentsResponse(
        reassignments=[
            pb.OngoingReassignment(
                topic=one.topic,
                partition=one.partition,
                replicas=one.replicas,
                adding=one.adding,
                removing=one.removing,
                isr=one.isr,
            )
            for one in found
        ]
    )


def listed_from_pb(response: pb.ListReassignmentsResponse) -> tuple[OngoingReassignment, ...]:
    return tuple(
        [
            OngoingReassignment(
                topic=one.topic,
                partition=one.partition,
                replicas=tuple(one.replicas),
                adding=tuple(one.adding),
                removing=tuple(one.removing),
                isr=tuple(one.isr),
            )
            for one in response.reassignments
        ]
    )

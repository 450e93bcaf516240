"""Requests about moving replicas and their answers, between values and protobuf. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests import reassignments as api
from metaquorum.proto import reassignments_pb2 as pb
from metaquorum.runtime.api.codec import MessageCodec
from metaquorum.runtime.api.shapes import FieldRule

_CODES = {code.value: code for code in ErrorCode}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentListing:
    """Partitions whose replicas are moving, by topic and index."""

    reassignments: tuple[api.OngoingReassignment, ...]


def _cancel(wanted: api.WantedReplicas) -> bool:
    return wanted.replicas is None


def _replicas(wanted: api.WantedReplicas) -> Sequence[int]:
    return wanted.replicas or ()


def _wanted(message: pb.WantedReplicas) -> tuple[int, ...] | None:
    return None if message.cancel else tuple(message.replicas)


def _keeps_factor(request: api.AlterReassignmentsRequest) -> bool:
    return not request.allow_replication_factor_change


def _allows_factor(request: pb.AlterReassignmentsRequest) -> bool:
    return not request.keep_replication_factor


def _error(message: pb.ReassignmentResult) -> ErrorCode:
    return _CODES.get(message.error_code, ErrorCode.UNKNOWN_SERVER_ERROR)


ALTER = MessageCodec(
    api.AlterReassignmentsRequest,
    pb.AlterReassignmentsRequest,
    wanted=FieldRule(
        nested={"replicas": FieldRule(encode={"cancel": _cancel, "replicas": _replicas}, decode=_wanted)}
    ),
    allow_replication_factor_change=FieldRule(
        encode={"keep_replication_factor": _keeps_factor}, decode=_allows_factor
    ),
)
ALTERED = MessageCodec(
    api.AlterReassignmentsResponse,
    pb.AlterReassignmentsResponse,
    results=FieldRule(nested={"error": FieldRule(path="error_code", decode=_error)}),
)
LISTING = MessageCodec(ReassignmentListing, pb.ListReassignmentsResponse)

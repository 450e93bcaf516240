"""Requests about partitions and their answers, between values and protobuf."""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.metadata.requests import partitions as api
from metaquorum.proto import partitions_pb2 as pb
from metaquorum.runtime.api.codec import MessageCodec
from metaquorum.runtime.api.errors import uuid_check
from metaquorum.runtime.api.shapes import FieldRule

_TOPIC_ID = FieldRule(check=uuid_check("a topic id"))
_ASSIGNMENT = ("assignment.directory_id", "assignment.topic_id", "assignment.partition")


def _named(request: api.ElectLeadersRequest) -> Sequence[pb.NamedPartition]:
    return [pb.NamedPartition(topic=topic, partition=index) for topic, index in request.partitions or ()]


def _all(request: api.ElectLeadersRequest) -> bool:
    return request.partitions is None


def _partitions(request: pb.ElectLeadersRequest) -> tuple[tuple[str, int], ...] | None:
    return None if request.all else tuple([(each.topic, each.partition) for each in request.partitions])


CREATE = MessageCodec(api.CreatePartitionsRequest, pb.CreatePartitionsRequest)
ELECT = MessageCodec(
    api.ElectLeadersRequest,
    pb.ElectLeadersRequest,
    partitions=FieldRule(encode={"all": _all, "partitions": _named}, decode=_partitions),
)
ELECTED = MessageCodec(api.ElectLeadersResponse, pb.ElectLeadersResponse)
ALTER = MessageCodec(
    api.AlterPartitionRequest,
    pb.AlterPartitionRequest,
    partitions=FieldRule(nested={"topic_id": _TOPIC_ID}),
)
ALTERED = MessageCodec(api.AlterPartitionResponse, pb.AlterPartitionResponse)
ASSIGN = MessageCodec(
    api.AssignReplicasToDirsRequest,
    pb.AssignReplicasToDirsRequest,
    assignments=FieldRule(
        nested={"directory_id": FieldRule(check=uuid_check("a directory id")), "topic_id": _TOPIC_ID}
    ),
)
ASSIGNED = MessageCodec(
    api.AssignReplicasToDirsResponse,
    pb.AssignReplicasToDirsResponse,
    results=FieldRule(nested={path.partition(".")[2]: path for path in _ASSIGNMENT}),
)

"""Requests of brokers about partitions and their responses, between values and protobuf."""

from __future__ import annotations

from metaquorum.metadata.requests import partitions as api
from metaquorum.proto import partitions_pb2 as pb
from metaquorum.rpc.messages.codec import MessageCodec
from metaquorum.rpc.messages.errors import uuid_check
from metaquorum.rpc.messages.shapes import FieldRule

_TOPIC_ID = FieldRule(check=uuid_check("a topic id"))
_ASSIGNMENT = ("assignment.directory_id", "assignment.topic_id", "assignment.partition")


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

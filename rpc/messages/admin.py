"""Requests about topics, voters and the quorum's state, and their responses, between values and protobuf."""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import common
from metaquorum.metadata.requests import common as api
from metaquorum.metadata.requests.settings import RegisterControllerRequest
from metaquorum.proto import admin_pb2 as pb
from metaquorum.proto import voters_pb2 as voters_pb
from metaquorum.rpc.messages.brokers import NO_TAGS
from metaquorum.rpc.messages.codec import MessageCodec
from metaquorum.rpc.messages.errors import uuid_check
from metaquorum.rpc.messages.shapes import FieldRule

_TOPIC_ID = uuid_check("a topic id")


def _references(request: api.DeleteTopicsRequest) -> Sequence[pb.TopicReference]:
    return [
        pb.TopicReference(name=each) if isinstance(each, str) else pb.TopicReference(topic_id=each)
        for each in request.topics
    ]


def _names_or_ids(request: pb.DeleteTopicsRequest) -> tuple[str | bytes, ...]:
    topics: list[str | bytes] = []
    for each in request.topics:
        match each.WhichOneof("by"):
            case "name":
                topics.append(each.name)
            case "topic_id":
                topics.append(_TOPIC_ID(each.topic_id))
            case _:
                text = "a topic to delete has neither name nor id: give one"
                raise ApiError(ErrorCode.INVALID_REQUEST, text)
    return tuple(topics)


CREATE_TOPICS = MessageCodec(api.CreateTopicsRequest, pb.CreateTopicsRequest)
DELETE_TOPICS = MessageCodec(
    api.DeleteTopicsRequest,
    pb.DeleteTopicsRequest,
    topics=FieldRule(encode={"topics": _references}, decode=_names_or_ids),
)
TOPICS = MessageCodec(api.TopicsResponse, pb.TopicsResponse, throttle_ms=FieldRule(local=True))
_LOCAL = FieldRule(local=True)
_DIRECTORY = FieldRule(check=uuid_check("a directory id"))
ENDPOINTS = FieldRule(nested={"unknown_tags": _LOCAL})
"""Where a voter listens, without the unknown tags that only a record can carry."""

_REPLICA = FieldRule(nested={"endpoints": ENDPOINTS})
QUORUM = MessageCodec(
    api.DescribeQuorumResponse, pb.DescribeQuorumResponse, voters=_REPLICA, observers=_REPLICA
)
TRANSFER_LEADERSHIP = MessageCodec(api.TransferLeadershipRequest, pb.TransferLeadershipRequest)
ADD_VOTER = MessageCodec(
    common.AddRaftVoterRequest,
    voters_pb.AddRaftVoterRequest,
    voter=FieldRule(
        nested={
            "voter_directory_id": _DIRECTORY,
            "endpoints": ENDPOINTS,
            "kraft_version_feature": FieldRule(
                spread=("min_kraft_version", "max_kraft_version", ""), nested={"unknown_tags": _LOCAL}
            ),
            "unknown_tags": _LOCAL,
        }
    ),
)
REMOVE_VOTER = MessageCodec(
    common.RemoveRaftVoterRequest, voters_pb.RemoveRaftVoterRequest, voter_directory_id=_DIRECTORY
)
REGISTER_CONTROLLER = MessageCodec(
    RegisterControllerRequest,
    voters_pb.RegisterControllerRequest,
    endpoints=FieldRule(nested=NO_TAGS),
    features=FieldRule(nested=NO_TAGS),
)

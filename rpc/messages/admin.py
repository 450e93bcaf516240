"""Requests about voters and the quorum's state, and their responses, between values and protobuf."""

from __future__ import annotations

from metaquorum.metadata.requests import common
from metaquorum.metadata.requests import common as api
from metaquorum.proto import admin_pb2 as pb
from metaquorum.proto import voters_pb2 as voters_pb
from metaquorum.rpc.messages.codec import MessageCodec
from metaquorum.rpc.messages.errors import uuid_check
from metaquorum.rpc.messages.shapes import FieldRule

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

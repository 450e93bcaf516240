"""The lifecycle of brokers (KIP-631), their registrations and their own status, between values and
protobuf."""

from __future__ import annotations

from metaquorum.metadata.broker_ids import key_problem
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.requests import common as api
from metaquorum.metadata.requests import data
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from metaquorum.metadata.requests.status import BrokerStatus
from metaquorum.proto import broker_pb2 as pb
from metaquorum.proto import metadata_pb2 as common
from metaquorum.rpc.messages.codec import MessageCodec
from metaquorum.rpc.messages.errors import uuid_check
from metaquorum.rpc.messages.shapes import FieldRule

NO_TAGS = {"unknown_tags": FieldRule(local=True)}
"""Only records have unknown tags in endpoints and features."""

_DIRECTORY = uuid_check("a directory id")


def _port(endpoint: common.Endpoint) -> int:
    if not 0 <= endpoint.port <= 65535:
        text = f"endpoint {endpoint.name} has port {endpoint.port}: give 0 to 65535"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    return endpoint.port


def _binding_key(request: pb.RegisterBrokerRequest) -> str | None:
    if not request.HasField("binding_key"):
        return None
    problem = key_problem(request.binding_key)
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)
    return request.binding_key


def _one_name(request: pb.MarkLogDirOfflineRequest) -> str | None:
    if bool(request.path) == bool(request.directory_id):
        text = "give either the path or the id of the log directory"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    return request.path or None


REGISTER = MessageCodec(
    api.RegisterBrokerRequest,
    pb.RegisterBrokerRequest,
    incarnation_id=FieldRule(check=uuid_check("incarnation_id")),
    endpoints=FieldRule(nested={"port": FieldRule(decode=_port), **NO_TAGS}),
    features=FieldRule(nested=NO_TAGS),
    directories=FieldRule(check=_DIRECTORY),
    binding_key=FieldRule(decode=_binding_key),
)
REGISTERED = MessageCodec(api.RegisterBrokerResponse, pb.RegisterBrokerResponse)
HEARTBEAT = MessageCodec(
    api.BrokerHeartbeatRequest, pb.BrokerHeartbeatRequest, offline_directories=FieldRule(check=_DIRECTORY)
)
HEARTBEAT_ANSWER = MessageCodec(api.BrokerHeartbeatResponse, pb.BrokerHeartbeatResponse)
ALLOCATE_PRODUCER_IDS = MessageCodec(AllocateProducerIdsRequest, pb.AllocateProducerIdsRequest)
ALLOCATED_PRODUCER_IDS = MessageCodec(AllocateProducerIdsResponse, pb.AllocateProducerIdsResponse)
BROKER = MessageCodec(
    BrokerRegistration, common.Broker, epoch="broker_epoch", is_migrating_zk_broker=FieldRule(local=True)
)
BROKER_STATUS = MessageCodec(BrokerStatus, pb.DescribeBrokerResponse)
"""`from_pb` raises ValueError for a state that this release does not know."""
MARK_LOG_DIR_OFFLINE = MessageCodec(
    data.MarkLogDirOfflineRequest,
    pb.MarkLogDirOfflineRequest,
    path=FieldRule(decode=_one_name),
    directory_id=FieldRule(check=_DIRECTORY),
)
MARKED_LOG_DIR = MessageCodec(data.MarkLogDirOfflineResponse, pb.MarkLogDirOfflineResponse)

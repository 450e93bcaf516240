"""The messages of each gRPC service between values and protobuf: a table per service."""

from __future__ import annotations

import msgspec

from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.broker_ids import IdSource, key_problem
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.requests import common, data
from metaquorum.metadata.requests import common as api
from metaquorum.metadata.requests import partitions as partition_api
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from metaquorum.metadata.requests.status import BrokerStatus, NodeStatus
from metaquorum.observability.metrics.statistics import LoopStatistics
from metaquorum.proto import admin_pb2 as admin_pb
from metaquorum.proto import broker_ids_pb2 as broker_ids_pb
from metaquorum.proto import broker_pb2 as broker_pb
from metaquorum.proto import metadata_pb2 as metadata_pb
from metaquorum.proto import partitions_pb2 as partitions_pb
from metaquorum.proto import voters_pb2 as voters_pb
from metaquorum.rpc.messages.codec import FieldRule, MessageCodec
from metaquorum.rpc.messages.errors import uuid_check

# Requests about voters and the quorum's state, and their responses, between values and protobuf.

_LOCAL = FieldRule(local=True)
_DIRECTORY = FieldRule(check=uuid_check("a directory id"))
ENDPOINTS = FieldRule(nested={"unknown_tags": _LOCAL})
"""Where a voter listens, without the unknown tags that only a record can carry."""

_REPLICA = FieldRule(nested={"endpoints": ENDPOINTS})
QUORUM = MessageCodec(
    api.DescribeQuorumResponse, admin_pb.DescribeQuorumResponse, voters=_REPLICA, observers=_REPLICA
)
TRANSFER_LEADERSHIP = MessageCodec(api.TransferLeadershipRequest, admin_pb.TransferLeadershipRequest)
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


# The lifecycle of brokers (KIP-631), their registrations and their own status, between values and protobuf.

NO_TAGS = {"unknown_tags": FieldRule(local=True)}
"""Only records have unknown tags in endpoints and features."""

_LOG_DIRECTORY = uuid_check("a directory id")


def _port(endpoint: metadata_pb.Endpoint) -> int:
    if not 0 <= endpoint.port <= 65535:
        text = f"endpoint {endpoint.name} has port {endpoint.port}: give 0 to 65535"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    return endpoint.port


def _binding_key(request: broker_pb.RegisterBrokerRequest) -> str | None:
    if not request.HasField("binding_key"):
        return None
    problem = key_problem(request.binding_key)
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)
    return request.binding_key


def _one_name(request: broker_pb.MarkLogDirOfflineRequest) -> str | None:
    if bool(request.path) == bool(request.directory_id):
        text = "give either the path or the id of the log directory"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    return request.path or None


REGISTER = MessageCodec(
    api.RegisterBrokerRequest,
    broker_pb.RegisterBrokerRequest,
    incarnation_id=FieldRule(check=uuid_check("incarnation_id")),
    endpoints=FieldRule(nested={"port": FieldRule(decode=_port), **NO_TAGS}),
    features=FieldRule(nested=NO_TAGS),
    directories=FieldRule(check=_LOG_DIRECTORY),
    binding_key=FieldRule(decode=_binding_key),
)
REGISTERED = MessageCodec(api.RegisterBrokerResponse, broker_pb.RegisterBrokerResponse)
HEARTBEAT = MessageCodec(
    api.BrokerHeartbeatRequest,
    broker_pb.BrokerHeartbeatRequest,
    offline_directories=FieldRule(check=_LOG_DIRECTORY),
)
HEARTBEAT_ANSWER = MessageCodec(api.BrokerHeartbeatResponse, broker_pb.BrokerHeartbeatResponse)
ALLOCATE_PRODUCER_IDS = MessageCodec(AllocateProducerIdsRequest, broker_pb.AllocateProducerIdsRequest)
ALLOCATED_PRODUCER_IDS = MessageCodec(AllocateProducerIdsResponse, broker_pb.AllocateProducerIdsResponse)
BROKER = MessageCodec(
    BrokerRegistration, metadata_pb.Broker, epoch="broker_epoch", is_migrating_zk_broker=FieldRule(local=True)
)
BROKER_STATUS = MessageCodec(BrokerStatus, broker_pb.DescribeBrokerResponse)
"""`from_pb` raises ValueError for a state that this release does not know."""
MARK_LOG_DIR_OFFLINE = MessageCodec(
    data.MarkLogDirOfflineRequest,
    broker_pb.MarkLogDirOfflineRequest,
    path=FieldRule(decode=_one_name),
    directory_id=FieldRule(check=_LOG_DIRECTORY),
)
MARKED_LOG_DIR = MessageCodec(data.MarkLogDirOfflineResponse, broker_pb.MarkLogDirOfflineResponse)


# Requests about broker ids and their responses, between values and protobuf, and what a listing contains.


class BindingView(msgspec.Struct, frozen=True, kw_only=True):
    """A binding and the state of its id: `state` is `running`, `fenced` or `absent`."""

    key: str
    broker_id: int | None
    version: int | None
    state: str
    current: bool
    garbage: bool


class BrokerIdListing(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the cluster records about broker ids, as of `offset`."""

    offset: int
    bindings: tuple[BindingView, ...]
    missing_ids: tuple[int, ...]
    claims: tuple[ids.Claim, ...]
    next_id: int


def _source(response: broker_ids_pb.AllocateBrokerIdResponse) -> IdSource | None:
    """Raises ApiError for a source that this release does not know: the ids may then have another meaning
    too."""
    try:
        return IdSource(response.source) if response.source else None
    except ValueError:
        text = (
            f"the id comes from {response.source!r}, which this release does not support: upgrade the broker"
        )
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text) from None


ALLOCATE = MessageCodec(api.AllocateBrokerIdRequest, broker_ids_pb.AllocateBrokerIdRequest)
ALLOCATED = MessageCodec(
    api.AllocateBrokerIdResponse, broker_ids_pb.AllocateBrokerIdResponse, source=FieldRule(decode=_source)
)
BIND = MessageCodec(api.BindBrokerIdRequest, broker_ids_pb.BindBrokerIdRequest)
UNBIND = MessageCodec(api.UnbindBrokerIdRequest, broker_ids_pb.UnbindBrokerIdRequest)
LISTING = MessageCodec(BrokerIdListing, broker_ids_pb.ListBrokerIdsResponse, offset="read.offset")


# A controller's report about itself, between values and protobuf.


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One controller: its state machine, and the loop that drives it."""

    status: NodeStatus
    loop: LoopStatistics


NODE = MessageCodec(
    NodeReport,
    admin_pb.DescribeNodeResponse,
    status=FieldRule(spread=(), nested={"endpoints": ENDPOINTS}),
)
"""`from_pb` raises ValueError for a broker in a state that this release does not know."""


# Requests of brokers about partitions and their responses, between values and protobuf.

_TOPIC_ID = FieldRule(check=uuid_check("a topic id"))
_ASSIGNMENT = ("assignment.directory_id", "assignment.topic_id", "assignment.partition")


ALTER = MessageCodec(
    partition_api.AlterPartitionRequest,
    partitions_pb.AlterPartitionRequest,
    partitions=FieldRule(nested={"topic_id": _TOPIC_ID}),
)
ALTERED = MessageCodec(partition_api.AlterPartitionResponse, partitions_pb.AlterPartitionResponse)
ASSIGN = MessageCodec(
    partition_api.AssignReplicasToDirsRequest,
    partitions_pb.AssignReplicasToDirsRequest,
    assignments=FieldRule(
        nested={"directory_id": FieldRule(check=uuid_check("a directory id")), "topic_id": _TOPIC_ID}
    ),
)
ASSIGNED = MessageCodec(
    partition_api.AssignReplicasToDirsResponse,
    partitions_pb.AssignReplicasToDirsResponse,
    results=FieldRule(nested={path.partition(".")[2]: path for path in _ASSIGNMENT}),
)

"""The gRPC services of a controller: the quorum and brokers for operators, the lifecycle for brokers.

An expected refusal is the response's `error` field, never a gRPC status; gRPC statuses are for the transport.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from metaquorum.controller.brokers.broker_ids import garbage_bindings, missing_ids
from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.requests import common as api
from metaquorum.metadata.requests import partitions as partition_requests
from metaquorum.metadata.requests.common import AllocateBrokerIdResponse, Done
from metaquorum.metadata.requests.settings import AllocateProducerIdsResponse
from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto import broker_ids_pb2 as pb
from metaquorum.proto import broker_pb2 as broker
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto import partitions_pb2 as partitions_pb
from metaquorum.proto.admin_pb2_grpc import AdminServicer
from metaquorum.proto.broker_ids_pb2_grpc import BrokerIdsServicer
from metaquorum.proto.broker_pb2_grpc import BrokerLifecycleServicer
from metaquorum.proto.metadata_pb2_grpc import MetadataServicer
from metaquorum.proto.partitions_pb2_grpc import PartitionsServicer
from metaquorum.rpc.channels import END_OF_STREAM
from metaquorum.rpc.messages import tables as admin_codec
from metaquorum.rpc.messages import tables as broker_codec
from metaquorum.rpc.messages import tables as codec
from metaquorum.rpc.messages import tables as partition_codec
from metaquorum.rpc.messages.errors import Hints, error_to_pb
from metaquorum.rpc.messages.tables import NODE, NodeReport
from metaquorum.rpc.requests import WaitingRequests
from metaquorum.rpc.rights import Authorizers
from metaquorum.rpc.server import peer_text

Response = TypeVar("Response")


async def ask(
    requests: WaitingRequests, request: api.ControllerRequest, expected: type[Response]
) -> Response | ApiError:
    """The node's answer, which must be of the kind that belongs to the request."""
    response = await requests.ask(request)
    if isinstance(response, ApiError | expected):
        return response
    return ApiError(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"{type(request).__name__} was answered with {type(response).__name__}: report this as a bug",
    )


class BrokerLifecycleService(BrokerLifecycleServicer):
    """Registration and heartbeats (KIP-631), and blocks of producer ids (KIP-730)."""

    def __init__(self, requests: WaitingRequests, hints: Hints, authorizers: Authorizers) -> None:
        self._requests = requests
        self._hints = hints
        self._authorizers = authorizers

    async def Register(
        self, request: broker.RegisterBrokerRequest, context: Any
    ) -> broker.RegisterBrokerResponse:
        self._authorizers.compare(
            context.invocation_metadata(), f"broker {request.broker_id}", peer_text(context.peer())
        )
        await context.send_initial_metadata(self._authorizers.metadata)
        try:
            decoded = broker_codec.REGISTER.from_pb(request)
        except ApiError as error:
            return broker.RegisterBrokerResponse(error=self._error(error))
        response = await ask(self._requests, decoded, api.RegisterBrokerResponse)
        return broker_codec.REGISTERED.answer_to_pb(response, self._hints)

    async def Heartbeat(
        self, request: broker.BrokerHeartbeatRequest, context: Any
    ) -> broker.BrokerHeartbeatResponse:
        return await self._heartbeat(request)

    async def Heartbeats(  # type: ignore[override]
        self, request_iterator: Any, context: Any
    ) -> None:
        """One broker's heartbeats, one after another, until it disconnects."""
        while (request := await context.read()) is not END_OF_STREAM:
            await context.write(await self._heartbeat(request))

    async def _heartbeat(self, request: broker.BrokerHeartbeatRequest) -> broker.BrokerHeartbeatResponse:
        try:
            decoded = broker_codec.HEARTBEAT.from_pb(request)
        except ApiError as error:
            return broker.BrokerHeartbeatResponse(error=self._error(error))
        response = await ask(self._requests, decoded, api.BrokerHeartbeatResponse)
        return broker_codec.HEARTBEAT_ANSWER.answer_to_pb(response, self._hints)

    async def AllocateProducerIds(
        self, request: broker.AllocateProducerIdsRequest, context: Any
    ) -> broker.AllocateProducerIdsResponse:
        decoded = broker_codec.ALLOCATE_PRODUCER_IDS.from_pb(request)
        response = await ask(self._requests, decoded, AllocateProducerIdsResponse)
        return broker_codec.ALLOCATED_PRODUCER_IDS.answer_to_pb(response, self._hints)

    def _error(self, error: ApiError) -> common.Error:
        return error_to_pb(error, self._hints)


class AdminService(AdminServicer):
    """Operators' requests. `report` reads this node, on the loop's thread and between two of its inputs.
    `listener`: the name of the controllers' gRPC listener."""

    def __init__(
        self, requests: WaitingRequests, hints: Hints, report: Callable[[], NodeReport], listener: str
    ) -> None:
        self._requests = requests
        self._hints = hints
        self._report = report
        self._listener = listener

    async def DescribeQuorum(
        self, request: admin.DescribeQuorumRequest, context: Any
    ) -> admin.DescribeQuorumResponse:
        response = await ask(self._requests, api.DescribeQuorumRequest(), api.DescribeQuorumResponse)
        if not isinstance(response, ApiError):
            response = replace(response, voters=tuple(map(self._with_address, response.voters)))
        return admin_codec.QUORUM.answer_to_pb(response, self._hints)

    def _with_address(self, voter: api.ReplicaStatus) -> api.ReplicaStatus:
        """The voter; if no record has its endpoints, with that of this node's configuration."""
        known = None if voter.endpoints else self._hints.of(voter.node_id)
        if known is None:
            return voter
        return replace(voter, endpoints=(VoterEndpoint(self._listener, known.host, known.port),))

    async def DescribeNode(
        self, request: admin.DescribeNodeRequest, context: Any
    ) -> admin.DescribeNodeResponse:
        # Past the inbox: a node that is overloaded, or that cannot find a leader, still reports its state.
        return NODE.to_pb(self._report())

    async def TransferLeadership(
        self, request: admin.TransferLeadershipRequest, context: Any
    ) -> admin.TransferLeadershipResponse:
        decoded = admin_codec.TRANSFER_LEADERSHIP.from_pb(request)
        response = await ask(self._requests, decoded, api.Done)
        failed = self._error(response) if isinstance(response, ApiError) else None
        return admin.TransferLeadershipResponse(error=failed)

    def _error(self, error: ApiError) -> common.Error:
        return error_to_pb(error, self._hints)


class MetadataService(MetadataServicer):
    """The registrations of brokers, from a linearizable read."""

    def __init__(self, requests: WaitingRequests, hints: Hints) -> None:
        self._requests = requests
        self._hints = hints

    async def ListBrokers(
        self, request: common.ListBrokersRequest, context: Any
    ) -> common.ListBrokersResponse:
        read = await ask(self._requests, api.ReadImageRequest(), api.ReadImageResponse)
        if isinstance(read, ApiError):
            return common.ListBrokersResponse(error=error_to_pb(read, self._hints))
        return common.ListBrokersResponse(
            read=common.ReadInfo(offset=read.offset),
            brokers=[broker_codec.BROKER.to_pb(broker) for broker in read.image.brokers.values()],
        )


class PartitionsService(PartitionsServicer):
    """The gRPC service for partitions: brokers' reports of ISRs and directories."""

    def __init__(self, requests: WaitingRequests, hints: Hints) -> None:
        self._requests = requests
        self._hints = hints

    async def AlterPartition(
        self, request: partitions_pb.AlterPartitionRequest, context: Any
    ) -> partitions_pb.AlterPartitionResponse:
        try:
            decoded = partition_codec.ALTER.from_pb(request)
        except ApiError as error:
            return partitions_pb.AlterPartitionResponse(error=error_to_pb(error, self._hints))
        response = await ask(self._requests, decoded, partition_requests.AlterPartitionResponse)
        return partition_codec.ALTERED.answer_to_pb(response, self._hints)

    async def AssignReplicasToDirs(
        self, request: partitions_pb.AssignReplicasToDirsRequest, context: Any
    ) -> partitions_pb.AssignReplicasToDirsResponse:
        try:
            decoded = partition_codec.ASSIGN.from_pb(request)
        except ApiError as error:
            return partitions_pb.AssignReplicasToDirsResponse(error=error_to_pb(error, self._hints))
        response = await ask(self._requests, decoded, partition_requests.AssignReplicasToDirsResponse)
        return partition_codec.ASSIGNED.answer_to_pb(response, self._hints)


class BrokerIdsService(BrokerIdsServicer):
    """The gRPC service for broker ids: new brokers request one, operators and tools read and write
    bindings.
    """

    def __init__(self, requests: WaitingRequests, hints: Hints) -> None:
        self._requests = requests
        self._hints = hints

    async def Allocate(
        self, request: pb.AllocateBrokerIdRequest, context: Any
    ) -> pb.AllocateBrokerIdResponse:
        response = await ask(self._requests, codec.ALLOCATE.from_pb(request), AllocateBrokerIdResponse)
        return codec.ALLOCATED.answer_to_pb(response, self._hints)

    async def Bind(self, request: pb.BindBrokerIdRequest, context: Any) -> pb.BindBrokerIdResponse:
        response = await ask(self._requests, codec.BIND.from_pb(request), Done)
        return pb.BindBrokerIdResponse(error=self._error(response))

    async def Unbind(self, request: pb.UnbindBrokerIdRequest, context: Any) -> pb.UnbindBrokerIdResponse:
        response = await ask(self._requests, codec.UNBIND.from_pb(request), Done)
        return pb.UnbindBrokerIdResponse(error=self._error(response))

    async def List(self, request: pb.ListBrokerIdsRequest, context: Any) -> pb.ListBrokerIdsResponse:
        read = await ask(self._requests, api.ReadImageRequest(), api.ReadImageResponse)
        if isinstance(read, ApiError):
            return pb.ListBrokerIdsResponse(error=error_to_pb(read, self._hints))
        return codec.LISTING.to_pb(_listing_of(read.image, read.offset))

    def _error(self, response: Done | ApiError) -> common.Error | None:
        return error_to_pb(response, self._hints) if isinstance(response, ApiError) else None


def _listing_of(image: MetadataImage, offset: int) -> codec.BrokerIdListing:
    """The ids in an image."""
    entries = ids.remembered(image)
    garbage = {binding.key for binding in garbage_bindings(image)}
    current = ids.current_keys(entries)
    return codec.BrokerIdListing(
        offset=offset,
        bindings=tuple(
            [
                codec.BindingView(
                    key=binding.key,
                    broker_id=binding.broker_id,
                    version=binding.version,
                    state=_state(image, binding.broker_id),
                    current=binding.broker_id is not None and current.get(binding.broker_id) == binding.key,
                    garbage=binding.key in garbage,
                )
                for binding in ids.bindings(entries)
            ]
        ),
        missing_ids=tuple(missing_ids(image)),
        claims=tuple([each for _, each in sorted(ids.claims(entries).items())]),
        next_id=ids.next_id(entries),
    )


def _state(image: MetadataImage, broker_id: int | None) -> str:
    known = None if broker_id is None else image.brokers.get(broker_id)
    return "absent" if known is None else "fenced" if known.fenced else "running"

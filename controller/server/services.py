"""The gRPC services of a controller: topics and the quorum for operators, the lifecycle for brokers.

Owns the path of a request from protobuf into the node's inbox and of its answer back. An expected refusal is
the response's `error` field, never a gRPC status; gRPC statuses are for the transport.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import common as api
from metaquorum.metadata.requests.settings import AllocateProducerIdsResponse
from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto import broker_pb2 as broker
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto.admin_pb2_grpc import AdminServicer
from metaquorum.proto.broker_pb2_grpc import BrokerLifecycleServicer
from metaquorum.runtime.api import admin as admin_codec
from metaquorum.runtime.api import brokers as broker_codec
from metaquorum.runtime.api.errors import Hints, error_to_pb
from metaquorum.runtime.api.node import NODE, NodeReport
from metaquorum.runtime.requests import WaitingRequests
from metaquorum.runtime.rpc.channels import END_OF_STREAM
from metaquorum.runtime.rpc.image_service import ImageRead

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

    def __init__(self, requests: WaitingRequests, hints: Hints) -> None:
        self._requests = requests
        self._hints = hints

    async def Register(
        self, request: broker.RegisterBrokerRequest, context: Any
    ) -> broker.RegisterBrokerResponse:
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
    """Operators' requests. `report` reads this node, on the loop's thread and between two of its inputs."""

    def __init__(self, requests: WaitingRequests, hints: Hints, report: Callable[[], NodeReport]) -> None:
        self._requests = requests
        self._hints = hints
        self._report = report

    async def CreateTopics(self, request: admin.CreateTopicsRequest, context: Any) -> admin.TopicsResponse:
        return await self._topics(admin_codec.CREATE_TOPICS.from_pb(request))

    async def DeleteTopics(self, request: admin.DeleteTopicsRequest, context: Any) -> admin.TopicsResponse:
        try:
            decoded = admin_codec.DELETE_TOPICS.from_pb(request)
        except ApiError as error:
            return admin.TopicsResponse(error=self._error(error))
        return await self._topics(decoded)

    async def _topics(
        self, request: api.CreateTopicsRequest | api.DeleteTopicsRequest
    ) -> admin.TopicsResponse:
        response = await ask(self._requests, request, api.TopicsResponse)
        return admin_codec.TOPICS.answer_to_pb(response, self._hints)

    async def DescribeQuorum(
        self, request: admin.DescribeQuorumRequest, context: Any
    ) -> admin.DescribeQuorumResponse:
        response = await ask(self._requests, api.DescribeQuorumRequest(), api.DescribeQuorumResponse)
        return admin_codec.QUORUM.answer_to_pb(response, self._hints)

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


class ControllerImages:
    """Reads of the committed image: linearizable unless the caller accepts a stale one."""

    def __init__(self, requests: WaitingRequests) -> None:
        self._requests = requests

    async def read(self, consistency: common.Consistency.ValueType) -> ImageRead | ApiError:
        linearizable = consistency != common.CONSISTENCY_STALE
        response = await ask(
            self._requests, api.ReadImageRequest(linearizable=linearizable), api.ReadImageResponse
        )
        if isinstance(response, ApiError):
            return response
        return ImageRead(
            image=response.image,
            offset=response.offset,
            leader_id=response.leader_id,
            epoch=response.epoch,
            linearizable=linearizable,
        )

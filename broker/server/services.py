"""The gRPC services of a broker: its image, and what operators ask of this broker itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from metaquorum.broker.node import BrokerNode
from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.clock import Clock
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import MarkLogDirOfflineResponse
from metaquorum.metadata.requests.status import BrokerStatus
from metaquorum.proto import broker_pb2 as broker_pb
from metaquorum.proto import metadata_pb2 as pb
from metaquorum.proto.broker_pb2_grpc import BrokerSelfServicer
from metaquorum.rpc.image_service import ImageRead
from metaquorum.rpc.messages.brokers import BROKER_STATUS, MARK_LOG_DIR_OFFLINE, MARKED_LOG_DIR


class BrokerImages:
    """Reads of the broker's own image, refused while it is fenced; never linearizable."""

    def __init__(self, node: BrokerNode, clock: Clock) -> None:
        self._node = node
        self._clock = clock

    async def read(self, consistency: pb.Consistency.ValueType) -> ImageRead | ApiError:
        now_ms = self._clock.monotonic_ms()
        status = self._node.status(now_ms=now_ms)
        if consistency == pb.CONSISTENCY_LINEARIZABLE:
            return ApiError(
                ErrorCode.NOT_CONTROLLER,
                f"broker {status.node_id} answers from its own image: only controllers serve linearizable "
                "reads",
                status.leader_id,
            )
        found = self._node.read_image(now_ms=now_ms)
        if isinstance(found, ApiError):
            return found
        image, offset = found
        return ImageRead(
            image=image,
            offset=offset,
            leader_id=status.leader_id,
            epoch=status.quorum_epoch,
            linearizable=False,
        )


# What a broker reports about itself, and does to itself, in every state: even if it is fenced or finds no
# quorum.


class BrokerSelfService(BrokerSelfServicer):
    """`status` is called at each request."""

    def __init__(
        self, status: Callable[[], BrokerStatus], requests: DataRequests, *, cluster_id: str
    ) -> None:
        self._status = status
        self._requests = requests
        self._cluster_id = cluster_id

    async def DescribeBroker(
        self, request: broker_pb.DescribeBrokerRequest, context: Any
    ) -> broker_pb.DescribeBrokerResponse:
        answer = BROKER_STATUS.to_pb(self._status())
        answer.cluster_id = self._cluster_id
        return answer

    async def MarkLogDirOffline(
        self, request: broker_pb.MarkLogDirOfflineRequest, context: Any
    ) -> broker_pb.MarkLogDirOfflineResponse:
        try:
            asked = MARK_LOG_DIR_OFFLINE.from_pb(request)
        except ApiError as error:
            return MARKED_LOG_DIR.answer_to_pb(error)
        answer = await self._requests.begin(asked)
        return MARKED_LOG_DIR.answer_to_pb(cast("MarkLogDirOfflineResponse | ApiError", answer))

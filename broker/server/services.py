"""The gRPC service of a broker: what it reports about itself, and does to itself, in every state, even if it
is fenced or finds no quorum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.data import MarkLogDirOfflineResponse
from metaquorum.metadata.requests.status import BrokerStatus
from metaquorum.proto import broker_pb2 as broker_pb
from metaquorum.proto.broker_pb2_grpc import BrokerSelfServicer
from metaquorum.rpc.messages.brokers import BROKER_STATUS, MARK_LOG_DIR_OFFLINE, MARKED_LOG_DIR


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

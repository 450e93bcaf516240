"""Answers what a broker knows of itself, in every state: also one that is fenced or finds no quorum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metaquorum.metadata.requests.broker_status import BrokerStatus
from metaquorum.proto import broker_pb2 as pb
from metaquorum.proto.broker_pb2_grpc import BrokerSelfServicer
from metaquorum.runtime.api.brokers import BROKER_STATUS


class BrokerSelfService(BrokerSelfServicer):
    """`status` is asked for at each request."""

    def __init__(self, status: Callable[[], BrokerStatus], *, cluster_id: str) -> None:
        self._status = status
        self._cluster_id = cluster_id

    async def DescribeBroker(
        self, request: pb.DescribeBrokerRequest, context: Any
    ) -> pb.DescribeBrokerResponse:
        answer = BROKER_STATUS.to_pb(self._status())
        answer.cluster_id = self._cluster_id
        return answer

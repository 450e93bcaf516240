"""The gRPC service for partitions: brokers' reports of ISRs and directories.

Owns the path of a request into the node's inbox and of its answer back, as `services` does for the others.
Does not decide on a report: `controller.partitions` does.
"""

from __future__ import annotations

from typing import Any

from metaquorum.controller.server.services import ask
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests import partitions as api
from metaquorum.proto import partitions_pb2 as pb
from metaquorum.proto.partitions_pb2_grpc import PartitionsServicer
from metaquorum.runtime.api import partitions as codec
from metaquorum.runtime.api.errors import Hints, error_to_pb
from metaquorum.runtime.requests import WaitingRequests


class PartitionsService(PartitionsServicer):
    """See the module."""

    def __init__(self, requests: WaitingRequests, hints: Hints) -> None:
        self._requests = requests
        self._hints = hints

    async def AlterPartition(
        self, request: pb.AlterPartitionRequest, context: Any
    ) -> pb.AlterPartitionResponse:
        try:
            decoded = codec.ALTER.from_pb(request)
        except ApiError as error:
            return pb.AlterPartitionResponse(error=error_to_pb(error, self._hints))
        response = await ask(self._requests, decoded, api.AlterPartitionResponse)
        return codec.ALTERED.answer_to_pb(response, self._hints)

    async def AssignReplicasToDirs(
        self, request: pb.AssignReplicasToDirsRequest, context: Any
    ) -> pb.AssignReplicasToDirsResponse:
        try:
            decoded = codec.ASSIGN.from_pb(request)
        except ApiError as error:
            return pb.AssignReplicasToDirsResponse(error=error_to_pb(error, self._hints))
        response = await ask(self._requests, decoded, api.AssignReplicasToDirsResponse)
        return codec.ASSIGNED.answer_to_pb(response, self._hints)

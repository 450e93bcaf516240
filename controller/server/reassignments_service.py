"""The gRPC service for moving replicas.

Owns the way of a request into the node's inbox and of its answer back, as `services` does for the others.
"""

from __future__ import annotations

from typing import Any

from metaquorum.controller.partitions.reassignments import ongoing_reassignments
from metaquorum.controller.server.services import ControllerImages, ask
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.reassignments import AlterReassignmentsResponse
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto import reassignments_pb2 as pb
from metaquorum.proto.reassignments_pb2_grpc import ReassignmentsServicer
from metaquorum.runtime.api import reassignments as codec
from metaquorum.runtime.api.errors import Hints, error_to_pb
from metaquorum.runtime.requests import WaitingRequests


class ReassignmentsService(ReassignmentsServicer):
    """See the module."""

    def __init__(self, requests: WaitingRequests, hints: Hints) -> None:
        self._requests = requests
        self._images = ControllerImages(requests)
        self._hints = hints

    async def Alter(
        self, request: pb.AlterReassignmentsRequest, context: Any
    ) -> pb.AlterReassignmentsResponse:
        response = await ask(self._requests, codec.ALTER.from_pb(request), AlterReassignmentsResponse)
        return codec.ALTERED.answer_to_pb(response, self._hints)

    async def List(self, request: pb.ListReassignmentsRequest, context: Any) -> pb.ListReassignmentsResponse:
        read = await self._images.read(common.CONSISTENCY_DEFAULT)
        if isinstance(read, ApiError):
            return pb.ListReassignmentsResponse(error=error_to_pb(read, self._hints))
        named = [(partition.topic, partition.partition) for partition in request.partitions] or None
        moving = tuple(ongoing_reassignments(read.image, named))
        return codec.LISTING.to_pb(codec.ReassignmentListing(reassignments=moving))

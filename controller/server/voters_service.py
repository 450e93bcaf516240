"""The gRPC service that changes the quorum's voters (KIP-853) and registers controllers (KIP-919).

Owns the path of a request to `voter_changes` or the node's inbox, and of its answer back, as `services` does
for the others. Does not check a new voter: `voter_changes` does.
"""

from __future__ import annotations

from typing import Any

from metaquorum.controller.server.services import ask
from metaquorum.controller.server.voter_changes import VoterChanges
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.common import Done
from metaquorum.metadata.requests.voters import RaftVoterRequest
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto import voters_pb2 as pb
from metaquorum.proto.voters_pb2_grpc import VotersServicer
from metaquorum.runtime.api import admin as codec
from metaquorum.runtime.api.errors import Hints, error_to_pb
from metaquorum.runtime.requests import WaitingRequests


class VotersService(VotersServicer):
    """See the module."""

    def __init__(self, requests: WaitingRequests, changes: VoterChanges, hints: Hints) -> None:
        self._requests = requests
        self._changes = changes
        self._hints = hints

    async def Add(self, request: pb.AddRaftVoterRequest, context: Any) -> pb.ChangedVoters:
        try:
            return await self._change(codec.ADD_VOTER.from_pb(request))
        except ApiError as error:
            return pb.ChangedVoters(error=self._error(error))

    async def Remove(self, request: pb.RemoveRaftVoterRequest, context: Any) -> pb.ChangedVoters:
        try:
            return await self._change(codec.REMOVE_VOTER.from_pb(request))
        except ApiError as error:
            return pb.ChangedVoters(error=self._error(error))

    async def _change(self, request: RaftVoterRequest) -> pb.ChangedVoters:
        return pb.ChangedVoters(error=self._error(await self._changes.change(request)))

    async def RegisterController(
        self, request: pb.RegisterControllerRequest, context: Any
    ) -> pb.RegisterControllerResponse:
        answer = await ask(self._requests, codec.REGISTER_CONTROLLER.from_pb(request), Done)
        return pb.RegisterControllerResponse(error=self._error(answer))

    def _error(self, answer: Done | ApiError) -> common.Error | None:
        return error_to_pb(answer, self._hints) if isinstance(answer, ApiError) else None

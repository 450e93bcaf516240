"""The gRPC service that changes the quorum's voters (KIP-853).

Owns the way of a request to `voter_changes` and of its answer back, as `services` does for the others.
"""

from __future__ import annotations

from typing import Any

from metaquorum.controller.server.voter_changes import VoterChanges
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.voters import RaftVoterRequest
from metaquorum.proto import voters_pb2 as pb
from metaquorum.proto.voters_pb2_grpc import VotersServicer
from metaquorum.runtime.api import admin as codec
from metaquorum.runtime.api.errors import Hints, error_to_pb


class VotersService(VotersServicer):
    """See the module."""

    def __init__(self, changes: VoterChanges, hints: Hints) -> None:
        self._changes = changes
        self._hints = hints

    async def Add(self, request: pb.AddRaftVoterRequest, context: Any) -> pb.ChangedVoters:
        try:
            return await self._change(codec.ADD_VOTER.from_pb(request))
        except ApiError as error:
            return pb.ChangedVoters(error=error_to_pb(error, self._hints))

    async def Remove(self, request: pb.RemoveRaftVoterRequest, context: Any) -> pb.ChangedVoters:
        try:
            return await self._change(codec.REMOVE_VOTER.from_pb(request))
        except ApiError as error:
            return pb.ChangedVoters(error=error_to_pb(error, self._hints))

    async def _change(self, request: RaftVoterRequest) -> pb.ChangedVoters:
        answer = await self._changes.change(request)
        failed = error_to_pb(answer, self._hints) if isinstance(answer, ApiError) else None
        return pb.ChangedVoters(error=failed)

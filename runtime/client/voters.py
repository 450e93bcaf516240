"""Calls of `AdminClient` about the quorum's voters and controllers.

Owns that a voter change goes to the leader once. Does not retry what the leader refused: whether to retry
depends on the quorum's state, which the caller examines.
"""

from __future__ import annotations

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.settings import RegisterControllerRequest
from metaquorum.metadata.requests.voters import AddRaftVoterRequest, RemoveRaftVoterRequest
from metaquorum.proto.voters_pb2_grpc import VotersStub
from metaquorum.runtime.api import admin as codec
from metaquorum.runtime.client.admin import AdminClient

_NOT_LOOKED_AT = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED})
CHANGE_TIMEOUT_MS = 4_000
"""How long a leader waits for the commit before it reports a timeout; less than `AdminClient` waits for one
address."""


async def add_raft_voter(client: AdminClient, request: AddRaftVoterRequest) -> None:
    """Returns once the change is committed, or with `validate_only` once the node's identity is confirmed."""
    message = codec.ADD_VOTER.to_pb(request)
    await client.ask(lambda channel: VotersStub(channel).Add, message, ask_again=_NOT_LOOKED_AT)


async def remove_raft_voter(client: AdminClient, request: RemoveRaftVoterRequest) -> None:
    """Returns once the change is committed."""
    message = codec.REMOVE_VOTER.to_pb(request)
    await client.ask(lambda channel: VotersStub(channel).Remove, message, ask_again=_NOT_LOOKED_AT)


async def register_controller(client: AdminClient, request: RegisterControllerRequest) -> None:
    """Registers a controller (KIP-919). Repeating it is safe: its incarnation id identifies a repetition."""
    message = codec.REGISTER_CONTROLLER.to_pb(request)
    await client.ask(lambda channel: VotersStub(channel).RegisterController, message)

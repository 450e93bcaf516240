"""What `AdminClient` asks about the quorum's voters and controllers.

A change of voters asks the leader once: what a refusal means, and whether to ask again, is the caller's to
judge by how the quorum is then.
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
"""How long a leader waits for the commit before it says that there is none yet; less than `AdminClient` gives
one address."""


async def add_raft_voter(client: AdminClient, request: AddRaftVoterRequest) -> None:
    """Returns when the change is committed, or (`validate_only`) when the node is who it is said to be."""
    message = codec.ADD_VOTER.to_pb(request)
    await client.ask(lambda channel: VotersStub(channel).Add, message, ask_again=_NOT_LOOKED_AT)


async def remove_raft_voter(client: AdminClient, request: RemoveRaftVoterRequest) -> None:
    """Returns when the change is committed."""
    message = codec.REMOVE_VOTER.to_pb(request)
    await client.ask(lambda channel: VotersStub(channel).Remove, message, ask_again=_NOT_LOOKED_AT)


async def register_controller(client: AdminClient, request: RegisterControllerRequest) -> None:
    """Who a controller is (KIP-919). Repeating it is safe: its incarnation tells a repetition apart."""
    message = codec.REGISTER_CONTROLLER.to_pb(request)
    await client.ask(lambda channel: VotersStub(channel).RegisterController, message)

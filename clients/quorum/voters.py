"""Calls of `AdminClient` about the quorum's voters."""

from __future__ import annotations

from metaquorum.clients.quorum.admin import NOT_LOOKED_AT, AdminClient
from metaquorum.metadata.requests.common import AddRaftVoterRequest, RemoveRaftVoterRequest
from metaquorum.proto.voters_pb2_grpc import VotersStub
from metaquorum.rpc.messages import admin as codec

CHANGE_TIMEOUT_MS = 4_000
"""How long a leader waits for the commit before it reports a timeout; less than `AdminClient` waits for one
address."""


async def add_raft_voter(client: AdminClient, request: AddRaftVoterRequest) -> None:
    """Returns once the change is committed, or with `validate_only` once the node's identity is confirmed."""
    message = codec.ADD_VOTER.to_pb(request)
    await client.ask(lambda channel: VotersStub(channel).Add, message, ask_again=NOT_LOOKED_AT)


async def remove_raft_voter(client: AdminClient, request: RemoveRaftVoterRequest) -> None:
    """Returns once the change is committed."""
    message = codec.REMOVE_VOTER.to_pb(request)
    await client.ask(lambda channel: VotersStub(channel).Remove, message, ask_again=NOT_LOOKED_AT)

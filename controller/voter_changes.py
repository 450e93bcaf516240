"""Changes of voters between a client's requests and Raft's (KIP-853). Raft decides; this only translates.

A client's request goes into Raft under the negative of its key, so that Raft's answers to clients and those
to peers are distinguished by their keys.
"""

from __future__ import annotations

from metaquorum.controller.config import ControllerConfig
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import Voter
from metaquorum.metadata.requests.common import Done
from metaquorum.metadata.requests.voters import (
    AddRaftVoterRequest,
    RaftVoterRequest,
    RemoveRaftVoterRequest,
    UpgradeKRaftVersionRequest,
)
from metaquorum.raft import messages as raft
from metaquorum.raft.voters.voter_set import Endpoint, VersionRange, VoterNode, VoterSet

VOTER_CHANGES = (AddRaftVoterRequest, RemoveRaftVoterRequest, UpgradeKRaftVersionRequest)

CHANGE_TIMEOUT_MAX_MS = 600_000
"""A caller that asks for more waits no longer than this."""


def raft_request(request: RaftVoterRequest, config: ControllerConfig) -> raft.VoterChangeRequest:
    """What Raft is asked. A request that names no cluster means this node's."""
    cluster_id = config.cluster_id
    timeout_ms = max(0, min(request.timeout_ms, CHANGE_TIMEOUT_MAX_MS))
    match request:
        case AddRaftVoterRequest():
            return raft.AddVoterRequest(
                cluster_id=request.cluster_id or cluster_id,
                voter=voter_node(request.voter),
                timeout_ms=timeout_ms,
            )
        case RemoveRaftVoterRequest():
            return raft.RemoveVoterRequest(
                cluster_id=request.cluster_id or cluster_id,
                voter_id=request.voter_id,
                voter_directory_id=request.voter_directory_id,
                timeout_ms=timeout_ms,
            )
        case UpgradeKRaftVersionRequest():
            return raft.UpgradeRequest(
                cluster_id=cluster_id,
                kraft_version=request.kraft_version,
                voters=VoterSet(voter_node(voter) for voter in request.voters),
                timeout_ms=timeout_ms,
            )


def voter_node(voter: Voter) -> VoterNode:
    """A voter as Raft has it."""
    supported = voter.kraft_version_feature
    return VoterNode(
        node_id=voter.voter_id,
        directory_id=voter.voter_directory_id,
        endpoints=tuple(Endpoint(each.name, each.host, each.port) for each in voter.endpoints),
        versions=VersionRange(supported.min_supported_version, supported.max_supported_version),
    )


def answer_of(response: raft.RaftResponse) -> Done | ApiError:
    """What the client is told."""
    if response.error is raft.RaftError.NONE:
        return Done()
    message = response.message if isinstance(response, raft.VoterChangeResponse) else None
    code = ErrorCode(response.error)
    if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        code = ErrorCode.NOT_CONTROLLER
    return ApiError(code, message or code.name, response.leader_id)

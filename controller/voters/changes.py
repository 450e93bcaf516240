"""Translates voter changes between clients' requests and Raft's (KIP-853), and builds the first voters'
record when a quorum is upgraded.

Owns the translation both ways. Does not decide on a change: Raft does. A client's request goes into Raft
under the negative of its key, so that Raft's answers to clients and those to peers are distinguished by their
keys.
"""

from __future__ import annotations

from metaquorum.controller.answers import not_controller
from metaquorum.controller.settings.feature_levels import unsupported_by
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import KRAFT_VERSION, metadata_version_name, needed_metadata_version
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs.controller import ControllerConfig
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter, VoterEndpoint
from metaquorum.metadata.requests.common import Done
from metaquorum.metadata.requests.voters import (
    AddRaftVoterRequest,
    RaftVoterRequest,
    RemoveRaftVoterRequest,
    UpgradeKRaftVersionRequest,
)
from metaquorum.raft import messages as raft
from metaquorum.raft.core import RaftCore
from metaquorum.raft.voters.voter_set import Endpoint, VersionRange, VoterNode, VoterSet

VOTER_CHANGES = (AddRaftVoterRequest, RemoveRaftVoterRequest, UpgradeKRaftVersionRequest)

CHANGE_TIMEOUT_MAX_MS = 600_000
"""The longest time that a caller may wait."""


def raft_request(request: RaftVoterRequest, config: ControllerConfig) -> raft.VoterChangeRequest:
    """The request to Raft. A request that names no cluster means this node's."""
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


def upgrade_request(
    level: int, image: MetadataImage, raft_core: RaftCore
) -> UpgradeKRaftVersionRequest | ApiError:
    """The request that raises kraft.version to `level`: the configured voters, each with its registered
    values and the directory that it votes from; or why it cannot be raised yet."""
    if not raft_core.is_leader:
        return not_controller(raft_core.node_id, raft_core.leader_id)
    if level <= raft_core.kraft_version:
        return UpgradeKRaftVersionRequest(kraft_version=level, voters=())
    needed, ids = needed_metadata_version(KRAFT_VERSION, level), frozenset(raft_core.voters)
    problem = unsupported_by(image, KRAFT_VERSION, level, raft_core.node_id, ids)
    if image.features.metadata_version < needed:
        problem = f"it needs metadata.version {metadata_version_name(needed)}: upgrade that first"
    voters = []
    for known in () if problem else raft_core.describe(now_ms=0):
        if not known.is_voter:
            continue
        voter = _registered(image, known.node_id, known.directory_id)
        problem = problem or (voter if isinstance(voter, str) else None)
        if isinstance(voter, Voter):
            voters.append(voter)
    if problem is not None:
        return ApiError(ErrorCode.INVALID_UPDATE_VERSION, problem)
    return UpgradeKRaftVersionRequest(kraft_version=level, voters=tuple(voters))


def _registered(image: MetadataImage, node_id: int, directory_id: bytes) -> Voter | str:
    """A voter's entry in the first voters' record, or why there is none yet."""
    known = image.controllers.get(node_id)
    if known is None:
        return f"controller {node_id} has not registered: start it, then retry"
    if not directory_id:
        return f"controller {node_id} has not fetched from this leader yet: start it, then retry"
    nowhere = [each.host for each in known.endpoints if each.host in ("", "0.0.0.0", "::")]
    if nowhere or not known.endpoints:
        return (
            f"controller {node_id} listens on every interface and names no host: set its advertised.listeners"
            " and restart it, then retry"
        )
    supported = next((each for each in known.features if each.name == KRAFT_VERSION), None)
    low, high = (
        (0, 0)
        if supported is None
        else (
            supported.min_supported_version,
            supported.max_supported_version,
        )
    )
    endpoints = tuple(VoterEndpoint(each.name.upper(), each.host, each.port) for each in known.endpoints)
    return Voter(node_id, directory_id, endpoints, KRaftVersionFeature(low, high))


def voter_node(voter: Voter) -> VoterNode:
    """A voter in Raft's form."""
    supported = voter.kraft_version_feature
    return VoterNode(
        node_id=voter.voter_id,
        directory_id=voter.voter_directory_id,
        endpoints=tuple(Endpoint(each.name, each.host, each.port) for each in voter.endpoints),
        versions=VersionRange(supported.min_supported_version, supported.max_supported_version),
    )


def answer_of(response: raft.RaftResponse) -> Done | ApiError:
    """The answer for the client."""
    if response.error is raft.RaftError.NONE:
        return Done()
    message = response.message if isinstance(response, raft.VoterChangeResponse) else None
    code = ErrorCode(response.error)
    if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        code = ErrorCode.NOT_CONTROLLER
    return ApiError(code, message or code.name, response.leader_id)

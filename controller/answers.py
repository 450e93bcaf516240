"""Answers that need no decision: the quorum, the committed image, and the id of the active controller."""

from __future__ import annotations

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import KRAFT_VERSION
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.requests.common import (
    DescribeQuorumResponse,
    ReadImageResponse,
    ReplicaStatus,
)
from metaquorum.raft.core import RaftCore
from metaquorum.raft.roles import ReplicaState


def describe_quorum(raft: RaftCore, image: MetadataImage, now_ms: int) -> DescribeQuorumResponse | ApiError:
    """KIP-836, as the leader sees it, itself first; no other node knows it. The voters' record has the
    voters' endpoints, the committed image those that observing controllers have registered."""
    if not raft.is_leader:
        return not_controller(raft.node_id, raft.leader_id)
    replicas = raft.describe(now_ms=now_ms)
    return DescribeQuorumResponse(
        cluster_id=raft.state.identity.cluster_id,
        leader_id=raft.node_id,
        leader_epoch=raft.epoch,
        high_watermark=raft.high_watermark,
        voters=tuple([_replica(raft, image, replica) for replica in replicas if replica.is_voter]),
        observers=tuple([_replica(raft, image, replica) for replica in replicas if not replica.is_voter]),
        losses=raft.losses,
        kraft_version=raft.kraft_version,
        voters_offset=raft.voters_offset,
        new_voter_lag_max=raft.state.config.new_voter_lag_max,
    )


def _replica(raft: RaftCore, image: MetadataImage, replica: ReplicaState) -> ReplicaStatus:
    leads = replica.node_id == raft.node_id
    log_end = max(replica.log_end_offset, 0)
    endpoints, versions = _reached_at(raft, image, replica)
    return ReplicaStatus(
        node_id=replica.node_id,
        directory_id=replica.directory_id,
        log_end_offset=replica.log_end_offset,
        lag=max(0, raft.log_end_offset - log_end),
        last_fetch_ms=replica.last_fetch_wall_ms,
        last_caught_up_ms=replica.last_caught_up_wall_ms,
        status="Leader" if leads else "Follower" if replica.is_voter else "Observer",
        is_alive=replica.is_alive,
        endpoints=endpoints,
        min_kraft_version=versions[0],
        max_kraft_version=versions[1],
    )


def _reached_at(
    raft: RaftCore, image: MetadataImage, replica: ReplicaState
) -> tuple[tuple[VoterEndpoint, ...], tuple[int, int]]:
    """A replica's endpoints, and the levels of kraft.version that it supports."""
    voter = raft.voters.get(replica.node_id)
    if replica.is_voter and voter is not None and voter.endpoints:
        where = tuple(
            [VoterEndpoint(endpoint.name, endpoint.host, endpoint.port) for endpoint in voter.endpoints]
        )
        return where, (voter.versions.lowest, voter.versions.highest)
    registered = image.controllers.get(replica.node_id)
    if registered is None:
        return (), (0, 0)
    levels = [
        (feature.min_supported_version, feature.max_supported_version)
        for feature in registered.features
        if feature.name == KRAFT_VERSION
    ]
    where = tuple(
        [VoterEndpoint(endpoint.name, endpoint.host, endpoint.port) for endpoint in registered.endpoints]
    )
    return where, levels[0] if levels else (0, 0)


def not_controller(node_id: int, leader_id: int | None) -> ApiError:
    """The answer of a node that is not the active controller. `leader_id`: the leader, if known."""
    if leader_id is None or leader_id == node_id:
        text = f"controller {node_id} is not the active one: no leader is known, retry with any controller"
        return ApiError(ErrorCode.NOT_CONTROLLER, text)
    text = f"controller {node_id} is not the active one: use node {leader_id}"
    return ApiError(ErrorCode.NOT_CONTROLLER, text, leader_id)


def image_response(image: MetadataImage) -> ReadImageResponse:
    """The committed image of this node, and its end offset."""
    return ReadImageResponse(image=image, offset=image.provenance.offset)


def transfer_target(raft: RaftCore, wanted: int | None, now_ms: int) -> int | ApiError:
    """The next leader instead of this node: `wanted`, or the most caught-up of the other voters."""
    if not raft.is_leader:
        return not_controller(raft.node_id, raft.leader_id)
    others = [each for each in raft.describe(now_ms=now_ms) if each.is_voter and each.node_id != raft.node_id]
    best = max(others, key=lambda replica: (replica.log_end_offset, -replica.node_id), default=None)
    target = wanted if wanted is not None or best is None else best.node_id
    refusal = "there is no other voter" if target is None else raft.transfer_refusal(target)
    if target is None or refusal is not None:
        return ApiError(ErrorCode.INVALID_REQUEST, f"leadership was not transferred: {refusal}")
    return target

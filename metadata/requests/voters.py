"""Requests that change the quorum's voters, as values (KIP-853).

Owns the values. Does not know whether a change is made: Raft decides. `cluster_id` None accepts any cluster.
A change is answered with `Done` when it is committed, and with REQUEST_TIMED_OUT if that takes longer than
`timeout_ms`: it may still be committed later.
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import Voter

DEFAULT_CHANGE_TIMEOUT_MS = 30_000


class AddRaftVoterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Makes an observing controller a voter (AddRaftVoter, key 80). `voter` has its directory, its
    endpoints and the levels of kraft.version that it supports. `validate_only`: the node's identity is
    checked, and nothing is changed."""

    voter: Voter
    cluster_id: str | None = None
    timeout_ms: int = DEFAULT_CHANGE_TIMEOUT_MS
    validate_only: bool = False


class RemoveRaftVoterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a voter an observer, the leader included (RemoveRaftVoter, key 81)."""

    voter_id: int
    voter_directory_id: bytes
    cluster_id: str | None = None
    timeout_ms: int = DEFAULT_CHANGE_TIMEOUT_MS


class UpgradeKRaftVersionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Raises kraft.version to `kraft_version`. `voters` are the configured ones, each with its directory, its
    endpoints and what it supports."""

    kraft_version: int
    voters: tuple[Voter, ...]
    timeout_ms: int = DEFAULT_CHANGE_TIMEOUT_MS


RaftVoterRequest = AddRaftVoterRequest | RemoveRaftVoterRequest | UpgradeKRaftVersionRequest


def runs_with_static_voters(node_id: int, where: str) -> ApiError:
    """Why a node that leads or follows a quorum from its own configuration cannot be added to this one."""
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"node {node_id} at {where} runs with static voters: replace controller.quorum.voters with"
        " controller.quorum.bootstrap.servers there, format it with --no-initial-controllers, and start it",
    )

"""Changes of the quorum's voters as requests, as values (KIP-853). Whether one is made, Raft decides.

`cluster_id` None: whichever cluster is asked. A change is answered with `Done` when it is committed, and with
REQUEST_TIMED_OUT when it is not within `timeout_ms`: it may be committed later.
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import Voter

DEFAULT_CHANGE_TIMEOUT_MS = 30_000


class AddRaftVoterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make an observing controller a voter (AddRaftVoter, key 80). `voter` says its directory, where it
    listens and which levels of kraft.version it supports. `validate_only`: the node is asked who it is, and
    nothing is changed."""

    voter: Voter
    cluster_id: str | None = None
    timeout_ms: int = DEFAULT_CHANGE_TIMEOUT_MS
    validate_only: bool = False


class RemoveRaftVoterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make a voter an observer, the leader included (RemoveRaftVoter, key 81)."""

    voter_id: int
    voter_directory_id: bytes
    cluster_id: str | None = None
    timeout_ms: int = DEFAULT_CHANGE_TIMEOUT_MS


class UpgradeKRaftVersionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Raise kraft.version to `kraft_version`: `voters` are the configured ones, each with its directory, its
    endpoints and what it supports."""

    kraft_version: int
    voters: tuple[Voter, ...]
    timeout_ms: int = DEFAULT_CHANGE_TIMEOUT_MS


RaftVoterRequest = AddRaftVoterRequest | RemoveRaftVoterRequest | UpgradeKRaftVersionRequest


def runs_with_static_voters(node_id: int, where: str) -> ApiError:
    """Why a node that leads or follows a quorum of its configuration cannot be added to this one."""
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"node {node_id} at {where} runs with static voters: replace controller.quorum.voters by"
        " controller.quorum.bootstrap.servers there, format it with --no-initial-controllers, and start it",
    )

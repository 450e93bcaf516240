"""The Raft requests and responses of KIP-595, KIP-630, KIP-853 and KIP-996, as values.

Epochs and offsets are ints, `None` means absent; directory ids are 16 bytes. `leader_endpoints` are where the
named leader listens, so that a node can follow a leader that it does not know; at kraft.version 0 only
responses to fetches of nodes that are not voters carry them.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from metaquorum.raft.voters import Endpoint, PreferredCandidate, VoterNode, VoterSet
from metaquorum.storage.types import LogPosition

NOTHING_COMMITTED = -1
"""The high watermark of a replica that knows of no committed record."""

UNSTATED = 2**63 - 1
"""The high watermark in a fetch of a node whose release does not say it (KIP-1166): it is not woken for a
higher one alone, and claims nothing."""


class RaftError(IntEnum):
    """The Kafka error codes that a Raft response can carry."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    INCONSISTENT_CLUSTER_ID = 104
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127


class VoteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request a vote in `epoch`, or with `pre_vote` whether one would be granted (KIP-996).
    `kraft_version` is the candidate's: from level 1 on, candidates and voters that a log does not name may
    request and grant votes."""

    cluster_id: str
    epoch: int
    candidate_id: int
    candidate_directory_id: bytes
    voter_id: int
    voter_directory_id: bytes
    last_position: LogPosition
    pre_vote: bool
    kraft_version: int = 0


class VoteResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`last_position` is where the voter's own log ends. A refusal's `known_committed` is how far the voter
    knows the log to be committed. Both are None if not stated; Kafka's responses never state them."""

    error: RaftError
    epoch: int
    leader_id: int | None
    vote_granted: bool
    pre_vote: bool
    last_position: LogPosition | None = None
    known_committed: LogPosition | None = None
    leader_endpoints: tuple[Endpoint, ...] = ()


class BeginQuorumEpochRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of `epoch` announces itself to a voter that has not fetched from it yet."""

    cluster_id: str
    epoch: int
    leader_id: int
    voter_id: int
    voter_directory_id: bytes
    leader_endpoints: tuple[Endpoint, ...] = ()


class BeginQuorumEpochResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: RaftError
    epoch: int
    leader_id: int | None
    leader_endpoints: tuple[Endpoint, ...] = ()


class EndQuorumEpochRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of `epoch` resigns; the first of `preferred_candidates` becomes a candidate at once. A
    voter whose directory is not the one named there waits as if it were not named (KIP-853)."""

    cluster_id: str
    epoch: int
    leader_id: int
    preferred_candidates: tuple[PreferredCandidate, ...]
    leader_endpoints: tuple[Endpoint, ...] = ()


class EndQuorumEpochResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: RaftError
    epoch: int
    leader_id: int | None
    leader_endpoints: tuple[Endpoint, ...] = ()


class FetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One fetch for voters and observers. A voter's `fetch_offset` is its synced end offset: its
    acknowledgement.

    `high_watermark` is the caller's (-1 for none, or UNSTATED), so that the leader responds to a parked fetch
    as soon as its own is higher (KAFKA-14145). `read_round` repeats the highest round in a response of this
    epoch's leader (0 for none): it proves that this fetch was sent after that response, so a fetch that
    waited in a socket while the leader was paused cannot confirm a read.
    """

    cluster_id: str
    replica_id: int
    replica_directory_id: bytes
    epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int
    max_wait_ms: int
    max_bytes: int
    read_round: int = 0


class FetchResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`records` are whole batches from the fetch offset on. At most one of records, diverging and snapshot is
    set.

    With INVALID_VOTER_KEY, `high_watermark` is how far the caller's directory has acknowledged the log
    before, which is beyond the offset it now fetches from. `read_round` numbers the leader's rounds of
    linearizable reads within its epoch.
    """

    error: RaftError
    epoch: int
    leader_id: int | None
    high_watermark: int = NOTHING_COMMITTED
    log_start_offset: int = 0
    diverging: LogPosition | None = None
    snapshot: LogPosition | None = None
    records: bytes = b""
    read_round: int = 0
    leader_endpoints: tuple[Endpoint, ...] = ()


class FetchSnapshotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request the bytes of `snapshot` from `position` on (KIP-630)."""

    cluster_id: str
    replica_id: int
    replica_directory_id: bytes
    epoch: int
    snapshot: LogPosition
    position: int
    max_bytes: int


class FetchSnapshotResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: RaftError
    epoch: int
    leader_id: int | None
    snapshot: LogPosition | None = None
    size_bytes: int = 0
    position: int = 0
    data: bytes = b""
    leader_endpoints: tuple[Endpoint, ...] = ()


class AddVoterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make an observer a voter. The driver has queried the node, at one of its endpoints, for its id and
    for the levels of kraft.version that it supports. The response is sent once the change is committed,
    within `timeout_ms`."""

    cluster_id: str
    voter: VoterNode
    timeout_ms: int


class RemoveVoterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make a voter, possibly the leader, an observer. The response is sent once committed, within
    `timeout_ms`."""

    cluster_id: str
    voter_id: int
    voter_directory_id: bytes
    timeout_ms: int


class UpdateVoterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Where a voter now listens and what it supports, for the leader of `epoch`. The response is sent at
    once."""

    cluster_id: str
    epoch: int
    voter: VoterNode


class UpgradeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Raise kraft.version from 0: `voters` are the configured ones, complete with what a voters record
    holds. The response is sent once the change is committed, within `timeout_ms`."""

    cluster_id: str
    kraft_version: int
    voters: VoterSet
    timeout_ms: int


class VoterChangeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a voter change. `message` says why it failed, and what to do."""

    error: RaftError
    epoch: int
    leader_id: int | None
    message: str | None = None
    leader_endpoints: tuple[Endpoint, ...] = ()


VoterChangeRequest = AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest | UpgradeRequest
RaftRequest = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | FetchRequest
    | FetchSnapshotRequest
    | VoterChangeRequest
)
RaftResponse = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchResponse
    | FetchSnapshotResponse
    | VoterChangeResponse
)

"""What the Raft core wants done, as values: an ordered list, executed in order by the driver.

The core changes its own view of the log when it emits an effect on the log; a driver for which such
an effect fails must stop the process. The only dependency is `after`: an effect that carries a token
is released when `PersistQuorumState` of that token is durable (see `gate.EffectGate`).
"""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.raft.messages import RaftRequest, RaftResponse
from metaquorum.raft.voters.voter_set import Endpoint
from metaquorum.storage.batches.parsed import Batches
from metaquorum.storage.files.known_committed import Acknowledged
from metaquorum.storage.types import LogPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistQuorumState:
    """Write epoch, vote and leader in one atomic durable write, then report `QuorumStatePersisted(token)`.
    The file has the version of `kraft_version`; version 0 holds no directory id."""

    token: int
    epoch: int
    leader_id: int | None
    voted_id: int | None
    voted_directory_id: bytes | None
    kraft_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendLog:
    """Append whole batches [base_offset, end_offset) to the log and ask for a sync (group commit)."""

    batches: Batches

    @property
    def base_offset(self) -> int:
        return self.batches.base_offset

    @property
    def end_offset(self) -> int:
        return self.batches.next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Drop everything at and above `end_offset`, durably, before the next effect."""

    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLog:
    """Empty the log and start it at `position` (a snapshot that is installed), durably."""

    position: LogPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Send to node `to`; a later `on_response` or `on_request_failed` names `correlation_id`. `endpoints` say
    where it listens; none: it is configured (a voter at kraft.version 0, or below 0 a bootstrap server)."""

    to: int
    correlation_id: int
    request: RaftRequest
    timeout_ms: int
    after: int | None = None
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Respond:
    """Answer the request that came in under `key`."""

    key: int
    response: RaftResponse
    after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RespondWithRecords:
    """Answer a fetch: fill `response.records` with batches in [read_from, read_to), at most `max_bytes`.

    At least one whole batch is returned even when it is larger than `max_bytes`.
    """

    key: int
    response: RaftResponse
    read_from: int
    read_to: int
    max_bytes: int
    after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RespondWithSnapshotChunk:
    """Answer a FetchSnapshot: fill size and data from the snapshot file, at most `max_bytes`."""

    key: int
    response: RaftResponse
    snapshot: LogPosition
    position: int
    max_bytes: int
    after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSnapshotChunk:
    """Write a chunk of a snapshot that is being fetched into its temporary file."""

    snapshot: LogPosition
    position: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishSnapshot:
    """The temporary file is whole: sync it, check and load it, then report `snapshot_loaded` to the core
    (or `snapshot_rejected`: the file is dropped and fetched again)."""

    snapshot: LogPosition
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HighWatermarkChanged:
    """Everything below `high_watermark` is committed."""

    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteCommitted:
    """Everything below `position` is committed, and synced here: write that to the file `known-committed`
    without waiting for the disk; with `durably` also replace the file in the background, with what the
    directories of voters have `acknowledged`."""

    position: LogPosition
    durably: bool
    acknowledged: tuple[Acknowledged, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChanged:
    """This node's role or its idea of the leader changed. `epoch_start` is set for a leader: the offset
    of its LeaderChange record."""

    role: str
    epoch: int
    leader_id: int | None
    epoch_start: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReady:
    """A linearizable read may be served from a state that has applied everything below `offset`."""

    token: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFailed:
    """Leadership was lost before the read was confirmed: the caller must ask the new leader."""

    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """One line for the operator."""

    message: str


RaftEffect = (
    PersistQuorumState
    | AppendLog
    | TruncateLog
    | ResetLog
    | SendRequest
    | Respond
    | RespondWithRecords
    | RespondWithSnapshotChunk
    | WriteSnapshotChunk
    | FinishSnapshot
    | HighWatermarkChanged
    | NoteCommitted
    | RoleChanged
    | ReadReady
    | ReadFailed
    | Warn
)

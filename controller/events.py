"""The inputs and outputs of a controller node, as values.

Owns the events and effects that only a controller has, and does not order them: `node` does.

In: `Event`s, each with the time at which the driver took it from its inbox. Out: `Effect`s, in an order that
the driver and the simulator keep; the node has already held back everything that had to wait for a disk or
for a commit, so an effect can be executed as it comes. The events and effects of every node with a Raft core
are in `raft.events`; they are imported here.
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.requests.common import ControllerRequest, ControllerResponse
from metaquorum.raft import effects as raft
from metaquorum.raft.events import (
    LogRead,
    LogSynced,
    LogTrimmed,
    QuorumStatePersisted,
    RaftRequestAbandoned,
    RaftRequestArrived,
    RaftRequestFailed,
    RaftResponseArrived,
    ReadLog,
    ShutdownRequested,
    SnapshotLoaded,
    SnapshotRejected,
    SnapshotWritten,
    Stop,
    TrimLog,
    WriteSnapshot,
)

__all__ = [
    "Answer",
    "Effect",
    "Event",
    "LogRead",
    "LogSynced",
    "LogTrimmed",
    "QuorumStatePersisted",
    "RaftRequestAbandoned",
    "RaftRequestArrived",
    "RaftRequestFailed",
    "RaftResponseArrived",
    "ReadLog",
    "RequestArrived",
    "ShutdownRequested",
    "SnapshotLoaded",
    "SnapshotRejected",
    "SnapshotWritten",
    "Stop",
    "TrimLog",
    "WriteSnapshot",
]

# ---- in ------------------------------------------------------------------------------------------


class Mutator(msgspec.Struct, frozen=True, kw_only=True):
    """A client whose changes of partitions count against its quota (KIP-599). `strict`: it understands a
    refusal; others have to wait after their change."""

    user: str
    client_id: str
    strict: bool


class RequestArrived(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a client or broker. `arrived_ms` was taken on arrival, before any queue. `mutator` None:
    no quota applies. `cause`: the caller (None: unknown)."""

    key: int
    arrived_ms: int
    request: ControllerRequest
    mutator: Mutator | None = None
    cause: BatchCause | None = None


Event = (
    RaftRequestArrived
    | RaftRequestAbandoned
    | RaftResponseArrived
    | RaftRequestFailed
    | QuorumStatePersisted
    | LogSynced
    | LogRead
    | LogTrimmed
    | SnapshotWritten
    | SnapshotLoaded[MetadataImage]
    | SnapshotRejected
    | RequestArrived
    | ShutdownRequested
)

# ---- out -----------------------------------------------------------------------------------------


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer the client request `key`. Released only when what it reports is committed."""

    key: int
    response: ControllerResponse | ApiError


Effect = (
    raft.PersistQuorumState
    | raft.AppendLog
    | raft.TruncateLog
    | raft.ResetLog
    | raft.NoteCommitted
    | raft.SendRequest
    | raft.Respond
    | raft.RespondWithRecords
    | raft.RespondWithSnapshotChunk
    | raft.WriteSnapshotChunk
    | raft.FinishSnapshot
    | raft.Warn
    | Answer
    | ReadLog
    | WriteSnapshot[MetadataImage]
    | TrimLog
    | Stop
)

"""The inputs and outputs of a controller node, as values.

In: `Event`s, each with the time at which the driver took it from its inbox. Out: `Effect`s, in an order that
the driver and the simulator keep; the node has already held back everything that had to wait for a disk or
for a commit, so an effect can be executed as it comes. Those of every node with a Raft core are in
`raft.events`, requests and answers in `metadata.requests.common`; they are imported here.
"""

from __future__ import annotations

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.common import Answer, RequestArrived
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

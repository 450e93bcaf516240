"""The inputs and outputs of a broker node, as values.

Owns the events and effects of the lifecycle, and does not order them: `node` does.

In: `Event`s, each with the time at which the driver took it from its inbox. Out: `Effect`s, which the driver
executes in order; effects that had to wait for a disk were already held back. Inputs and outputs of partition
data are in `broker.replica.events`.
"""

from __future__ import annotations

import msgspec

from metaquorum.broker.replica.events import DataEffect, DataEvent
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.broker_status import BrokerState
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from metaquorum.raft import effects as raft
from metaquorum.raft.events import (
    LogRead,
    LogSynced,
    LogTrimmed,
    QuorumStatePersisted,
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
    "ControllerRequestFailed",
    "ControllerResponseArrived",
    "Effect",
    "Event",
    "LifecycleEffect",
    "LifecycleRequest",
    "LifecycleResponse",
    "LogRead",
    "LogSynced",
    "LogTrimmed",
    "MetadataEvent",
    "PublishImage",
    "QuorumStatePersisted",
    "RaftRequestFailed",
    "RaftResponseArrived",
    "ReadLog",
    "SendToController",
    "ShutdownRequested",
    "SnapshotLoaded",
    "SnapshotRejected",
    "SnapshotWritten",
    "StateChanged",
    "Stop",
    "TrimLog",
    "WriteSnapshot",
]

LifecycleRequest = RegisterBrokerRequest | BrokerHeartbeatRequest
LifecycleResponse = RegisterBrokerResponse | BrokerHeartbeatResponse

# ---- in ------------------------------------------------------------------------------------------


class ControllerResponseArrived(msgspec.Struct, frozen=True, kw_only=True):
    """Controller `source` answered or refused the `SendToController` of `correlation_id`."""

    source: int
    correlation_id: int
    response: LifecycleResponse | ApiError


class ControllerRequestFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The `SendToController` of `correlation_id` timed out or could not be sent: its outcome is unknown."""

    target: int
    correlation_id: int
    reason: str


MetadataEvent = (
    RaftResponseArrived
    | RaftRequestFailed
    | QuorumStatePersisted
    | LogSynced
    | LogRead
    | LogTrimmed
    | SnapshotWritten
    | SnapshotLoaded[MetadataImage]
    | SnapshotRejected
    | ControllerResponseArrived
    | ControllerRequestFailed
    | ShutdownRequested
)
Event = MetadataEvent | DataEvent

# ---- out -----------------------------------------------------------------------------------------


class SendToController(msgspec.Struct, frozen=True, kw_only=True):
    """Send to controller `target` and report `ControllerResponseArrived` or `ControllerRequestFailed`.

    `attempt` counts the sends since the last answer that was not a failure (1: the first). At most one such
    request is in flight; a report with an older `correlation_id` is ignored.
    """

    target: int
    correlation_id: int
    request: LifecycleRequest
    timeout_ms: int
    attempt: int


class PublishImage(msgspec.Struct, frozen=True, kw_only=True):
    """A newer image: everything below `offset` is in it. `previous` is the one published before (at first the
    empty image); code that needs the difference compares the two, once (`metadata.delta.diff`). Never older
    than the broker's own registration; a fetched snapshot is one publication like any other."""

    image: MetadataImage
    previous: MetadataImage
    offset: int

    def while_another_leaves(self, node_id: int) -> bool:
        """Whether partitions changed while a broker other than `node_id` is leaving: it stops when all
        brokers have seen the change."""
        if self.image.topics is self.previous.topics:
            return False
        return any(
            broker.in_controlled_shutdown and broker.broker_id != node_id
            for broker in self.image.brokers.values()
        )


class StateChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The broker moved from `old` to `new`; `reason` is for the operator's log."""

    old: BrokerState
    new: BrokerState
    reason: str


LifecycleEffect = SendToController | StateChanged | raft.Warn | Stop

Effect = (
    raft.PersistQuorumState
    | raft.AppendLog
    | raft.TruncateLog
    | raft.ResetLog
    | raft.NoteCommitted
    | raft.SendRequest
    | raft.WriteSnapshotChunk
    | raft.FinishSnapshot
    | raft.Warn
    | SendToController
    | PublishImage
    | StateChanged
    | ReadLog
    | WriteSnapshot[MetadataImage]
    | TrimLog
    | Stop
    | DataEffect
)

"""The inputs and outputs of a broker node, as values.

In: `Event`s, each with the time at which the driver took it from its inbox. Out: `Effect`s, which the driver
executes in order; effects that had to wait for a disk were already held back. Inputs and outputs of partition
data are in `broker.replica.events`.
"""

from __future__ import annotations

import msgspec

from metaquorum.broker.channel import ControllerReported, SendToController
from metaquorum.broker.replica.events import DataEffect, DataEvent
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    RegisterBrokerRequest,
)
from metaquorum.metadata.requests.status import BrokerState
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
    "ControllerReported",
    "Effect",
    "Event",
    "LifecycleEffect",
    "LifecycleRequest",
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

# ---- in ------------------------------------------------------------------------------------------


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
    | ControllerReported
    | ShutdownRequested
)
Event = MetadataEvent | DataEvent

# ---- out -----------------------------------------------------------------------------------------


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

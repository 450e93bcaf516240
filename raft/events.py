"""What the driver reports to a node with a Raft core, and the effects that such a node adds."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from metaquorum.raft.messages import RaftRequest, RaftResponse
from metaquorum.raft.voters import CONFIGURED_VOTERS, VotersAt
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.types import LogPosition

ImageT_co = TypeVar("ImageT_co", covariant=True)

# ---- in ------------------------------------------------------------------------------------------


class RaftRequestArrived(msgspec.Struct, frozen=True, kw_only=True):
    """A request from a peer; the response carries `key` (unique within the process)."""

    key: int
    request: RaftRequest


class RaftRequestAbandoned(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of `key` disconnected: forget it."""

    key: int


class RaftResponseArrived(msgspec.Struct, frozen=True, kw_only=True):
    """`source` responded to the request sent under `correlation_id`."""

    source: int
    correlation_id: int
    response: RaftResponse


class RaftRequestFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The request to `target` timed out or could not be sent. `refusal`: what the target says if this node
    lacks rights."""

    target: int
    correlation_id: int
    reason: str
    refusal: str = ""


class QuorumStatePersisted(msgspec.Struct, frozen=True, kw_only=True):
    token: int


class LogSynced(msgspec.Struct, frozen=True, kw_only=True):
    """A sync that began when the log ended at `end_offset` is durable. The driver has already discarded
    completions from before a truncation (`SegmentedLog.sync_completed`)."""

    end_offset: int


class LogRead(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `ReadLog`: whole batches from `from_offset` on."""

    from_offset: int
    batches: Batches


class LogTrimmed(msgspec.Struct, frozen=True, kw_only=True):
    """`TrimLog` was carried out: the log now starts at `log_start_offset` (unchanged if retention kept
    everything)."""

    log_start_offset: int


class SnapshotWritten(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot is durable under its final name."""

    position: LogPosition
    size_bytes: int


class SnapshotLoaded(msgspec.Struct, Generic[ImageT_co], frozen=True, kw_only=True):
    """A fetched snapshot was checked and loaded; `voters` are the voters it names."""

    position: LogPosition
    image: ImageT_co
    voters: VotersAt = CONFIGURED_VOTERS


class SnapshotRejected(msgspec.Struct, frozen=True, kw_only=True):
    """A fetched snapshot was damaged; its file was deleted."""

    position: LogPosition
    reason: str


class ShutdownRequested(msgspec.Struct, frozen=True, kw_only=True):
    """SIGTERM: leave cleanly (a controller resigns, a broker requests a controlled shutdown),
    then stop."""


# ---- out -----------------------------------------------------------------------------------------


class ReadLog(msgspec.Struct, frozen=True, kw_only=True):
    """Read whole batches in [from_offset, to_offset), at most `max_bytes`, and report `LogRead`."""

    from_offset: int
    to_offset: int
    max_bytes: int


class WriteSnapshot(msgspec.Struct, Generic[ImageT_co], frozen=True, kw_only=True):
    """Write `image` and `voters` as the snapshot `position` in the background, then report
    `SnapshotWritten`."""

    image: ImageT_co
    position: LogPosition
    timestamp_ms: int
    voters: VotersAt = CONFIGURED_VOTERS


class TrimLog(msgspec.Struct, frozen=True, kw_only=True):
    """Segments entirely below `before_offset` (a durable snapshot's end) may be deleted, as retention
    allows."""

    before_offset: int


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Stop the process. `reason` is its last log line; `failed` decides the exit code."""

    reason: str
    failed: bool

"""What the driver of a node with a Raft core reports to it, and the effects that such a node adds.

Shared by the controller's node and the broker's: both keep a replica of the metadata log. Raft knows no
metadata, so an image is a type parameter here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from metaquorum.raft.messages import RaftRequest, RaftResponse
from metaquorum.raft.voters.history import CONFIGURED_VOTERS, VotersAt
from metaquorum.storage.batches.parsed import Batches
from metaquorum.storage.types import LogPosition

ImageT_co = TypeVar("ImageT_co", covariant=True)

# ---- in ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftRequestArrived:
    """A peer asks; the answer carries `key` (unique within the process)."""

    key: int
    request: RaftRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftRequestAbandoned:
    """The caller of `key` went away: forget it."""

    key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftResponseArrived:
    """`source` answered the request sent under `correlation_id`."""

    source: int
    correlation_id: int
    response: RaftResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftRequestFailed:
    """The request to `target` timed out or could not be sent."""

    target: int
    correlation_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumStatePersisted:
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSynced:
    """A sync that began when the log ended at `end_offset` is durable. The driver has already dropped
    completions from before a truncation (`SegmentedLog.sync_completed`)."""

    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead:
    """The answer to `ReadLog`: whole batches from `from_offset` on."""

    from_offset: int
    batches: Batches


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTrimmed:
    """`TrimLog` was carried out: the log starts at `log_start_offset` now (unchanged: retention kept all)."""

    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWritten:
    """The snapshot is durable under its final name."""

    position: LogPosition
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLoaded(Generic[ImageT_co]):
    """A fetched snapshot was checked and loaded; `voters` is what it says of them."""

    position: LogPosition
    image: ImageT_co
    voters: VotersAt = CONFIGURED_VOTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRejected:
    """A fetched snapshot was damaged; its file is gone."""

    position: LogPosition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownRequested:
    """SIGTERM: leave in order (a controller resigns, a broker asks for a controlled shutdown), then stop."""


# ---- out -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLog:
    """Read whole batches in [from_offset, to_offset), at most `max_bytes`, and report `LogRead`."""

    from_offset: int
    to_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSnapshot(Generic[ImageT_co]):
    """Write `image` and `voters` as the snapshot `position` in the background, then report
    `SnapshotWritten`."""

    image: ImageT_co
    position: LogPosition
    timestamp_ms: int
    voters: VotersAt = CONFIGURED_VOTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimLog:
    """Segments wholly below `before_offset` (a durable snapshot's end) may go, as retention says."""

    before_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop the process. `reason` is its last line; `failed` decides the exit code."""

    reason: str
    failed: bool

"""What is asked about the ends of logs: deleting records at the start, where epochs end. Values only.

Conventions are those of `data`; a `key` is (topic id, partition index).
"""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.metadata.errors import ErrorCode

TO_HIGH_WATERMARK = -1
"""`DeleteRecordsPartition.offset`: everything that clients may read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsPartition:
    """Everything below `offset` goes."""

    key: tuple[bytes, int]
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest:
    """DeleteRecords (key 21), to leaders."""

    timeout_ms: int
    partitions: tuple[DeleteRecordsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRecords:
    """`low_watermark`: no replica in sync holds records below it."""

    key: tuple[bytes, int]
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    low_watermark: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse:
    results: tuple[DeletedRecords, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPartition:
    """Where does `leader_epoch` end? `current_leader_epoch` -1: not known."""

    key: tuple[bytes, int]
    leader_epoch: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest:
    """OffsetForLeaderEpoch (key 23), to leaders."""

    partitions: tuple[EpochPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """The largest epoch not above the one asked for, and where it ends; -1: the log knows of none."""

    key: tuple[bytes, int]
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    results: tuple[EpochEnd, ...]

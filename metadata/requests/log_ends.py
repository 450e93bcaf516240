"""Requests about the ends of logs: deleting records at the start, and where epochs end.

Owns the values. Knows no offsets by time, which are in `data`; conventions are those of `data`. A `key` is
(topic id, partition index).
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.errors import ErrorCode

TO_HIGH_WATERMARK = -1
"""`DeleteRecordsPartition.offset`: everything that clients may read."""


class DeleteRecordsPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Deletes everything below `offset`."""

    key: tuple[bytes, int]
    offset: int


class DeleteRecordsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """DeleteRecords (key 21), to leaders."""

    timeout_ms: int
    partitions: tuple[DeleteRecordsPartition, ...]


class DeletedRecords(msgspec.Struct, frozen=True, kw_only=True):
    """`low_watermark`: no in-sync replica holds records below it."""

    key: tuple[bytes, int]
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    low_watermark: int = -1


class DeleteRecordsResponse(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[DeletedRecords, ...]


class EpochPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Requests the end of `leader_epoch`. `current_leader_epoch` -1: unknown."""

    key: tuple[bytes, int]
    leader_epoch: int
    current_leader_epoch: int = -1


class OffsetForLeaderEpochRequest(msgspec.Struct, frozen=True, kw_only=True):
    """OffsetForLeaderEpoch (key 23), to leaders."""

    partitions: tuple[EpochPartition, ...]


class EpochEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The largest epoch not above the requested one, and where it ends; -1 if the log has none."""

    key: tuple[bytes, int]
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    leader_epoch: int = -1
    end_offset: int = -1


class OffsetForLeaderEpochResponse(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[EpochEnd, ...]

"""What a cleaner may clean in one log, how dirty that is, and which segments become one.

Source: Kafka 3.7's LogCleanerManager and Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

MAX_OFFSETS = 2**31 - 1


class SegmentFacts(NamedTuple):
    """Figures of one segment: `end_offset` is where the next one begins. `first_ms` and `newest_ms` are
    the newest timestamps of the first batch and of all batches, or when the file was last written if they
    have none; -1 for an empty segment."""

    base_offset: int
    end_offset: int
    size_bytes: int
    first_ms: int
    newest_ms: int


class CleanerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's settings for compaction. Times in ms."""

    min_dirty_ratio: float = 0.5
    min_lag_ms: int = 0
    max_lag_ms: int = 2**63 - 1
    delete_retention_ms: int = 86_400_000


class CleaningPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of [`first_dirty`, `end`) are looked up; every record below `end` that is older than the
    last one of its key is dropped. `dirty_ratio` is the share of bytes below `end` that were never
    cleaned."""

    first_dirty: int
    end: int
    dirty_ratio: float


def first_dirty_offset(cleaned_to: int | None, start: int, end: int) -> int:
    """Where the dirty part of a log that spans [start, end) begins, according to the checkpoint; a
    checkpoint beyond the log is ignored."""
    return start if cleaned_to is None or not start <= cleaned_to <= end else cleaned_to


def plan_cleaning(
    segments: Sequence[SegmentFacts],
    *,
    first_dirty: int,
    stable_to: int,
    settings: CleanerSettings,
    now_ms: int,
) -> CleaningPlan | None:
    """What to clean now; None if nothing is due. `segments` are those that no longer grow. Records from
    `stable_to` on may still be truncated, or belong to an ongoing transaction."""
    end = stable_to
    dirty = [one for one in segments if one.end_offset > first_dirty]
    if settings.min_lag_ms > 0:
        young = (one.base_offset for one in dirty if one.newest_ms > now_ms - settings.min_lag_ms)
        end = min(end, next(young, end))
    end = max(first_dirty, end)
    whole = [one for one in segments if one.end_offset <= end]
    if not whole or whole[-1].end_offset <= first_dirty:
        return None
    total = sum(one.size_bytes for one in whole)
    dirty_bytes = sum(one.size_bytes for one in whole if one.end_offset > first_dirty)
    if not dirty_bytes:
        return None
    oldest = min((one.first_ms for one in dirty if one.first_ms > 0), default=None)
    overdue = oldest is not None and oldest < now_ms - settings.max_lag_ms
    ratio = dirty_bytes / total
    if not overdue and ratio <= settings.min_dirty_ratio:
        return None
    return CleaningPlan(
        first_dirty=first_dirty,
        end=whole[-1].end_offset,
        dirty_ratio=ratio,
    )


def group_segments(segments: Sequence[SegmentFacts], max_bytes: int) -> list[list[SegmentFacts]]:
    """Groups segments that become one segment each: together they are not larger than a segment may be."""
    groups: list[list[SegmentFacts]] = []
    size = 0
    for segment in segments:
        fits = groups and size + segment.size_bytes <= max_bytes
        if fits and (
            not segment.size_bytes or segment.end_offset - 1 - groups[-1][0].base_offset <= MAX_OFFSETS
        ):
            groups[-1].append(segment)
            size += segment.size_bytes
        else:
            groups.append([segment])
            size = segment.size_bytes
    return groups

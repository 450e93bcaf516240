"""The range of record times in a segment, as far as it is known without reading the segment.

Owns the two sources: the times in an archive (`storage.archive`), and the time index that Kafka writes beside
a segment that is followed by another. Where clocks jump, the first record is not the earliest, so a segment's
start has no time. Does not survey headers (`survey` does).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from metaquorum.pipeline.logs.selection import Selection
from metaquorum.storage.archive.opened import FileInArchive
from metaquorum.storage.disk.interface import Disk, join
from metaquorum.storage.errors import FileMissingError
from metaquorum.storage.log.segment import segment_name

_ENTRY = struct.Struct(">qi")


class SegmentTimes(NamedTuple):
    """No record is earlier than `low` or later than `high` (Unix ms); None: unknown."""

    low: int | None = None
    high: int | None = None


def times_of(disk: Disk, directory: str, base_offset: int, next_base: int | None) -> SegmentTimes:
    """The times of a segment. `next_base`: the base offset of the next one."""
    path = join(directory, segment_name(base_offset))
    file = disk.open_read(path)
    try:
        if isinstance(file, FileInArchive):
            return SegmentTimes(*(file.times() or ()))
    finally:
        file.close()
    if next_base is None:
        return SegmentTimes()
    return SegmentTimes(
        high=_indexed(disk, path.removesuffix(".log") + ".timeindex", next_base - base_offset)
    )


def _indexed(disk: Disk, path: str, offsets: int) -> int | None:
    """The highest timestamp in a time index whose last entry is close to the last of `offsets` offsets. None
    for an index that is missing or ends earlier, since later batches may have higher timestamps."""
    try:
        file = disk.open_read(path)
    except FileMissingError:
        return None
    try:
        entries = file.size() // _ENTRY.size
        last = file.read_at((entries - 1) * _ENTRY.size, _ENTRY.size) if entries else b""
    finally:
        file.close()
    if len(last) < _ENTRY.size:
        return None
    timestamp_ms, relative_offset = _ENTRY.unpack(last)
    return int(timestamp_ms) if timestamp_ms >= 0 and relative_offset == offsets - 1 else None


def is_outside(times: SegmentTimes, selection: Selection) -> bool:
    """Whether no record with such a time is selected."""
    return (selection.from_ms is not None and times.high is not None and times.high < selection.from_ms) or (
        selection.to_ms is not None and times.low is not None and times.low > selection.to_ms
    )

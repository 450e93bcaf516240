"""Between which times the records of a segment are, as far as that is known without reading it.

Known are the times of segments in an archive (`storage.archive`), and when a segment ended whose successor
is there, by Kafka's time index beside it. Where clocks jump the first record of a segment is not its
earliest, so its beginning tells nothing.
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
    """No record is earlier than `low`, none later than `high` (Unix ms); None: not known."""

    low: int | None = None
    high: int | None = None


def times_of(disk: Disk, directory: str, base_offset: int, next_base: int | None) -> SegmentTimes:
    """The times of a segment; `next_base` is that of the one after it."""
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
    """The highest timestamp by a time index whose last entry is about the last of so many offsets; None for
    an index that is absent or ends earlier, since later batches may have higher ones."""
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
    """Whether no record with such a time is wanted."""
    return (selection.from_ms is not None and times.high is not None and times.high < selection.from_ms) or (
        selection.to_ms is not None and times.low is not None and times.low > selection.to_ms
    )

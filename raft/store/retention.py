"""How much of the log a replica keeps below its newest snapshots.

Owns what TrimLog deletes: segments and snapshots together, so that the log always starts at or before a
snapshot. Does not know when to delete: `TrimLog` requests it, below a durable snapshot only.
"""

from __future__ import annotations

import msgspec

from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.files.snapshots import delete_snapshots_before, list_snapshots, snapshot_path
from metaquorum.storage.log.log import SegmentedLog, SegmentInfo


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """`max_bytes` of log and snapshots together, `max_age_ms` of a segment's newest record. None means no
    bound; if both are None, everything is kept."""

    max_bytes: int | None
    max_age_ms: int | None

    def trim(self, disk: Disk, log: SegmentedLog, before_offset: int, *, wall_ms: int | None) -> None:
        """Snapshot by snapshot, oldest first, deletes what is before a snapshot while a bound requires it.
        Ignores snapshots above `before_offset`. With `wall_ms` None, ages are ignored."""
        snapshots = list_snapshots(disk, log.directory)
        for place, base in enumerate(snapshots):
            if base.offset > before_offset:
                return
            doomed = [info for info in log.segments()[:-1] if info.end_offset <= base.offset]
            if not doomed and place == 0:
                continue
            if not self._is_too_big(disk, log) and not self._is_too_old(doomed, wall_ms):
                return
            log.delete_segments_before(base.offset)
            delete_snapshots_before(disk, log.directory, base.offset)

    def _is_too_big(self, disk: Disk, log: SegmentedLog) -> bool:
        if self.max_bytes is None:
            return False
        directory = log.directory
        snapshots = list_snapshots(disk, directory)
        size_bytes = sum(disk.file_size(snapshot_path(directory, position)) for position in snapshots)
        return log.size_bytes + size_bytes > self.max_bytes

    def _is_too_old(self, doomed: list[SegmentInfo], wall_ms: int | None) -> bool:
        if self.max_age_ms is None or wall_ms is None or not doomed:
            return False
        newest_ms = doomed[-1].last_timestamp_ms
        return newest_ms is not None and newest_ms + self.max_age_ms < wall_ms

"""When a snapshot is cut, and where: after so many bytes or so much time, on committed data (KIP-630).

One is written at a time. Knows no files: the image that is to be written leaves as a value.
"""

from __future__ import annotations

from controller.config import ControllerConfig
from controller.events import WriteSnapshot
from controller.ledger import Ledger
from metadata.image import MetadataImage
from storage.types import LogPosition

RETRY_MS = 1_000
"""A snapshot that is due by time and cannot be cut inside a transaction is looked at again after so long."""


class SnapshotPolicy:
    """`last_offset`: the end of the newest snapshot that this node has, 0 for none."""

    def __init__(self, config: ControllerConfig, last_offset: int, now_ms: int) -> None:
        self.last_offset = last_offset
        self.in_progress: LogPosition | None = None
        self._max_bytes = config.metadata_log_max_record_bytes_between_snapshots
        self._interval_ms = config.metadata_log_max_snapshot_interval_ms
        self._last_ms = now_ms

    def cut(self, ledger: Ledger, now_ms: int) -> WriteSnapshot[MetadataImage] | None:
        """The snapshot to write now, if one is due.

        The committed state ends at a batch boundary at or below the high watermark; inside a metadata
        transaction there is no such place, and the snapshot waits for its end.
        """
        enough = ledger.committed_bytes >= self._max_bytes
        if not enough and (self._interval_ms <= 0 or now_ms - self._last_ms < self._interval_ms):
            return None
        if self.in_progress is not None:
            return None
        if ledger.committed.transaction is not None:
            self._last_ms = max(self._last_ms, now_ms - self._interval_ms + RETRY_MS)
            return None
        image = ledger.committed.image
        place = image.provenance
        if place.offset <= self.last_offset:
            self._last_ms = now_ms
            return None
        position = LogPosition(place.epoch, place.offset)
        self.in_progress = position
        self._last_ms = now_ms
        ledger.committed_bytes = 0
        return WriteSnapshot(image=image, position=position, timestamp_ms=place.timestamp_ms)

    def written(self, position: LogPosition) -> bool:
        """A snapshot is durable. False: it is not the one that was asked for, or a newer one was loaded."""
        if self.in_progress == position:
            self.in_progress = None
        if position.offset <= self.last_offset:
            return False
        self.last_offset = position.offset
        return True

    def loaded(self, position: LogPosition, now_ms: int) -> None:
        """A fetched snapshot took the place of the log before it."""
        self.last_offset = max(self.last_offset, position.offset)
        self._last_ms = now_ms

    def next_deadline_ms(self) -> int | None:
        if self._interval_ms <= 0:
            return None
        return self._last_ms + self._interval_ms

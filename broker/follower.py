"""The broker's image of the metadata: committed batches in, images and snapshots out.

Owns how far the log has been applied, which read is under way, what was published, and when a snapshot is
due. Knows no leases and no requests. All state changes go through `metadata.replay`.
"""

from __future__ import annotations

from broker.config import BrokerConfig
from broker.events import PublishImage
from controller.raft.events import ReadLog, TrimLog, WriteSnapshot
from metadata.errors import InvariantViolation
from metadata.image import MetadataImage
from metadata.replay import ReplayState, replay_all
from storage.batch import iter_batches
from storage.types import LogPosition


class MetadataFollower:
    """Applies the log up to the high watermark, one bounded read at a time."""

    def __init__(self, config: BrokerConfig, image: MetadataImage, *, now_ms: int) -> None:
        self._config = config
        self._state = ReplayState(image)
        self._high_watermark = -1
        self._reading_from: int | None = None
        self._published = MetadataImage()
        self._snapshot_end = image.provenance.offset
        self._snapshot_ms = now_ms
        self._snapshot_in_flight = False
        self._bytes_since_snapshot = 0

    @property
    def image(self) -> MetadataImage:
        """The visible image: never the inside of an open metadata transaction."""
        return self._state.image

    @property
    def applied_offset(self) -> int:
        """Everything below is in `image`."""
        return self._state.image.provenance.offset

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    def advance(self, high_watermark: int) -> None:
        """Everything below `high_watermark` is committed."""
        self._high_watermark = max(self._high_watermark, high_watermark)

    def next_read(self) -> ReadLog | None:
        """The next slice to read, if there is one and no read is under way."""
        start = self._state.end_offset
        if self._reading_from is not None or start >= self._high_watermark:
            return None
        self._reading_from = start
        return ReadLog(
            from_offset=start, to_offset=self._high_watermark, max_bytes=self._config.metadata_read_max_bytes
        )

    def apply(self, from_offset: int, data: bytes) -> None:
        """Replay a slice. Raises ReplayError or CorruptLogError (file, offset, record); state is unchanged
        then. A slice that a snapshot has overtaken is dropped."""
        if from_offset != self._reading_from:
            return
        self._reading_from = None
        if from_offset != self._state.end_offset:
            return
        if not data:
            raise InvariantViolation(
                f"the metadata log has nothing at offset {from_offset}, below the high watermark"
                f" {self._high_watermark}: run `metaquorum log dump` on the metadata directory"
            )
        batches = iter_batches(data, expected_offset=from_offset)
        self._state = replay_all(self._state, batches)
        self._bytes_since_snapshot += len(data)

    def load(self, position: LogPosition, image: MetadataImage, *, now_ms: int) -> None:
        """Take over a fetched snapshot: it replaces everything, as one change. One that ends where this image
        is already, or before, is dropped (the log went on while it was fetched)."""
        if position.offset <= self._state.end_offset:
            return
        if image.provenance.offset != position.offset:
            raise InvariantViolation(
                f"the snapshot that ends at offset {position.offset} gave an image of offset"
                f" {image.provenance.offset}: remove its file, it will be fetched again"
            )
        self._state = ReplayState(image)
        self._reading_from = None
        self._high_watermark = max(self._high_watermark, position.offset)
        self._note_snapshot(position.offset, now_ms)

    def publish(self) -> PublishImage | None:
        """The change since the last publication, if there is one."""
        image = self._state.image
        if image.provenance.offset <= self._published.provenance.offset:
            return None
        previous, self._published = self._published, image
        return PublishImage(image=image, previous=previous, offset=image.provenance.offset)

    def snapshot_due(self, now_ms: int) -> WriteSnapshot[MetadataImage] | None:
        """A snapshot to write, when enough bytes or enough time went by since the last one.

        Never inside a metadata transaction. Its end is a batch boundary at or below the high watermark,
        because only whole committed batches are applied; its epoch is that of the record before its end.
        """
        provenance = self._state.image.provenance
        due = self._bytes_since_snapshot >= self._config.metadata_log_max_record_bytes_between_snapshots
        deadline_ms = self._snapshot_deadline_ms()
        due = due or (deadline_ms is not None and now_ms >= deadline_ms)
        if not due or not self._may_write_snapshot():
            return None
        self._snapshot_in_flight = True
        self._snapshot_ms = now_ms
        self._bytes_since_snapshot = 0
        return WriteSnapshot(
            image=self._state.image,
            position=LogPosition(provenance.epoch, provenance.offset),
            timestamp_ms=provenance.timestamp_ms,
        )

    def snapshot_written(self, position: LogPosition) -> TrimLog:
        """The snapshot is durable: the log before it may go, as far as retention allows."""
        self._snapshot_in_flight = False
        self._snapshot_end = max(self._snapshot_end, position.offset)
        return TrimLog(before_offset=position.offset)

    def next_deadline_ms(self) -> int | None:
        """When `snapshot_due` must be asked at the latest."""
        return self._snapshot_deadline_ms() if self._may_write_snapshot() else None

    def _snapshot_deadline_ms(self) -> int | None:
        """None: its age is no reason for a snapshot."""
        interval_ms = self._config.metadata_log_max_snapshot_interval_ms
        return self._snapshot_ms + interval_ms if interval_ms > 0 else None

    def _may_write_snapshot(self) -> bool:
        new = self.applied_offset > self._snapshot_end
        return new and not self._snapshot_in_flight and self._state.transaction is None

    def _note_snapshot(self, end_offset: int, now_ms: int) -> None:
        self._snapshot_end = max(self._snapshot_end, end_offset)
        self._snapshot_ms = now_ms
        self._bytes_since_snapshot = 0

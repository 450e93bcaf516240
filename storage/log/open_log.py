"""A log whose segments are open: its offsets and sizes, and reads of it.

Owns what is known about the segments, in memory. Must not change the log: `SegmentedLog` does.
"""

from __future__ import annotations

from metaquorum.storage.batches.batch import HEADER_BYTES, parse_header
from metaquorum.storage.batches.parsed import NO_BATCHES, Batches
from metaquorum.storage.errors import LogFailedError, OffsetOutOfRange
from metaquorum.storage.log.config import LogConfig, SegmentInfo
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.recovery import RecoveryPoint
from metaquorum.storage.log.segment import Segment
from metaquorum.storage.types import LogPosition


class OpenLog:
    """`end_offset` is exclusive. There is at least one segment; only the last one grows."""

    def __init__(self, directory: str, config: LogConfig) -> None:
        self.directory = directory
        self.config = config
        self.end_offset = 0
        self.start_epoch = 0
        self.epochs = EpochTable()
        self._segments: list[Segment] = []
        self._point = RecoveryPoint(offset=0, segment=0, position=0, start_offset=0, start_epoch=0)
        self._last_timestamp_ms: int | None = None
        self._failed = False

    @property
    def start_offset(self) -> int:
        """Offset of the first record that still exists (the end offset, for an empty log)."""
        return self._segments[0].base_offset

    @property
    def last_position(self) -> LogPosition:
        """(epoch of the last record, end offset); for an empty log after a snapshot, the snapshot's."""
        epoch = self.epochs.last_epoch if self.end_offset > self.start_offset else self.start_epoch
        return LogPosition(epoch, self.end_offset)

    @property
    def size_bytes(self) -> int:
        """Size of all segments in bytes."""
        return sum(segment.size for segment in self._segments)

    @property
    def recovery_point(self) -> RecoveryPoint:
        """The last recovery point that is durable."""
        return self._point

    def segments(self) -> list[SegmentInfo]:
        """Every segment, oldest first."""
        infos: list[SegmentInfo] = []
        for index, segment in enumerate(self._segments):
            following = self._segments[index + 1] if index + 1 < len(self._segments) else None
            first = segment.first_timestamp_ms
            last = following.first_timestamp_ms if following else self._newest_timestamp_ms()
            infos.append(
                SegmentInfo(
                    file=segment.path,
                    base_offset=segment.base_offset,
                    end_offset=following.base_offset if following else self.end_offset,
                    size_bytes=segment.size,
                    first_timestamp_ms=first,
                    last_timestamp_ms=last if last is not None else first,
                )
            )
        return infos

    def _newest_timestamp_ms(self) -> int | None:
        active = self._segments[-1]
        if self._last_timestamp_ms is None and active.size:
            position, _ = active.locate(self.end_offset - 1)
            self._last_timestamp_ms = parse_header(
                active.file.read_at(position, HEADER_BYTES)
            ).max_timestamp_ms
        return self._last_timestamp_ms

    def read(self, offset: int, max_bytes: int) -> Batches:
        """Whole batches, checked by CRC, from the batch that contains `offset` on; empty at the end offset.

        At least one batch, and at most `max_bytes` if there is more than one; never past a segment's end.
        Raises OffsetOutOfRange, CorruptLogError, DiskError.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(offset, self.start_offset, self.end_offset)
        segment = self._segment_for(offset)
        if offset == self.end_offset:
            return NO_BATCHES
        position, base = segment.locate(offset)
        return segment.read(position, base, max_bytes)

    def _segment_for(self, offset: int) -> Segment:
        for segment in reversed(self._segments):
            if segment.base_offset <= offset:
                return segment
        raise OffsetOutOfRange(offset, self.start_offset, self.end_offset)

    def _point_at_end(self) -> RecoveryPoint:
        active = self._segments[-1]
        return RecoveryPoint(
            offset=self.end_offset,
            segment=active.base_offset,
            position=active.size,
            start_offset=self.start_offset,
            start_epoch=self.start_epoch,
        )

    def _check_usable(self) -> None:
        if self._failed:
            raise LogFailedError(self.directory)

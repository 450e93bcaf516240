"""Reading a partition's log: ranges of batches, and the first record at or after a time.

A read looks up its range under the lookup lock (positions only), keeps the segment's file open, and reads the
range with one call outside it. If the log was truncated meanwhile, the bytes are discarded.

CRCs: the appender has checked them. A read checks the batches below `trusted_from`; this process verified
what is above, when it opened the log or before it wrote the batch, and the CRC goes to the reader, which
checks it in any case. Damage raises CorruptLogError and changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple, cast

from metaquorum.storage.batches.batch import HEADER_BYTES, BatchHeader, RecordBatch, parse_header
from metaquorum.storage.batches.format import walk_batches
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import Disk, FileSystem
from metaquorum.storage.errors import BatchError, CompressedBatchError, CorruptLogError, OffsetOutOfRange
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.log.segment import Segment
from metaquorum.storage.log.timed_segment import TimedSegment

_ADVICE = "restore this replica from the others: stop the broker and move the replica's directory away"


NEWEST = -3
"""Stands for the newest time in the log."""


class FoundRecord(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class _Span(NamedTuple):
    """Whole batches in one segment, from the one at `position`, whose base offset is `base`, up to `stop`."""

    segment: TimedSegment
    position: int
    stop: int
    base: int
    generation: int


class PooledLog(SegmentedLog):
    """A log whose segments are opened through a pool. CRCs from `trusted_from` on are verified."""

    def __init__(
        self, disk: Disk, directory: str, config: LogConfig, pool: FilePool, file_system: FileSystem
    ) -> None:
        super().__init__(disk, directory, config, None)
        self.trusted_from = 0
        self.closed = False
        # Nothing below it is visible, although its segment may hold more. The directory's store saves it.
        self._visible_from = 0
        self.pool = pool
        self._file_system = file_system
        # Held while segments and their indexes change or are looked up: reads come from other threads.
        self._lookup = disk.mutex()

    def _existing_segment(self, base_offset: int) -> Segment:
        interval = self.config.index_interval_bytes
        return TimedSegment(self._disk, self.directory, base_offset, self.pool, index_interval_bytes=interval)

    def _open_segment(self, base_offset: int) -> Segment:
        interval = self.config.index_interval_bytes
        return TimedSegment(
            self._disk, self.directory, base_offset, self.pool, index_interval_bytes=interval, new=True
        )

    @property
    def last_segment(self) -> int:
        """Base offset of the active segment."""
        return self._segments[-1].base_offset

    @property
    def log_start_offset(self) -> int:
        """Where the log starts for its readers: records below it are deleted, perhaps not their segment
        yet."""
        return max(self.start_offset, self._visible_from)

    def close(self) -> None:
        """Closes the files; running reads keep theirs open until they end, later ones find nothing."""
        with self._lookup:
            self.closed = True
            super().close()

    def _slot(self, offset: int) -> int:
        """Index of the segment that holds `offset`; -1 below the first."""
        return bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1

    def _segment_for(self, offset: int) -> Segment:
        return self._segments[self._slot(offset)]

    # --- ranges

    def read_range(self, from_offset: int, to_offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `from_offset` on, none that begins at or above `to_offset`,
        together at most `max_bytes` but at least one; continues into later segments.

        Raises OffsetOutOfRange (also if the log was truncated meanwhile), CorruptLogError, DiskError.
        """
        parts: list[bytes] = []
        left = max_bytes
        while left > 0 or not parts:
            span = self._find_span(from_offset, to_offset, left, at_least_one=not parts)
            if span is None:
                break
            try:
                data = span.segment.pooled.read_held(span.position, span.stop - span.position)
                from_offset = self._check(span, data)
            finally:
                span.segment.pooled.release()
            parts.append(data)
            left -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _find_span(
        self, from_offset: int, to_offset: int, max_bytes: int, *, at_least_one: bool
    ) -> _Span | None:
        """The file stays open until the caller releases it."""
        with self._lookup:
            if self.closed or not self.log_start_offset <= from_offset <= self.end_offset:
                raise OffsetOutOfRange(from_offset, self.log_start_offset, self.end_offset)
            to_offset = min(to_offset, self.end_offset)
            if from_offset >= to_offset:
                return None
            segment, position, base = self._first_batch(from_offset)
            if base >= to_offset:
                return None
            limit = self._end_position(segment, to_offset)
            stop = limit
            if limit - position > max_bytes:
                stop = segment.boundary(position, position + max_bytes)
            if stop <= position:
                if not at_least_one:
                    return None
                stop = min(limit, position + self._header_at(segment, position).size_bytes)
            segment.pooled.hold()
            return _Span(segment, position, stop, base, self.generation)

    def _first_batch(self, offset: int) -> tuple[TimedSegment, int, int]:
        """The first batch that reaches `offset`, which may be after segments that hold nothing:
        its segment, position and base offset; the log's end if there is none."""
        for one in self._segments[max(0, self._slot(offset)) :]:
            segment = cast(TimedSegment, one)
            position, base = segment.locate(max(offset, segment.base_offset))
            if position < segment.size:
                return segment, position, base
        return segment, position, self.end_offset

    def _end_position(self, segment: TimedSegment, to_offset: int) -> int:
        end = self.end_offset if segment.sealed_end is None else segment.sealed_end
        if to_offset >= end:
            return segment.size
        position, base = segment.locate(to_offset)
        if position == segment.size or base >= to_offset:
            return position
        return position + self._header_at(segment, position).size_bytes

    def _header_at(self, segment: Segment, position: int) -> BatchHeader:
        try:
            return parse_header(segment.file.read_at(position, HEADER_BYTES))
        except BatchError as error:
            raise CorruptLogError(segment.path, position, segment.base_offset, str(error), _ADVICE) from None

    def _check(self, span: _Span, data: bytes) -> int:
        """The offset after the batches in `data`."""
        if span.generation != self.generation:
            raise OffsetOutOfRange(span.base, self.start_offset, self.end_offset)
        segment = span.segment
        if span.base < self.trusted_from:
            walk = walk_batches(data, expected_offset=span.base, min_epoch=0, gaps=True)
            if walk.problem is not None or not walk.hops:
                place = span.position + walk.end
                offset = walk.hops[-1][2] if walk.hops else span.base
                raise CorruptLogError(segment.path, place, offset, f"{walk.problem}", _ADVICE)
            return walk.hops[-1][2]
        if len(data) < span.stop - span.position or int.from_bytes(data[:8], "big") != span.base:
            expected = f"expected {span.stop - span.position} bytes of batches from offset {span.base} on"
            raise CorruptLogError(segment.path, span.position, span.base, expected, _ADVICE)
        if span.stop < segment.size:
            return int.from_bytes(segment.file.read_at(span.stop, 8), "big")
        return self.end_offset if segment.sealed_end is None else segment.sealed_end

    # --- times

    def find_offset(self, timestamp_ms: int, below_offset: int) -> FoundRecord | None:
        """The first record below `below_offset` that is not older than `timestamp_ms`; with `NEWEST`, than
        any record of the log. For a batch in an unknown codec, its first offset. Raises CorruptLogError,
        DiskError."""
        if timestamp_ms == NEWEST:
            with self._lookup:
                segments = [] if self.closed else cast("list[TimedSegment]", self._segments)
                timestamp_ms = max((one.newest_timestamp_ms() for one in segments if one.size), default=-1)
            if timestamp_ms < 0:
                return None
        start = self.log_start_offset
        while True:
            with self._lookup:
                found = None if self.closed else self._find_batch(timestamp_ms, start, below_offset)
                if found is None:
                    return None
                segment, position, header = found
                generation = self.generation
                data = segment.file.read_at(position, header.size_bytes)
            try:
                first = _first_record(RecordBatch(header, data), timestamp_ms, start, below_offset)
            except BatchError as error:
                if generation != self.generation:
                    return None
                raise CorruptLogError(
                    segment.path, position, header.base_offset, str(error), _ADVICE
                ) from None
            if first is not None or header.next_offset >= below_offset:
                return first
            start = header.next_offset  # only records that it no longer has are new enough

    def _find_batch(
        self, timestamp_ms: int, start: int, below_offset: int
    ) -> tuple[TimedSegment, int, BatchHeader] | None:
        """The first batch that is not older and not entirely below `start`."""
        for one in self._segments:
            segment = cast(TimedSegment, one)
            if segment.base_offset >= below_offset:
                return None
            end = self.end_offset if segment.sealed_end is None else segment.sealed_end
            if end <= start or not segment.size or segment.newest_timestamp_ms() < timestamp_ms:
                continue
            position, _ = segment.locate(max(start, segment.offset_before(timestamp_ms)))
            while position < segment.size:
                header = self._header_at(segment, position)
                if header.base_offset >= below_offset:
                    return None
                if header.max_timestamp_ms >= timestamp_ms:
                    return segment, position, header
                position += header.size_bytes
        return None


def _first_record(batch: RecordBatch, timestamp_ms: int, start: int, below_offset: int) -> FoundRecord | None:
    header = batch.header
    whole = FoundRecord(max(header.base_offset, start), header.max_timestamp_ms, header.leader_epoch)
    if not header.records_count:
        return None
    if header.is_log_append_time:
        return whole
    try:
        records = batch.records()
    except CompressedBatchError:
        return whole
    for record in records:
        if record.timestamp_ms >= timestamp_ms and start <= record.offset < below_offset:
            return FoundRecord(record.offset, record.timestamp_ms, header.leader_epoch)
    return None

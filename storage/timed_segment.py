"""A segment of a partition's log: opened through a pool, and searchable by time.

Owns the running maximum of timestamps, kept as sparsely as the positions, and the index files that a full
segment gets. Both are only shortcuts: whatever is missing is found by hopping over the headers. With large
batches the headers alone are read.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from .batch_format import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, BatchHeader, hop_headers, parse_header
from .disk import Disk, join, read_file
from .errors import FileMissingError
from .file_pool import FilePool, PooledFile
from .segment import HOP_WINDOW_BYTES, Segment, segment_name
from .segment_index import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    decode_index,
    decode_times,
    encode_index,
    encode_times,
    index_name,
)
from .walk import Hop

NO_TIMESTAMP = -1
_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35
_PRODUCER = struct.Struct(">q")
_PRODUCER_AT = 43
_LARGE_BATCH_BYTES = 4096
MAX_HOP_AT_SEAL_BYTES = 64 * 1024 * 1024


class TimedSegment(Segment):
    """`sealed_end`: the segment is full and ends there; None: it is the one that is appended to."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        pool: FilePool,
        *,
        index_interval_bytes: int,
        new: bool = False,
    ) -> None:
        """`new`: the file is made; else FileMissingError is raised where there is none."""
        path = join(directory, segment_name(base_offset))
        self.pooled: PooledFile = pool.file(path, size=0 if new else None)
        if new:
            pool.enter(self.pooled)
            pool.leave(self.pooled)
        super().__init__(
            disk, directory, base_offset, index_interval_bytes=index_interval_bytes, file=self.pooled
        )
        self.sealed_end: int | None = None
        self._disk = disk
        self._directory = directory
        self._times = array("q")
        self._time_offsets = array("q")
        self._newest_ms = NO_TIMESTAMP - 1
        self._newest_offset = base_offset
        self._timed_to = 0
        self._large = False
        self._loaded = False

    # --- appending

    def append(self, data: bytes, hops: list[Hop]) -> None:
        """Writes batches that were checked; `note_appended` must follow."""
        self.file.append(data)

    def note_appended(self, data: bytes, hops: list[Hop]) -> None:
        """Takes up the bytes that were just written."""
        if self._timed_to == self.size:
            self._note_times(self.size, data, hops)
            self._timed_to += len(data)
        else:
            self.note(self.size, hops)
        self.size += len(data)

    def _note_times(self, base_position: int, data: bytes, hops: list[Hop]) -> None:
        unpack = _TIMESTAMP.unpack_from
        last = self._positions[-1]
        for position, base, following, _ in hops:
            at = base_position + position
            if at - last >= self._interval:
                self._offsets.append(base)
                self._positions.append(at)
                self._note_newest()
                last = at
            (timestamp,) = unpack(data, position + _MAX_TIMESTAMP_AT)
            if timestamp > self._newest_ms:
                self._newest_ms, self._newest_offset = timestamp, following - 1

    def _note_newest(self) -> None:
        if self._newest_ms >= NO_TIMESTAMP and (not self._times or self._newest_ms > self._times[-1]):
            self._times.append(self._newest_ms)
            self._time_offsets.append(self._newest_offset)

    def cut(self, position: int) -> None:
        """Truncates the file and what is known of it; the segment is the last one from now on."""
        self.sealed_end = None
        super().cut(position)
        self._times, self._time_offsets = array("q"), array("q")
        self._newest_ms, self._newest_offset = NO_TIMESTAMP - 1, self.base_offset
        self._timed_to = 0

    # --- index files

    def seal(self, end_offset: int) -> list[tuple[str, bytes]]:
        """The segment is full. (path, content) of the index files that it is to get: none for one that is
        hopped over as quickly. What they hold is forgotten here, and read again when it is asked for."""
        self.sealed_end = end_offset
        if self.size <= 2 * self._interval:
            return []
        if self.size - self._timed_to > MAX_HOP_AT_SEAL_BYTES:
            # An append must not wait for that: whoever searches it hops.
            self.forget()
            return []
        self._time_through()
        self._note_newest()
        files = [
            (
                join(self._directory, index_name(self.base_offset, INDEX_SUFFIX)),
                encode_index(self.base_offset, self._offsets[1:], self._positions[1:]),
            ),
            (
                join(self._directory, index_name(self.base_offset, TIME_INDEX_SUFFIX)),
                encode_times(self.base_offset, self._times, self._time_offsets),
            ),
        ]
        self.forget()
        return files

    def forget(self) -> None:
        """Drops what index files or the headers tell again."""
        self._offsets, self._positions = array("q", [self.base_offset]), array("q", [0])
        self._times, self._time_offsets = array("q"), array("q")
        self._newest_ms, self._newest_offset = NO_TIMESTAMP - 1, self.base_offset
        self._timed_to = 0
        self._loaded = False

    def _load(self) -> None:
        """Reads the index files of a full segment, once; what they do not say is found by hopping."""
        if self._loaded or self.sealed_end is None:
            return
        self._loaded = True
        found = self._read(INDEX_SUFFIX)
        index = found and decode_index(found, self.base_offset, end_offset=self.sealed_end, size=self.size)
        if index and len(self._offsets) == 1:
            self._offsets.extend(index[0])
            self._positions.extend(index[1])
            self._drop_overlap(1)
        found = self._read(TIME_INDEX_SUFFIX)
        times = found and decode_times(found, self.base_offset, end_offset=self.sealed_end)
        if times and not self._timed_to:
            self._times, self._time_offsets = times
            self._newest_ms, self._newest_offset = times[0][-1], times[1][-1]
            self._timed_to = self.size

    def _read(self, suffix: str) -> bytes:
        try:
            return read_file(self._disk, join(self._directory, index_name(self.base_offset, suffix)))
        except FileMissingError:
            return b""

    # --- finding

    def _read_window(self, position: int) -> bytes:
        window = HEADER_BYTES if self._large else HOP_WINDOW_BYTES
        buf = self.file.read_at(position, min(window, self.size - position))
        if len(buf) >= LENGTH_OVERHEAD_BYTES:
            self._large = int.from_bytes(buf[8:12], "big") >= _LARGE_BATCH_BYTES
        return buf

    def locate(self, offset: int) -> tuple[int, int]:
        """As of every segment, with the help of the index file."""
        self._load()
        return super().locate(offset)

    def boundary(self, position: int, limit: int) -> int:
        """The last start of a batch, or end of the segment, that is not above `limit`, from the batch at
        `position` on, which stays the answer when it alone reaches beyond. Raises CorruptLogError."""
        if limit >= self.size:
            return self.size
        slot = bisect_right(self._positions, limit) - 1
        best = max(position, self._positions[slot])
        for at, _, hops in self._windows(best):
            for place, _, _, _ in hops:
                if at + place > limit:
                    return best
                best = at + place
        return best

    def newest_timestamp_ms(self) -> int:
        """The highest timestamp of its batches; -1 where none has one. Raises CorruptLogError."""
        self._load()
        self._time_through()
        return max(self._newest_ms, NO_TIMESTAMP)

    def offset_before(self, timestamp_ms: int) -> int:
        """An offset of this segment that is a batch's first: every batch before it is older than
        `timestamp_ms`. Call `newest_timestamp_ms` before."""
        slot = bisect_left(self._times, timestamp_ms)
        return self._time_offsets[slot - 1] + 1 if slot else self.base_offset

    def _time_through(self) -> None:
        for position, buf, hops in self._windows(self._timed_to):
            self._note_times_late(position, buf, hops)
        self._timed_to = self.size

    def producer_headers(self, position: int) -> Iterator[BatchHeader]:
        """The headers, from the batch at `position` on, of those batches that name a producer."""
        unpack = _PRODUCER.unpack_from
        for _, buf, hops in self._windows(position):
            for at, _, _, _ in hops:
                if unpack(buf, at + _PRODUCER_AT)[0] >= 0:
                    yield parse_header(buf, at)

    def _windows(self, position: int) -> Iterator[tuple[int, bytes, list[Hop]]]:
        """(position, bytes, the batches whose headers are in them) up to the segment's end."""
        while position < self.size:
            buf = self._read_window(position)
            hops = hop_headers(buf)
            if not hops:
                self._fail(position, self.base_offset, "a batch header")
            yield position, buf, hops
            last = hops[-1][0]
            position += last + int.from_bytes(buf[last + 8 : last + 12], "big") + LENGTH_OVERHEAD_BYTES

    def _note_times_late(self, base_position: int, buf: bytes, hops: list[Hop]) -> None:
        """As `_note_times`, where the positions may be known already."""
        if base_position + hops[-1][0] > self._positions[-1]:
            self._note_times(base_position, buf, hops)
            if not self._times or self._time_offsets[-1] < self._newest_offset:
                self._note_newest()
            return
        for position, _, following, _ in hops:
            (timestamp,) = _TIMESTAMP.unpack_from(buf, position + _MAX_TIMESTAMP_AT)
            if timestamp > self._newest_ms:
                self._newest_ms, self._newest_offset = timestamp, following - 1
        self._note_newest()

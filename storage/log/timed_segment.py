"""A segment of a partition's log: opened through a pool, and searchable by time.

Both are only shortcuts: whatever is missing or misleading is found by hopping over the headers. With large
batches, only the headers are read.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from metaquorum.storage.batches.batch import Batches, EndMarker, read_marker
from metaquorum.storage.batches.format import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Hop,
    hop_headers,
    parse_header,
)
from metaquorum.storage.disk.file_pool import FilePool, PooledFile
from metaquorum.storage.disk.interface import Disk, join, read_file
from metaquorum.storage.errors import CorruptLogError, FileMissingError
from metaquorum.storage.log.segment import HOP_WINDOW_BYTES, Segment, segment_name

# `.index`, `.timeindex` and `.txnindex` of a segment: Kafka's formats, written when the segment is full and
# at a clean shutdown, the last one also at checkpoints.
#
# The contents can always be rebuilt by hopping over the log's headers, so a missing or invalid file is not
# damage: `decode_*` returns None and the caller hops. Earlier releases wrote a batch's base offset where its
# last offset belongs; a search works with both.

INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
INDEX_ENTRY = struct.Struct(">ii")
"""A batch's last offset minus base offset, byte position."""
TIME_ENTRY = struct.Struct(">qi")
"""Newest timestamp so far, last offset of its batch minus base offset."""
ABORTED_ENTRY = struct.Struct(">hqqqq")
"""Version, producer id, first and last offset of an aborted transaction, last stable offset."""
ABORTED_VERSION = 0


def index_name(base_offset: int, suffix: str) -> str:
    """The segment's file name with another suffix."""
    return f"{base_offset:020d}{suffix}"


def parse_index_name(name: str) -> int | None:
    """The base offset in the name of such a file; None for any other."""
    stem, _, suffix = name.partition(".")
    known = (
        suffix in ("index", "timeindex", "txnindex") and len(stem) == 20 and stem.isascii() and stem.isdigit()
    )
    return int(stem) if known else None


def encode_index(base_offset: int, offsets: Sequence[int], positions: Sequence[int]) -> bytes:
    """Entries of (a batch's last offset minus base offset, byte position), 4 bytes each, big endian."""
    flat = array("i")
    for offset, position in zip(offsets, positions, strict=True):
        flat.append(offset - base_offset)
        flat.append(position)
    flat.byteswap()
    return flat.tobytes()


def decode_index(
    data: bytes, base_offset: int, *, end_offset: int, size: int
) -> tuple[array[int], array[int]] | None:
    """(offsets, positions), both strictly rising, below the segment's ends; None for any other content."""
    if len(data) % INDEX_ENTRY.size:
        return None
    flat = array("i", data)
    flat.byteswap()
    offsets = array("q", (base_offset + each for each in flat[::2]))
    positions = array("q", flat[1::2])
    if offsets and not (offsets[0] >= base_offset and offsets[-1] < end_offset):
        return None
    if positions and not (positions[0] >= 0 and positions[-1] < size):
        return None
    return (offsets, positions) if _rises(offsets) and _rises(positions) else None


def encode_times(base_offset: int, times_ms: Sequence[int], offsets: Sequence[int]) -> bytes:
    """Entries of (newest timestamp so far, last offset of its batch minus base offset): 8 and 4 bytes.
    Batches without a timestamp (-1) have no entry."""
    pack = TIME_ENTRY.pack
    pairs = zip(times_ms, offsets, strict=True)
    return b"".join(pack(time, offset - base_offset) for time, offset in pairs if time >= 0)


def decode_times(data: bytes, base_offset: int, *, end_offset: int) -> tuple[array[int], array[int]] | None:
    """(timestamps in ms, offsets), both strictly rising; None for any other content, or if there is no
    entry."""
    if not data or len(data) % TIME_ENTRY.size:
        return None
    times, offsets = array("q"), array("q")
    for time, offset in TIME_ENTRY.iter_unpack(data):
        times.append(time)
        offsets.append(base_offset + offset)
    if offsets[0] < base_offset or offsets[-1] >= end_offset:
        return None
    return (times, offsets) if _rises(times) and _rises(offsets) else None


def encode_aborted(entries: Iterable[tuple[int, int, int, int]]) -> bytes:
    """Kafka's `.txnindex`: (producer id, first offset, last offset, last stable offset) of each aborted
    transaction whose marker is in the segment."""
    return b"".join(ABORTED_ENTRY.pack(ABORTED_VERSION, *entry) for entry in entries)


def decode_aborted(
    data: bytes, base_offset: int, *, end_offset: int
) -> list[tuple[int, int, int, int]] | None:
    """The inverse, by rising last offset; None for any other content."""
    if len(data) % ABORTED_ENTRY.size:
        return None
    entries = list(ABORTED_ENTRY.iter_unpack(data))
    lasts = [entry[3] for entry in entries]
    within = not lasts or (lasts[0] >= base_offset and lasts[-1] < end_offset)
    if not within or not _rises(lasts) or any(entry[0] != ABORTED_VERSION for entry in entries):
        return None
    return [(entry[1], entry[2], entry[3], entry[4]) for entry in entries]


def cut_aborted(data: bytes, end_offset: int) -> bytes:
    """The same file for a segment that is truncated at `end_offset`."""
    entries = (data[at : at + ABORTED_ENTRY.size] for at in range(0, len(data), ABORTED_ENTRY.size))
    whole = (one for one in entries if len(one) == ABORTED_ENTRY.size)
    return b"".join(one for one in whole if ABORTED_ENTRY.unpack(one)[3] < end_offset)


def _rises(numbers: Sequence[int]) -> bool:
    return all(one < other for one, other in pairwise(numbers))


_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35
# A batch's position in the segment, the offset after it, and its newest timestamp.
_Place: TypeAlias = tuple[int, int, int]
_PRODUCER = struct.Struct(">q")
_PRODUCER_AT = 43
_LARGE_BATCH_BYTES = 4096
MAX_HOP_AT_SEAL_BYTES = 64 * 1024 * 1024
MAX_OFFSETS = 2**31
"""The most offsets in one segment, because its index stores them in four bytes."""


class TimedSegment(Segment):
    """`sealed_end` is where a full segment ends; None for the active segment."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        pool: FilePool,
        *,
        index_interval_bytes: int,
        new: bool = False,
        writable: bool = True,
        suffix: str = "",
    ) -> None:
        """`new`: the file is created; otherwise FileMissingError is raised if it does not exist. `suffix`
        is appended to its name while it is not part of the log."""
        path = join(directory, segment_name(base_offset)) + suffix
        self.pooled: PooledFile = pool.file(path, size=0 if new else None, writable=writable)
        if new:
            pool.enter(self.pooled)
            pool.leave(self.pooled)
        super().__init__(
            disk, directory, base_offset, index_interval_bytes=index_interval_bytes, file=self.pooled
        )
        self._gaps = True
        self.sealed_end: int | None = None
        self._disk = disk
        self._directory = directory
        self._times = array("q")
        self._time_offsets = array("q")
        self._newest_ms = NO_TIMESTAMP - 1
        self._newest_offset = base_offset
        self._timed_to = 0
        self._large = False
        self._since_ms: int | None = None
        self._loaded = new

    # --- appending

    def append(self, batches: Batches) -> None:
        """Writes batches that were checked; `note_appended` must follow."""
        self.file.append(batches.data)

    def note_appended(self, batches: Batches) -> None:
        """Records the bytes that were just written."""
        self._load()
        if self._timed_to == self.size:
            places, position = [], self.size
            for header in batches.headers:
                places.append((position, header.next_offset, header.max_timestamp_ms))
                position += header.size_bytes
            self._note_times(places)
            self._timed_to = position
        else:
            self.note(self.size, batches.hops())
        self.size += len(batches.data)

    def _note_times(self, places: list[_Place]) -> None:
        """Notes the newest timestamp so far at every batch that is in the index or is now added to it."""
        slot = max(1, bisect_left(self._positions, places[0][0]))
        for batch_start, following, timestamp in places:
            if timestamp > self._newest_ms:
                self._newest_ms, self._newest_offset = timestamp, following - 1
            if slot == len(self._positions):
                if batch_start - self._positions[-1] <= self._interval:
                    continue
                self._offsets.append(following - 1)
                self._positions.append(batch_start)
            if batch_start >= self._positions[slot]:
                self._note_newest()
                slot += 1

    def _note_newest(self) -> None:
        if self._newest_ms >= NO_TIMESTAMP and (not self._times or self._newest_ms > self._times[-1]):
            self._times.append(self._newest_ms)
            self._time_offsets.append(self._newest_offset)

    def cut(self, position: int) -> None:
        """Truncates the file and its indexes; the segment is now the last one, and its index files, which
        the caller removes, no longer count."""
        self.sealed_end = None
        self._loaded = True
        super().cut(position)
        self._times, self._time_offsets = array("q"), array("q")
        self._newest_ms, self._newest_offset = NO_TIMESTAMP - 1, self.base_offset
        self._timed_to = 0

    # --- index files

    def seal(self, end_offset: int) -> list[tuple[str, bytes]]:
        """The segment is full: returns its index files, like `index_files`. Their contents are dropped
        from memory and read again when they are needed."""
        files = self.index_files()
        self.sealed_end = end_offset
        self.forget()
        return files

    def index_files(self, hop_bytes: int = MAX_HOP_AT_SEAL_BYTES) -> list[tuple[str, bytes]]:
        """(path, content) of the index files for the current contents; none if that means hopping over
        more than `hop_bytes`: then searches hop."""
        self._load()
        if self.size - self._timed_to > hop_bytes:
            return []
        self._time_through()
        self._note_newest()
        return [
            (
                join(self._directory, index_name(self.base_offset, INDEX_SUFFIX)),
                encode_index(self.base_offset, self._offsets[1:], self._positions[1:]),
            ),
            (
                join(self._directory, index_name(self.base_offset, TIME_INDEX_SUFFIX)),
                encode_times(self.base_offset, self._times, self._time_offsets),
            ),
        ]

    def forget(self) -> None:
        """Drops what index files or headers can restore."""
        self._drop()
        self._loaded = False

    def without_index_files(self) -> None:
        """There are no index files, or none that match the current contents."""
        self._loaded = True

    @property
    def untimed_bytes(self) -> int:
        """The bytes to hop over before it can have index files."""
        return self.size - self._timed_to

    def _drop(self) -> None:
        self._offsets, self._positions = array("q", [self.base_offset]), array("q", [0])
        self._times, self._time_offsets = array("q"), array("q")
        self._newest_ms, self._newest_offset = NO_TIMESTAMP - 1, self.base_offset
        self._timed_to = 0

    def _load(self) -> None:
        """Reads the index files, once; what they do not contain is found by hopping."""
        if self._loaded:
            return
        self._loaded = True
        if not self.size or self._timed_to:
            return
        end = self.base_offset + MAX_OFFSETS if self.sealed_end is None else self.sealed_end
        entries = self._read(INDEX_SUFFIX)
        known = not entries or len(self._offsets) > 1
        index = None if known else decode_index(entries, self.base_offset, end_offset=end, size=self.size)
        for offset, position in zip(*(index or ((), ())), strict=True):
            if position - self._positions[-1] > self._interval:
                self._offsets.append(offset)
                self._positions.append(position)
        entries = self._read(TIME_INDEX_SUFFIX)
        times = decode_times(entries, self.base_offset, end_offset=end) if entries else None
        if times:
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

    def _seek(self, offset: int, slot: int) -> tuple[int, int, int | None]:
        """Like `Segment._seek`, but drops the index file if it is misleading."""
        try:
            return super()._seek(offset, slot)
        except CorruptLogError:
            if len(self._offsets) == 1:
                raise
            self._drop()
            return super()._seek(offset, 0)

    def locate(self, offset: int) -> tuple[int, int]:
        """Like `Segment.locate`, with the help of the index file."""
        self._load()
        return super().locate(offset)

    def cut_place(self, offset: int) -> tuple[int, int]:
        """Like `Segment.cut_place`, with the help of the index file."""
        self._load()
        return super().cut_place(offset)

    def boundary(self, position: int, limit: int) -> int:
        """The last start of a batch, or end of the segment, that is not above `limit`, from the batch at
        `position` on; that position itself if its batch alone extends beyond. Raises CorruptLogError."""
        if limit >= self.size:
            return self.size
        slot = bisect_right(self._positions, limit) - 1
        best = max(position, self._positions[slot])
        for window_start, _, hops in self._windows(best):
            if (
                window_start == best > position
                and not self._offsets[slot - 1] < hops[0][1] <= self._offsets[slot]
            ):
                self._drop()  # no batch begins there: the index file is misleading
                return self.boundary(position, limit)
            for place, _, _, _ in hops:
                if window_start + place > limit:
                    return best
                best = window_start + place
        return best

    def newest_timestamp_ms(self) -> int:
        """The highest timestamp of its batches; -1 if none has one. Raises CorruptLogError."""
        self._load()
        self._time_through()
        return max(self._newest_ms, NO_TIMESTAMP)

    def time_ms(self) -> int:
        """The highest timestamp of its batches; if none has one, when its file was last written, as in Kafka.
        Raises CorruptLogError, DiskError."""
        newest = self.newest_timestamp_ms()
        return newest if newest >= 0 else self.modified_ms()

    def modified_ms(self) -> int:
        """When its file was last written."""
        return self._disk.modified_ms(self.path)

    def open_for_ms(self, wall_ms: int) -> int:
        """How long it has been written to, by the clock and not by its records: counted from when its file
        had last been written at the first call."""
        if self._since_ms is None:
            self._since_ms = min(wall_ms, self.modified_ms())
        return wall_ms - self._since_ms

    def is_old(self, retention_ms: int, wall_ms: int) -> bool:
        """Whether every record is older than `retention_ms` (-1 for never). Raises CorruptLogError."""
        if retention_ms < 0:
            return False
        first = self.first_timestamp_ms
        # A single header shows that most segments are not old; only the others are read completely.
        if first is not None and wall_ms - first <= retention_ms:
            return False
        return wall_ms - self.time_ms() > retention_ms

    def first_batch_ms(self) -> int:
        """The newest timestamp of its first batch; -1 if there is none."""
        if self.size < HEADER_BYTES:
            return NO_TIMESTAMP
        return parse_header(self.file.read_at(0, HEADER_BYTES)).max_timestamp_ms

    def offset_before(self, timestamp_ms: int) -> int:
        """The first offset of a batch in this segment such that every batch before it is older than
        `timestamp_ms`. Call `newest_timestamp_ms` first."""
        slot = bisect_left(self._times, timestamp_ms)
        return self._time_offsets[slot - 1] + 1 if slot else self.base_offset

    def _time_through(self) -> None:
        unpack = _TIMESTAMP.unpack_from
        for position, buf, hops in self._windows(self._timed_to):
            self._note_times(
                [
                    (position + at, following, unpack(buf, at + _MAX_TIMESTAMP_AT)[0])
                    for at, _, following, _ in hops
                ]
            )
        self._timed_to = self.size

    def producer_batches(self, position: int) -> Iterator[tuple[BatchHeader, EndMarker | None]]:
        """The headers of the batches, from the one at `position` on, that name a producer, each with the
        marker in its batch."""
        unpack = _PRODUCER.unpack_from
        for window_start, buf, hops in self._windows(position):
            for batch_start, _, _, _ in hops:
                if unpack(buf, batch_start + _PRODUCER_AT)[0] >= 0:
                    header = parse_header(buf, batch_start)
                    marker = None
                    if header.is_control:
                        marker = read_marker(
                            header, self.file.read_at(window_start + batch_start, header.size_bytes)
                        )
                    yield header, marker

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

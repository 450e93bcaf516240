"""One segment file of a log: its name, its sparse position index, and reads of whole batches.

The index is Kafka's (`LogSegment.append`, `OffsetIndex`): it has an entry, by last offset, for each batch
that begins more than an interval after the previous entry's batch. So a search starts at the last entry not
above its offset.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from metaquorum.storage.batches.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    Batches,
    hop_headers,
    parse_header,
)
from metaquorum.storage.batches.format import DELETE_HORIZON, MAX_OFFSET, Hop, walk_headers
from metaquorum.storage.disk.interface import Disk, DiskFile, join
from metaquorum.storage.errors import BatchError, CorruptLogError
from metaquorum.storage.log.recovery import MAX_READABLE_BATCH_BYTES

LOG_SUFFIX = ".log"
_NAME = re.compile(r"(\d{20})\.log")
HOP_WINDOW_BYTES = 64 * 1024
_ADVICE = (
    "do not replace it with an older copy; see 'Damaged or lost' in docs/operations.md; no byte was changed"
)


def segment_name(base_offset: int) -> str:
    """Kafka's file name: the base offset in 20 digits, ".log"."""
    return f"{base_offset:020d}{LOG_SUFFIX}"


def parse_segment_name(name: str) -> int | None:
    """The base offset in a segment's file name; None for any other file."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    base = int(match.group(1))
    return base if base < MAX_OFFSET else None


def segment_bases(names: Iterable[str]) -> list[int]:
    """Base offsets of the segments among these file names, rising."""
    found = (parse_segment_name(name) for name in names)
    return sorted(base for base in found if base is not None)


def list_segments(disk: Disk, directory: str) -> list[int]:
    """Base offsets of the segments in a directory, rising."""
    return segment_bases(disk.list_directory(directory))


class Segment:
    """An open segment. `size` counts the bytes that belong to the log; `end_offset` is known for the last
    segment, and for the others once the next one's base is known."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        index_interval_bytes: int = 4096,
        file: DiskFile | None = None,
    ) -> None:
        self.base_offset = base_offset
        self.path = join(directory, segment_name(base_offset))
        self.file: DiskFile = disk.open_append(self.path) if file is None else file
        self.size = self.file.size()
        self.closed = False
        self._interval = index_interval_bytes
        self._offsets = array("q", [base_offset])
        self._positions = array("q", [0])
        self._first_timestamp_ms: int | None = None
        # Whether offsets may be missing: true for a partition's log that a cleaner compacted.
        self._gaps = False

    def close(self) -> None:
        """Closes the file."""
        self.closed = True
        self.file.close()

    @property
    def first_timestamp_ms(self) -> int | None:
        """Base timestamp of the first batch (its newest timestamp if a cleaner wrote a delete horizon
        there); None for an empty segment."""
        if self._first_timestamp_ms is None and self.size >= HEADER_BYTES:
            first = parse_header(self.file.read_at(0, HEADER_BYTES))
            has_horizon = first.attributes & DELETE_HORIZON
            self._first_timestamp_ms = first.max_timestamp_ms if has_horizon else first.base_timestamp_ms
        return self._first_timestamp_ms

    def append(self, batches: Batches) -> None:
        """Writes batches that were checked."""
        self.file.append(batches.data)
        self.note(self.size, batches.hops())
        self.size += len(batches.data)

    def note(self, base_position: int, hops: list[Hop]) -> None:
        """Adds batches at the end of the file to the index; `hops` count from `base_position`."""
        last = self._positions[-1]
        for position, _, following, _ in hops:
            batch_start = base_position + position
            if batch_start - last > self._interval:
                self._offsets.append(following - 1)
                self._positions.append(batch_start)
                last = batch_start

    def cut(self, position: int) -> None:
        """Truncates the file and the index, without a sync."""
        self.file.truncate(position)
        self.size = position
        while len(self._positions) > 1 and self._positions[-1] >= position:
            self._positions.pop()
            self._offsets.pop()
        if position == 0:
            self._first_timestamp_ms = None

    def locate(self, offset: int) -> tuple[int, int]:
        """(position, base offset) of the batch that contains `offset`, which is in this segment. If offsets
        may be missing, the first batch that reaches `offset`, or, if none does, the segment's size and the
        offset after the last batch.

        Raises CorruptLogError if the headers do not lead there.
        """
        return self._seek(offset, bisect_right(self._offsets, offset) - 1)[:2]

    def cut_place(self, offset: int) -> tuple[int, int]:
        """(position, log's end) at which to truncate a log so that it ends at `offset`: after the last
        batch entirely below it. Raises CorruptLogError."""
        slot = max(0, bisect_left(self._offsets, offset) - 1)
        position, base, before = self._seek(offset, slot)
        return position, min(base, offset) if before is None else before

    def _seek(self, offset: int, slot: int) -> tuple[int, int, int | None]:
        """Like `locate`, starting at the known batch in `slot`; also returns the offset after the batch
        before the one found (None if not seen). Remembers some of the batches that it passes."""
        position, floor = self._positions[slot], self._offsets[slot]
        expected = floor if slot == 0 else None
        last_known = position
        new_offsets, new_positions = array("q"), array("q")
        best: tuple[int, int, int | None] | None = None
        while best is None:
            if self._gaps and position == self.size:
                best = position, floor + 1 if expected is None else expected, expected
                break
            buf = self._read_window(position)
            hops = hop_headers(buf)
            if not hops:
                self._fail(position, floor, f"a batch header on the way to offset {offset}")
            for batch_start, base, following, _ in hops:
                if following <= base or (
                    base > floor
                    if expected is None
                    else base != expected and not (self._gaps and base > expected)
                ):
                    wanted = floor if expected is None else expected
                    text = f"base offset {wanted}, found {base} up to {following}"
                    self._fail(position + batch_start, wanted, text)
                if position + batch_start - last_known > self._interval and following - 1 > floor:
                    new_offsets.append(following - 1)
                    new_positions.append(position + batch_start)
                    last_known = position + batch_start
                if offset < following:
                    best = position + batch_start, base, expected
                    break
                expected = following
            last = hops[-1][0]
            position += last + int.from_bytes(buf[last + 8 : last + 12], "big") + LENGTH_OVERHEAD_BYTES
        self._offsets[slot + 1 : slot + 1] = new_offsets
        self._positions[slot + 1 : slot + 1] = new_positions
        self._drop_overlap(slot + 1 + len(new_offsets))
        return best

    def _read_window(self, position: int) -> bytes:
        return self.file.read_at(position, min(HOP_WINDOW_BYTES, self.size - position))

    def _drop_overlap(self, slot: int) -> None:
        # A hop that passed the next known entry may have added it a second time.
        while slot < len(self._offsets) and self._offsets[slot] <= self._offsets[slot - 1]:
            del self._offsets[slot], self._positions[slot]

    def read(self, position: int, base_offset: int, max_bytes: int) -> Batches:
        """Whole batches from `position` on, checked by CRC: at least one, and at most `max_bytes` together
        if there is more than one. Raises CorruptLogError."""
        want = max(max_bytes, HEADER_BYTES)
        buf = self.file.read_at(position, min(want, self.size - position))
        try:
            first = parse_header(buf).size_bytes
        except BatchError as error:
            self._fail(position, base_offset, f"a batch ({error})")
        if first > len(buf) and first <= min(self.size - position, MAX_READABLE_BATCH_BYTES):
            buf = self.file.read_at(position, first)
        walk = walk_headers(buf, expected_offset=base_offset)
        whole = walk.problem is None or self._is_cut_by_window(buf, position, walk.end)
        if not walk.headers or not whole:
            offset = walk.headers[-1].next_offset if walk.headers else base_offset
            self._fail(position + walk.end, offset, f"a valid batch ({walk.problem})")
        return Batches.of_walk(buf, walk)

    def _is_cut_by_window(self, buf: bytes, position: int, end: int) -> bool:
        """True if what follows the last whole batch is incomplete only because reading stopped there."""
        if position + len(buf) >= self.size:
            return False
        if len(buf) - end < HEADER_BYTES:
            return True
        try:
            return len(buf) - end < parse_header(buf, end).size_bytes <= self.size - position - end
        except BatchError:
            return False

    def _fail(self, position: int, offset: int, expected: str) -> None:
        raise CorruptLogError(self.path, position, offset, f"expected {expected}", _ADVICE)

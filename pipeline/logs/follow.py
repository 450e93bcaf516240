"""The ends of growing logs, and the pieces between two ends, for streams.

The byte at which a stream continues: a trigger reads only what follows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from metaquorum.pipeline.logs.pieces import Piece, read_piece
from metaquorum.pipeline.logs.places import LogPlace
from metaquorum.pipeline.logs.survey import hop
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import join
from metaquorum.storage.log.segment import list_segments, segment_name

StreamOffset = dict[str, int | list[int]]
"""A stream's offset as Spark stores it, by path of the log: the fields of LogEnd, or only the first (a
checkpoint of an earlier build)."""


class LogEnd(NamedTuple):
    """The next offset to read, the base offset of its segment (-1: unknown), and its byte there."""

    offset: int = 0
    base: int = -1
    position: int = 0


def ends_of(given: StreamOffset) -> dict[str, LogEnd]:
    """The ends in a stream's offset."""
    return {path: LogEnd(at) if isinstance(at, int) else LogEnd(*at) for path, at in given.items()}


def log_ends(
    places: Iterable[LogPlace], earlier: Mapping[str, LogEnd], disk: StoreDisk | None = None
) -> dict[str, LogEnd]:
    """The end of each log: after its last whole batch; damage before that is skipped. A log that became
    shorter keeps its old end. One with unchanged length is not opened: with a `disk` that has listed the
    logs, that costs nothing."""
    disk, ends = disk or StoreDisk(), dict[str, LogEnd]()
    for log_place in places:
        end = earlier.get(log_place.path, LogEnd())
        for file, base in _segments(log_place, disk)[-1:]:
            if (base, disk.file_size(file)) != end[1:]:
                found = _end_of(file, base, _begin(file, base, end))
                end = found if found.offset > end.offset else end
        ends[log_place.path] = end
    return ends


def limited_ends(
    places: Iterable[LogPlace],
    starts: Mapping[str, LogEnd],
    ends: Mapping[str, LogEnd],
    *,
    max_bytes: int | None = None,
    max_files: int | None = None,
) -> dict[str, LogEnd]:
    """Places between starts and ends, with at most `max_bytes` or `max_files` segments between them, log
    after log. At least one batch is taken, so that a stream goes on. A log of which nothing is taken keeps
    its start; it is left out if it has none."""
    budget = _Budget(max_bytes, max_files)
    limited = {path: starts[path] for path in ends if path in starts}
    for log_place in places:
        start, end = starts.get(log_place.path, LogEnd()), ends.get(log_place.path, LogEnd())
        if start.offset >= end.offset:
            continue
        reached = _reached(log_place, start, end, budget)
        if reached != start:
            limited[log_place.path] = reached
        if budget.is_spent:
            break
    return limited


class _Budget:
    """What a micro-batch may still take."""

    def __init__(self, max_bytes: int | None, max_files: int | None) -> None:
        self._bytes, self._files = max_bytes, max_files
        self._took = False

    @property
    def is_spent(self) -> bool:
        return self._took and 0 in (self._bytes, self._files)

    def room(self, size_bytes: int) -> bool:
        """Whether that much of a file fits; the first always does."""
        return not self._took or self._bytes is None or size_bytes <= self._bytes

    def fits(self, size_bytes: int) -> bool:
        """Whether a whole file of that size is within what is left."""
        return self._bytes is None or size_bytes <= self._bytes

    def take(self, size_bytes: int, *, ends_file: bool) -> None:
        self._took = True
        if self._bytes is not None:
            self._bytes = max(0, self._bytes - size_bytes)
        if self._files is not None and ends_file:
            self._files -= 1


def _reached(log_place: LogPlace, start: LogEnd, end: LogEnd, budget: _Budget) -> LogEnd:
    """How far the budget takes one log."""
    segments, reached = _segments(log_place, StoreDisk()), start
    for number, (file, base) in enumerate(segments):
        following = segments[number + 1][1] if number + 1 < len(segments) else None
        if (following is not None and following <= reached.offset) or base >= end.offset:
            continue
        if budget.is_spent:
            return reached
        is_last = end.base == base or following is None or following >= end.offset
        position, _ = _begin(file, base, reached)
        size = (end.position if end.base == base else StoreDisk().file_size(file)) - position
        whole = end if is_last or following is None else LogEnd(following, following, 0)
        if not budget.fits(size):
            part = _part_of(file, reached._replace(base=base, position=position), budget)
            if part is not None and part.offset < whole.offset:
                return part if part.position > position else reached
        budget.take(size, ends_file=True)
        reached = whole
    return reached


def _part_of(file: str, start: LogEnd, budget: _Budget) -> LogEnd | None:
    """The end of the batches of a segment, from `start` on, for which the budget has room. None if there is
    no batch: what follows damage is taken with the rest of the segment."""
    end = None
    for header in hop(file, None, start.position):
        if not budget.room(header.size_bytes):
            return end or start
        budget.take(header.size_bytes, ends_file=False)
        end = LogEnd(header.next_offset, start.base, header.position + header.size_bytes)
    return end


def pieces_between(location: LogPlace, start: LogEnd, end: LogEnd, split_bytes: int) -> list[Piece]:
    """Pieces with what was added to a log between two ends."""
    pieces: list[Piece] = []
    if start.offset >= end.offset:
        return pieces
    segments = _segments(location, StoreDisk())
    for at, (file, base) in enumerate(segments):
        following = segments[at + 1][1] if at + 1 < len(segments) else None
        if (following is None or following > start.offset) and base < end.offset:
            pieces += _pieces_of(location, file, base, start, end, split_bytes)
    return pieces


def _segments(location: LogPlace, disk: StoreDisk) -> list[tuple[str, int]]:
    """(file, base offset) of each segment. A renamed segment starts at its first batch."""
    if disk.is_directory(location.path):
        bases = list_segments(disk, location.path)
        return [(join(location.path, segment_name(base)), base) for base in bases]
    if ".checkpoint" in location.path:
        return []
    return [(location.path, next((header.base_offset for header in hop(location.path, None)), 0))]


def _begin(file: str, base: int, earlier: LogEnd) -> tuple[int, int]:
    """(byte, offset) of the batch at which to start in a segment: `earlier` if a batch still starts there,
    otherwise the first batch."""
    if earlier.base == base and earlier.position:
        header = next(hop(file, None, earlier.position), None)
        is_end = header is None and earlier.position == StoreDisk().file_size(file)
        if is_end or (header is not None and header.base_offset >= earlier.offset):
            return earlier.position, earlier.offset
    return 0, base


def _end_of(file: str, base: int, begin: tuple[int, int]) -> LogEnd:
    """The end of a segment, from the batch at `begin` on."""
    disk, (position, offset) = StoreDisk(), begin
    for header in hop(file, None, position):
        offset, position = header.next_offset, header.position + header.size_bytes
    if position < disk.file_size(file):
        for item in read_piece(disk, Piece(cluster="", node_id=None, file=file, position=position)):
            if isinstance(item, RecordBatch):
                offset, position = item.header.next_offset, item.position + len(item.data)
    return LogEnd(offset, base, position)


def _pieces_of(
    location: LogPlace, file: str, base: int, start: LogEnd, end: LogEnd, split_bytes: int
) -> Iterator[Piece]:
    """One segment's part, cut at batch boundaries. What follows damage belongs to the last piece."""
    position, offset = _begin(file, base, start)
    last = end.position if end.base == base else None

    def piece(low: int, first_offset: int, high: int | None) -> Piece:
        return Piece(
            cluster=location.cluster,
            node_id=location.node_id,
            file=file,
            position=low,
            offset=first_offset,
            end=high,
            from_offset=start.offset if start.offset > first_offset else None,
            to_offset=end.offset,
        )

    size = StoreDisk().file_size(file) if last is None else last
    if size - position >= 2 * split_bytes:
        for header in hop(file, None, position):
            if header.position >= size:
                break
            if header.position - position >= split_bytes and size - header.position >= split_bytes // 2:
                yield piece(position, offset, header.position)
                position, offset = header.position, header.base_offset
    yield piece(position, offset, last)

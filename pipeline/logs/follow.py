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
    places: Iterable[LogPlace], known: Mapping[str, LogEnd], disk: StoreDisk | None = None
) -> dict[str, LogEnd]:
    """The end of each log: after its last whole batch; damage before that is skipped. A log that became
    shorter keeps its old end. One with unchanged length is not opened: with a `disk` that has listed the
    logs, that costs nothing."""
    disk, ends = disk or StoreDisk(), dict[str, LogEnd]()
    for place in places:
        end = known.get(place.path, LogEnd())
        for file, base in _segments(place, disk)[-1:]:
            if (base, disk.file_size(file)) != end[1:]:
                found = _end_of(file, base, _begin(file, base, end))
                end = found if found.offset > end.offset else end
        ends[place.path] = end
    return ends


def pieces_between(place: LogPlace, start: LogEnd, end: LogEnd, split_bytes: int) -> list[Piece]:
    """Pieces with what was added to a log between two ends."""
    found: list[Piece] = []
    if start.offset >= end.offset:
        return found
    segments = _segments(place, StoreDisk())
    for at, (file, base) in enumerate(segments):
        following = segments[at + 1][1] if at + 1 < len(segments) else None
        if (following is None or following > start.offset) and base < end.offset:
            found += _pieces_of(place, file, base, start, end, split_bytes)
    return found


def _segments(place: LogPlace, disk: StoreDisk) -> list[tuple[str, int]]:
    """(file, base offset) of each segment. A renamed segment starts at its first batch."""
    if disk.is_directory(place.path):
        bases = list_segments(disk, place.path)
        return [(join(place.path, segment_name(base)), base) for base in bases]
    if ".checkpoint" in place.path:
        return []
    return [(place.path, next((header.base_offset for header in hop(place.path, None)), 0))]


def _begin(file: str, base: int, known: LogEnd) -> tuple[int, int]:
    """(byte, offset) of the batch at which to start in a segment: `known` if a batch still starts there,
    otherwise the first batch."""
    if known.base == base and known.position:
        header = next(hop(file, None, known.position), None)
        is_end = header is None and known.position == StoreDisk().file_size(file)
        if is_end or (header is not None and header.base_offset >= known.offset):
            return known.position, known.offset
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
    place: LogPlace, file: str, base: int, start: LogEnd, end: LogEnd, split_bytes: int
) -> Iterator[Piece]:
    """One segment's part, cut at batch boundaries. What follows damage belongs to the last piece."""
    position, offset = _begin(file, base, start)
    last = end.position if end.base == base else None

    def piece(low: int, at: int, high: int | None) -> Piece:
        return Piece(
            cluster=place.cluster,
            node_id=place.node_id,
            file=file,
            position=low,
            offset=at,
            end=high,
            from_offset=start.offset if start.offset > at else None,
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

"""Surveys a log by its batch headers: offsets, epochs, times, and where it can be cut.

A log with damage is read batch by batch after its whole part.
"""

from __future__ import annotations

import functools
import mmap
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.pipeline.logs.places import ORIGINS_FILE, LogPlace, require_path
from metaquorum.pipeline.stores.address import is_remote
from metaquorum.pipeline.stores.disk import StoreDisk, holder_of
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import Disk, join, name_of, read_file
from metaquorum.storage.files.snapshots import snapshot_path
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition

SPLIT_BYTES = 32 * 1024 * 1024
"""The least size of a piece of a segment, in bytes, unless the segment is smaller."""
WINDOW_OFFSETS = 10_000
"""Offsets of the batches that share one checksum, by which the logs of two nodes are compared."""
MAX_MARKS = 512
"""Batches all over a log to remember individually, with END_MARKS at either end."""
END_MARKS = 64

_HEADER = struct.Struct(">qiibIhiqq")
_HEADER_BYTES = 61
_LENGTH_OVERHEAD_BYTES = 12
_MIN_LENGTH = 49
_SUMMED = struct.Struct(">qiI")


class Split(msgspec.Struct, kw_only=True):
    """A piece of a segment that starts at a batch boundary. `end`: exclusive; None: the file's end."""

    position: int
    offset: int
    end: int | None = None


class Origin(msgspec.Struct, frozen=True):
    """The origin of a retained segment's bytes: byte `position` of a node's file."""

    file: str
    node_id: int | None
    position: int


class SegmentSurvey(msgspec.Struct, kw_only=True):
    """One segment. `end_offset`: after its last readable record. `last_ms`: the latest time in it."""

    file: str
    size_bytes: int
    start_offset: int
    end_offset: int
    last_ms: int
    splits: list[Split]
    readable_bytes: int = 0
    """The byte where the pass over its headers ended."""
    origin: Origin | None = None
    """For a retained segment: the origin of its bytes."""


class LogSurvey(msgspec.Struct, kw_only=True):
    """One log without holes. `epochs`: (epoch, first offset) in order. `sums`, by window of
    offsets: (first offset, end offset, sum over base offset, epoch and CRC of its batches).
    `snapshots`: (end offset, epoch)."""

    location: LogPlace
    start_offset: int
    end_offset: int
    epochs: list[tuple[int, int]]
    segments: list[SegmentSurvey]
    sums: dict[int, tuple[int, int, int]]
    snapshots: list[tuple[int, int]]
    records: int = 0
    marks: dict[int, tuple[int, int]] = {}
    """Base offset: (epoch, CRC) of some batches. Two logs of one cluster have the same CRC at the same offset
    and epoch."""

    problem: str | None = None
    """Why the log could not be read at all; then nothing else is known of it."""

    @property
    def key(self) -> tuple[str, int]:
        """Identifies the log, also among several in one directory with holes."""
        return self.location.path, self.start_offset

    @property
    def has_records(self) -> bool:
        return self.end_offset > self.start_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; without records, of the newest snapshot."""
        if self.epochs:
            return self.epochs[-1][0]
        return self.snapshots[-1][1] if self.snapshots else -1

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def epoch_at(self, offset: int) -> int | None:
        """The epoch of the record at `offset`; None outside the log."""
        if not self.start_offset <= offset < self.end_offset:
            return None
        return next((epoch for epoch, start in reversed(self.epochs) if start <= offset), None)


def nothing_of(log_place: LogPlace, problem: str) -> LogSurvey:
    """A log that could not be read at all."""
    return LogSurvey(
        location=log_place,
        start_offset=0,
        end_offset=0,
        epochs=[],
        segments=[],
        sums={},
        snapshots=[],
        problem=problem,
    )


class Header(msgspec.Struct, frozen=True):
    """The fields of a batch header that a survey needs."""

    position: int
    base_offset: int
    next_offset: int
    epoch: int
    crc: int
    size_bytes: int
    max_ms: int


def hop(file: str, expected_offset: int | None, position: int = 0) -> Iterator[Header]:
    """The batch headers of a segment from a byte on, up to the first that is not valid there."""
    if is_remote(file) or holder_of(file) != file:
        yield from _remote_headers(file, expected_offset, position)
        return
    with open(file, "rb") as handle:
        if not handle.seek(0, 2):
            return
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as buf:
            unpack = functools.partial(_HEADER.unpack_from, buf)
            yield from _headers(unpack, len(buf), expected_offset, position)


def _remote_headers(file: str, expected: int | None, position: int) -> Iterator[Header]:
    """The batch headers of an object or a packed file, of which only a part is in memory."""
    handle = StoreDisk().open_read(file)
    try:
        yield from _headers(
            lambda at: _HEADER.unpack(handle.read_at(at, _HEADER.size)), handle.size(), expected, position
        )
    finally:
        handle.close()


def _headers(
    unpack: Callable[[int], tuple[int, ...]], size: int, expected: int | None, position: int
) -> Iterator[Header]:
    """`unpack`: returns the fields of the header at a byte."""
    last_epoch = -1
    while position + _HEADER_BYTES <= size:
        base, length, epoch, magic, crc, _, delta, _, max_ms = unpack(position)
        after = position + length + _LENGTH_OVERHEAD_BYTES
        if magic != 2 or length < _MIN_LENGTH or after > size or delta < 0 or epoch < last_epoch:
            return
        if expected is not None and base != expected:
            return
        expected, last_epoch = base + delta + 1, epoch
        yield Header(position, base, expected, epoch, crc, after - position, max_ms)
        position = after


class _Marks:
    """Remembers some batches of a log: those at either end, and between them the first of
    every range of offsets. The longer the log, the larger the ranges; logs of any two lengths
    have some batches in common."""

    def __init__(self) -> None:
        self._stride = 1
        self._spread: dict[int, tuple[int, int, int]] = {}
        self._first: list[tuple[int, int, int]] = []
        self._last: deque[tuple[int, int, int]] = deque(maxlen=END_MARKS)

    def add(self, header: Header) -> None:
        mark = (header.base_offset, header.epoch, header.crc)
        if len(self._first) < END_MARKS:
            self._first.append(mark)
        self._last.append(mark)
        if self._spread.setdefault(header.base_offset // self._stride, mark) is mark:
            while len(self._spread) > MAX_MARKS:
                self._stride *= 2
                kept: dict[int, tuple[int, int, int]] = {}
                for one in self._spread.values():
                    kept.setdefault(one[0] // self._stride, one)
                self._spread = kept

    def take(self) -> dict[int, tuple[int, int]]:
        every = [*self._first, *self._spread.values(), *self._last]
        return {base: (epoch, crc) for base, epoch, crc in every}


class _Survey:
    """Collects the headers' values, segment by segment."""

    def __init__(self, split_bytes: int) -> None:
        self._split_bytes = split_bytes
        self.segments: list[SegmentSurvey] = []
        self.epochs: list[tuple[int, int]] = []
        self.sums: dict[int, tuple[int, int, int]] = {}
        self.records = 0
        self.marks = _Marks()

    def leaves_out(self, base: int) -> bool:
        """Whether a segment at `base` does not follow the last, complete one: a segment is missing."""
        last = self.segments[-1] if self.segments else None
        return last is not None and base > last.end_offset and last.readable_bytes == last.size_bytes

    def made(self, location: LogPlace, snapshots: list[tuple[int, int]], start: int) -> LogSurvey:
        return LogSurvey(
            location=location,
            start_offset=self.segments[0].start_offset if self.segments else start,
            end_offset=max((at.end_offset for at in self.segments), default=start),
            epochs=self.epochs,
            segments=self.segments,
            sums=self.sums,
            snapshots=snapshots,
            records=self.records,
            marks=self.marks.take(),
        )

    def segment(self, file: str, size_bytes: int, base: int, headers: Iterator[Header]) -> SegmentSurvey:
        surveyed = SegmentSurvey(
            file=file, size_bytes=size_bytes, start_offset=base, end_offset=base, last_ms=-1, splits=[]
        )
        self.segments.append(surveyed)
        split = Split(position=0, offset=base)
        surveyed.splits.append(split)
        for header in headers:
            if header.position - split.position >= self._split_bytes:
                split.end = header.position
                split = Split(position=header.position, offset=header.base_offset)
                surveyed.splits.append(split)
            surveyed.last_ms = max(surveyed.last_ms, header.max_ms)
            surveyed.end_offset = header.next_offset
            surveyed.readable_bytes = header.position + header.size_bytes
            self._note(header)
        return surveyed

    def _note(self, header: Header) -> None:
        if not self.epochs or header.epoch > self.epochs[-1][0]:
            self.epochs.append((header.epoch, header.base_offset))
        self.marks.add(header)
        window = header.base_offset // WINDOW_OFFSETS
        first, _, total = self.sums.get(window, (header.base_offset, 0, 0))
        total = zlib.crc32(_SUMMED.pack(header.base_offset, header.epoch, header.crc), total)
        self.sums[window] = (first, header.next_offset, total)
        self.records += header.next_offset - header.base_offset


def survey(disk: Disk, location: LogPlace, split_bytes: int = SPLIT_BYTES) -> list[LogSurvey]:
    """The present content of the log at `location`: one value, or several if segments are missing between
    others. Raises StorageError or OSError if it cannot be read."""
    require_path(disk, location.path)
    log = MetadataLog(disk, location.path)
    gathered = [_Survey(split_bytes)]
    for base in _bases(log):
        if gathered[-1].leaves_out(base):
            gathered.append(_Survey(split_bytes))
        file = _segment_file(log, base)
        size_bytes = disk.file_size(file)
        if gathered[-1].segment(file, size_bytes, base, hop(file, base)).readable_bytes != size_bytes:
            gathered = _slowly(disk, log)
            break
    if location.is_retained:
        _note_origins(disk, gathered, location)
    snapshots = _snapshots(log)
    start = snapshots[-1][0] if snapshots else log.start_offset
    return [one.made(location, snapshots, start) for one in gathered]


def snapshot_file(log: LogSurvey, position: LogPosition) -> str:
    """The file of a log's snapshot."""
    source = MetadataLog(StoreDisk(), log.location.path)
    return source.path if source.is_checkpoint else snapshot_path(source.directory, position)


def _note_origins(disk: Disk, gathered: list[_Survey], location: LogPlace) -> None:
    data = read_file(disk, join(location.path, ORIGINS_FILE))
    origins = msgspec.json.decode(data, type=dict[str, Origin])
    for one in gathered:
        for segment in one.segments:
            segment.origin = origins[name_of(segment.file)]


def _bases(log: MetadataLog) -> list[int]:
    """Base offsets of the segments. A renamed segment starts at its first batch."""
    if log.segments or log.is_directory or log.is_checkpoint:
        return log.segments
    return [next((header.base_offset for header in hop(log.path, None)), 0)]


def _segment_file(log: MetadataLog, base: int) -> str:
    return join(log.path, segment_name(base)) if log.is_directory else log.path


def _snapshots(log: MetadataLog) -> list[tuple[int, int]]:
    """(end offset, epoch) of a directory's snapshots, or of a checkpoint that was given by itself."""
    own = log.snapshot_position()
    found = [own] if own is not None else log.snapshots() if log.is_directory else []
    return [(at.offset, at.epoch) for at in found]


def _slowly(disk: Disk, log: MetadataLog) -> list[_Survey]:
    """Surveys a log by reading every batch, past damage. Its segments are then read in one piece each."""
    headers: dict[str, list[Header]] = {}
    for item in log.batches():
        if isinstance(item, RecordBatch):
            header = item.header
            headers.setdefault(item.file, []).append(
                Header(
                    *(item.position, header.base_offset, header.next_offset, header.leader_epoch, header.crc),
                    *(len(item.data), header.max_timestamp_ms),
                )
            )
    gathered = [_Survey(1 << 62)]
    for base in _bases(log):
        if gathered[-1].leaves_out(base):
            gathered.append(_Survey(1 << 62))
        file = _segment_file(log, base)
        gathered[-1].segment(file, disk.file_size(file), base, iter(headers.get(file, [])))
    return gathered

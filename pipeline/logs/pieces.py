"""Reads a piece of a log: the batches from one place of a file to another, with damage between them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from metaquorum.metadata.records.schema import TYPE_NAMES
from metaquorum.pipeline.logs.merged import HistoryRun, MergedHistory
from metaquorum.pipeline.logs.survey import LogSurvey
from metaquorum.storage.batches.batch import BatchHeader, RecordBatch
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.log.reader import Damage, LogReader


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes `position` to `end` (None: the file's end) of `file`, which begin with the batch at `offset`. Its
    records from `from_offset` to below `to_offset` (None: all) are selected. `checkpoint`: a snapshot, whose
    records count from 0. The bytes may be in another file, `read_from`, which starts at byte `shift` of
    `file`; then `position` and `end` are bytes of that file."""

    cluster: str
    node_id: int | None
    file: str
    position: int = 0
    offset: int | None = None
    end: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    checkpoint: bool = False
    read_from: str = ""
    shift: int = 0

    @property
    def path(self) -> str:
        """The file to read."""
        return self.read_from or self.file


class DamagedError(Exception):
    """Selected records are damaged. The text names file, byte and offset."""


class PieceReader(LogReader):
    """A tolerant reader that starts in the middle of a file, at a batch boundary."""

    def __init__(self, disk: Disk, piece: Piece) -> None:
        super().__init__(disk, piece.path, tolerant=True, start_offset=piece.from_offset)
        self._position = piece.position
        if piece.offset is not None:
            self._expected = piece.offset


def read_piece(disk: Disk, piece: Piece) -> Iterator[RecordBatch | Damage]:
    """The piece's batches. A batch that contains `from_offset` or `to_offset` is whole."""
    reader = PieceReader(disk, piece)
    try:
        for item in reader:
            if piece.end is not None and item.position >= piece.end:
                return
            last = piece.to_offset
            if isinstance(item, RecordBatch) and last is not None and item.header.base_offset >= last:
                return
            yield _placed(item, piece) if piece.read_from else item
    finally:
        reader.close()


def _placed(item: RecordBatch | Damage, piece: Piece) -> RecordBatch | Damage:
    """The item with its place in `file`."""
    position = item.position + piece.shift
    if isinstance(item, RecordBatch):
        return item._replace(file=piece.file, position=position)
    return replace(item, file=piece.file, position=position)


def undamaged(items: Iterable[RecordBatch | Damage], start: int, end: int) -> Iterator[RecordBatch | Damage]:
    """The same items. Raises DamagedError for damage to records at offsets from `start` to below `end`."""
    for item in items:
        if isinstance(item, Damage) and start <= item.offset < end:
            raise DamagedError(f"{item.file} at byte {item.position} (offset {item.offset}): {item.reason}")
        yield item


SPAN_RECORDS = 100_000
"""Least number of records in a part. To join a part takes as long as to replay about a quarter of these, and
parts are joined one after another. So the parts of a longer history grow with the square root of its length:
then replay on many executors and joining take about the same time."""
MAX_SPANS = 64


class HistorySpan(msgspec.Struct, frozen=True):
    """Offsets `start` to below `end`. All but the first begin at the end of a snapshot of `log` and `epoch`.
    `elected`: the offset where that epoch began, None if no log has it."""

    start: int
    end: int
    log: LogSurvey | None = None
    epoch: int = -1
    elected: int | None = None


def spans_of(
    merged: MergedHistory, low: int, high: int, span_records: int = SPAN_RECORDS
) -> list[HistorySpan]:
    """The parts from offset `low` to `high` of a history. Empty if the history is too short or has holes."""
    runs = list(merged.runs())
    start = max(low, runs[0].start)
    if len(runs) > 1 or high - start < 2 * span_records:
        return []
    length = high - start
    span_records = max(span_records, math.isqrt(span_records // 4 * length), math.ceil(length / MAX_SPANS))
    snapshots = merged.snapshots(runs[0].start, runs[0].end)
    if runs[0].start > 0 and not low:  # the state before the first one is unknown
        snapshots = [at for at in snapshots if at[1] > snapshots[0][1]]
    places: list[tuple[LogSurvey, int, int]] = []
    for snapshot in snapshots:
        before = places[-1][1] if places else start
        if snapshot[1] - before >= span_records and high - snapshot[1] >= span_records:
            places.append(snapshot)
    if not places:
        return []
    ends = [*(offset for _, offset, _ in places), high]
    spans = [HistorySpan(start, ends[0])]
    for (log, offset, epoch), end in zip(places, ends[1:], strict=True):
        spans.append(HistorySpan(offset, end, log, epoch, _elected(merged, offset)))
    return spans


def part_of(run: HistoryRun, end: int) -> HistoryRun:
    """A run up to offset `end`."""
    kept = [msgspec.structs.replace(at, end=min(at.end, end)) for at in run.sections if at.start < end]
    return HistoryRun(kept, [at for at in run.snapshots if at[1] <= end])


def _elected(merged: MergedHistory, offset: int) -> int | None:
    """The first offset of the epoch of the record before `offset`, in the log that is read there."""
    for section in merged.sections:
        if section.start < offset <= section.end:
            begun = [start for _, start in section.log.epochs if start < offset]
            return begun[-1] if begun and begun[-1] >= section.start else None
    return None


# Selects records by type, time and offset, and batches that need not be decoded.


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The selection. Bounds are inclusive, times are Unix ms. None and an empty set select everything."""

    types: tuple[str, ...] = ()
    from_ms: int | None = None
    to_ms: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    secrets: bool = False
    """Whether secrets are shown (`metadata.secrets`). Does not affect the selection."""

    def may_hold(self, header: BatchHeader) -> bool:
        """Whether a batch may have a selected record, by its header."""
        low = min(header.base_timestamp_ms, header.max_timestamp_ms)
        high = max(header.base_timestamp_ms, header.max_timestamp_ms)
        return (
            (self.from_ms is None or high >= self.from_ms)
            and (self.to_ms is None or low <= self.to_ms)
            and (self.from_offset is None or header.next_offset > self.from_offset)
            and (self.to_offset is None or header.base_offset <= self.to_offset)
        )

    def wants(self, type_name: str, offset: int, timestamp_ms: int) -> bool:
        """Whether a record is selected."""
        return (
            (not self.types or type_name in self.types)
            and (self.from_ms is None or timestamp_ms >= self.from_ms)
            and (self.to_ms is None or timestamp_ms <= self.to_ms)
            and (self.from_offset is None or offset >= self.from_offset)
            and (self.to_offset is None or offset <= self.to_offset)
        )

    @property
    def wants_all(self) -> bool:
        """Whether every record is selected."""
        return self == Selection(secrets=self.secrets)


def type_named(text: str) -> str:
    """The full name of a record type: topic, TOPIC_RECORD and topic-record are one. Raises ValueError."""
    wanted = text.strip().upper().replace("-", "_")
    for name in (wanted, wanted + "_RECORD"):
        if name in TYPE_NAMES:
            return name
    short = {name.removesuffix("_RECORD"): name for name in TYPE_NAMES}
    close = [short[at] for at in difflib.get_close_matches(wanted.removesuffix("_RECORD"), short, n=3)]
    hint = f"; did you mean {' or '.join(close)}?" if close else f"; choose one of {', '.join(TYPE_NAMES)}"
    raise ValueError(f"there is no record type {text!r}{hint}")

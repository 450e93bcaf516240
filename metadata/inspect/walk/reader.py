"""The one reader of a log's history: whatever says what happened in a log consumes it.

Gaps, damaged base offsets, the snapshots that cure a gap, and the end of what was asked for are decided here.
A consumer matches what `read` yields: batches and parts to take, damage to report, batches in a wrong place,
`LostRecords`, and `StateKnown`. At a gap, one that keeps the state (`log_replay`) stops or continues with the
state as it was. One that looks at records lets a snapshot cure the gap; up to its end it takes records for
what they say on their own.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import msgspec
import numpy as np

from metaquorum.metadata.inspect.log.coverage import Uncovered, behind_the_log
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, decode_item, ends_snapshot
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.walk.batch_filter import RunPart
from metaquorum.metadata.inspect.walk.rewrite import with_header
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from metaquorum.storage.batches.batch import BatchHeader, RecordBatch
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import MANY_RECORDS, BatchRun, run_of

# Where the reader is in a log's batches: what is next, with runs opened as far as a tool needs them.

Split = Callable[[BatchRun], Iterator[RecordBatch | RunPart]]
"""Which batches of a run are needed one by one."""
Piece = RecordBatch | RunPart | Damage


class LogCursor:
    """Goes through a log once, from the batch that holds `start_offset` on."""

    def __init__(self, log: MetadataLog, start_offset: int) -> None:
        self._source: Iterator[RecordBatch | BatchRun | Damage] = log.runs(start_offset or None)
        self._opened: Iterator[RecordBatch | RunPart] = iter(())
        self._ahead: deque[RecordBatch | BatchRun | RunPart | Damage] = deque()
        self._rest: deque[BatchRun] = deque()
        """What follows after `_opened`, before `_source`."""

    def next(self, expected: int, limit: Point, split: Split) -> Piece | None:
        """The next piece; None at the end. A run that begins at `expected` is opened by `split` as far as it
        is before `limit`, any other batch by batch."""
        while isinstance(item := self._take(), BatchRun):
            if limit.offset is not None and item.base_offset == expected:
                item = self._cut(item, limit.offset)
                if isinstance(item, RecordBatch):
                    return item
            fits = item.base_offset == expected and is_before(item, limit)
            self._opened = split(item) if fits else item.batches()
        return item

    def _cut(self, run: BatchRun, offset: int) -> BatchRun | RecordBatch:
        """The part of a run that ends at or before an offset; if there is none, its first batch. The rest
        stays a run, so that a pass with many stops is not slower than one without."""
        count = int(np.searchsorted(run.offsets[1:], offset, side="right"))
        kept = max(count, 1)
        if kept < run.batches_count:
            self._rest.appendleft(run.part(kept, run.batches_count))
        return run.part(0, kept) if count else next(run.part(0, 1).batches())

    def put_back(self, item: RecordBatch | RunPart) -> None:
        """Makes it the next one again."""
        self._ahead.appendleft(item)

    def put_in(self, parts: Iterable[RecordBatch | RunPart]) -> None:
        """Inserts these before the rest of an opened run."""
        self._opened = chain(parts, self._opened)

    def peek(self) -> RecordBatch | BatchRun | RunPart | None:
        """The next piece after damage; the damage stays in place."""
        read: list[RecordBatch | BatchRun | RunPart | Damage] = []
        while (item := self._take()) is not None:
            read.append(item)
            if not isinstance(item, Damage):
                break
        self._ahead.extendleft(reversed(read))
        return None if isinstance(item, Damage) else item

    def _take(self) -> RecordBatch | BatchRun | RunPart | Damage | None:
        if self._ahead:
            return self._ahead.popleft()
        item = next(self._opened, None)
        if item is None and self._rest:
            return self._rest.popleft()
        return next(self._source, None) if item is None else item


def place_of(item: RecordBatch | RunPart) -> tuple[int, int, int]:
    """First offset, offset after the last one, time."""
    if isinstance(item, RunPart):
        return item.base_offset, item.next_offset, item.time_ms
    header = item.header
    return header.base_offset, header.next_offset, header.max_timestamp_ms


def is_before(run: BatchRun, limit: Point) -> bool:
    """Whether a whole run is before a place."""
    if limit.time_ms is None:
        return limit.covers(run.next_offset, 0)
    return limit.covers(run.next_offset, int(run.timestamps_ms().max()))


_ENDS = (EndTransactionRecord, AbortTransactionRecord)
_MARKS = tuple(bytes((1, one.api_key)) for one in (BeginTransactionRecord, *_ENDS))
"""How their values begin: frame version, api key."""


class LostRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Records that no batch holds, from `start` up to but not including `end`. `cure` is where the snapshot
    ends that shows their effect: from here to there the state is unknown. None: reading continues with the
    state as it was, unless the consumer stops."""

    log: MetadataLog
    start: int
    end: int
    next_batch: RecordBatch | None = None
    """None at the log's end."""
    cure: int | None = None
    next_snapshot: int | None = None
    """Where the next whole snapshot ends, also if it is after all that is read."""
    behind: Uncovered | None = None
    """The same range, if the log ends before it."""

    @property
    def damage(self) -> Damage:
        batch, last = self.next_batch, self.end - 1
        missing = f"offset {last} is" if last == self.start else f"offsets {self.start} to {last} are"
        file, position = (self.log.path, 0) if batch is None else (batch.file, batch.position)
        return Damage(file=file, position=position, offset=self.start, reason=f"{missing} missing")

    def ends_behind(self) -> bool:
        """Whether a metadata transaction that is open before these records ends after them."""
        return ends_behind(self.log, self.end)


class WrongPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that does not begin at `expected`, though no record is lost. If the next batch continues as if
    it did, its base offset, which no CRC covers, is damaged, and `is_mended`: it follows with the right one.
    Otherwise offsets go back, and it follows as it is."""

    batch: RecordBatch
    expected: int
    is_mended: bool

    @property
    def mended(self) -> RecordBatch:
        """The batch in its place."""
        batch = self.batch
        return with_header(batch, batch.header._replace(base_offset=self.expected))

    @property
    def damage(self) -> Damage:
        batch, reason = self.batch, "offsets go back"
        if self.is_mended:
            wrong = batch.header.base_offset
            reason = f"the base offset {wrong} of the batch there is damaged; {self.expected} matches"
        return Damage(file=batch.file, position=batch.position, offset=self.expected, reason=reason)

    @property
    def line(self) -> str:
        """What was damaged, for one that `is_mended`."""
        return f"{self._line}; it was corrected"

    @property
    def advice(self) -> str:
        """The same for a consumer that stops there."""
        advice = (
            "continue with --past-corruption, or correct it with: metaquorum log repair --past-corruption"
        )
        return f"{self._line}; {advice}"

    @property
    def _line(self) -> str:
        damage = self.damage
        return f"{damage.file} at byte {damage.position}: {damage.reason}"


class StateKnown(msgspec.Struct, frozen=True, kw_only=True):
    """The state was unknown so far; the snapshot that ends at `offset` has it (see `states.known_state`)."""

    offset: int


Happening = ReadBatch | RecordBatch | RunPart | Damage | WrongPlace | LostRecords | StateKnown
"""A batch, decoded or (if the consumer takes it whole) not; batches that are passed over together; and what
interrupts them."""


class Cures(enum.Enum):
    """Which snapshots show the effect of lost records."""

    NONE = enum.auto()
    """None: the consumer continues with its own state."""
    BEFORE_END = enum.auto()
    """Those before the end of what is read."""
    ANY = enum.auto()


class HistoryReader:
    """One pass over a log, in pieces: each `read` continues where the one before it ended."""

    def __init__(
        self,
        log: MetadataLog,
        first: int,
        split: Split,
        takes_whole: Callable[[RecordBatch], bool] | None = None,
        *,
        is_first_expected: bool = True,
        cures: Cures = Cures.NONE,
        source: MetadataLog | None = None,
    ) -> None:
        """Reads from offset `first` on. `split` says which batches of a run can be passed over together.
        Batches that `takes_whole` accepts (None: all) are not decoded; others are, and large ones of them are
        split like a run. Unless `is_first_expected`, records may be missing before the first batch. `source`:
        the same log, if its records are read in another way."""
        self._log = log
        self._source = log if source is None else source
        self._takes_whole = takes_whole
        self._cures = cures
        self._first = first
        self._cursor: LogCursor | None = None
        self._is_reached = False
        self._last: RecordBatch | None = None
        self._damage: list[Damage] = []
        self.split: Split = BatchRun.batches if log.is_checkpoint else split
        self.end = END
        self.limit: int | None = None
        """The offset up to which the state is unknown; None if it is known."""
        self.expected: int | None = first if is_first_expected else None
        """The offset after the last batch; None before the first."""
        self.past: BatchHeader | None = None
        """The first batch that is after the end, if reading stopped there."""
        self.follows = False
        """The log was read before and may grow: its end says nothing about lost records."""

    @property
    def is_over(self) -> bool:
        """Whether the end was reached, before the log's end."""
        return self.past is not None

    @property
    def place(self) -> int:
        """Where the next batch should begin."""
        return self._first if self.expected is None else self.expected

    def read(self, end: Point, known_at: int | None = None) -> Iterator[Happening]:
        """What the log holds up to `end`. With `known_at`, the state is unknown up to there, where a snapshot
        ends."""
        self.end, self.limit, self.past = end, known_at, None
        if self._cursor is None:
            self._open(self._first)
        elif self.follows:
            self._open(self.place)
        while True:
            limit = self.limit
            yield from self._up_to(limit)
            if self.limit != limit:
                continue  # a snapshot cures what is lost
            if limit is None or self.is_over or not (end.offset is None or limit <= end.offset):
                return
            yield from self._learned(limit)

    def put_in(self, parts: Iterable[RecordBatch | RunPart], base_offset: int) -> None:
        """Returns the last part, which begins at `base_offset`, in smaller ones."""
        self._opened.put_in(parts)
        self.expected = base_offset

    def give_up(self, batch: RecordBatch) -> None:
        """The records of the last batch cannot be read: they are lost."""
        self.expected = batch.header.base_offset

    @property
    def _opened(self) -> LogCursor:
        if self._cursor is None:
            raise RuntimeError("nothing was read yet")
        return self._cursor

    def _open(self, first: int) -> None:
        self._first, self._is_reached = first, False
        self._cursor = LogCursor(self._source, first)

    def _learned(self, end_offset: int) -> Iterator[Happening]:
        """The state in the snapshot that ends at `end_offset`."""
        expected = self._log.start_offset if self.expected is None else self.expected
        behind = None
        if end_offset > expected and end_offset > self._log.end_offset:
            behind = behind_the_log(self._log, self.end, expected)
        if behind is not None:  # the oldest snapshot with the state is behind the log's end
            yield self._lost_behind(behind, expected)
        self.limit = None
        yield StateKnown(offset=end_offset)
        self._open(end_offset)

    def _up_to(self, limit: int | None) -> Iterator[Happening]:
        """What there is up to `limit`, or to the end. If records are missing and a snapshot cures that, sets
        `limit` to where it ends."""
        end = self.end
        if limit is not None and end.time_ms is None:
            end = Point(offset=limit if end.offset is None else min(limit, end.offset))
        cursor = self._opened
        while (item := cursor.next(self.place, end, self.split)) is not None:
            if isinstance(item, Damage):
                self._damage.append(item)
                continue
            base_offset, next_offset, time_ms = place_of(item)
            self._is_reached = self._is_reached or next_offset > self._first
            yield from self._damage_before(base_offset)
            if not self._is_reached:
                continue
            placed, displaced = item, None
            if base_offset != self.expected and (displaced := self._displaced(item)) is not None:
                placed = displaced.mended
                base_offset, next_offset, time_ms = place_of(placed)
            if limit is not None and base_offset >= limit:
                return
            taken: Happening = placed
            if isinstance(placed, RecordBatch):
                if not self.end.covers(next_offset, time_ms):
                    self.past = placed.header
                    cursor.put_back(item)
                    return
                self._last = placed
                taken = self._taken(placed, end)
                if isinstance(taken, Damage):
                    yield taken  # the next batch shows what is lost
                    continue
            fits = self.expected is None or base_offset == self.expected
            wrong = displaced if fits else self._wrong(item, self.place)
            if wrong is not None:
                yield wrong
                if self.limit != limit:
                    self.expected = base_offset
                    self._open(base_offset)
                    return
            self.expected = next_offset
            yield taken
        yield from self._ended(limit)

    def _has_footer(self) -> bool:
        return self._last is not None and ends_snapshot(decode_item(self._last)[0])

    def _damage_before(self, next_offset: int | None) -> list[Damage]:
        """The damage before the next batch, as far as it reaches to what is read."""
        if not self._damage:
            return []
        damage, self._damage = self._damage, []
        reaches = next_offset is not None and next_offset > self._first
        return [one for one in damage if reaches or one.offset >= self._first]

    def _taken(self, batch: RecordBatch, end: Point) -> ReadBatch | RecordBatch | RunPart | Damage:
        """A batch as the consumer takes it."""
        if self._takes_whole is None or self._takes_whole(batch):
            return batch
        if batch.header.records_count >= MANY_RECORDS and not self._log.is_checkpoint:
            run = run_of(batch)
            if run is not None and is_before(run, end):
                part = next(self.split(run))  # a run of one batch has one part
                if isinstance(part, RunPart):
                    return part
        return decode_item(batch)[0]

    def _displaced(self, item: RecordBatch | RunPart) -> WrongPlace | None:
        """A batch whose base offset is damaged: the next one continues as if it had the expected one."""
        following = self._opened.peek()
        if self.expected is None or isinstance(item, RunPart) or following is None:
            return None
        follows = following.header if isinstance(following, RecordBatch) else following
        if follows.base_offset != self.expected + item.header.last_offset_delta + 1:
            return None
        return WrongPlace(batch=item, expected=self.expected, is_mended=True)

    def _wrong(self, item: RecordBatch | RunPart, expected: int) -> WrongPlace | LostRecords:
        """Offsets that go back, or lost records. If a snapshot cures these, sets `limit` to where it ends."""
        batch = next(item.as_run().batches()) if isinstance(item, RunPart) else item
        if batch.header.base_offset < expected:
            return WrongPlace(batch=batch, expected=expected, is_mended=False)
        return self._lost(expected, batch)

    def _lost(self, start: int, batch: RecordBatch) -> LostRecords:
        log, limit, end = self._log, self.limit, batch.header.base_offset
        if self._cures is Cures.NONE:
            return LostRecords(log=log, start=start, end=end, next_batch=batch)
        snapshots = (at for at in log.snapshots() if at.offset >= end and log.is_whole(at))
        following = next(snapshots, None)
        cure = None
        if following is not None and (limit is None or following.offset < limit):
            is_past = self.end.offset is not None and following.offset > self.end.offset
            if self.end.time_ms is not None:
                is_past = log.snapshot(following).snapshot_timestamp_ms() > self.end.time_ms
            cure = None if is_past and self._cures is Cures.BEFORE_END else following.offset
        if cure is not None:
            self.limit = cure
        after = None if following is None else following.offset
        return LostRecords(log=log, start=start, end=end, next_batch=batch, cure=cure, next_snapshot=after)

    def _ended(self, limit: int | None) -> Iterator[Damage | LostRecords]:
        """What the log's end says: a checkpoint needs a footer there; records are lost if a snapshot is
        behind it, which then is the limit."""
        yield from self._damage_before(None)
        if self._log.is_checkpoint and not self._has_footer() and self._log.size_bytes():
            yield self._log.missing_footer(self.place)
        if limit is not None or self.follows or self._cures is Cures.NONE:
            return
        expected = max(self._first, self.place)
        behind = behind_the_log(self._log, self.end, expected)
        if behind is None:
            return
        self.limit = behind.to_offset
        yield self._lost_behind(behind, expected)
        self._open(self.place)

    def _lost_behind(self, behind: Uncovered, start: int) -> LostRecords:
        """Records between the log's end and a snapshot behind it, at which reading continues."""
        end = self.expected = behind.to_offset or 0
        return LostRecords(log=self._log, start=start, end=end, cure=end, next_snapshot=end, behind=behind)


def ends_behind(log: MetadataLog, offset: int) -> bool:
    """Whether a metadata transaction (KIP-868) that is open before lost records ends after them: by the first
    record of a transaction from `offset` on."""
    for batch in log.batches(offset):
        if not isinstance(batch, RecordBatch) or batch.header.next_offset <= offset:
            continue
        is_plain = batch.header.compression == 0
        if batch.header.is_control or (is_plain and not any(mark in batch.data for mark in _MARKS)):
            continue
        for item in decode_item(batch):
            for one in item.records if isinstance(item, ReadBatch) else ():
                if isinstance(one.record, (BeginTransactionRecord, *_ENDS)):
                    return isinstance(one.record, _ENDS)
    return False

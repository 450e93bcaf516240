"""The events of a whole log: what the reader of its history yields, given to a timeline.

It begins at the newest whole snapshot at or before the place in question; in a trimmed log, at the first
record, taken only for what it says on its own until the oldest snapshot provides the state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from metaquorum.metadata.features import is_newer
from metaquorum.metadata.inspect.causes.brokers import SESSION_TIMEOUT_MS
from metaquorum.metadata.inspect.causes.rule import SEVERITIES
from metaquorum.metadata.inspect.changes.creations import may_create
from metaquorum.metadata.inspect.log.clock import clock_of, on_clock
from metaquorum.metadata.inspect.log.coverage import (
    MISSING,
    NOT_IN_LOG,
    Limits,
    Uncovered,
    before_the_log,
    before_the_state,
    known_from,
)
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, damage_line, decode_item
from metaquorum.metadata.inspect.log.points import END, Point, ms_hint, utc_text
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.time_events import GAP_MS
from metaquorum.metadata.inspect.timeline.timeline import SpanCounts, Timeline
from metaquorum.metadata.inspect.walk.batch_filter import RunPart
from metaquorum.metadata.inspect.walk.reader import Cures, HistoryReader, LostRecords, StateKnown, WrongPlace
from metaquorum.metadata.inspect.walk.states import (
    OnProblem,
    known_state,
    nothing_known,
    settle,
    state_at,
    with_quorum,
)
from metaquorum.metadata.records.batches import decode_readable
from metaquorum.storage.batches.batch import BatchHeader, RecordBatch
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun, RunReader

ALONE = (
    "from the records alone: earlier states of brokers and partitions, causes, and total time without a "
    "leader are unknown there"
)
"""What the events of a trimmed log lack before its oldest snapshot."""


@dataclass(slots=True)
class Seen:
    """What was read for a timeline: the range of times (Unix ms), the end offset (exclusive), and what the
    events do not cover."""

    first_ms: int | None = None
    last_ms: int | None = None
    end_offset: int = 0
    limits: Limits = field(default_factory=Limits)
    taken_for_offsets: set[int] = field(default_factory=set)
    """Times that the log reaches although its clock jumps."""
    is_over: bool = False
    """Reading stopped at the end of the range, before the end of the log."""
    is_behind: bool = False
    """The range begins after the log's end."""
    on_counts: Callable[[SpanCounts], None] | None = None
    """Called with what holds after every batch that has events."""
    on_begin: Callable[[QuorumView], None] | None = None
    """Called with the quorum where reading begins, if that is at a snapshot."""

    def settled(self, log: MetadataLog, point: Point, *, first: bool = False) -> Point:
        """A place as it can be shown; notes if it differs from the requested one."""
        shown, shown_as = settle(log, point, first=first)
        self.limits.place(shown_as)
        if point.time_ms is not None and shown.time_ms is None:
            self.taken_for_offsets.add(point.time_ms)
        return shown

    def take(self, header: BatchHeader) -> None:
        """Takes one batch, including the one after the requested range."""
        self.first_ms = header.max_timestamp_ms if self.first_ms is None else self.first_ms
        self.last_ms = max(header.max_timestamp_ms, self.last_ms or 0)
        self.end_offset = max(header.next_offset, self.end_offset)

    def pass_over(self, part: RunPart) -> None:
        """The same for idle batches that follow others."""
        if self.first_ms is None:
            self.first_ms = int(part.as_run().timestamps_ms()[0])
        self.last_ms = max(part.time_ms, self.last_ms or 0)
        self.end_offset = max(part.next_offset, self.end_offset)

    def note_behind(self, log: MetadataLog, asked: Point, start: Point) -> None:
        """Notes that a range begins after the log's end, with everything read: `asked`, shown as `start`."""
        last_ms = self.last_ms
        if asked.time_ms is not None and start.offset is not None:
            clock_ends = clock_of(log).last_ms
            last_ms = clock_ends if start.offset >= self.end_offset else None
        behind = None if last_ms is None or asked.time_ms is None else asked.time_ms > last_ms
        if behind and last_ms is not None and asked.time_ms is not None:
            text = f"the log ends at {utc_text(last_ms)}, before {utc_text(asked.time_ms)}"
        elif asked.offset is not None and asked.offset > self.end_offset:
            hint = ms_hint(asked.offset)
            text = f"the log ends at offset {self.end_offset}, before {asked.offset}{hint}"
        else:
            return
        self.is_behind = True
        self.limits.coverage.add(
            Uncovered(
                from_offset=self.end_offset, to_offset=None, reason=NOT_IN_LOG, text=text, path=log.path
            )
        )

    def outside(self, name: str, point: Point) -> str | None:
        """Why the log does not reach `point`; None if it does, or if that is already noted as not covered."""
        if self.is_behind:
            return None
        if point.offset is not None and point.offset > self.end_offset and not self.is_over:
            return f"{name} ends at offset {self.end_offset}, before {point.offset}{ms_hint(point.offset)}"
        if point.time_ms is None or self.first_ms is None or point.time_ms in self.taken_for_offsets:
            return None
        if point.time_ms < self.first_ms:
            return f"{name} begins at {utc_text(self.first_ms)}, after {utc_text(point.time_ms)}"
        if self.last_ms is not None and point.time_ms > self.last_ms:
            return f"{name} ends at {utc_text(self.last_ms)}, before {utc_text(point.time_ms)}"
        return None


def events(
    log: MetadataLog,
    on_problem: OnProblem,
    *,
    start: Point | None = None,
    end: Point = END,
    gap_ms: int = GAP_MS,
    seen: Seen | None = None,
    shown: frozenset[str] = frozenset(SEVERITIES),
    moves: bool = True,
    quiet_before: Point | None = None,
) -> Iterator[TimelineEvent]:
    """Every event of a log from `start` up to `end`, in order, with a severity in `shown`; without `moves`,
    few of those about leaders that other leaders replace, and before `quiet_before` only those that begin and
    end what lasts, from the newest snapshot before it on. Lines about what could not be read go to
    `on_problem`, and reading continues past it."""
    seen = Seen() if seen is None else seen
    asked = start
    if start is not None:
        start = seen.settled(log, Point(offset=log.end_offset) if start.is_end else start, first=True)
    story = Story(log, on_problem, seen.settled(log, end), seen)
    begin = start or quiet_before
    for event in story.run(
        start, begin, partial(Timeline, gap_ms=gap_ms, shown=shown, moves=moves, start=begin)
    ):
        if start is None or not is_before(event, start):
            yield event
    seen.is_over = story.is_over
    if asked is not None and start is not None and not story.is_over:
        seen.note_behind(log, asked, start)


def is_before(event: TimelineEvent, start: Point) -> bool:
    """Whether an event is before a range that begins at `start`."""
    if start.offset is not None:
        return event.offset < start.offset
    return event.time_ms < (start.time_ms or 0)


def _snapshot_before(log: MetadataLog, start: Point) -> int | None:
    """The end of the newest snapshot at or before a place; None if there is none."""
    known_start = known_from(log)
    if known_start is None or log.is_checkpoint or not log.snapshots():
        return None
    limit = start.offset
    if start.time_ms is not None:  # the clock is steady, or `settle` had made it an offset
        limit = clock_of(log).place(start.time_ms, first=True)[0].offset
    fitting = [at.offset for at in log.snapshots() if known_start <= at.offset <= (limit or 0)]
    return fitting[-1] if fitting else None


class Story:
    """The timeline as a consumer of a log's history: `begin`, then `read`, again and again if the log grows,
    then the timeline's `finish`."""

    def __init__(
        self,
        log: MetadataLog,
        on_problem: OnProblem,
        end: Point,
        seen: Seen,
        source: MetadataLog | None = None,
    ) -> None:
        """`source`: the same log, if its records are read in another way."""
        self._log = log
        self._source = source
        self._on_problem = on_problem
        self._end = end
        self._seen = seen
        self._start: Point | None = None
        self._timeline: Timeline
        self._reader: HistoryReader | None = None
        self._is_alone = False

    @property
    def is_over(self) -> bool:
        """Whether the end of the range was reached, before the end of the log."""
        return self._reader is not None and self._reader.is_over

    @property
    def place(self) -> int:
        """The offset after the last record that was read."""
        return 0 if self._reader is None else self._reader.place

    @property
    def timeline(self) -> Timeline:
        return self._timeline

    def run(
        self, start: Point | None, begin: Point | None, make: Callable[..., Timeline]
    ) -> Iterator[TimelineEvent]:
        """The events of a log that does not grow, from the newest snapshot before `begin` on, of which the
        caller wants those from `start` on. A snapshot is used if it provides unknown state."""
        yield from self.begin(start, make, begin)
        yield from self.read()
        yield from self._timeline.finish()

    def begin(
        self, start: Point | None, make: Callable[..., Timeline], begin: Point | None = None
    ) -> Iterator[TimelineEvent]:
        """Events for what already holds at the beginning of a log, or at a snapshot before `begin`."""
        self._start = start
        self._seen.limits.coverage.add(before_the_log(self._log, start))
        timeline, first = self._begin(start if begin is None else begin, make)
        self._timeline, self._is_alone = timeline, not timeline.is_known
        self._reader = HistoryReader(
            self._log,
            first,
            timeline.pieces,
            may_create,
            is_first_expected=False,
            cures=Cures.ANY,
            source=self._source,
        )
        is_whole = first == self._log.start_offset or start is None
        if is_whole and not self._is_alone:
            yield from self._noted(timeline, timeline.already())

    def read(self) -> Iterator[TimelineEvent]:
        """The events of the records that were not read before."""
        timeline, reader = self._timeline, self._reader
        if reader is None:
            return
        is_alone, self._is_alone = self._is_alone, False
        known = known_from(self._log) if is_alone else None
        for item in reader.read(self._end, known):
            if isinstance(item, StateKnown):
                if is_alone:
                    self._add_alone()
                    is_alone = False
                found = known_state(self._log, item.offset)
                yield from self._noted(timeline, timeline.learn(found.image, found.quorum))
            else:
                yield from self._events_of(timeline, reader, item)
        if reader.past is not None:
            self._seen.take(reader.past)
        if is_alone:
            self._add_alone()
        reader.follows = True

    def _noted(self, timeline: Timeline, events: list[TimelineEvent]) -> list[TimelineEvent]:
        """The events, after what holds with them was passed on."""
        if self._seen.on_counts is not None:
            self._seen.on_counts(timeline.span_counts())
        return events

    def _events_of(
        self,
        timeline: Timeline,
        reader: HistoryReader,
        item: ReadBatch | RecordBatch | RunPart | Damage | WrongPlace | LostRecords,
    ) -> Iterator[TimelineEvent]:
        """The events of one item."""
        match item:
            case Damage():
                if reader.limit is None or item.offset < reader.limit:
                    self._on_problem(damage_line(item))
            case WrongPlace() if item.is_mended:
                self._on_problem(item.line)
            case LostRecords():
                yield from self._lost(timeline, item)
            case RunPart():
                for events in timeline.part(item):
                    yield from self._noted(timeline, events)
                self._seen.pass_over(item)
            case RecordBatch() | ReadBatch():
                self._seen.take(item.header if isinstance(item, RecordBatch) else item.batch.header)
                yield from self._of_batch(timeline, item)

    def _lost(self, timeline: Timeline, lost: LostRecords) -> Iterator[TimelineEvent]:
        yield from timeline.lose(lost.start, lost.ends_behind)
        after = "later answers may depend on it"
        if lost.next_snapshot is not None:
            after = (
                "what follows comes from the records alone, up to the snapshot that ends at"
                f" {lost.next_snapshot}"
            )
        text = f"these records are lost here: their effect is missing, and {after}"
        self._seen.limits.coverage.add(
            lost.behind
            or Uncovered(
                from_offset=lost.start, to_offset=lost.end, reason=MISSING, text=text, path=self._log.path
            )
        )
        if lost.cure is not None:
            timeline.forget()
            self._noted(timeline, [])

    def _begin(self, start: Point | None, make: Callable[..., Timeline]) -> tuple[Timeline, int]:
        """A timeline and the offset to feed it from."""
        log, base = self._log, self._log.start_offset
        clock = None if log.is_checkpoint else partial(clock_of, log)
        begun = None if start is None else _snapshot_before(log, start)
        if begun is not None:
            state = with_quorum(log, known_state(log, begun))
            quorum, at_start = state.quorum, state.image
            seen, provenance = self._seen, at_start.provenance
            seen.first_ms = seen.last_ms = provenance.timestamp_ms
            seen.end_offset = provenance.offset
            if seen.on_begin is not None:
                seen.on_begin(quorum)
            timeline = make(at_start, quorum=quorum, clock=clock)
            self._note_before(timeline, provenance.timestamp_ms, begun)
            return timeline, begun
        if known_from(log) == base:
            if log.is_checkpoint:
                return make(None, clock=clock), base
            state = state_at(log, Point(offset=base), past_corruption=True)
            image, quorum = on_clock(log, state.image) if base else None, state.quorum
            return make(image, quorum=quorum, clock=clock), base
        image, names = nothing_known(base).image, log.namer().names()
        return make(image, is_known=False, names=names, clock=clock), base

    def _note_before(self, timeline: Timeline, time_ms: int, end_offset: int) -> None:
        """Shows the timeline the records from which a session may last beyond its start."""
        clock = clock_of(self._log)
        first = clock.place(time_ms - SESSION_TIMEOUT_MS, first=True)[0].offset
        for batch in self._log.batches(first):
            if isinstance(batch, Damage):
                continue
            header = batch.header
            if header.base_offset >= end_offset:
                return
            if not header.is_control:
                records = [(one.offset, one.record) for one in decode_readable(batch)]
                timeline.note_before(records, clock.time_ms(header.base_offset, header.max_timestamp_ms))

    def _add_alone(self) -> None:
        """Notes the range before the first known state."""
        reached = self._end
        if self._reader is not None and self.is_over and reached.offset is None:
            reached = Point(offset=self._reader.expected)
        self._seen.limits.coverage.add(before_the_state(self._log, self._start, reached, ALONE))

    def _of_batch(self, timeline: Timeline, item: RecordBatch | ReadBatch) -> Iterator[TimelineEvent]:
        if isinstance(item, RecordBatch):
            made = timeline.creations(item)
            if made is not None:
                yield from self._noted(timeline, made)
                return
        for read in (item,) if isinstance(item, ReadBatch) else decode_item(item):
            if isinstance(read, Damage):
                self._on_problem(damage_line(read))
                continue
            header = read.batch.header
            self._seen.limits.unknown += sum(is_newer(one.record) for one in read.records)
            records = [(decoded.offset, decoded.record) for decoded in read.records]
            made = timeline.batch(header.leader_epoch, header.max_timestamp_ms, records)
            yield from self._noted(timeline, made)


# The events of a log that grows, as its records arrive: those of `story` of the whole log, in the same words
# and order.
#
# What a later record would have corrected is the exception: a timestamp that turns out to be years ahead, and
# a fence that comes so late that no event waited for it.


class GrowingLog(MetadataLog):
    """A log whose `runs` go on where they ended. The caller closes it."""

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__(disk, path)
        self._reader: RunReader | None = None
        self._next: int | None = None
        self._ahead: deque[RecordBatch | BatchRun | Damage] = deque()

    def runs(self, start_offset: int | None = None) -> Iterator[RecordBatch | BatchRun | Damage]:
        """What there is now from `start_offset` on; a torn end is waited for, not reported."""
        if self.is_directory and not self.segments:
            return
        if self._reader is None or start_offset != self._next:
            self.close()
            self._reader = RunReader(self.disk, self.path, start_offset=start_offset)
            self._next = start_offset
        while self._ahead or self._read(self._reader):
            item = self._ahead.popleft()
            if not isinstance(item, Damage):
                self._next = item.next_offset if isinstance(item, BatchRun) else item.header.next_offset
            yield item

    def _read(self, reader: RunReader) -> bool:
        self._ahead.extend(reader.poll())
        return bool(self._ahead)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._ahead.clear()


class GrowingStory:
    """Call `more` whenever the log may have grown, `release` if it has not for a while, and `finish` at the
    end. The caller closes it."""

    def __init__(
        self,
        log: MetadataLog,
        on_problem: OnProblem,
        *,
        start: Point | None = None,
        end: Point = END,
        gap_ms: int = GAP_MS,
        shown: frozenset[str] = frozenset(SEVERITIES),
        quiet_before: Point | None = None,
    ) -> None:
        """The options are those of `story.events`."""
        self.seen = Seen()
        if start is not None:
            start = self.seen.settled(
                log, Point(offset=log.end_offset) if start.is_end else start, first=True
            )
        self._source = GrowingLog(log.disk, log.path)
        self._story = Story(log, on_problem, self.seen.settled(log, end), self.seen, self._source)
        self._make = partial(Timeline, gap_ms=gap_ms, shown=shown, start=start or quiet_before)
        self._start = start
        self._has_begun = False

    @property
    def is_over(self) -> bool:
        """Whether the end of the range was reached."""
        return self._story.is_over

    @property
    def place(self) -> int:
        """The offset after the last record that was read."""
        return self._story.place

    @property
    def holds_back(self) -> bool:
        """Whether events wait for what later records say about them."""
        return self._has_begun and self._story.timeline.holds_back

    def more(self) -> Iterator[TimelineEvent]:
        """The events of what was added since the last call."""
        if not self._has_begun:
            self._has_begun = True
            yield from self._asked(self._story.begin(self._start, self._make))
        yield from self._asked(self._story.read())

    def release(self) -> Iterator[TimelineEvent]:
        """The events that waited for a fence: nothing was added for longer than one may take."""
        yield from self._asked(self._story.timeline.release() if self._has_begun else ())

    def finish(self) -> Iterator[TimelineEvent]:
        """What is still open at the end."""
        yield from self._asked(self._story.timeline.finish() if self._has_begun else ())

    def close(self) -> None:
        self._source.close()

    def _asked(self, events: Iterable[TimelineEvent]) -> Iterator[TimelineEvent]:
        start = self._start
        return (each for each in events if start is None or not is_before(each, start))

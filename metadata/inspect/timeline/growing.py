"""The events of a log that grows, as its records arrive: those of `story` of the whole log, in the same words
and order.

What a later record would have corrected is the exception: a timestamp that turns out to be years ahead, and a
fence that comes so late that no event waited for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial

from metaquorum.metadata.inspect.causes.rule import SEVERITIES
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.story import Seen, Story, is_before
from metaquorum.metadata.inspect.timeline.time_events import GAP_MS
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.inspect.walk.states import OnProblem
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun, RunReader


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

"""Reads the history of a log for a consumer that keeps its own state.

Gaps, the snapshots that cure them, and the end of what was asked for are decided here. After lost records the
state is unknown until a snapshot shows it; if one does, the records up to it are read for what they say on
their own, and `StateKnown` follows. A consumer matches what `read` yields: batches and parts to take, damage
to report, `LostRecords`, and `StateKnown`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import msgspec

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.clock import on_clock
from metaquorum.metadata.inspect.log.coverage import Uncovered, behind_the_log
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.walk.concern import Stretch
from metaquorum.metadata.inspect.walk.lost_ends import ends_behind
from metaquorum.metadata.inspect.walk.passage import Split, decoded, place_of
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.storage.batches.batch import BatchHeader, RecordBatch
from metaquorum.storage.log.reader import Damage


class LostRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Records that no batch holds, from `start` up to but not including `end`. `cure` is where the snapshot
    ends that shows their effect: from here to there the state is unknown. None: reading continues with the
    state as it was, unless the consumer stops."""

    log: MetadataLog
    start: int
    end: int
    cure: int | None
    next_snapshot: int | None
    """Where the next whole snapshot ends, also if it is after all that is read."""
    behind: Uncovered | None = None
    """The same range, if the log ends before it."""

    def ends_behind(self) -> bool:
        """Whether a metadata transaction that is open before these records ends after them."""
        return ends_behind(self.log, self.end)


class StateKnown(msgspec.Struct, frozen=True, kw_only=True):
    """The state was unknown so far; a snapshot that ends here has it."""

    image: MetadataImage
    quorum: QuorumView


Happening = ReadBatch | RecordBatch | Stretch | Damage | LostRecords | StateKnown
"""A batch, decoded or (if it is to be passed over) not; batches that only change partitions and brokers, or
nothing; and what interrupts them."""


class HistoryReader:
    """One pass over a log."""

    def __init__(
        self,
        log: MetadataLog,
        end: Point,
        split: Split,
        is_passed: Callable[[RecordBatch], bool],
        *,
        cures_before_end: bool = False,
        source: MetadataLog | None = None,
    ) -> None:
        """Reads up to `end`. `split` and `is_passed` say what need not be decoded. With `cures_before_end`, a
        snapshot after the end cures nothing. `source`: the same log, if its records are read in another
        way."""
        self._log = log
        self._source = log if source is None else source
        self.end = end
        self._split = split
        self._is_passed = is_passed
        self._cures_before_end = cures_before_end
        self.limit: int | None = None
        """The offset up to which the state is unknown; None if it is known."""
        self.expected: int | None = None
        """The offset after the last batch; None before the first."""
        self.past: BatchHeader | None = None
        """The first batch that is after the end, if reading stopped there."""
        self.follows = False
        """The log was read before and may grow: its end says nothing about lost records."""

    @property
    def is_over(self) -> bool:
        """Whether the end was reached, before the log's end."""
        return self.past is not None

    def read(
        self, first: int, known_at: int | None = None, *, expected: int | None = None
    ) -> Iterator[Happening]:
        """What the log holds from `first` on. With `known_at`, the state is unknown up to there, where a
        snapshot ends. `expected` is the offset that the first batch must have; None for any."""
        self.expected, self.limit = expected, known_at
        place = first
        while True:
            gap = yield from self._batches(place)
            if gap is not None:
                place, self.limit = gap
                continue
            known = self.limit
            if known is None or self.is_over or not self._reaches(known):
                return
            expected = self._log.start_offset if self.expected is None else self.expected
            behind = None
            if known > expected and known > self._log.end_offset:
                behind = behind_the_log(self._log, self.end, expected)
            if behind is not None:  # the oldest snapshot with the state is behind the log's end
                self.expected = known
                yield LostRecords(
                    log=self._log, start=expected, end=known, cure=known, next_snapshot=known, behind=behind
                )
            found = state_at(self._log, Point(offset=known), past_corruption=True)
            self.limit = None
            yield StateKnown(image=on_clock(self._log, found.image), quorum=found.quorum)
            place = known

    def _batches(self, first: int) -> Generator[Happening, None, tuple[int, int] | None]:
        """What there is up to `limit`, or to the end. If records are missing and a snapshot cures that,
        returns where to continue and where the snapshot ends."""
        end, limit = self.end, self.limit
        if limit is not None and end.time_ms is None:
            end = Point(offset=limit if end.offset is None else min(limit, end.offset))
        for item in decoded(self._source, first, end, self._split, self._is_passed):
            if isinstance(item, Damage):
                if item.offset >= first:
                    yield item
                continue
            base_offset, next_offset, _ = place_of(item)
            if next_offset <= first:
                continue
            if limit is not None and base_offset >= limit:
                return None
            if not isinstance(item, Stretch):
                header = item.header if isinstance(item, RecordBatch) else item.batch.header
                if self._is_past(header):
                    self.past = header
                    return None
            expected, self.expected = self.expected, next_offset
            if expected is not None and base_offset > expected:
                lost = self._lost(expected, base_offset)
                yield lost
                if lost.cure is not None:
                    self.expected = base_offset
                    return base_offset, lost.cure
            yield item
        expected = first if self.expected is None else max(first, self.expected)
        is_end = limit is not None or self.follows
        behind = None if is_end else behind_the_log(self._log, self.end, expected)
        if behind is None:
            return None
        known = self.expected = behind.to_offset or 0
        yield LostRecords(
            log=self._log, start=expected, end=known, cure=known, next_snapshot=known, behind=behind
        )
        return known, known

    def _lost(self, start: int, end: int) -> LostRecords:
        log, limit = self._log, self.limit
        snapshots = (at for at in log.snapshots() if at.offset >= end and log.is_whole(at))
        following = next(snapshots, None)
        cure = None
        if following is not None and (limit is None or following.offset < limit):
            is_past = self.end.offset is not None and following.offset > self.end.offset
            if self.end.time_ms is not None:
                is_past = log.snapshot(following).snapshot_timestamp_ms() > self.end.time_ms
            cure = None if is_past and self._cures_before_end else following.offset
        after = None if following is None else following.offset
        return LostRecords(log=log, start=start, end=end, cure=cure, next_snapshot=after)

    def _lost_behind(self, behind: Uncovered, cure_offset: int) -> LostRecords:
        start = behind.from_offset
        return LostRecords(
            log=self._log,
            start=start,
            end=cure_offset,
            cure=cure_offset,
            next_snapshot=cure_offset,
            behind=behind,
        )

    def _reaches(self, offset: int) -> bool:
        return self.end.offset is None or offset <= self.end.offset

    def _is_past(self, header: BatchHeader) -> bool:
        end = self.end
        if end.offset is not None:
            return header.base_offset >= end.offset
        return end.time_ms is not None and header.max_timestamp_ms > end.time_ms

"""The clock of a log: the time of each batch, corrected where batch timestamps jump.

All tools share one definition. In log order, the longest series of timestamps that never decreases counts. A
batch outside it is *odd*: its node's clock was set wrong for a while, or lags. Consecutive odd batches are
shifted together, up to the next jump among them, by the smallest amount that puts them between the counting
batches around them and behind those before; distances between them are kept if there is room. So one batch
stamped six years ahead does not affect the order of later ones. If no batch is off by JUMP_MS, the clock does
not jump, and every batch keeps its own timestamp.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image import MetadataImage, Provenance
from metaquorum.metadata.inspect.log.coverage import ShownAs
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import Point, utc_text
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun

JUMP_MS = 1_000
"""Timestamps that are at least this far off are reported; less is the difference between two
controllers' clocks."""

MISLEADING_MS = 60_000
"""A clock that is this far off misleads readers."""

CLOCK = "clock"
Longs = npt.NDArray[np.int64]


class Jump(NamedTuple):
    """Consecutive batches that are odd in the same direction: `batches` of them, at offsets `first` to `last`
    (inclusive). `stamp_ms` is the timestamp that is furthest off and `time_ms` the time used for it. `off_ms`
    is how far it is ahead of the counting batch after it or (below 0) behind the one before it."""

    first: int
    last: int
    batches: int
    stamp_ms: int
    time_ms: int

    off_ms: int


class ClockShown(ShownAs, frozen=True, kw_only=True):
    """A time in a log whose clock jumps, resolved to an offset. `asked` is the time (Unix ms). The `batches`
    odd batches from `first` to `last` are on the other side of that offset than their timestamps say;
    `stamp_ms` is the first one's."""

    batches: int
    stamp_ms: int

    @property
    def text(self) -> str:
        which = f"offset {self.first} counts by its position"
        if self.batches > 1:
            which = f"{self.batches} batches from offset {self.first} on count by their positions"
        return (
            f"the clock of the log jumps: {which}, although stamped {utc_text(self.stamp_ms)};"
            f" {utc_text(self.asked)} is taken as offset {self.offset}"
        )

    def tree(self) -> dict[str, Any]:
        return {
            "askedTime": self.asked,
            "offset": self.offset,
            "atomic": self.atomic,
            "firstOffset": self.first,
            "lastOffset": self.last,
            "batches": self.batches,
            "stampedTime": self.stamp_ms,
            "text": self.text,
        }


class Stamps:
    """Collects timestamps for a clock, from the batches of a log in order."""

    def __init__(self) -> None:
        self._parts: list[tuple[Longs, Longs, Longs]] = []
        self._alone: list[tuple[int, int, int]] = []

    def take(self, item: RecordBatch | BatchRun) -> None:
        """Takes the next batches of the log."""
        if isinstance(item, BatchRun):
            self._flush()
            self._parts.append((item.offsets[:-1], item.offsets[1:], item.timestamps_ms()))
        else:
            header = item.header
            self._alone.append((header.base_offset, header.next_offset, header.max_timestamp_ms))

    def _flush(self) -> None:
        if self._alone:
            made = np.array(self._alone, dtype=np.int64).T
            self._parts.append((made[0], made[1], made[2]))
            self._alone.clear()

    def columns(self) -> list[Longs]:
        """First offsets, end offsets and timestamps, one per batch."""
        self._flush()
        empty = np.empty(0, dtype=np.int64)
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        return columns or [empty] * 3


class LogClock:
    """The times of all batches of a log, or of those from some offset on."""

    def __init__(self, bases: Longs, ends: Longs, stamps: Longs) -> None:
        """Arrays with one item per batch, in log order: first offset, end offset, timestamp."""
        self._bases, self._ends, self._stamps = bases, ends, stamps
        self.is_steady = bool((np.diff(stamps) >= 0).all())
        self._times, self._off = stamps, np.zeros_like(stamps)
        if not self.is_steady:
            self._times, self._off = _times(stamps)
        self._is_odd = np.abs(stamps - self._times) >= JUMP_MS
        self.has_jumps = bool(self._is_odd.any())
        self._starts: list[int] = bases.tolist() if self.has_jumps else []

    @classmethod
    def of(cls, log: MetadataLog, start_offset: int | None = None) -> Self:
        """Reads the headers of a log."""
        stamps = Stamps()
        for item in log.runs(start_offset):
            if not isinstance(item, Damage):
                stamps.take(item)
        return cls(*stamps.columns())

    def time_ms(self, offset: int, stamp_ms: int) -> int:
        """The time of the batch that holds `offset` and has this timestamp."""
        if not self.has_jumps:
            return stamp_ms
        if offset >= self.end_offset:  # written since the clock was read
            return max(int(self._times[-1]), stamp_ms)
        at = bisect_right(self._starts, offset) - 1
        return stamp_ms if at < 0 else int(self._times[at])

    def time_below(self, offset: int, stamp_ms: int) -> int:
        """The time of the last batch below `offset`; a snapshot that ends there has this timestamp."""
        if not len(self._times):
            return stamp_ms
        if offset > self.end_offset:  # the log ends before the snapshot
            return max(int(self._times[-1]), stamp_ms)
        at = int(np.searchsorted(self._bases, offset)) - 1
        time_ms = min(stamp_ms, int(self._times[0])) if at < 0 else int(self._times[at])
        return time_ms if self.has_jumps or abs(time_ms - stamp_ms) >= JUMP_MS else stamp_ms

    def place(self, time_ms: int, *, first: bool = False) -> tuple[Point, ClockShown | None]:
        """The offset for a time: after the last batch that is not later or, with `first`, before the first
        that is not earlier. Also returns what to report if timestamps contradict that. Without batches, the
        place stays a time."""
        if not len(self._times):
            return Point(time_ms=time_ms), None
        at = int(np.searchsorted(self._times, time_ms, side="left" if first else "right"))
        edge = int(self._ends[-1]) if at == len(self._times) else int(self._bases[at])
        before = np.arange(len(self._stamps)) < at
        late = self._stamps >= time_ms if first else self._stamps > time_ms
        odd = np.flatnonzero((before == late) & (np.abs(self._off) >= JUMP_MS))
        if not len(odd):
            return Point(offset=edge), None
        shown = ClockShown(
            asked=time_ms,
            offset=edge,
            atomic=CLOCK,
            first=int(self._bases[odd[0]]),
            last=int(self._ends[odd[-1]]) - 1,
            batches=len(odd),
            stamp_ms=int(self._stamps[odd[0]]),
        )
        return Point(offset=edge), shown

    def series(self) -> tuple[Longs, Longs]:
        """First offset and time (Unix ms) of every batch, in log order. Times never decrease."""
        return self._bases, self._times

    def around(self, start: int, end: int, beside_ms: int) -> tuple[int, int]:
        """From and up to which offset the batches are that hold the offsets from `start` up to `end`, and
        those up to `beside_ms` before and after them. A range without batches stays as it is."""
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._bases, end)) - 1
        if start >= end or first > last:
            return start, end
        low = int(np.searchsorted(self._times, self._times[first] - beside_ms))
        high = int(np.searchsorted(self._times, self._times[last] + beside_ms, side="right")) - 1
        return int(self._bases[low]), int(self._ends[high])

    @property
    def first_ms(self) -> int | None:
        """When the log begins; None if it has no batch."""
        return int(self._times[0]) if len(self._times) else None

    @property
    def last_ms(self) -> int | None:
        """When the log ends; None if it has no batch."""
        return int(self._times[-1]) if len(self._times) else None

    @property
    def end_offset(self) -> int:
        """The offset after the last batch."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def jumps(self) -> Iterator[Jump]:
        """Odd batches that are off by at least JUMP_MS, consecutive ones as one jump."""
        off = self._off
        odd = np.flatnonzero(np.abs(off) >= JUMP_MS)
        cuts = np.flatnonzero((np.diff(odd) > 1) | (np.diff(np.sign(off[odd])) != 0)) + 1
        for rows in np.split(odd, cuts):
            if len(rows):
                worst = int(rows[np.argmax(np.abs(off[rows]))])
                first, last = int(self._bases[rows[0]]), int(self._ends[rows[-1]]) - 1
                stamp, time = int(self._stamps[worst]), int(self._times[worst])
                yield Jump(first, last, len(rows), stamp, time, int(off[worst]))

    def turns(self, gap_ms: int) -> Longs:
        """The end offsets of batches with which the clock begins or ends to be off by JUMP_MS, or which are
        more than `gap_ms` after the one before them. Empty if the clock does not jump."""
        if not self.has_jumps:
            return self._ends[:0]
        turned = np.diff(self._is_odd, prepend=False) | (
            np.diff(self._times, prepend=self._times[:1]) > gap_ms
        )
        ends: Longs = self._ends[turned]
        return ends

    def jumps_ahead(self, at_least_ms: int) -> Iterator[tuple[int, int, int]]:
        """(offset, time before, time there) wherever time advances at least this much from
        one batch to the next."""
        for at in np.flatnonzero(np.diff(self._times) >= at_least_ms).tolist():
            yield int(self._bases[at + 1]), int(self._times[at]), int(self._times[at + 1])


class RunningClock:
    """The time of each batch for a reader that makes one pass: by the clock of the whole log (`source`),
    which is read before the first batch, so that readers which pass over batches and those which look at each
    agree, and again if the log grows and its timestamps jump. Without a source, every timestamp is taken as
    is."""

    def __init__(self, source: Callable[[], LogClock] | None = None) -> None:
        self._source = source
        self._clock: LogClock | None = None
        self._turns: Longs | None = None
        self._last_ms: int | None = None

    def time_ms(self, offset: int, stamp_ms: int) -> int:
        """The time of the batch that holds `offset` and has this timestamp. Call in log order."""
        clock, last_ms, self._last_ms = self._read(), self._last_ms, stamp_ms
        if clock is None:
            return stamp_ms
        if offset >= clock.end_offset and last_ms is not None:
            step = stamp_ms - last_ms
            if step <= -JUMP_MS or step >= MISLEADING_MS:
                clock = self._read(again=True) or clock
        return clock.time_ms(offset, stamp_ms)

    def times_ms(self, offsets: Longs, stamps: Longs) -> Longs:
        """The same for consecutive batches."""
        clock = self._read()
        if clock is not None and (clock.has_jumps or int(offsets[-1]) >= clock.end_offset):
            stamped = zip(offsets.tolist(), stamps.tolist(), strict=True)
            return np.array([self.time_ms(offset, stamp) for offset, stamp in stamped], dtype=np.int64)
        self._last_ms = int(stamps[-1])
        return stamps

    @property
    def has_jumps(self) -> bool:
        """Whether the clock of the log jumps; False before the first batch."""
        return self._clock is not None and self._clock.has_jumps

    def turns(self, first: int, end: int, gap_ms: int) -> frozenset[int]:
        """`LogClock.turns` of the batches from offset `first` up to `end`."""
        clock = self._read()
        if clock is None:
            return frozenset()
        if clock.has_jumps and end > clock.end_offset:
            clock = self._read(again=True) or clock
        if self._turns is None:
            self._turns = clock.turns(gap_ms)
        low, high = np.searchsorted(self._turns, (first, end), side="right")
        return frozenset(self._turns[low:high].tolist())

    def _read(self, *, again: bool = False) -> LogClock | None:
        if self._source is not None and (again or self._clock is None):
            self._clock, self._turns = self._source(), None
        return self._clock


def clock_of(log: MetadataLog) -> LogClock:
    """The clock of a log, read once as long as the log does not grow."""
    size = log.size_bytes()
    known = _KNOWN.get(log)
    if known is None or known[0] != size:
        known = _KNOWN[log] = size, LogClock.of(log)
    return known[1]


def on_clock(log: MetadataLog, image: MetadataImage) -> MetadataImage:
    """The image of a snapshot of this log, with its time corrected if the clock of the log jumps."""
    if log.is_checkpoint:
        return image
    provenance = image.provenance
    time_ms = clock_of(log).time_below(provenance.offset, provenance.timestamp_ms)
    if time_ms == provenance.timestamp_ms:
        return image
    return image.with_provenance(Provenance(provenance.offset, provenance.epoch, time_ms))


_KNOWN: WeakKeyDictionary[MetadataLog, tuple[int, LogClock]] = WeakKeyDictionary()


def _times(stamps: Longs) -> tuple[Longs, Longs]:
    """The timestamps, with those outside the longest non-decreasing series moved into it, and how
    far off each was. Batches without a time (below 0) never count and take the time of the
    counting batch before them."""
    counts = np.flatnonzero(stamps >= 0)
    chosen = counts[longest_series(stamps[counts].tolist())]
    if not len(chosen):
        return stamps, np.zeros_like(stamps)
    places = np.searchsorted(chosen, np.arange(len(stamps)), side="right") - 1
    before = stamps[chosen[np.maximum(places, 0)]]
    behind = stamps[chosen[np.minimum(places + 1, len(chosen) - 1)]]
    ahead = np.where(stamps > behind, stamps - behind, 0)
    off = np.where(stamps < before, stamps - before, ahead)
    off[stamps < 0] = 0
    times = before.copy()
    odd = np.flatnonzero(off)
    other = (np.diff(places[odd]) != 0) | (np.diff(np.sign(off[odd])) != 0)
    cuts = np.flatnonzero(other | (np.diff(stamps[odd]) <= -JUMP_MS)) + 1
    for rows in np.split(odd, cuts):
        if len(rows):
            moved = stamps[rows] - off[rows][np.argmax(np.abs(off[rows]))]
            if off[rows[0]] < 0:  # the clock may have run backwards before: behind what was stamped then
                moved += times[rows[0] - 1] - before[rows[0]]
            low = before[rows[0]] if places[rows[0]] >= 0 else None
            high = behind[rows[0]] if places[rows[0]] + 1 < len(chosen) else None
            times[rows] = np.clip(moved, low, high)
    return np.maximum.accumulate(times), off


def longest_series(stamps: Sequence[int], *, rises: bool = False) -> list[int]:
    """Positions of the longest series that never decreases or, with `rises`, that always increases; of
    several, the one with the lowest end."""
    find = bisect_left if rises else bisect_right
    tails: list[int] = []
    ends: list[int] = []
    before = [-1] * len(stamps)
    for number, stamp in enumerate(stamps):
        length = find(tails, stamp)
        if length:
            before[number] = ends[length - 1]
        if length == len(tails):
            tails.append(stamp)
            ends.append(number)
        else:
            tails[length], ends[length] = stamp, number
    chosen = []
    number = ends[-1] if ends else -1
    while number >= 0:
        chosen.append(number)
        number = before[number]
    return chosen[::-1]

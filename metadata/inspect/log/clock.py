"""The clock of a log: what time it was at each batch, where the stamps of the batches jump.

The definition, the same for all tools: of the stamps in log order, the longest series that never falls
counts. A batch outside it is *odd*: it was stamped by a clock that was set wrong for a while, or by a node
whose clock lags. Odd batches in a row are moved together, by the least that brings them between the counting
batches around them: what lies between them stays, where there is room. So one batch stamped six years ahead
does not order what is after it. Where stamps never fall, every batch has its own. Knows headers only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image import MetadataImage, Provenance
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.places import ShownAs
from metaquorum.metadata.inspect.log.points import Point, utc_text
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun

JUMP_MS = 1_000
"""Stamps that are this far off are reported; less is the difference between the clocks of two controllers."""

LEAP_MS = 60_000
"""A step ahead that makes who reads a log once look whether the stamps fall back later."""

CLOCK = "clock"
Longs = npt.NDArray[np.int64]


class Jump(NamedTuple):
    """Batches in a row that are odd in the same direction: offsets from `first` to `last` (both included),
    `batches` of them. `stamp_ms` is the stamp that is furthest off, `time_ms` the time that it counts as,
    `off_ms` how far it is ahead of the counting batch after it, or (below 0) behind the one before it."""

    first: int
    last: int
    batches: int
    stamp_ms: int
    time_ms: int

    off_ms: int


class ClockShown(ShownAs, frozen=True, kw_only=True):
    """A time in a log whose clock jumps: it was taken for an offset. `asked` is the time (Unix ms); the odd
    batches from `first` to `last`, `batches` of them, are on another side of the place than their stamps say;
    `stamp_ms` is the first one's."""

    batches: int
    stamp_ms: int

    @property
    def text(self) -> str:
        which = f"offset {self.first} counts where it stands"
        if self.batches > 1:
            which = f"{self.batches} batches from offset {self.first} on count where they stand"
        return (
            f"the clock of the log jumps: {which}, though stamped {utc_text(self.stamp_ms)};"
            f" {utc_text(self.asked)} is taken for offset {self.offset}"
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
    """Collects what a clock is made of, from the batches of a log in their order."""

    def __init__(self) -> None:
        self._parts: list[tuple[Longs, Longs, Longs]] = []
        self._alone: list[tuple[int, int, int]] = []

    def take(self, item: RecordBatch | BatchRun) -> None:
        """What comes next in the log."""
        if isinstance(item, BatchRun):
            self._flush()
            bases = np.arange(item.base_offset, item.next_offset, dtype=np.int64)
            self._parts.append((bases, bases + 1, item.timestamps_ms()))
        else:
            header = item.header
            self._alone.append((header.base_offset, header.next_offset, header.max_timestamp_ms))

    def _flush(self) -> None:
        if self._alone:
            made = np.array(self._alone, dtype=np.int64).T
            self._parts.append((made[0], made[1], made[2]))
            self._alone.clear()

    def columns(self) -> list[Longs]:
        """First offsets, offsets behind the last, stamps: an item per batch."""
        self._flush()
        empty = np.empty(0, dtype=np.int64)
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        return columns or [empty] * 3


class LogClock:
    """The times of all batches of a log, or of those from an offset on."""

    def __init__(self, bases: Longs, ends: Longs, stamps: Longs) -> None:
        """Arrays with an item per batch, in log order: first offset, offset behind the last, stamp."""
        self._bases, self._ends, self._stamps = bases, ends, stamps
        self.is_steady = bool((np.diff(stamps) >= 0).all())
        self._times, self._off = stamps, np.zeros_like(stamps)
        if not self.is_steady:
            self._times, self._off = _times(stamps)
        self._starts: list[int] = [] if self.is_steady else bases.tolist()

    @classmethod
    def of(cls, log: MetadataLog, start_offset: int | None = None) -> Self:
        """Reads the headers of a log."""
        stamps = Stamps()
        for item in log.runs(start_offset):
            if not isinstance(item, Damage):
                stamps.take(item)
        return cls(*stamps.columns())

    def time_ms(self, offset: int, stamp_ms: int) -> int:
        """What time it was at the batch that holds `offset`, whose stamp this is."""
        if self.is_steady:
            return stamp_ms
        at = bisect_right(self._starts, offset) - 1
        return stamp_ms if at < 0 else int(self._times[at])

    def time_below(self, offset: int, stamp_ms: int) -> int:
        """What time it was at the last batch below `offset`, which a snapshot that ends there stamps so."""
        if not len(self._times):
            return stamp_ms
        at = int(np.searchsorted(self._bases, offset)) - 1
        return min(stamp_ms, int(self._times[0])) if at < 0 else int(self._times[at])

    def place(self, time_ms: int, *, first: bool = False) -> tuple[Point, ClockShown | None]:
        """The offset that a time stands for: behind the last batch that is not later; with `first`, before
        the first one that is not earlier. And what to say where stamps contradict that."""
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

    @property
    def first_ms(self) -> int | None:
        """When the log begins; None for one without a batch."""
        return int(self._times[0]) if len(self._times) else None

    @property
    def last_ms(self) -> int | None:
        """When the log ends; None for one without a batch."""
        return int(self._times[-1]) if len(self._times) else None

    @property
    def end_offset(self) -> int:
        """Behind the last batch."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def jumps(self) -> Iterator[Jump]:
        """Odd batches that are off by JUMP_MS and more, those in a row together."""
        off = self._off
        odd = np.flatnonzero(np.abs(off) >= JUMP_MS)
        cuts = np.flatnonzero((np.diff(odd) > 1) | (np.diff(np.sign(off[odd])) != 0)) + 1
        for rows in np.split(odd, cuts):
            if len(rows):
                worst = int(rows[np.argmax(np.abs(off[rows]))])
                first, last = int(self._bases[rows[0]]), int(self._ends[rows[-1]]) - 1
                stamp, time = int(self._stamps[worst]), int(self._times[worst])
                yield Jump(first, last, len(rows), stamp, time, int(off[worst]))

    def leaps(self, at_least_ms: int) -> Iterator[tuple[int, int, int]]:
        """(offset, time before, time there) where the time goes ahead by so much between two batches."""
        for at in np.flatnonzero(np.diff(self._times) >= at_least_ms).tolist():
            yield int(self._bases[at + 1]), int(self._times[at]), int(self._times[at + 1])


class RunningClock:
    """The time at each batch for who goes through a log once: headers are read ahead (`source`) only where a
    stamp falls, or leaps ahead by LEAP_MS and more. Without a source every stamp is taken as it is."""

    def __init__(self, source: Callable[[], LogClock] | None = None) -> None:
        self._source = source
        self._clock: LogClock | None = None
        self._last_ms: int | None = None

    def time_ms(self, offset: int, stamp_ms: int) -> int:
        """What time it was at the batch that holds `offset`; to be asked in log order."""
        if self._clock is None and self._source is not None and self._last_ms is not None:
            step = stamp_ms - self._last_ms
            if step <= -JUMP_MS or step >= LEAP_MS:
                self._clock = self._source()
        self._last_ms = stamp_ms
        return stamp_ms if self._clock is None else self._clock.time_ms(offset, stamp_ms)

    @property
    def is_steady(self) -> bool:
        """Whether the stamps that were seen gave no cause to read ahead, or what was read shows no jump."""
        return self._clock is None or self._clock.is_steady

    def ahead(self, offsets: Longs, stamps: Longs) -> Callable[[int, int], int]:
        """As `time_ms` was asked for all of these batches, in order; what it would have said of each."""
        counts_from = 0
        if self._clock is None:
            steps = np.diff(stamps, prepend=stamps[:1] if self._last_ms is None else self._last_ms)
            jumps = np.flatnonzero((steps <= -JUMP_MS) | (steps >= LEAP_MS))
            if self._source is not None and len(jumps):
                self._clock, counts_from = self._source(), int(offsets[jumps[0]])
        self._last_ms = int(stamps[-1])
        clock = self._clock

        def time_ms(offset: int, stamp_ms: int) -> int:
            return stamp_ms if clock is None or offset < counts_from else clock.time_ms(offset, stamp_ms)

        return time_ms


def clock_of(log: MetadataLog) -> LogClock:
    """The clock of a log, read once as long as the log does not grow."""
    size = log.size_bytes()
    known = _KNOWN.get(log)
    if known is None or known[0] != size:
        known = _KNOWN[log] = size, LogClock.of(log)
    return known[1]


def on_clock(log: MetadataLog, image: MetadataImage) -> MetadataImage:
    """The image of a snapshot of this log with the time that it was there, where stamps jump: the clock is
    read only if the next batch contradicts the snapshot's stamp, or if it is known already."""
    place = image.provenance
    behind = next((one for one in log.batches(place.offset) if isinstance(one, RecordBatch)), None)
    step = 0 if behind is None else behind.header.max_timestamp_ms - place.timestamp_ms
    if log.is_checkpoint or (-JUMP_MS < step < LEAP_MS and log not in _KNOWN):
        return image
    time_ms = clock_of(log).time_below(place.offset, place.timestamp_ms)
    return image.with_provenance(Provenance(place.offset, place.epoch, time_ms))


_KNOWN: WeakKeyDictionary[MetadataLog, tuple[int, LogClock]] = WeakKeyDictionary()


def _times(stamps: Longs) -> tuple[Longs, Longs]:
    """The stamps, those outside the longest series that never falls moved into it; and how far these are off.
    Batches without a time (below 0) never count, and have that of the counting batch before them."""
    counts = np.flatnonzero(stamps >= 0)
    chosen = counts[_longest(stamps[counts].tolist())]
    if not len(chosen):
        return stamps, np.zeros_like(stamps)
    places = np.searchsorted(chosen, np.arange(len(stamps)), side="right") - 1
    before = stamps[chosen[np.maximum(places, 0)]]
    behind = stamps[chosen[np.minimum(places + 1, len(chosen) - 1)]]
    ahead = np.where(stamps > behind, stamps - behind, 0)
    off = np.where(stamps < before, stamps - before, ahead)
    off[chosen] = 0
    off[stamps < 0] = 0
    times = before.copy()
    odd = np.flatnonzero(off)
    cuts = np.flatnonzero((np.diff(places[odd]) != 0) | (np.diff(np.sign(off[odd])) != 0)) + 1
    for rows in np.split(odd, cuts):
        if len(rows):
            moved = stamps[rows] - off[rows][np.argmax(np.abs(off[rows]))]
            low = before[rows[0]] if places[rows[0]] >= 0 else None
            high = behind[rows[0]] if places[rows[0]] + 1 < len(chosen) else None
            times[rows] = np.clip(moved, low, high)
    return np.maximum.accumulate(times), off


def _longest(stamps: list[int]) -> list[int]:
    """Places of the longest series that never falls; of several, the one that ends lowest."""
    tails: list[int] = []
    ends: list[int] = []
    before = [-1] * len(stamps)
    for at, stamp in enumerate(stamps):
        place = bisect_right(tails, stamp)
        if place:
            before[at] = ends[place - 1]
        if place == len(tails):
            tails.append(stamp)
            ends.append(at)
        else:
            tails[place], ends[place] = stamp, at
    chosen = []
    at = ends[-1] if ends else -1
    while at >= 0:
        chosen.append(at)
        at = before[at]
    return chosen[::-1]

"""One node's log, read beside others: its next batch, what it lacks, and what was damaged.

A log in which offsets or epochs run backwards is `mended` first: neither is covered by a batch's CRC, and
copies of whole batches are valid as well. As with the clock, the longest series of batches counts whose
offsets rise and whose epochs never fall; the rest is left out, and the other nodes have it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator

import msgspec

from metaquorum.metadata.inspect.log.clock import longest_series
from metaquorum.metadata.inspect.log.coverage import offsets_text
from metaquorum.metadata.inspect.log.log import MetadataLog, damage_line
from metaquorum.metadata.inspect.nodes.voter_sets import VoterSets
from metaquorum.metadata.inspect.walk.rewrite import with_header
from metaquorum.metadata.inspect.walk.sound_headers import fitting_header
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun

SHOWN_PROBLEMS = 20
Content = RecordBatch | BatchRun


class OutOfOrderError(Exception):
    """The offsets or epochs of log number `number` run backwards: it has to be mended before it is compared.
    Internal to this package."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Mending(msgspec.Struct, frozen=True):
    """What to change in a log while it is read, by the number of the batch in it: base offset and leader
    epoch, or None to leave the batch out. `problems` are lines about it."""

    changes: dict[int, tuple[int, int] | None]
    problems: list[str]

    def runs(self, log: MetadataLog) -> Iterator[RecordBatch | BatchRun | Damage]:
        """All of the log, mended."""
        numbers = sorted(self.changes)
        number = 0
        for item in log.runs():
            if isinstance(item, Damage):
                yield item
                continue
            count = item.batches_count if isinstance(item, BatchRun) else 1
            inside = numbers[bisect_left(numbers, number) : bisect_left(numbers, number + count)]
            low = 0
            for changed in inside:
                at = changed - number
                if low < at and isinstance(item, BatchRun):
                    yield item.part(low, at)
                batch = next(item.part(at, at + 1).batches()) if isinstance(item, BatchRun) else item
                header = self.changes[changed]
                if header is not None:
                    base_offset, epoch = header
                    yield with_header(
                        batch, batch.header._replace(base_offset=base_offset, leader_epoch=epoch)
                    )
                low = at + 1
            if low < count:
                yield item.part(low, count) if low and isinstance(item, BatchRun) else item
            number += count


def mend(log: MetadataLog, name: str) -> Mending:
    """How to read a log whose offsets or epochs run backwards. Reads all headers."""
    bases: list[int] = []
    ends: list[int] = []
    epochs: list[int] = []
    controls: set[int] = set()
    for item in log.runs():
        if isinstance(item, BatchRun):
            bases += item.offsets[:-1].tolist()
            ends += item.offsets[1:].tolist()
            epochs += item.epochs().tolist()
        elif isinstance(item, RecordBatch):
            if item.header.is_control:
                controls.add(len(bases))
            bases.append(item.header.base_offset)
            ends.append(item.header.next_offset)
            epochs.append(item.header.leader_epoch)
    changes: dict[int, tuple[int, int] | None] = {}
    problems: list[str] = []
    places = sorted(zip(bases, ends, strict=True))
    expected, before = log.start_offset, 0
    for at in range(len(bases) - 1):
        base, end, epoch = bases[at], ends[at], epochs[at]
        own, after = (base, end - base, epoch, at in controls), (bases[at + 1], epochs[at + 1])
        right = fitting_header(own, (*after, at + 1 in controls), expected, before)
        if right[0] != base and not _is_elsewhere(base, places):
            right = base, right[1]  # two batches are swapped
        if right != (base, epoch):
            changes[at] = bases[at], epochs[at] = right
            ends[at] = bases[at] + end - base
            words = ("base offset", base, right[0]), ("leader epoch", epoch, right[1])
            changed = "; ".join(
                f"{what} {old} is put back to {new}" for what, old, new in words if old != new
            )
            problems.append(f"{name}: the header of the batch at offset {bases[at]} is damaged: {changed}")
        expected, before = ends[at], epochs[at]
    kept = _in_order(bases, ends, epochs)
    left_out = sorted(set(range(len(bases))).difference(kept))
    changes |= dict.fromkeys(left_out)
    problems += _left_out(name, left_out, bases, ends, epochs)
    return Mending(changes, problems)


def _is_elsewhere(base: int, places: list[tuple[int, int]]) -> bool:
    """Whether the log has an offset in another batch than the one that begins there, or ends before it."""
    at = bisect_left(places, (base, 0))
    is_twice = at + 1 < len(places) and places[at + 1][0] == base
    return is_twice or at + 1 == len(places) or (at > 0 and places[at - 1][1] > base)


def _in_order(bases: list[int], ends: list[int], epochs: list[int]) -> list[int]:
    """The numbers of the batches that count."""
    kept: list[int] = []
    end = 0
    for at in longest_series(bases, rises=True):
        if bases[at] >= end:
            kept.append(at)
            end = ends[at]
    return [kept[at] for at in longest_series([epochs[at] for at in kept])]


def _left_out(
    name: str, numbers: list[int], bases: list[int], ends: list[int], epochs: list[int]
) -> Iterator[str]:
    """A line for each series of batches that follow each other."""
    first = 0
    for at, number in enumerate(numbers):
        if at + 1 < len(numbers) and numbers[at + 1] == number + 1 and bases[number + 1] == ends[number]:
            continue
        begin = numbers[first]
        after = f" after offset {ends[begin - 1] - 1}" if begin else ""
        what = f"{offsets_text(bases[begin], ends[number])} of epoch {epochs[begin]}"
        yield f"{name}: out of place{after}, and left out: {what}"
        first = at + 1


class NodeStream:
    """`current` is the next item: a batch, or a run of one-record batches; None after the last. Raises
    OutOfOrderError where offsets or epochs run backwards, unless the log is mended."""

    def __init__(self, log: MetadataLog, number: int, mending: Mending | None = None) -> None:
        self.number = number
        self.mending = mending
        self.problems: list[str] = [] if mending is None else mending.problems[:SHOWN_PROBLEMS]
        self.missing: list[tuple[int, int]] = []
        self.start_offset = self.end_offset = log.start_offset
        self.last_epoch = 0
        self.epochs = EpochTable()
        self.sets = VoterSets(log)
        self.was_put_right = False
        self._source: Iterator[RecordBatch | BatchRun | Damage] = (
            log.runs() if mending is None else mending.runs(log)
        )
        self._ahead: deque[Content] = deque()
        self.current: Content | None = None
        self._take()

    @property
    def base(self) -> int:
        """The next offset; valid only while `current` is not None."""
        current = self.current
        if current is None:
            raise RuntimeError("a log that ended has no next offset")
        return current.base_offset if isinstance(current, BatchRun) else current.header.base_offset

    @property
    def next_offset(self) -> int:
        current = self.current
        if current is None:
            return self.end_offset
        return current.next_offset if isinstance(current, BatchRun) else current.header.next_offset

    @property
    def is_run(self) -> bool:
        return isinstance(self.current, BatchRun)

    @property
    def epoch(self) -> int:
        """The leader epoch of the next item."""
        current = self.current
        if current is None:
            return self.last_epoch
        return current.epoch if isinstance(current, BatchRun) else current.header.leader_epoch

    @property
    def content(self) -> bytes:
        return bytes(self.current.data) if isinstance(self.current, RecordBatch) else b""

    def split(self) -> None:
        """Splits a run into its batches."""
        if isinstance(self.current, BatchRun):
            self._ahead.extendleft(reversed(list(self.current.batches())))
            self.current = self._ahead.popleft()

    def advance(self) -> None:
        """Moves past the current item; what is between it and the next one is missing here."""
        if self.epoch != self.last_epoch or not self.epochs.entries:
            self.epochs = self.epochs.append(self.epoch, self.base)
        if isinstance(self.current, RecordBatch):  # a run has no control batch
            self.sets.take(self.current)
        self.last_epoch = self.epoch
        self.end_offset = max(self.end_offset, self.next_offset)
        self._take()

    def skip_below(self, offset: int) -> None:
        """Skips items that go back to offsets already read."""
        while self.current is not None and self.base < offset:
            if self.is_run:
                self.split()
                continue
            self.problem(f"offset {self.base} appears again after offset {offset - 1}")
            self._take()

    def run_out(self) -> None:
        """Reads to the end without comparing."""
        while self.current is not None:
            self.advance()

    def put_right(self, batch: RecordBatch, line: str) -> None:
        """Takes another node's batch for the current one: only the header is damaged here."""
        if self.missing and self.missing[-1] == (self.end_offset, self.base):
            self.missing.pop()
        self.problem(line)
        self.current, self.was_put_right = batch, True

    def problem(self, line: str) -> None:
        if len(self.problems) < SHOWN_PROBLEMS:
            self.problems.append(line)

    def _take(self) -> None:
        self.was_put_right = False
        self.current = self._next()
        if self.current is None:
            return
        first = (
            next(self.current.part(0, 1).batches()) if isinstance(self.current, BatchRun) else self.current
        )
        falls = self.base < self.end_offset or first.header.leader_epoch < self.last_epoch
        if falls and self.mending is None:
            raise OutOfOrderError(self.number)
        if self.base > self.end_offset:
            self.missing.append((self.end_offset, self.base))

    def _next(self) -> Content | None:
        if self._ahead:
            return self._ahead.popleft()
        for item in self._source:
            if not isinstance(item, Damage):
                return item
            if not item.reason.startswith(("expected base offset", "expected leader epoch")):
                self.problem(damage_line(item))
        return None

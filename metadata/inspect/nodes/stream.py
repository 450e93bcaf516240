"""One node's log, read beside others: its next batch, what it lacks, and what was damaged.

Owns what is next in this log, and the lines about its damage. Knows nothing of the other logs: `merge`
compares. A damaged base offset or epoch is corrected from the next batch, as in a repair.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from metaquorum.metadata.inspect.log.log import MetadataLog, damage_line
from metaquorum.metadata.inspect.nodes.voter_sets import VoterSets
from metaquorum.metadata.inspect.walk.sound_headers import put_right
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.format import parse_header
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun

SHOWN_PROBLEMS = 20
Content = RecordBatch | BatchRun


class NodeStream:
    """`current` is the next item: a batch, or a run of one-record batches; None after the last."""

    def __init__(self, log: MetadataLog, number: int) -> None:
        self.number = number
        self.problems: list[str] = []
        self.missing: list[tuple[int, int]] = []
        self.start_offset = self.end_offset = log.start_offset
        self.last_epoch = 0
        self.epochs = EpochTable()
        self.sets = VoterSets(log)
        self.was_put_right = False
        self._source: Iterator[RecordBatch | BatchRun | Damage] = log.runs()
        self._ahead: deque[Content] = deque()
        self.current: Content | None = None
        self._take()
        if self.current is not None and self.base > self.start_offset:
            self.missing.append((self.start_offset, self.base))

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
        if self.current is not None and self.base > self.end_offset:
            self.missing.append((self.end_offset, self.base))

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

    def problem(self, line: str) -> None:
        if len(self.problems) < SHOWN_PROBLEMS:
            self.problems.append(line)

    def _take(self) -> None:
        self.was_put_right = False
        self.current = self._next()
        if not isinstance(self.current, RecordBatch):
            return
        following = self._peek()
        if following is None:
            return
        batch, changed = put_right(self.current, following, self.end_offset, self.last_epoch)
        if changed is not None:
            self.problem(
                f"the header of the batch at offset {batch.header.base_offset} is damaged: {changed}"
            )
            self.current, self.was_put_right = batch, True

    def _next(self) -> Content | None:
        if self._ahead:
            return self._ahead.popleft()
        for item in self._source:
            if not isinstance(item, Damage):
                return item
            if not item.reason.startswith("expected base offset"):
                self.problem(damage_line(item))
        return None

    def _peek(self) -> RecordBatch | None:
        """The item after the current one, as its first batch."""
        if not self._ahead:
            found = self._next()
            if found is None:
                return None
            self._ahead.append(found)
        first = self._ahead[0]
        if isinstance(first, RecordBatch):
            return first
        start, end = int(first.places[0]), int(first.places[1])
        return RecordBatch(parse_header(first.data, start), first.data[start:end], start, first.file)

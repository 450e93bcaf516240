"""Where the reader is in a log's batches: what is next, with runs opened as far as a tool needs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import numpy as np

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.walk.batch_filter import RunPart
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun

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

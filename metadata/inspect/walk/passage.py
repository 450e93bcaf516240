"""A single pass over a log's batches: what is next, with runs opened as far as a tool needs them.

`walk.Walk` replays the result; tools that look at records take it `decoded`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import numpy as np

from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, decode_item
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.walk.concern import Stretch
from metaquorum.metadata.replay import Replayer
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import MANY_RECORDS, BatchRun, run_of

Split = Callable[[BatchRun], Iterator[RecordBatch | Stretch]]
"""Which batches of a run are needed one by one. A Split that applies the run itself yields nothing."""
Piece = RecordBatch | Stretch | Damage


class Passage:
    """Goes through a log once, from the batch that holds `start_offset` on."""

    def __init__(self, log: MetadataLog, start_offset: int) -> None:
        self._source: Iterator[RecordBatch | BatchRun | Damage] = log.runs(start_offset or None)
        self._opened: Iterator[RecordBatch | Stretch] = iter(())
        self._ahead: deque[RecordBatch | BatchRun | Stretch | Damage] = deque()
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
            if fits:
                expected = item.next_offset  # if `split` yields nothing, another run may follow
        return item

    def _cut(self, run: BatchRun, offset: int) -> BatchRun | RecordBatch:
        """The part of a run that ends at or before an offset; if there is none, its first batch. The rest
        stays a run, so that a pass with many stops is not slower than one without."""
        count = int(np.searchsorted(run.offsets[1:], offset, side="right"))
        kept = max(count, 1)
        if kept < run.batches_count:
            self._rest.appendleft(run.part(kept, run.batches_count))
        return run.part(0, kept) if count else next(run.part(0, 1).batches())

    def put_back(self, item: RecordBatch) -> None:
        """Makes it the next one again."""
        self._ahead.appendleft(item)

    def put_in(self, parts: Iterable[RecordBatch | Stretch]) -> None:
        """Inserts these before the rest of an opened run."""
        self._opened = chain(parts, self._opened)

    def peek(self) -> RecordBatch | BatchRun | Stretch | None:
        """The next piece after damage; the damage stays in place."""
        read: list[RecordBatch | BatchRun | Stretch | Damage] = []
        while (item := self._take()) is not None:
            read.append(item)
            if not isinstance(item, Damage):
                break
        self._ahead.extendleft(reversed(read))
        return None if isinstance(item, Damage) else item

    def _take(self) -> RecordBatch | BatchRun | Stretch | Damage | None:
        if self._ahead:
            return self._ahead.popleft()
        item = next(self._opened, None)
        if item is None and self._rest:
            return self._rest.popleft()
        return next(self._source, None) if item is None else item


def decoded(
    log: MetadataLog,
    start: int,
    limit: Point,
    split: Split,
    is_passed: Callable[[RecordBatch], bool] | None = None,
) -> Iterator[ReadBatch | RecordBatch | Stretch | Damage]:
    """What `log.items` yields from `start` on, with stretches wherever `split` yields them: a large batch is
    split like a run. A single batch that `is_passed` accepts stays undecoded."""
    if log.is_checkpoint:
        yield from log.items(start or None)
        return
    passage, expected = Passage(log, start), start
    while (piece := passage.next(expected, limit, split)) is not None:
        if isinstance(piece, Stretch):
            expected = piece.next_offset
            yield piece
        elif is_passed is not None and isinstance(piece, RecordBatch) and is_passed(piece):
            expected = piece.header.next_offset
            yield piece
        else:
            for part in _parts(piece, expected, limit, split):
                for item in (part,) if isinstance(part, Stretch) else decode_item(part):
                    if not isinstance(item, Damage):
                        expected = place_of(item)[1]
                    yield item


def _parts(
    piece: RecordBatch | Damage, expected: int, limit: Point, split: Split
) -> Iterator[RecordBatch | Stretch | Damage]:
    """A large batch that follows and is before the limit, as `split` has it; anything else as it is."""
    large = isinstance(piece, RecordBatch) and piece.header.records_count >= MANY_RECORDS
    run = run_of(piece) if large and isinstance(piece, RecordBatch) else None
    if run is not None and run.base_offset == expected and is_before(run, limit):
        yield from split(run)
    else:
        yield piece


def place_of(item: ReadBatch | RecordBatch | Stretch) -> tuple[int, int, int]:
    """First offset, offset after the last one, time."""
    if isinstance(item, Stretch):
        return item.base_offset, item.next_offset, item.time_ms
    header = item.batch.header if isinstance(item, ReadBatch) else item.header
    return header.base_offset, header.next_offset, header.max_timestamp_ms


def is_before(run: BatchRun, limit: Point) -> bool:
    """Whether a whole run is before a place."""
    if limit.time_ms is None:
        return limit.covers(run.next_offset, 0)
    return limit.covers(run.next_offset, int(run.timestamps_ms().max()))


def apply_anywhere(engine: Replayer, batch: RecordBatch) -> str | None:
    """Applies a batch at its own offset, whatever is missing before it; does nothing if it was already
    replayed. Returns what is wrong with a batch whose records cannot be read; replay then continues after
    it."""
    header = batch.header
    if header.next_offset <= engine.end_offset:
        return None
    engine.builder.offset = header.base_offset
    try:
        engine.apply_batch(batch)
    except (BatchError, RecordDecodeError) as error:
        engine.builder.offset, engine.builder.epoch = header.next_offset, header.leader_epoch
        return str(error)
    return None

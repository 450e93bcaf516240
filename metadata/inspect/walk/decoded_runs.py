"""A log as batches for tools that look at records: decoded where a tool needs them, in stretches where not.

Owns the step from runs of one-record batches to those; what a tool needs it says itself. Knows no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, decode_item
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.walk.concern import Stretch
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun


def place_of(item: ReadBatch | RecordBatch | Stretch) -> tuple[int, int, int]:
    """First offset, offset after the last one, time."""
    if isinstance(item, Stretch):
        return item.base_offset, item.next_offset, item.time_ms
    header = item.batch.header if isinstance(item, ReadBatch) else item.header
    return header.base_offset, header.next_offset, header.max_timestamp_ms


def decoded_runs(
    log: MetadataLog,
    start: int,
    point: Point,
    split: Callable[[BatchRun], Iterator[RecordBatch | Stretch]],
    is_passed: Callable[[RecordBatch], bool] | None = None,
) -> Iterator[ReadBatch | RecordBatch | Stretch | Damage]:
    """What `log.items` gives from `start` on, but for runs of batches that follow what was read and that end
    before `point`: `split` says which of them come decoded. A batch alone that `is_passed` comes as it is."""
    if log.is_checkpoint:
        yield from log.items(start or None)
        return
    expected = start
    for found in log.runs(start or None):
        parts: Iterable[RecordBatch | Stretch | Damage]
        if not isinstance(found, BatchRun):
            parts = (found,)
        elif found.base_offset == expected and is_before(found, point):
            parts = split(found)
        else:
            parts = found.batches()
        for part in parts:
            if isinstance(part, Stretch):
                expected = part.next_offset
                yield part
            elif is_passed is not None and isinstance(part, RecordBatch) and is_passed(part):
                expected = part.header.next_offset
                yield part
            else:
                for item in decode_item(part):
                    if isinstance(item, ReadBatch):
                        expected = item.batch.header.next_offset
                    yield item


def is_before(run: BatchRun, point: Point) -> bool:
    """Whether all of a run is before a place."""
    if point.offset is not None:
        return run.next_offset <= point.offset
    return point.time_ms is None or int(run.timestamps_ms().max()) <= point.time_ms

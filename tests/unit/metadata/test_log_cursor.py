"""The one way through a log: runs are opened by who needs them, and what is put back comes again."""

from __future__ import annotations

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.walk.batch_filter import RunPart
from metaquorum.metadata.inspect.walk.log_replay import as_one
from metaquorum.metadata.inspect.walk.reader import LogCursor
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.runs import MIN_BATCHES, BatchRun
from tests.unit.metadata.made_logs import flip, make_node, memory_disk

SEGMENT = MIN_BATCHES + 8
BATCHES = [(1, [NoOpRecord()]) for _ in range(3 * SEGMENT)]


def log_of_three_runs() -> MetadataLog:
    return make_node(memory_disk(), BATCHES, per_segment=SEGMENT).log


def test_every_run_that_follows_comes_as_one() -> None:
    cursor, offset, taken = LogCursor(log_of_three_runs(), 0), 0, list[tuple[int, int]]()
    while (item := cursor.next(offset, END, as_one)) is not None:
        assert isinstance(item, RunPart), "no batch is left to come alone"
        taken.append((item.base_offset, item.next_offset))
        offset = item.next_offset
    assert taken == [(0, SEGMENT), (SEGMENT, 2 * SEGMENT), (2 * SEGMENT, 3 * SEGMENT)]


def test_a_run_is_cut_at_the_limit_and_its_rest_stays_a_run() -> None:
    limit = Point(offset=SEGMENT + 1)
    cursor = LogCursor(log_of_three_runs(), 0)
    first, second = cursor.next(0, limit, as_one), cursor.next(SEGMENT, limit, as_one)
    assert isinstance(first, RunPart) and first.next_offset == SEGMENT
    assert isinstance(second, RunPart) and second.next_offset == SEGMENT + 1
    batch = cursor.next(SEGMENT + 1, limit, as_one)
    assert isinstance(batch, RecordBatch) and batch.header.base_offset == SEGMENT + 1, "the first one past it"
    cursor.put_back(batch)
    assert cursor.next(SEGMENT + 1, END, as_one) == batch
    rest = cursor.next(SEGMENT + 2, END, as_one)
    assert isinstance(rest, RunPart) and (rest.base_offset, rest.next_offset) == (SEGMENT + 2, 2 * SEGMENT)
    last = cursor.next(2 * SEGMENT, END, as_one)
    assert isinstance(last, RunPart) and last.next_offset == 3 * SEGMENT


def test_what_is_put_back_or_looked_at_comes_again() -> None:
    node = make_node(memory_disk(), BATCHES[:4], per_segment=10)
    flip(node, 2)
    cursor = LogCursor(node.log, 0)
    first = cursor.next(0, END, BatchRun.batches)
    assert isinstance(first, RecordBatch)
    cursor.put_back(first)
    assert cursor.next(0, END, BatchRun.batches) == first
    assert isinstance(cursor.next(1, END, BatchRun.batches), RecordBatch)
    ahead = cursor.peek()
    assert isinstance(ahead, RecordBatch) and ahead.header.base_offset == 3, "behind the damage"
    rest = []
    while (item := cursor.next(2, END, BatchRun.batches)) is not None:
        rest.append(item)
    assert rest[-1] == ahead and len(rest) > 1, "the damage before it is still told"

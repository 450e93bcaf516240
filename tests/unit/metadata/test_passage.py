"""The one way through a log: runs are opened by who needs them, and what is put back comes again."""

from __future__ import annotations

from collections.abc import Iterator

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.walk.concern import Stretch
from metaquorum.metadata.inspect.walk.passage import Passage
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.runs import MIN_BATCHES, BatchRun
from tests.unit.metadata.made_logs import flip, make_node, memory_disk

SEGMENT = MIN_BATCHES + 8
BATCHES = [(1, [NoOpRecord()]) for _ in range(3 * SEGMENT)]


def log_of_three_runs() -> MetadataLog:
    return make_node(memory_disk(), BATCHES, per_segment=SEGMENT).log


def test_every_run_that_follows_is_given_to_who_applies_runs() -> None:
    taken: list[tuple[int, int]] = []

    def apply(run: BatchRun) -> Iterator[RecordBatch | Stretch]:
        taken.append((run.base_offset, run.next_offset))
        return iter(())

    assert Passage(log_of_three_runs(), 0).next(0, END, apply) is None, "no batch is left to come alone"
    assert taken == [(0, SEGMENT), (SEGMENT, 2 * SEGMENT), (2 * SEGMENT, 3 * SEGMENT)]


def test_a_run_is_cut_at_the_limit_and_its_rest_stays_a_run() -> None:
    limit, split = Point(offset=SEGMENT + 1), list[BatchRun]()

    def apply(run: BatchRun) -> Iterator[RecordBatch | Stretch]:
        split.append(run)
        return iter(())

    passage = Passage(log_of_three_runs(), 0)
    batch = passage.next(0, limit, apply)
    assert isinstance(batch, RecordBatch) and batch.header.base_offset == SEGMENT + 1, "the first one past it"
    assert [run.next_offset for run in split] == [SEGMENT, SEGMENT + 1]
    passage.put_back(batch)
    assert passage.next(SEGMENT + 1, END, apply) == batch
    assert passage.next(SEGMENT + 2, END, apply) is None
    assert [(run.base_offset, run.next_offset) for run in split[2:]] == [
        (SEGMENT + 2, 2 * SEGMENT),
        (2 * SEGMENT, 3 * SEGMENT),
    ]


def test_what_is_put_back_or_looked_at_comes_again() -> None:
    node = make_node(memory_disk(), BATCHES[:4], per_segment=10)
    flip(node, 2)
    passage = Passage(node.log, 0)
    first = passage.next(0, END, BatchRun.batches)
    assert isinstance(first, RecordBatch)
    passage.put_back(first)
    assert passage.next(0, END, BatchRun.batches) == first
    assert isinstance(passage.next(1, END, BatchRun.batches), RecordBatch)
    ahead = passage.peek()
    assert isinstance(ahead, RecordBatch) and ahead.header.base_offset == 3, "behind the damage"
    rest = []
    while (item := passage.next(2, END, BatchRun.batches)) is not None:
        rest.append(item)
    assert rest[-1] == ahead and len(rest) > 1, "the damage before it is still told"

"""Laws of metadata transactions in the timeline: an aborted one leaves the same events as an empty one."""

from __future__ import annotations

import pytest

from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_readable
from metaquorum.storage.batches.batch import RecordBatch, iter_batches
from tests.unit.metadata.random_logs import RandomLog

ENDS = (r.EndTransactionRecord, r.AbortTransactionRecord)
SEEDS = range(12)


def random_batches(seed: int) -> list[RecordBatch]:
    log = RandomLog(f"transactions {seed}", wild=0, garbage=False)
    log.begin()
    for _ in range(25):
        log.quiet(4)
        log.other()
    log.add(r.BeginTransactionRecord("unfinished"))
    log.quiet(5)
    return list(iter_batches(b"".join(log.data)))


def told(batches: list[RecordBatch], without: frozenset[int]) -> list[TimelineEvent]:
    """The events if the records at the offsets `without` are NoOps."""
    timeline, found = Timeline(), list[TimelineEvent]()
    for batch in batches:
        header = batch.header
        records: list[tuple[int, object]] = [
            (one.offset, r.NoOpRecord() if one.offset in without else one.record)
            for one in decode_readable(batch)
        ]
        found += timeline.batch(header.leader_epoch, header.max_timestamp_ms, records)
    return [*found, *timeline.finish()]


def in_vain(batches: list[RecordBatch]) -> frozenset[int]:
    """Offsets of records in transactions without effect, including the begin and end records of these
    transactions."""
    offsets, current = set[int](), set[int]()
    is_open = False
    for batch in batches:
        for one in decode_readable(batch):
            is_open = is_open or isinstance(one.record, r.BeginTransactionRecord)
            if is_open:
                current.add(one.offset)
            if isinstance(one.record, ENDS):
                offsets |= current if isinstance(one.record, r.AbortTransactionRecord) else set()
                current, is_open = set(), False
    return frozenset(offsets | current)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_aborted_or_open_is_as_if_it_had_never_been_written(seed: int) -> None:
    batches = random_batches(seed)
    vain = in_vain(batches)
    assert vain
    found, expected = told(batches, frozenset()), told(batches, vain)
    assert about_the_cluster(found) == about_the_cluster(expected)
    marks = {one.kind for one in found if one.offset in vain and one.entity == "transaction"}
    assert marks <= {"transaction begun", "transaction aborted"}
    assert sum(one.kind == "transaction still open" for one in found) == 1


def about_the_cluster(events: list[TimelineEvent]) -> list[TimelineEvent]:
    return [one for one in events if one.entity != "transaction"]

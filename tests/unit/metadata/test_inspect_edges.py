"""Parts of the log tools at their edges: jumping clocks, the first epoch, a truncated snapshot."""

from __future__ import annotations

import pytest

from metaquorum.metadata.inspect.changes.change_steps import BatchChanges
from metaquorum.metadata.inspect.changes.changes import ChangeFeed
from metaquorum.metadata.inspect.log.clock import JUMP_MS, MISLEADING_MS
from metaquorum.metadata.inspect.log.points import END
from metaquorum.metadata.inspect.nodes.merge import NodeStream
from metaquorum.metadata.inspect.timeline.time_events import TimeEvents
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.records.control import LeaderChangeMessage
from metaquorum.metadata.records.types import NoOpRecord
from tests.unit.metadata.made_logs import Batch, add_snapshot, make_node, memory_disk, write

GAP_MS = 500
STAMP_MS = 1_000_000


def batch(offset: int, time_ms: int, *records: object) -> BatchChanges:
    return BatchChanges(
        base_offset=offset, epoch=1, time_ms=time_ms, records=[(offset, one) for one in records]
    )


@pytest.mark.parametrize(
    ("off_ms", "silences", "jumps"),
    [
        ([0, 0, 0], [None, 10, 10], []),
        ([0, JUMP_MS - 1, 0], [None, -1, -1], []),  # corrected because of others
        ([0, 0, 0, 1, 0, 0], [None, 10, 10, -1, -1, 10], []),
        ([0, JUMP_MS, 0], [None, -1, -1], [(1, "detail")]),
        ([0, -JUMP_MS, -JUMP_MS], [None, -1, -1], [(1, "detail")]),
        ([0, 1 - JUMP_MS, 0], [None, -1, -1], []),
        ([JUMP_MS, 0, 0], [None, -1, 10], [(0, "detail")]),
        ([MISLEADING_MS - 1, 0, MISLEADING_MS], [None, -1, -1], [(0, "detail"), (2, "warning")]),
    ],
)
def test_where_the_clock_jumps_no_silence_is_known(
    off_ms: list[int], silences: list[int | None], jumps: list[tuple[int, str]]
) -> None:
    events = TimeEvents(GAP_MS, None)
    found, known = [], []
    for offset, off in enumerate(off_ms):
        time_ms = STAMP_MS + 10 * offset
        found += [
            (one.offset, one.severity, one.kind)
            for one in events.batch(batch(offset, time_ms), time_ms + off)
        ]
        known.append(events.silence_ms)
    assert known == silences
    assert found == [(offset, severity, "clock jumped") for offset, severity in jumps]


@pytest.mark.parametrize(
    ("first_ms", "then_ms", "kinds"),
    [
        (0, GAP_MS, []),
        (0, GAP_MS + 1, ["gap in time"]),
        (GAP_MS, GAP_MS, []),
        (GAP_MS, GAP_MS - 1, ["time ran backwards"]),
        (-1, 5_000, []),
        (5_000, -1, []),
    ],
)
def test_gaps_in_time_once_idle_records_are_written(first_ms: int, then_ms: int, kinds: list[str]) -> None:
    for record in (NoOpRecord(), LeaderChangeMessage(version=0, leader_id=1, voters=(), granting_voters=())):
        events = TimeEvents(GAP_MS, None)
        assert list(events.batch(batch(0, first_ms, record), first_ms)) == []
        found = [one.kind for one in events.batch(batch(1, then_ms), then_ms)]
        idle = isinstance(record, NoOpRecord)
        assert found == (kinds if idle else [kind for kind in kinds if kind != "gap in time"])


@pytest.mark.parametrize("begins_ms", [None, 1_000])
@pytest.mark.parametrize(
    ("from_ms", "matters"), [(None, True), (999, True), (1_000, True), (1_001, False), (0, True)]
)
def test_what_was_before_the_log_matters_from_where_it_begins(
    begins_ms: int | None, from_ms: int | None, matters: bool
) -> None:
    image = add_snapshot(make_node(memory_disk()), 11)
    feed = ChangeFeed(image, is_middle=begins_ms is not None)
    began_ms = image.provenance.timestamp_ms
    assert began_ms > 2_000
    feed.ask_before(None if from_ms is None else from_ms - 1_000 + began_ms)
    assert feed.asked_before is (matters and begins_ms is not None)
    feed.ask_before(began_ms + 1)
    assert feed.asked_before is (matters and begins_ms is not None)


@pytest.mark.parametrize("epoch", [0, 1])
def test_the_first_epoch_is_one_too(epoch: int) -> None:
    batches: list[Batch] = [(epoch, [NoOpRecord()]), (epoch, [NoOpRecord()]), (epoch + 2, [NoOpRecord()])]
    stream = NodeStream(make_node(memory_disk(), batches).log, 0)
    stream.run_out()
    assert stream.epochs.entries == ((epoch, 0), (epoch + 2, 2))


def test_a_snapshot_without_its_end_is_incomplete() -> None:
    node = make_node(memory_disk())
    add_snapshot(node, 11)
    (position,) = node.log.snapshots()
    whole = node.log.snapshot(position)
    assert state_at(whole, END).problems == []
    disk, path = whole.disk, whole.path
    file = disk.open_read(path)
    data = file.read_at(0, file.size())
    file.close()
    last = 0
    while last + 12 + int.from_bytes(data[last + 8 : last + 12], "big") < len(data):
        last += 12 + int.from_bytes(data[last + 8 : last + 12], "big")
    write(disk, path, data[:last])
    found = state_at(node.log.snapshot(position), END)
    assert len(found.problems) == 1
    assert "has no footer: it was truncated, or never completed" in found.problems[0]
    assert not found.coverage, "its own offsets are not the log's"

"""The one reader of a log's history: what it yields where a log is not as it should be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, damage_line
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.repair.log_copy import NodeFiles
from metaquorum.metadata.inspect.walk.batch_filter import RunPart
from metaquorum.metadata.inspect.walk.log_replay import as_one
from metaquorum.metadata.inspect.walk.reader import (
    Cures,
    Happening,
    HistoryReader,
    LogCursor,
    LostRecords,
    StateKnown,
    WrongPlace,
)
from metaquorum.metadata.inspect.walk.states import state_at, steps_from
from metaquorum.metadata.records.types import ConfigRecord, NoOpRecord
from metaquorum.storage.batches.batch import HEADER_BYTES, RecordBatch, parse_header, seal_batch
from metaquorum.storage.disk.interface import read_file
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import MIN_BATCHES, BatchRun
from tests.unit.metadata.made_logs import STORY, add_snapshot, flip, make_node, memory_disk, strict, write

LONG = [*STORY, *((2, [NoOpRecord()]) for _ in range(2 * MIN_BATCHES))]


def at(node: NodeFiles, offset: int) -> RecordBatch:
    batches = (one for one in node.log.batches() if isinstance(one, RecordBatch))
    (batch,) = (one for one in batches if one.header.base_offset == offset)
    return batch


def replace(node: NodeFiles, batch: RecordBatch, data: bytes) -> None:
    content = read_file(node.log.disk, batch.file)
    end = batch.position + len(batch.data)
    write(node.log.disk, batch.file, content[: batch.position] + data + content[end:])


def displace(node: NodeFiles, offset: int, base_offset: int) -> None:
    """Damages the base offset of a batch, which no CRC covers."""
    batch = at(node, offset)
    replace(node, batch, base_offset.to_bytes(8, "big") + batch.data[8:])


def make_unreadable(node: NodeFiles, offset: int) -> None:
    """The batch is whole, by its CRC, and its bytes are no records."""
    batch = at(node, offset)
    body = bytes(one ^ 0x5A for one in batch.data[HEADER_BYTES:])
    replace(node, batch, seal_batch(parse_header(batch.data), body))


def short(happenings: Sequence[Happening]) -> list[object]:
    """Offsets of batches, and the names of all else with its range."""
    found: list[object] = []
    for one in happenings:
        match one:
            case ReadBatch():
                found.append(one.batch.header.base_offset)
            case RecordBatch():
                found.append(one.header.base_offset)
            case LostRecords():
                found.append(("lost", one.start, one.end, one.cure))
            case StateKnown():
                found.append(("known", one.offset))
            case WrongPlace():
                found.append(("wrong", one.batch.header.base_offset, one.expected, one.is_mended))
    return found


def reader_of(node: NodeFiles, cures: Cures = Cures.NONE, first: int = 0) -> HistoryReader:
    return HistoryReader(node.log, first, BatchRun.batches, lambda _: False, cures=cures)


@pytest.mark.parametrize("base_offset", [3, 40])
def test_a_damaged_base_offset_loses_nothing_for_any_consumer(base_offset: int) -> None:
    node = make_node(memory_disk())
    displace(node, 12, base_offset)
    for cures in Cures:
        found = list(reader_of(node, cures).read(END))
        assert short(found) == [
            *(0, 1, 2, 3, 4, 7, 10, 11),
            ("wrong", base_offset, 12, True),
            *(12, 13, 14),
        ]
    mended = next(one for one in found if isinstance(one, ReadBatch) and one.batch.header.base_offset == 12)
    assert [one.offset for one in mended.records] == [12]


def test_a_snapshot_cures_a_gap_if_the_consumer_lets_it() -> None:
    node = make_node(memory_disk())
    add_snapshot(node, 13)
    flip(node, 10)
    before, behind = [0, 1, 2, 3, 4, 7], [11, 12, 13, 14]
    assert short([*reader_of(node).read(END)]) == [*before, ("lost", 10, 11, None), *behind]
    cured = [*before, ("lost", 10, 11, 13), 11, 12, ("known", 13), 13, 14]
    assert short([*reader_of(node, Cures.ANY).read(END)]) == cured
    assert short([*reader_of(node, Cures.BEFORE_END).read(END)]) == cured
    early = Point(offset=12)
    assert short([*reader_of(node, Cures.BEFORE_END).read(early)]) == [*before, ("lost", 10, 11, None), 11]
    assert short([*reader_of(node, Cures.ANY).read(early)]) == [*before, ("lost", 10, 11, 13), 11]
    unknown = short([*reader_of(node, Cures.ANY).read(END, known_at=13)])
    assert unknown == [*before, ("lost", 10, 11, None), 11, 12, ("known", 13), 13, 14], (
        "the state is unknown up to that snapshot anyway"
    )


def test_it_reads_on_where_it_ended() -> None:
    node = make_node(memory_disk(), LONG)
    reader, found = reader_of(node), list[object]()
    for end in (Point(offset=4), Point(offset=20), Point(offset=20), END):
        found += short([*reader.read(end)])
        assert reader.is_over == (end != END)
    assert found == [one.header.base_offset for one in strict(node.log)]


def test_records_of_a_batch_that_cannot_be_read_are_lost() -> None:
    node = make_node(memory_disk())
    make_unreadable(node, 12)
    found = list(reader_of(node).read(END))
    assert short(found)[-3:] == [("lost", 12, 13, None), 13, 14]
    assert [one.offset for one in found if isinstance(one, Damage)] == [12]


def test_a_state_is_shown_beyond_an_unreadable_batch_among_many() -> None:
    """It once ended the command."""
    node = make_node(memory_disk(), [*LONG, (2, [ConfigRecord(2, "orders", "retention.ms", "7")])])
    sick = 15 + MIN_BATCHES
    make_unreadable(node, sick)
    stopped = state_at(node.log)
    assert stopped.end_offset == sick and stopped.stopped is not None
    found = state_at(node.log, past_corruption=True)
    assert found.end_offset == node.log.end_offset and found.image.configs
    assert any(f"(offset {sick})" in line for line in found.problems)
    assert [(one.from_offset, one.to_offset) for one in found.coverage] == [(sick, sick + 1)]


def test_damage_before_the_snapshot_that_an_answer_begins_with_is_not_the_answers() -> None:
    """A reader looks closely from the first wrong header on, also before the place that it is asked for."""
    node = make_node(memory_disk(), LONG)
    add_snapshot(node, 14)
    flip(node, 7)
    displace(node, 4, 3)
    log, lines = node.log, list[str]()
    assert any(isinstance(one, Damage) for one in log.batches(14)), "the files' reader finds it"
    begun = state_at(log, Point(offset=14), lines.append)
    assert begun.snapshot is not None and begun.end_offset == 14
    assert list(steps_from(log, begun, END, lines.append))[-1].next_offset == log.end_offset
    assert lines == []


def test_damage_that_goes_on_behind_the_first_offset_is_told() -> None:
    node = make_node(memory_disk(), LONG, per_segment=6)
    node.log.disk.remove(at(node, 10).file)
    found = list(reader_of(node, first=12).read(END))
    (damage,) = (one for one in found if isinstance(one, Damage))
    assert damage.offset < 12 and "expected a segment" in damage_line(damage)


# The one way through a log: runs are opened by who needs them, and what is put back comes again.


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

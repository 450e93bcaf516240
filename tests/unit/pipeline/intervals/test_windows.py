"""Batches that are replayed together have the rows, the state and the resume point of one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from metaquorum.metadata.columnar.windows import BatchWindow, windows
from metaquorum.metadata.image import images_equal
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.pipeline.fleet.files import write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from metaquorum.pipeline.ingest.writer import as_arrow, day_of, file_schema, state_batches
from metaquorum.pipeline.intervals import ClusterReplay, cluster, touched
from metaquorum.pipeline.intervals.state import decode_state
from metaquorum.pipeline.intervals.tables.partitions import FROM_OFFSET, StateColumns, StateRows
from metaquorum.pipeline.intervals.touched import feed_window
from metaquorum.pipeline.tables import TABLES
from metaquorum.storage.batches.batch import RecordBatch, iter_batches
from tests.unit.metadata.random_logs import RandomLog
from tests.unit.pipeline.intervals.telling import (
    DIR_A,
    DIR_C,
    ORDERS,
    PAYMENTS,
    Line,
    alive,
    batches,
    broker,
    change,
    fence,
    leads,
    named,
    partition,
    read_log,
    replayed,
    tables_of,
)


def taken_together(given: Sequence[RecordBatch], window_records: int = 4_096) -> tuple[ClusterReplay, int]:
    """The replay of a log in windows, and how many records were taken together."""
    replay = ClusterReplay("made", log_end=given[-1].header.next_offset)
    count = 0

    def together(window: BatchWindow) -> int:
        nonlocal count
        taken = replay.window(window)
        count += window.part(0, taken).records if taken > 0 else 0
        return taken

    def single(batch: RecordBatch) -> None:
        replay.batch(batch, decode_batch(batch, tolerant=True))

    for item in windows(given, window_records):
        if isinstance(item, BatchWindow):
            feed_window(item, together, single)
        else:
            single(item)
    return replay, count


def assert_same(given: Sequence[RecordBatch], window_records: int = 4_096) -> int:
    """That both ways agree; how many records were taken together."""
    expected = replayed(given)
    found, count = taken_together(given, window_records)
    assert found.resume_point == expected.resume_point
    assert (found.saved_state is None) == (expected.saved_state is None)
    if found.saved_state is not None and expected.saved_state is not None:
        mine, its = decode_state(found.saved_state), decode_state(expected.saved_state)
        assert mine.image == its.image
        assert in_any_order(mine.trackers) == in_any_order(its.trackers)
    for directory in {at for info in expected.trackers.partitions.all() for at in info.directories}:
        held = [each.trackers.partitions.replicas_in(directory) for each in (found, expected)]
        assert held[0] == held[1]
    assert found.moment == expected.moment
    assert images_equal(found.image, expected.image)
    rows, expected_rows = tables_of(found), tables_of(expected)
    for table, some in expected_rows.items():
        if rows[table] != some:
            wrong = set(map(repr, rows[table])) ^ set(map(repr, some))
            raise AssertionError(f"{table}: {sorted(wrong)[:4]}")
    assert rows.keys() == expected_rows.keys()
    return count


def assert_columns_are_rows(rows: Any) -> None:
    """Rows in columns are the same as tuples, as Arrow, and in two parts."""
    assert isinstance(rows, StateRows)
    table, schema = TABLES["partition_states"], file_schema("partition_states")
    columns = [part for part in rows.parts if isinstance(part, StateColumns)]
    expected = [row for part in columns for row in part.rows()]
    found = pa.Table.from_batches([data for _, data in state_batches(columns, schema)], schema)
    assert found.num_rows == len(expected) > 0
    order = ["from_offset", "to_offset", "topic", "partition"]
    told = pa.Table.from_batches([as_arrow(table, expected)])
    assert found.sort_by([(at, "ascending") for at in order]).equals(
        told.sort_by([(at, "ascending") for at in order])
    )
    for day, data in state_batches(columns, schema):
        assert {day_of(at) for at in pc.cast(data["from_time"], pa.int64()).to_numpy() // 1000} == {day}
    every = list(rows)
    assert (len(rows), rows[0], rows[1:3]) == (len(every), every[0], every[1:3])
    below = every[len(every) // 2][FROM_OFFSET]
    early, late = rows.split(below)
    assert early == [row for row in every if row[FROM_OFFSET] < below]
    assert list(late) == [row for row in every if row[FROM_OFFSET] >= below]


def in_any_order(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((key, in_any_order(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return sorted((in_any_order(inner) for inner in value), key=repr)
    return value


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two records are enough to be taken together, and it is always tried."""
    for module in (cluster, touched):
        monkeypatch.setattr(module, "MIN_TOGETHER", 2)
    monkeypatch.setattr(touched, "MAX_ALONE", 1)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("seed", range(6))
def test_logs_with_all_that_is_odd(seed: int) -> None:
    log = RandomLog(seed, wild=(0.0, 0.01, 0.05)[seed % 3], garbage=False)
    log.begin()
    for _ in range(4):
        log.steady(60)
        log.quiet(40)
        log.add(*[log.change() for _ in range(20)])
        log.other()
    given = list(iter_batches(b"".join(log.data), file="made.log"))
    assert assert_same(given, (7, 50, 4_096)[seed // 3 % 3]) > 50


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("seed", [3, 4])
def test_rows_in_columns_are_rows_in_arrow(seed: int) -> None:
    log = RandomLog(seed, wild=0.0, garbage=False)
    log.begin()
    for _ in range(3):
        log.steady(60)
        log.quiet(40)
        log.other()
    given = list(iter_batches(b"".join(log.data), file="made.log"))
    rows = taken_together(given)[0].final_rows()["partition_states"]
    assert_columns_are_rows(rows)


def test_generated_fleets(tmp_path: Path) -> None:
    write_fleet(FleetPlan(clusters=3, records=15_000, seed=1, damaged_every=0), tmp_path)
    for path in sorted(tmp_path.glob("clusters/*/*/__cluster_metadata-0")):
        given = read_log(path)
        assert assert_same(given) > 0.75 * given[-1].header.next_offset


@pytest.mark.shared_data
@pytest.mark.usefixtures("eager")
def test_recorded_logs(shared_data: Path) -> None:
    for name in ("kafka-3.7/controller-3000/__cluster_metadata-0", "kafka-3.7/upgrade"):
        for path in {at.parent for at in (shared_data / name).rglob("*.log")}:
            assert_same(read_log(path), 300)


@pytest.mark.usefixtures("eager")
def test_what_begins_and_ends_within_a_window() -> None:
    """Partitions below min ISR and without a leader, a clean and an unclean election, a failover that a fence
    explains later, directories that are assigned, midnight, and a silence."""
    day, step = 86_400_000, 4_000
    places = [(DIR_A, DIR_C, DIR_C), (DIR_C, DIR_A, DIR_C)]
    lines: list[Line] = [
        (0, [leads(3000)]),
        (0, [r.FeatureLevelRecord("metadata.version", 19)]),
        (10, [broker(1, 2, rack="a", dirs=(DIR_A,)), broker(2, 3, rack="b"), broker(3, 4, rack="b")]),
        (20, [alive(1, 2), alive(2, 3), alive(3, 4)]),
        (30, [r.TopicRecord("t", ORDERS), *[partition(at, (1, 2, 3)) for at in range(4)]]),
        (40, [r.TopicRecord("u", PAYMENTS), partition(0, (2, 3), PAYMENTS)]),
        (50, [r.ConfigRecord(2, "t", "min.insync.replicas", "2")]),
        *[(1_000 + step * at, [r.NoOpRecord()]) for at in range(5)],
        (30_000, [change(0, isr=(1,)), change(1, isr=(2, 3), leader=2)]),
        (31_000, [change(0, isr=(1, 2, 3))]),
        (32_000, [change(0, directories=places[0]), change(1, directories=places[1])]),
        (33_000, [change(0, directories=places[1]), change(2, isr=(2, 1))]),
        (34_000, [change(1, isr=(2, 3, 1)), change(2, leader=2), change(2, leader=1)]),
        (35_000, [change(0, leader=2), change(3, isr=(3,), leader=-1)]),
        (36_000, [change(3, isr=(2,), leader=2), change(0, PAYMENTS, isr=(3,), leader=3)]),
        (37_000, [change(2, isr=(2, 3), leader=2), change(0, isr=(2, 3)), fence(1, 2)]),
        (37_500, [change(2, isr=(3, 2)), change(0, isr=(3, 2), leader=3)]),
        (60_000, [change(1, isr=(2,)), change(2, isr=(3,), leader=3)]),
        (day - 1, [change(1, isr=(2, 3)), change(2, isr=(2, 3))]),
        (day + 1, [change(1, leader=3), change(2, leader=2)]),
    ]
    assert assert_same(batches(lines)) > 20


@pytest.mark.usefixtures("eager")
def test_lists_of_several_lengths() -> None:
    """Of partitions that lie in two chunks, so that windows have lists of two widths."""
    chunk = 512
    lines: list[Line] = [
        (0, [leads(3000)]),
        (10, [broker(at, 1 + at, dirs=(DIR_A,)) for at in (1, 2, 3)]),
        (20, [alive(1, 2), alive(2, 3), alive(3, 4)]),
        (30, [r.TopicRecord("t", ORDERS), *[partition(at, (1, 2, 3)) for at in range(chunk)]]),
        (40, [r.TopicRecord("u", PAYMENTS), *[partition(at, (2, 3), PAYMENTS) for at in range(3)]]),
        (50, [change(at, adding_replicas=(1,), replicas=(2, 3, 1), topic=PAYMENTS) for at in range(2)]),
        (60, [change(at, isr=(1, 2)) for at in range(2)]),
        (70, [change(at, PAYMENTS, isr=(3,), leader=3) for at in range(3)]),
        (80, [change(at, PAYMENTS, isr=(3, 2)) for at in range(3)]),
        (90, [change(at, isr=(1, 2, 3)) for at in range(2)]),
        (95, [change(2, PAYMENTS, replicas=(3, 2)), change(0, PAYMENTS, adding_replicas=())]),
    ]
    assert assert_same(batches(lines), 2) > 8


@pytest.mark.parametrize(
    "odd",
    [
        change(0, isr=()),
        change(0, isr=(), leader=-1),
        change(0, isr=(1, 1, 2)),
        change(0, isr=(1, 4), leader=1),
        change(0, isr=(2, 3), leader=1),
        change(0, replicas=(), directories=()),
        change(0, replicas=(1, 1, 2), directories=(DIR_A, DIR_A, DIR_C)),
    ],
)
def test_lists_that_break_a_rule_are_seen_among_sound_ones(odd: Any) -> None:
    start: list[Line] = [
        (0, [leads(3000)]),
        (0, [broker(1, 1, dirs=(DIR_A,)), *(broker(at, at, dirs=(DIR_C,)) for at in (2, 3))]),
        (0, [alive(at, at) for at in (1, 2, 3)]),
        (10, [r.TopicRecord("orders", ORDERS), *(partition(at, (1, 2, 3)) for at in range(60))]),
    ]
    sound: list[Line] = [(20 + at, [change(at, isr=(1, 2))]) for at in range(1, 60)]
    given = batches([*start, *sound[:30], (50, [odd]), *sound[30:]])
    assert assert_same(given) > 0
    rules = {row["rule"] for row in named("violations", tables_of(replayed(given))["violations"])}
    assert rules


@pytest.mark.parametrize(
    ("leader_epoch", "partition_epoch"), [(-3, 0), (-2, 0), (-1, 0), (0, -3), (0, -2), (0, -1)]
)
def test_epochs_below_zero_are_seen_among_sound_ones(leader_epoch: int, partition_epoch: int) -> None:
    """A change of the leader raises both: from -1 on, the partition is sound after it."""
    odd = r.PartitionRecord(
        0,
        ORDERS,
        replicas=(1, 2, 3),
        isr=(1, 2, 3),
        leader=1,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        directories=(DIR_A, DIR_C, DIR_C),
    )
    given = batches(
        [
            (0, [leads(3000)]),
            (0, [broker(1, 1, dirs=(DIR_A,)), *(broker(at, at, dirs=(DIR_C,)) for at in (2, 3))]),
            (0, [alive(at, at) for at in (1, 2, 3)]),
            (10, [r.TopicRecord("orders", ORDERS), odd, *(partition(at, (1, 2, 3)) for at in range(1, 60))]),
            *((20 + at, [change(at, leader=2)]) for at in range(60)),
        ]
    )
    assert assert_same(given) > 0

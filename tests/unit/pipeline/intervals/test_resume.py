"""A replay that goes on from a saved state reaches the rows of one that read the whole log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_record
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.pipeline.intervals import ClusterReplay, StateError
from metaquorum.storage.batches.batch import RecordBatch
from tests.unit.pipeline.intervals.telling import (
    DIR_A,
    DIR_B,
    DIR_C,
    Line,
    alive,
    batches,
    broker,
    change,
    feed,
    fence,
    leads,
    named,
    partition,
    read_log,
    replayed,
    tables_of,
)

GOLDEN = "kafka-3.7/controller-3000/__cluster_metadata-0"


def in_runs(given: list[RecordBatch], ends: list[int]) -> dict[str, list[tuple[Any, ...]]]:
    """The tables after runs up to each of the places: what is final stays, the rest is told anew."""
    kept: dict[str, list[tuple[Any, ...]]] = {}
    saved: bytes | None = None
    tables: dict[str, list[tuple[Any, ...]]] = {}
    for end in [*ends, len(given)]:
        part = given[:end]
        replay = ClusterReplay("made", log_end=part[-1].header.next_offset, saved=saved)
        start = replay.end_offset
        feed(replay, [batch for batch in part if batch.header.base_offset >= start])
        final = replay.final_rows()
        if replay.saved_state is not None:
            saved = replay.saved_state
            for table, rows in final.items():
                kept.setdefault(table, []).extend(rows)
            final = {}
        tables = {table: [*kept.get(table, []), *final.get(table, [])] for table in {*kept, *final}}
        for table, rows in replay.provisional_rows().items():
            tables[table] = [*tables.get(table, []), *rows]
        tables["availability"] = [(day, *row) for day, row in replay.availability_rows()]
    return tables


def assert_same(found: dict[str, list[tuple[Any, ...]]], given: list[RecordBatch]) -> None:
    def plain(value: Any) -> Any:
        return tuple(plain(item) for item in value) if isinstance(value, list | tuple) else value

    expected = tables_of(replayed(given))
    assert {table for table, rows in found.items() if rows} == {
        table for table, rows in expected.items() if rows
    }
    for table, rows in expected.items():
        assert sorted((plain(row) for row in found.get(table, [])), key=repr) == rows, table


@pytest.mark.shared_data
@pytest.mark.parametrize("cuts", [[400], [700, 1000], [900, 910, 1342], [1], []])
def test_runs_over_a_growing_log_give_what_one_run_gives(shared_data: Path, cuts: list[int]) -> None:
    given = read_log(shared_data / GOLDEN)
    assert_same(in_runs(given, cuts), given)


@pytest.mark.shared_data
def test_a_later_run_does_not_replay_what_is_final(shared_data: Path) -> None:
    given = read_log(shared_data / GOLDEN)
    first = replayed(given)
    assert first.saved_state is not None
    assert first.resume_point == (4221, 6)
    second = ClusterReplay("made", log_end=4758, saved=first.saved_state)
    assert second.end_offset == 4221


def story() -> list[RecordBatch]:
    """A failover that is open, a cause that comes later, and a transaction over the resume point. Batches
    say who caused them, some of them."""
    asked = cause_record(BatchCause("CreateTopics", None, "User:alice"))
    ruled = cause_record(BatchCause(rule="session-expired"))
    topic = b"T" * 16
    lines: list[Line] = [
        (0, [leads(3000)]),
        (0, [broker(1, 1, rack="a"), broker(2, 2)]),
        (0, [alive(1, 1), alive(2, 2)]),
        (0, [asked, r.TopicRecord("t", topic), *[partition(at, (1, 2), topic) for at in range(40)]]),
        (1000, [r.NoOpRecord()] * 1900),
        (2000, [ruled, change(0, topic, leader=-1, isr=(1,)), change(1, topic, leader=2, isr=(2,))]),
        (2100, [r.NoOpRecord()] * 100),
        (2200, [fence(1, 1)]),
        (2300, [r.NoOpRecord()] * 1900),
        (2400, [r.BeginTransactionRecord("t"), change(2, topic, isr=(1,))]),
        (2500, [r.NoOpRecord()] * 100),
        (2600, [asked, change(3, topic, isr=(1,)), r.EndTransactionRecord()]),
        (90_000_000, [change(0, topic, leader=1)]),
        (90_001_000, [r.NoOpRecord()] * 2500),
    ]
    return batches(lines)


@pytest.mark.parametrize("cut", range(1, 14))
def test_every_cut_of_a_story_goes_on_the_same(cut: int) -> None:
    given = story()
    assert_same(in_runs(given, [cut]), given)


def losses() -> list[RecordBatch]:
    """Two directories are lost one after the other; a process that registers later brings both back."""
    topic = b"T" * 16
    lines: list[Line] = [
        (0, [leads(3000)]),
        (0, [broker(1, 1, dirs=(DIR_A, DIR_B, DIR_C)), broker(2, 2, dirs=(DIR_C,))]),
        (0, [alive(1, 1), alive(2, 2)]),
        (0, [r.TopicRecord("t", topic), *[partition(at, (1, 2), topic) for at in range(4)]]),
        (1_000, [r.BrokerRegistrationChangeRecord(1, 1, log_dirs=(DIR_B, DIR_C))]),
        (2_000, [change(0, topic, leader=2, isr=(2,))]),
        (3_000, [r.BrokerRegistrationChangeRecord(1, 1, log_dirs=(DIR_C,)), fence(2, 2)]),
        (4_000, [r.NoOpRecord()] * 2_100),
        (5_000, [change(1, topic, leader=2, isr=(2,)), alive(2, 2)]),
        (6_000, [r.NoOpRecord()] * 2_100),
        (7_000, [broker(1, 9, dirs=(DIR_A, DIR_B, DIR_C))]),
        (8_000, [r.NoOpRecord()] * 100),
    ]
    return batches(lines)


@pytest.mark.parametrize("cut", range(5, 12))
def test_what_is_lost_over_a_cut_is_over_when_it_is_back(cut: int) -> None:
    given = losses()
    assert_same(in_runs(given, [cut]), given)
    rows = named("incidents", tables_of(replayed(given))["incidents"])
    lost = [row for row in rows if "director" in row["what"]]
    assert len(lost) == 2 and all(row["to_offset"] is not None for row in lost)


def test_no_resume_point_inside_a_transaction() -> None:
    given = story()
    inside = given[:11]
    assert inside[-1].header.next_offset > 4000
    replay = replayed(inside)
    assert replay.saved_state is None
    assert replayed(given).resume_point[0] >= 6000


def test_bytes_that_are_no_state_are_refused() -> None:
    with pytest.raises(StateError, match="cannot be read"):
        ClusterReplay("made", log_end=10, saved=b"\xc1nothing")


def test_a_log_that_begins_after_a_snapshot_says_that_states_are_older() -> None:
    given = story()
    engine = replayed(given[:7])
    image = engine._engine.state().image
    rest = given[7:]
    replay = ClusterReplay("made", log_end=rest[-1].header.next_offset, snapshot=image)
    for batch in rest:
        replay.batch(batch, decode_batch(batch))
    rows = named("partition_states", tables_of(replay)["partition_states"])
    old = [row for row in rows if row["from_offset"] == image.provenance.offset]
    assert len(old) == 40
    assert not any(row["from_known"] or row["changed"] for row in old)
    assert all(row["from_known"] for row in rows if row not in old)

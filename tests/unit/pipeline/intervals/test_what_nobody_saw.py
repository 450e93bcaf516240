"""Histories with holes: logs that begin late, records in no log, states that only a snapshot tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.invariants import check_image
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.snapshot import load_snapshot
from metaquorum.pipeline.intervals import ClusterReplay
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.snapshots import snapshot_path
from metaquorum.storage.log.reader import LogReader
from metaquorum.storage.types import LogPosition
from tests.unit.pipeline.intervals.telling import (
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
from tests.unit.pipeline.intervals.test_resume import story

GOLDEN = "kafka-3.7/controller-3000/__cluster_metadata-0"
TOPIC = b"T" * 16


def image_at(given: list[RecordBatch], end: int) -> MetadataImage:
    """What a snapshot at `end` holds."""
    return feed(ClusterReplay("made", log_end=1 << 62), given[:end])._engine.state().image


def told_with_holes(
    given: list[RecordBatch], runs: list[tuple[int, int | None, int]]
) -> dict[str, list[dict[str, Any]]]:
    """Rows by name of a history of runs of batches: (first, the place of a snapshot or None, end)."""
    replay = ClusterReplay("made", log_end=given[runs[-1][2] - 1].header.next_offset)
    for first, snapshot, end in runs:
        if first:
            replay.begins(given[first].header.base_offset)
        for at in range(first, end):
            if at == snapshot:
                replay.learn(image_at(given, at))
            replay.batch(given[at], decode_batch(given[at]))
    return {name: named(name, rows) for name, rows in tables_of(replay).items() if name != "availability"}


def coverage(rows: dict[str, list[dict[str, Any]]]) -> list[tuple[str, int, int]]:
    found = sorted(rows["coverage"], key=lambda row: row["from_offset"])
    return [(row["state"], row["from_offset"], row["to_offset"]) for row in found]


def test_what_holds_where_records_break_off_ends_there_and_nobody_knows_how() -> None:
    given = story()
    rows = told_with_holes(given, [(0, None, 6), (12, 12, 14)])
    end, again = given[6].header.base_offset, given[12].header.base_offset
    assert coverage(rows) == [
        ("known", 0, end),
        ("missing", end, again),
        ("known", again, given[13].header.next_offset),
    ]
    for name in ("broker_sessions", "partition_states", "topics", "quorum_epochs"):
        for row in rows[name]:
            assert row["to_offset"] is None or row["to_offset"] <= end or row["from_offset"] >= again
            assert row["to_known"] == (row["to_offset"] != end), name
            assert row["from_known"] == (row["from_offset"] < again or bool(row.get("changed")))
    lost = [row for row in rows["failovers"] if not row["to_known"]]
    assert [(row["partition"], row["to_offset"], row["duration_ms"]) for row in lost] == [(0, end, None)]
    as_the_snapshot_says = {(one.rule, one.where) for one in check_image(image_at(given, 12))}
    at_once = {(row["rule"], row["where"]) for row in rows["violations"] if row["from_offset"] == again}
    assert at_once >= as_the_snapshot_says
    assert {(row["rule"], row["from_offset"] < again) for row in rows["violations"]} <= {
        ("isr-active", False),
        ("leader-active", False),
    }, "the change after the snapshot elects a fenced broker; the missing records break no rule"


def test_over_a_hole_no_time_is_counted() -> None:
    given = story()
    replay = feed(ClusterReplay("made", log_end=1 << 62), given[:6])
    before = sum(row[2] for _, row in replay.availability_rows() if row[0] == "cluster")
    replay.begins(given[12].header.base_offset)
    replay.learn(image_at(given, 12))
    feed(replay, given[12:])
    after = [row for _, row in replay.availability_rows() if row[0] == "cluster"]
    assert before == 2.0
    assert sum(row[2] for row in after) == before + (90_001_000 - 2_600) / 1000
    assert replay.saved_state is None or replay.resume_point[0] >= given[12].header.base_offset


def test_records_without_a_state_tell_what_they_tell_and_are_no_violations() -> None:
    lines: list[Line] = [
        (0, [r.NoOpRecord()] * 10),
        (10, [leads(3001)]),
        (20, [fence(1, 3)]),
        (30, [change(0, TOPIC, leader=-1, isr=(2,))]),
        (40, [r.TopicRecord("new", b"N" * 16), partition(0, (2,), b"N" * 16)]),
        (50, [broker(2, 16, rack="b")]),
        (60, [alive(1, 3), alive(2, 16)]),
        (70, [r.UnregisterBrokerRecord(3, 4)]),
        (80, [change(0, b"N" * 16, leader=-1, isr=(2,))]),
    ]
    given = batches(lines, [4, 6, *[6] * 7])
    rows = told_with_holes(given, [(1, None, 9)])
    assert coverage(rows) == [("not-in-log", 0, 10), ("state-unknown", 10, 20)]
    assert [(row["records"], row["left_out"]) for row in rows["coverage"] if row["records"]] == [(10, 4)]
    (epoch,) = rows["quorum_epochs"]
    assert (epoch["epoch"], epoch["leader_id"], epoch["from_known"]) == (6, 3001, True)
    assert epoch["skipped_epochs"] is None
    sessions = sorted(rows["broker_sessions"], key=lambda row: (row["broker_id"], row["from_offset"]))
    assert [
        (row["broker_id"], row["broker_epoch"], row["state"], row["rack"], row["incarnation_id"] is None)
        for row in sessions
    ] == [
        (1, 3, "fenced", None, True),
        (1, 3, "active", None, True),
        (2, 16, "fenced", "b", False),
        (2, 16, "active", "b", False),
    ]
    assert {(row["topic"], row["leader"]) for row in rows["partition_states"]} == {("new", 2), ("new", -1)}
    assert [(row["old_leader"], row["cause"]) for row in rows["failovers"]] == [(2, "stopping-or-fenced")]
    assert rows["violations"] == []
    events = {row["event"] for row in rows["log_dir_events"]}
    assert events == {"assigned"}, "whether a broker's directory is new cannot be told"


def test_a_snapshot_fills_in_what_records_left_open() -> None:
    given = story()
    rows = told_with_holes(given, [(6, 9, 14)])
    (one,) = [row for row in rows["broker_sessions"] if row["broker_id"] == 1]
    assert (one["state"], one["from_offset"]) == ("fenced", given[7].header.base_offset)
    assert (one["rack"], one["from_known"], one["began_by"]) == (
        "a",
        True,
        "BROKER_REGISTRATION_CHANGE_RECORD",
    )
    (two,) = [row for row in rows["broker_sessions"] if row["broker_id"] == 2]
    assert (two["from_offset"], two["from_known"]) == (given[9].header.base_offset, False)


def snapshot(log: Path, position: LogPosition) -> MetadataImage:
    reader = LogReader(PosixDisk(), snapshot_path(str(log), position), tolerant=True)
    held = [item for item in reader if isinstance(item, RecordBatch)]
    reader.close()
    return load_snapshot(held, position=position)


def states_of(sessions: list[dict[str, Any]], low: int) -> list[tuple[int, int, int, str]]:
    """(broker id, offset, broker epoch, state) from `low` on, without rows that only tell of directories."""
    found: list[tuple[int, int, int, str]] = []
    last: tuple[int, int, str] | None = None
    for row in sorted(sessions, key=lambda row: (row["broker_id"], row["from_offset"])):
        now = (row["broker_id"], row["broker_epoch"], row["state"])
        if row["from_known"] and now != last and row["from_offset"] >= low:
            found.append((now[0], row["from_offset"], *now[1:]))
        last = now
    return found


@pytest.mark.shared_data
@pytest.mark.parametrize(("first", "snapshots"), [(1000, (2280, 6)), (3000, (3431, 6)), (500, (734, 3))])
def test_a_trimmed_log_tells_what_the_whole_log_tells(
    shared_data: Path, first: int, snapshots: tuple[int, int]
) -> None:
    """Elections, registrations and fences from the first record on; all else from the snapshot on."""
    given = read_log(shared_data / GOLDEN)
    offset, epoch = snapshots
    whole_rows = tables_of(replayed(given))
    rest = [batch for batch in given if batch.header.base_offset >= first]
    start = rest[0].header.base_offset
    replay = ClusterReplay("made", log_end=given[-1].header.next_offset)
    replay.begins(start)
    feed(replay, [batch for batch in rest if batch.header.base_offset < offset])
    replay.learn(snapshot(shared_data / GOLDEN, LogPosition(epoch, offset)))
    feed(replay, [batch for batch in rest if batch.header.base_offset >= offset])
    found_rows = tables_of(replay)

    def since(rows: dict[str, list[tuple[Any, ...]]], name: str, low: int) -> list[dict[str, Any]]:
        found = [row for row in named(name, rows[name]) if row["from_offset"] >= low and row["from_known"]]
        return sorted(found, key=lambda row: (row["from_offset"], str(row)))

    for name, key in (("quorum_epochs", "epoch"), ("topics", "topic_id")):
        expected = [(row["from_offset"], row[key]) for row in since(whole_rows, name, start)]
        assert [(row["from_offset"], row[key]) for row in since(found_rows, name, start)] == expected
    states = [
        states_of(named("broker_sessions", at["broker_sessions"]), start) for at in (found_rows, whole_rows)
    ]
    assert states[0] == states[1] != []
    for name in ("partition_states", "configs", "failovers", "broker_sessions", "quorum_epochs"):
        assert since(found_rows, name, offset) == since(whole_rows, name, offset), name
    late = [row for row in named("violations", found_rows["violations"]) if row["from_offset"] < offset]
    assert late == []

"""What was read once stays: any history of growth, rolls, snapshots and retention between the runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import metaquorum.pipeline.ingest.job as job
import metaquorum.pipeline.ingest.plan as plan
import metaquorum.pipeline.intervals.cluster as cluster
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.pipeline.audit.gather import TableSource
from metaquorum.pipeline.tables import TABLES
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, iter_batches
from metaquorum.storage.types import LogPosition
from tests.unit.pipeline.here import run_here
from tests.unit.pipeline.intervals.telling import (
    Line,
    alive,
    batches,
    broker,
    change,
    fence,
    leads,
    partition,
)
from tests.unit.pipeline.intervals.test_what_nobody_saw import image_at

NOBODY: Any = None
EVERY = 20
FOLDER = "__cluster_metadata-0"
NOOP = encode(r.NoOpRecord(), 0)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "run_tasks", run_here)
    monkeypatch.setattr(plan, "RESUME_EVERY", EVERY)
    monkeypatch.setattr(cluster, "RESUME_EVERY", EVERY)


def life(seed: int, count: int = 70) -> list[RecordBatch]:
    """A cluster's log: brokers that come and go, topics, changes of leaders, settings, elections. All brokers
    register at its start: without them, nothing shows that two parts of it are of one cluster."""
    rng = random.Random(seed)
    at_start: list[object] = [broker(number, number, dirs=(bytes([number]) * 16,)) for number in (1, 2, 3)]
    lines: list[Line] = [(0, [leads(3000)]), (0, at_start)]
    epochs, offset, now_ms = [1, 1], 4, 0
    epoch_of = {1: 1, 2: 2, 3: 3}
    fenced = {1, 2, 3}
    topics: dict[bytes, int] = {}
    leader: dict[tuple[bytes, int], int] = {}
    for number in range(count):
        now_ms += rng.choice((100, 5_000, 3_600_000))
        kind = rng.choice(
            ("broker", "broker", "fence", "topic", "change", "change", "config", "idle", "gone", "elect")
        )
        records: list[object] = [r.NoOpRecord()] * rng.randint(1, 4)
        epoch = epochs[-1]
        if kind == "broker":
            broker_id = rng.randint(1, 3)
            if broker_id in fenced:
                records = [alive(broker_id, epoch_of[broker_id])]
                fenced.discard(broker_id)
            else:
                epoch_of[broker_id] = offset
                records = [broker(broker_id, offset, rack=rng.choice("ab"), dirs=(bytes([broker_id]) * 16,))]
                fenced.add(broker_id)
        elif kind == "fence" and set(epoch_of) - fenced:
            broker_id = rng.choice(sorted(set(epoch_of) - fenced))
            fenced.add(broker_id)
            records = [fence(broker_id, epoch_of[broker_id])]
        elif kind == "topic":
            topic = rng.randbytes(16)
            topics[topic] = number
            records = [r.TopicRecord(f"t{number}", topic), partition(0, (1, 2), topic)]
            leader[topic, 0] = 1
        elif kind == "change" and leader:
            (topic, index) = rng.choice(sorted(leader))
            leader[topic, index] = rng.choice([-1, 1, 2])
            records = [change(index, topic, leader=leader[topic, index])]
        elif kind == "config" and topics:
            name = f"t{rng.choice(sorted(topics.values()))}"
            records = [r.ConfigRecord(2, name, "min.insync.replicas", rng.choice(["1", "2", None]))]
        elif kind == "gone" and topics and rng.random() < 0.5:
            topic = rng.choice(sorted(topics))
            del topics[topic]
            leader = {key: at for key, at in leader.items() if key[0] != topic}
            records = [r.RemoveTopicRecord(topic)]
        elif kind == "elect":
            epoch += rng.randint(1, 2)
            records = [leads(rng.choice((3000, 3001)))]
        lines.append((now_ms, records))
        epochs.append(epoch)
        offset += len(records)
    return batches(lines, epochs)


class Node:
    """A node's directory: its log grows, rolls, is snapshot and trimmed."""

    def __init__(self, home: Path, log: list[RecordBatch], seen: Path) -> None:
        self.log, self.home, self.seen = log, home, seen
        self.segments: list[list[RecordBatch]] = [[]]
        self.end = 0
        self.snapshots: list[int] = []
        for folder in (home, seen):
            (folder / FOLDER).mkdir(parents=True)
            (folder / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=made\n")

    def grow(self, count: int) -> None:
        for batch in self.log[self.end : self.end + count]:
            self.segments[-1].append(batch)
            self.end += 1

    def roll(self) -> None:
        if self.segments[-1]:
            self.segments.append([])

    def snapshot(self) -> None:
        if self.end and self.end not in self.snapshots:
            self.snapshots.append(self.end)

    def trim(self, keep_segments: int) -> None:
        """Kafka deletes segments, all below a snapshot, and older snapshots."""
        while len(self.segments) > keep_segments and self.snapshots:
            end = self.segments[0][-1].header.next_offset
            kept = [at for at in self.snapshots if self.log[at - 1].header.next_offset >= end]
            if not kept:
                return
            self.snapshots = kept
            self.segments.pop(0)

    def write(self) -> None:
        """The files as they are now, and beside them everything that was ever there."""
        log = self.home / FOLDER
        for file in log.iterdir():
            file.unlink()
        for segment in self.segments:
            if segment:
                name = f"{segment[0].header.base_offset:020d}.log"
                (log / name).write_bytes(b"".join(batch.data for batch in segment))
        for at in self.snapshots:
            image = image_at(self.log, at)
            position = LogPosition(max(image.provenance.epoch, 0), image.provenance.offset)
            name = f"{position.offset:020d}-{position.epoch:010d}.checkpoint"
            data = b"".join(snapshot_batches(image, position=position, metadata_version=20))
            (log / name).write_bytes(data)
        for file in log.iterdir():
            (self.seen / FOLDER / file.name).write_bytes(file.read_bytes())


def tables(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Every table, the names of files without their folders."""
    found = {}
    for name in TABLES:
        rows = TableSource(out).dataset(name).to_table().to_pylist()
        for row in rows:
            if "file" in row:
                row["file"] = Path(row["file"]).name
            if name in ("files", "damage"):
                row["reason"] = row["reason"] and row["reason"].partition("/")[0]
                row.pop("date")
        found[name] = sorted(rows, key=repr)
    return found


STEPS = st.one_of(
    st.tuples(st.just("grow"), st.integers(1, 25)),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("snapshot"), st.none()),
    st.tuples(st.just("trim"), st.integers(1, 2)),
    st.tuples(st.just("run"), st.none()),
)


def both(where: Path, seed: int, steps: list[tuple[str, Any]]) -> tuple[Path, Path]:
    """The tables of the runs among the steps, and those of one run over everything that they saw."""
    node = Node(where / "logs" / "n1", life(seed), where / "seen" / "n1")
    for step, value in [("grow", 3), *steps, ("run", None)]:
        match step:
            case "grow" | "trim":
                getattr(node, step)(value)
            case "roll" | "snapshot":
                getattr(node, step)()
            case _:
                node.write()
                job.ingest(NOBODY, [str(where / "logs")], where / "out")
    job.ingest(NOBODY, [str(where / "seen")], where / "whole")
    return where / "out", where / "whole"


ONLY_A_SNAPSHOT_TWICE: list[tuple[str, Any]] = [
    *(("roll", None), ("snapshot", None), ("trim", 1), ("run", None)),
    *(("grow", 1), ("roll", None), ("snapshot", None), ("trim", 1)),
]
"""The first run reads a snapshot that nothing of the second one follows."""


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 1 << 16), steps=st.lists(STEPS, max_size=14))
@example(seed=0, steps=ONLY_A_SNAPSHOT_TWICE)
def test_the_tables_are_those_of_everything_that_was_ever_there(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: list[tuple[str, Any]]
) -> None:
    out, whole = both(tmp_path_factory.mktemp("history"), seed, steps)
    found, expected = tables(out), tables(whole)
    for name in TABLES:
        assert found[name] == expected[name], name


DELETED_BETWEEN_RUNS: list[tuple[str, Any]] = [
    *(("grow", 25), ("run", None), ("roll", None)),
    *(
        ("grow", 10),
        ("roll", None),
        ("grow", 5),
        ("snapshot", None),
        ("grow", 10),
        ("trim", 1),
        ("run", None),
    ),
]


@pytest.mark.parametrize("seed", range(4))
def test_segments_that_were_read_and_deleted_stay_and_a_hole_is_no_violation(
    tmp_path: Path, seed: int
) -> None:
    """The first run reads 0 to a; Kafka deletes that and more; the second run begins behind a hole."""
    out, whole = both(tmp_path, seed, DELETED_BETWEEN_RUNS)
    found = tables(out)
    assert found == tables(whole)
    states = [row["state"] for row in sorted(found["coverage"], key=lambda row: row["from_offset"])]
    assert states == ["known", "missing", "state-unknown", "known"]
    (hole,) = [row for row in found["coverage"] if row["state"] == "missing"]
    offsets = {row["offset"] for row in found["records"]}
    assert set(range(hole["from_offset"])) <= offsets
    assert not offsets & set(range(hole["from_offset"], hole["to_offset"]))
    assert "replay" not in {row["rule"] for row in found["violations"]}
    assert "missing" in {row["kind"] for row in found["damage"]}
    assert [row["file"] for row in found["files"] if row["start_offset"] == 0 and row["used"]]


@pytest.mark.parametrize("kept", [12, 30, 38])
def test_a_tail_that_was_never_committed_leaves_nothing(tmp_path: Path, kept: int) -> None:
    """Another leader's records came in place of the last ones, before or after the place to go on from."""
    old = life(5, 39)
    new = [*old[:kept], *renewed(life(6, 39)[kept:], old[kept].header.base_offset)]
    for home, log in (("logs", old), ("seen", new)):
        node = Node(tmp_path / home / "n1", log, tmp_path / "nothing" / home)
        node.grow(40)
        node.write()
    job.ingest(NOBODY, [str(tmp_path / "logs")], tmp_path / "out")
    there = tmp_path / "logs" / "n1" / FOLDER / f"{0:020d}.log"
    there.write_bytes((tmp_path / "seen" / "n1" / FOLDER / there.name).read_bytes())
    job.ingest(NOBODY, [str(tmp_path / "logs")], tmp_path / "out")
    job.ingest(NOBODY, [str(tmp_path / "seen")], tmp_path / "whole")
    assert tables(tmp_path / "out") == tables(tmp_path / "whole")


def renewed(tail: list[RecordBatch], offset: int) -> list[RecordBatch]:
    """The same batches from `offset` on, in an epoch that is later than all others."""
    made = []
    for batch in tail:
        count, time_ms = batch.header.records_count, batch.header.max_timestamp_ms
        made.append(
            encode_batch(base_offset=offset, leader_epoch=99, timestamp_ms=time_ms, values=[NOOP] * count)
        )
        offset += count
    return list(iter_batches(b"".join(made)))

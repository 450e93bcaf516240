"""Runs give the tables of one run over everything that they saw, in whatever order logs arrive.

METAQUORUM_ARRIVALS=500 tries as many examples (`make arrivals`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import metaquorum.pipeline.ingest.job as job
import metaquorum.pipeline.ingest.plan as plan
import metaquorum.pipeline.intervals.cluster as cluster
from metaquorum.pipeline.audit.gather import TableSource
from metaquorum.pipeline.ingest.layout import load_manifest
from metaquorum.pipeline.tables import TABLES
from metaquorum.storage.batches.batch import RecordBatch
from tests.unit.pipeline.logs.test_clusters import cluster as one_of_two
from tests.unit.pipeline.logs.test_clusters import put
from tests.unit.pipeline.test_retention import EVERY, FOLDER, NOBODY, Node, life, run_here

EXAMPLES = int(os.environ.get("METAQUORUM_ARRIVALS", "8"))
NODES = 3


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "run_tasks", run_here)
    monkeypatch.setattr(plan, "RESUME_EVERY", EVERY)
    monkeypatch.setattr(cluster, "RESUME_EVERY", EVERY)
    monkeypatch.setattr(plan, "MAX_STORED", 2)


class Replica(Node):
    """A node that may begin at a snapshot, lose a segment, be away, or get another name."""

    def __init__(self, where: Path, number: int, log: list[RecordBatch], start: int) -> None:
        super().__init__(where / "logs" / f"n{number}", log, where / "seen" / f"n{number}")
        self.number, self.end, self.names = number, start, 0
        self.snapshots = [start] if start else []
        self.is_away = False

    def lose(self, segment: int) -> None:
        """A segment that is not the last is gone."""
        if len(self.segments) > 1:
            self.segments.pop(segment % (len(self.segments) - 1))

    def away(self) -> None:
        """Its directory is gone, or there again."""
        self.is_away = not self.is_away

    def rename(self) -> None:
        """Its directory has another name."""
        self.names += 1
        shutil.rmtree(self.home, ignore_errors=True)
        self.home = self.home.with_name(f"n{self.number}-{self.names}")

    def write(self) -> None:
        if self.is_away:
            shutil.rmtree(self.home, ignore_errors=True)
            return
        (self.home / FOLDER).mkdir(parents=True, exist_ok=True)
        shutil.copy(self.seen / "meta.properties", self.home)
        super().write()

    @property
    def is_there(self) -> bool:
        return not self.is_away and bool(self.snapshots or any(self.segments))


def told(out: Path) -> dict[str, list[Any]]:
    """Every table without what depends on whose copy of a record was read."""
    found: dict[str, list[Any]] = {}
    for name in TABLES:
        rows = TableSource(out).dataset(name).to_table().to_pylist()
        if name == "files":
            found[name] = sorted({Path(row["file"]).name for row in rows})
            continue
        for row in rows:
            for column in ("file", "node_id", "position"):
                row.pop(column, None)
            if name == "damage":
                row["reason"] = row["reason"].partition("/")[0]
                row.pop("date")
        found[name] = sorted(rows, key=repr)
    return found


def both(where: Path, seed: int, starts: list[int], steps: list[tuple[str, int, int]]) -> tuple[Path, Path]:
    """The tables of the runs among the steps, and those of one run over everything that they saw."""
    log = life(seed)
    nodes = [Replica(where, number, log, start) for number, start in enumerate(starts, 1)]
    for at in nodes:
        at.grow(2)
    for step, number, value in [*steps, ("run", 0, 0)]:
        at = nodes[number % len(nodes)]
        if step in ("grow", "trim", "lose"):
            getattr(at, step)(value)
        elif step != "run":
            getattr(at, step)()
        elif any(one.is_there for one in nodes):
            for one in nodes:
                one.write()
            job.ingest(NOBODY, [str(where / "logs")], where / "out")
    if not (where / "out").exists():
        return where, where
    job.ingest(NOBODY, [str(where / "seen")], where / "whole")
    return where / "out", where / "whole"


STEPS = st.tuples(
    st.sampled_from(
        ("grow", "grow", "grow", "roll", "snapshot", "trim", "lose", "away", "rename", "run", "run", "run")
    ),
    st.integers(0, NODES - 1),
    st.integers(1, 20),
)


TWO_RESUME_POINTS = [("grow", 0, 1)] * 3 + [("run", 0, 1)] + [("grow", 0, 1)] * 2
"""The state is kept before a hole, and again at the snapshot behind it."""
SEEN_TO_BE_ONE = [
    *(("grow", 0, 1), ("grow", 1, 1), ("run", 0, 1), ("grow", 0, 1)),
    *(("grow", 0, 1), ("away", 2, 1)),
]
"""A log that is taken for another cluster's is away when more of the first one shows that it is the same."""


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 1 << 16),
    starts=st.lists(st.sampled_from((0, 0, 8, 20, 35)), min_size=NODES, max_size=NODES),
    steps=st.lists(STEPS, min_size=6, max_size=25),
)
@example(seed=9512, starts=[20, 0, 8], steps=TWO_RESUME_POINTS)
@example(seed=120, starts=[0, 0, 8], steps=SEEN_TO_BE_ONE)
def test_the_order_of_arrival_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, seed: int, starts: list[int], steps: list[tuple[str, int, int]]
) -> None:
    out, whole = both(tmp_path_factory.mktemp("arrivals"), seed, starts, steps)
    if out == whole:
        return  # every node was away
    found, expected = told(out), told(whole)
    # A run over logs that are shorter than what was read changes nothing, so it lists no file either.
    assert set(found.pop("files")) <= set(expected.pop("files"))
    for name in found:
        assert found[name] == expected[name], name
        for row in found[name]:
            if row.get("to_offset") is not None and "from_offset" in row:
                assert row["from_offset"] <= row["to_offset"], (name, row)


def test_a_hole_that_another_node_fills_later_reaches_every_table(tmp_path: Path) -> None:
    """A's log; A's log after retention, which leaves a hole; then B's log, which has what is missing."""
    steps = [
        *(("grow", 0, 20), ("run", 0, 0), ("roll", 0, 0), ("grow", 0, 20), ("roll", 0, 0)),
        *(("snapshot", 0, 0), ("grow", 0, 15), ("trim", 0, 1), ("away", 1, 0), ("run", 0, 0)),
    ]
    _, whole = both(tmp_path / "hole", 5, [0, 8], steps)
    assert "missing" in {row["state"] for row in told(whole)["coverage"]}
    filled = [("away", 1, 0), *steps[:-2], ("run", 0, 0), ("grow", 1, 40), ("away", 1, 0), ("run", 0, 0)]
    out, whole = both(tmp_path / "filled", 5, [0, 8], filled)
    found = told(out)
    assert {row["state"] for row in found["coverage"]} & {"missing", "state-unknown"} == set()
    assert found == told(whole)
    offsets = [row["offset"] for row in found["records"]]
    assert sorted(offsets) == list(range(len(offsets)))


def test_names_of_clusters_stay_whichever_comes_and_grows(tmp_path: Path) -> None:
    """Of two clusters with one id, the one that was read first keeps it."""
    logs, out = tmp_path / "logs", tmp_path / "out"
    mine, theirs = one_of_two(b"a"), one_of_two(b"z", b"q")
    topics: list[dict[str, str]] = []
    for number, ends in enumerate(((0, 12), (10, 12), (32, 12), (32, 32), (0, 32))):
        for name, log, end in (("a", mine, ends[0]), ("b", theirs, ends[1])):
            shutil.rmtree(logs / name, ignore_errors=True)
            if end:
                put(logs / name / "n1", log[:end])
        job.ingest(NOBODY, [str(logs)], out)
        rows = TableSource(out).dataset("topics").to_table().to_pylist()
        topics.append({row["cluster"]: row["topic_id"] for row in rows})
        assert len(topics[-1]) == len(rows) == (1 if not number else 2)
    assert all(one.items() >= topics[0].items() for one in topics)
    assert topics[1:] == [topics[1]] * 4


def test_two_clusters_that_a_later_log_proves_to_be_one_have_the_tables_of_one(tmp_path: Path) -> None:
    """The first log has nothing in common with the last snapshot; the one between has something of both."""
    logs, out = tmp_path / "logs", tmp_path / "out"
    log = life(11)
    put(logs / "n1", log[:3])
    put(logs / "n2", log[-3:])
    job.ingest(NOBODY, [str(logs)], out)
    put(logs / "n3", log)
    job.ingest(NOBODY, [str(logs)], out)
    job.ingest(NOBODY, [str(logs)], tmp_path / "whole")
    assert len(load_manifest(out).clusters) == 1
    assert told(out) == told(tmp_path / "whole")

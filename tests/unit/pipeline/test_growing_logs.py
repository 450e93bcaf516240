"""Runs over recorded logs that grow, shrink or become another's. Tasks run here, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import metaquorum.pipeline.ingest.job as job
from metaquorum.pipeline.ingest.job import IngestReport, ingest
from metaquorum.pipeline.tables import TABLES
from tests.unit.pipeline.here import run_here
from tests.unit.pipeline.recorded import GOLDEN, WILD, node_copy, table, without_files

NOBODY: Any = None
pytestmark = pytest.mark.shared_data


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "run_tasks", run_here)


def test_runs_over_growing_logs_give_the_tables_of_one_run(shared_data: Path, tmp_path: Path) -> None:
    logs, out, whole = tmp_path / "logs", tmp_path / "out", tmp_path / "whole"
    assert ingest(NOBODY, [str(shared_data / GOLDEN), str(shared_data / WILD)], whole).records == 4758 + 2989
    steps: list[tuple[int | None, int | None]] = [(2900, 2500), (4300, None), (None, None)]
    reports: list[IngestReport] = []
    for golden, wild in steps:
        node_copy(shared_data / GOLDEN, logs / "golden", golden)
        for node in ("kafka1", "kafka2", "kafka3"):
            node_copy(shared_data / WILD / "data" / node, logs / node, wild)
        reports.append(ingest(NOBODY, [str(logs)], out))
    assert [len(report.ingested) for report in reports] == [2, 2, 1]
    assert [report.unchanged for report in reports[:2]] == [[], []]
    assert reports[2].records < 1000, "the last run reads what is new and little before it"
    for name in TABLES:
        if name != "files":
            assert without_files(table(out, name)) == without_files(table(whole, name)), name
    again = ingest(NOBODY, [str(logs)], out)
    assert (again.version, again.records, len(again.unchanged)) == (3, 0, 2)


def test_a_log_that_is_shorter_or_of_another_cluster_changes_no_row(
    shared_data: Path, tmp_path: Path
) -> None:
    """A log that is shorter than it was read: its tables stay. One of another cluster has its own."""
    logs, out = tmp_path / "logs", tmp_path / "out"
    node_copy(shared_data / GOLDEN, logs / "node", 3000)
    first = ingest(NOBODY, [str(logs)], out)
    before = {name: table(out, name) for name in TABLES}
    node_copy(shared_data / GOLDEN, logs / "node", 1500)
    said: list[str] = []
    shorter = ingest(NOBODY, [str(logs)], out, say=said.append)
    assert (shorter.version, shorter.kept) == (first.version, first.ingested)
    assert "its tables are not changed" in said[0]
    node_copy(shared_data / WILD / "data" / "kafka1", logs / "node")
    (cluster,) = first.ingested
    other = tmp_path / "other"
    for target, name in ((out, f"{cluster}~2"), (other, cluster)):
        report = ingest(NOBODY, [str(logs)], target, cluster=cluster, say=said.append)
        assert report.ingested == [name]
    for name in TABLES:
        rows = table(out, name)
        assert [row for row in rows if row["cluster"] == cluster] == before[name], name
        if name != "damage":
            told = [{**row, "cluster": cluster} for row in rows if row["cluster"] != cluster]
            key = {"id": cluster} if name == "availability" else {}
            told = [{**row, **key} if row.get("scope") == "cluster" else row for row in told]
            assert told == table(other, name), name
    assert [row["kind"] for row in table(out, "damage")] == ["shared-id"]

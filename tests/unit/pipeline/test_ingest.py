"""Whole runs without Spark: tasks run here, one after the other. The end-to-end tests have Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import pipeline.ingest.job as job
from pipeline.ingest.layout import load_manifest
from pipeline.ingest.tasks import run_task
from pipeline.ingest.work import Task, TaskResult
from pipeline.tables import PARTITION_COLUMNS, TABLES, arrow_schema
from tests.unit.pipeline.intervals.telling import replayed, tables_of
from tests.unit.pipeline.intervals.test_resume import story
from tests.unit.pipeline.intervals.test_what_nobody_saw import image_at
from tests.unit.pipeline.logs.test_clusters import cluster, put

NOBODY: Any = None


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_here(session: object, tasks: list[Task], show: object = None) -> list[TaskResult]:
        return [run_task(task) for task in tasks]

    monkeypatch.setattr(job, "run_tasks", run_here)


def write(logs: Path, batches: int, tail: bytes = b"") -> None:
    folder = logs / "n1" / "__cluster_metadata-0"
    folder.mkdir(parents=True, exist_ok=True)
    (logs / "n1" / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=made\n")
    data = b"".join(batch.data for batch in story()[:batches])
    (folder / f"{0:020d}.log").write_bytes(data + tail)


def run(logs: Path, out: Path) -> job.IngestReport:
    return job.ingest(NOBODY, [str(logs)], out)


def table(out: Path, name: str) -> list[dict[str, Any]]:
    found = ds.dataset(out / name, format="parquet", partitioning="hive").to_table().to_pylist()
    for row in found:
        row.pop("file", None)
    return sorted(found, key=repr)


def table_with_files(out: Path) -> list[dict[str, Any]]:
    return ds.dataset(out / "files", format="parquet", partitioning="hive").to_table().to_pylist()


def test_every_table_has_the_columns_that_it_is_said_to_have(tmp_path: Path) -> None:
    write(tmp_path / "logs", 14, b"torn")
    run(tmp_path / "logs", tmp_path / "out")
    for name, meant in TABLES.items():
        files = list((tmp_path / "out" / name).rglob("*.parquet"))
        schema = arrow_schema(meant)
        plain = [field for field in schema if field.name not in PARTITION_COLUMNS]
        for file in files:
            found = ds.dataset(file, format="parquet").schema
            assert [(at.name, at.type) for at in found] == [(at.name, at.type) for at in plain], name
        assert files or name in ("violations", "log_dir_events", "configs")
    (damage,) = table(tmp_path / "out", "damage")
    assert (damage["kind"], damage["node_id"], damage["cluster"]) == ("tail", 1, "made")


@pytest.mark.parametrize("cut", range(1, 14))
def test_two_runs_give_the_tables_of_one(tmp_path: Path, cut: int) -> None:
    write(tmp_path / "logs", cut)
    run(tmp_path / "logs", tmp_path / "out")
    write(tmp_path / "logs", 14)
    run(tmp_path / "logs", tmp_path / "out")
    run(tmp_path / "logs", tmp_path / "whole")
    for name in TABLES:
        assert table(tmp_path / "out", name) == table(tmp_path / "whole", name), name
    expected = tables_of(replayed(story()))
    assert {name: len(table(tmp_path / "out", name)) for name in expected} == {
        name: len(rows) for name, rows in expected.items()
    }


def test_a_run_that_fails_leaves_the_tables_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    write(logs, 5)
    run(logs, out)
    before = {name: table(out, name) for name in TABLES}
    write(logs, 14)
    with monkeypatch.context() as patched:

        def fail(*_: object) -> None:
            raise OSError("the disk is full")

        patched.setattr(job, "publish", fail)
        with pytest.raises(OSError, match="the disk is full"):
            run(logs, out)
    assert {name: table(out, name) for name in TABLES} == before
    assert not list((out / "versions").glob(".staging-*"))
    assert run(logs, out).version == 2


def test_a_state_that_cannot_be_read_means_to_begin_anew(tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    write(logs, 9)
    run(logs, out)
    state = load_manifest(out).clusters["made"].state
    assert state is not None
    (out / "current" / "_state" / state).write_bytes(b"rubbish")
    write(logs, 14)
    run(logs, out)
    run(logs, tmp_path / "whole")
    for name in TABLES:
        assert table(out, name) == table(tmp_path / "whole", name), name


def test_nothing_new_writes_no_version(tmp_path: Path) -> None:
    write(tmp_path / "logs", 14)
    assert run(tmp_path / "logs", tmp_path / "out").version == 1
    again = run(tmp_path / "logs", tmp_path / "out")
    assert (again.version, again.records, again.unchanged) == (1, 0, ["made"])


def test_logs_that_do_not_join_are_all_in_the_tables(tmp_path: Path) -> None:
    """A snapshot alone of a later offset and epoch, a log that ends earlier, and one that begins later."""
    given, logs, out = story(), tmp_path / "logs", tmp_path / "out"
    put(logs / "n1", given[:6])
    put(logs / "n2", given[6:10][2:], snapshot=image_at(given, 9))
    put(logs / "n3", [], snapshot=image_at(given, 14))
    put(logs / "n4", given[:4])
    report = run(logs, out)
    counts = [batch.header.records_count for batch in given]
    assert report.records == sum(counts[:6]) + sum(counts[8:10])
    assert [line.partition(" records")[0] for line in report.left_out] == [
        f"{sum(counts[6:8]) + sum(counts[10:]):,}",
        f"1 file with {sum(counts[:4]):,}",
    ]
    assert {row["state"] for row in table(out, "coverage")} == {"known", "missing", "state-unknown"}
    files = table_with_files(out)
    assert {(row["node_id"], row["used"]) for row in files if row["file"].endswith(".log")} == {
        *((1, True), (2, True)),
        (4, False),
    }
    assert all((row["reason"] is None) == row["used"] for row in files)
    damage = table(out, "damage")
    assert [row["kind"] for row in damage] == ["missing", "missing"]
    assert table(out, "violations") == [] or {row["rule"] for row in table(out, "violations")} <= {
        "isr-active",
        "leader-active",
    }


def test_two_clusters_of_one_id_have_tables_of_their_own(tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    mine, theirs = cluster(b"a"), cluster(b"z", b"q")
    put(logs / "a" / "n1", mine)
    put(logs / "b" / "n1", theirs[:20])
    report = run(logs, out)
    assert report.ingested == ["MkU3OEVBNTcwNTJ", "MkU3OEVBNTcwNTJ~2"]
    assert "another" in report.left_out[0]
    (row,) = table(out, "damage")
    assert (row["cluster"], row["kind"]) == ("MkU3OEVBNTcwNTJ~2", "shared-id")
    found = {row["cluster"]: row["topic_id"] for row in table(out, "topics")}
    assert len(set(found.values())) == 2


@pytest.mark.shared_data
def test_every_recorded_log_goes_through(shared_data: Path, tmp_path: Path) -> None:
    report = job.ingest(NOBODY, [str(shared_data)], tmp_path / "out")
    assert report.unreadable == []
    assert report.rows["records"] == report.records
    files = table(tmp_path / "out", "files")
    assert len({row["cluster"] for row in files}) == len(report.ingested) >= 12
    records = table(tmp_path / "out", "records")
    assert len({(row["cluster"], row["offset"], row["epoch"]) for row in records}) >= len(records) - 3
    ends = load_manifest(tmp_path / "out").clusters
    golden = [row for row in records if row["cluster"] == "ycvx3IyUTJ2ANvCy7N_YyA"]
    assert [row["offset"] for row in sorted(golden, key=lambda row: row["offset"])] == list(range(4758))
    assert ends["ycvx3IyUTJ2ANvCy7N_YyA"].end_offset == 4758

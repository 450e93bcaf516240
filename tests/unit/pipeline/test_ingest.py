"""Whole runs without Spark: tasks run here, one after the other. The end-to-end tests have Spark."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import metaquorum.pipeline.ingest.job as job
from metaquorum.pipeline.audit.gather import TableSource
from metaquorum.pipeline.ingest.layout import WrittenFile, load_manifest
from metaquorum.pipeline.ingest.tasks import run_task
from metaquorum.pipeline.ingest.work import (
    ExecutorError,
    RecordsTask,
    ReplayTask,
    SurveyTask,
    Task,
    TaskResult,
)
from metaquorum.pipeline.tables import PARTITION_COLUMNS, TABLES, arrow_schema
from tests.unit.pipeline.here import run_here
from tests.unit.pipeline.intervals.telling import read_log, replayed, tables_of
from tests.unit.pipeline.intervals.test_resume import story
from tests.unit.pipeline.intervals.test_what_nobody_saw import image_at
from tests.unit.pipeline.logs.test_clusters import cluster, put

NOBODY: Any = None


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
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
    found = TableSource(out).dataset(name).to_table().to_pylist()
    for row in found:
        row.pop("file", None)
    return sorted(found, key=repr)


def unpublished(out: Path) -> list[Path]:
    """What is there and belongs to no version."""
    manifest = load_manifest(out)
    listed = {file.path for file in manifest.files}
    states = {str(at) for entry in manifest.clusters.values() for at in (entry.state, entry.retained)}
    kept = [
        at for at in (out / "_data").rglob("*") if at.is_file() and str(at.relative_to(out)) not in listed
    ]
    kept += [at for at in (out / "_state").glob("*") if at.name.removesuffix(".notes") not in states]
    return [*kept, *(out / "_runs").glob("*")]


def table_with_files(out: Path) -> list[dict[str, Any]]:
    return TableSource(out).dataset("files").to_table().to_pylist()


def test_every_table_has_the_columns_that_it_is_said_to_have(tmp_path: Path) -> None:
    write(tmp_path / "logs", 14, b"torn")
    run(tmp_path / "logs", tmp_path / "out")
    for name, meant in TABLES.items():
        files = TableSource(tmp_path / "out").places(name)
        schema = arrow_schema(meant)
        plain = [field for field in schema if field.name not in PARTITION_COLUMNS]
        for file in files:
            found = ds.dataset(file, format="parquet").schema
            assert [(at.name, at.type) for at in found] == [(at.name, at.type) for at in plain], name
            said = pq.read_metadata(file).metadata
            assert said[b"comment"].decode() == meant.meaning
            fields = json.loads(said[b"org.apache.spark.sql.parquet.row.metadata"])["fields"]
            told = {at.name: at.meaning for at in meant.columns if at.name not in PARTITION_COLUMNS}
            assert {at["name"]: at["metadata"]["comment"] for at in fields} == told
        assert files or name in ("violations", "log_dir_events", "configs", "upgrades", "audit_trail")
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
    assert unpublished(out) == []
    assert run(logs, out).version == 2


def test_a_state_that_cannot_be_read_means_to_begin_anew(tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    write(logs, 9)
    run(logs, out)
    state = load_manifest(out).clusters["made"].state
    assert state is not None
    (out / "_state" / state).write_bytes(b"rubbish")
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


GARBAGE = {"text": b"this is no log\n" * 20, "zeros": bytes(4096), "gzip": gzip.compress(b"log" * 999)}


@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_no_log_leaves_a_row_of_damage(tmp_path: Path, name: str) -> None:
    """Alone, as the last segment, between two others, and with a name that says no offset."""
    given, logs, out = story(), tmp_path / "logs", tmp_path / "out"
    for home in ("n1", "n2", "n3"):
        put(logs / home / home, given[: {"n1": 0, "n2": 5, "n3": 5}[home]])
        properties = logs / home / home / "meta.properties"
        properties.write_text(f"version=1\nnode.id=1\ncluster.id={home}\n")
    log = "__cluster_metadata-0"
    files = {
        logs / "n1" / "n1" / log / f"{0:020d}.log": ("n1", 0),
        logs / "n2" / "n2" / log / f"{given[5].header.base_offset:020d}.log": ("n2", 1),
        logs / "n3" / "n3" / log / f"{given[5].header.base_offset:020d}.log": ("n3", 2),
        logs / "n4" / "notes.log": (f"file:{logs / 'n4' / 'notes.log'}", 0),
    }
    for file in files:
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_bytes(GARBAGE[name])
    last = logs / "n3" / "n3" / log / f"{given[6].header.base_offset:020d}.log"
    last.write_bytes(b"".join(batch.data for batch in given[6:]))
    report = job.ingest(NOBODY, [str(logs), str(logs / "n4" / "notes.log")], out)
    found = TableSource(out).dataset("damage").to_table().to_pylist()
    kinds = ("tail", "tail", "corrupt")
    for file, (owner, number) in files.items():
        rows = [row for row in found if row["file"] == str(file)]
        assert [(row["cluster"], row["kind"]) for row in rows] == [(owner, kinds[number])], file
        assert rows[0]["position"] == 0
    assert any("without a readable record" in line for line in report.left_out)


def test_a_log_that_may_not_be_read_is_left_out_with_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "logs", 14)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    report = run(tmp_path / "logs", tmp_path / "out")
    assert len(report.unreadable) == 1
    (row,) = table(tmp_path / "out", "damage")
    assert (row["cluster"], row["kind"]) == ("made", "unreadable")


def test_an_executor_that_does_not_see_what_the_driver_sees_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A survey of nothing, records that are gone, tables that went elsewhere: each is one line."""
    write(tmp_path / "logs", 14)
    log = str(tmp_path / "logs" / "n1" / "__cluster_metadata-0")

    def blind(kinds: tuple[type, ...], change: Any) -> None:
        def run_blind(
            session: object, tasks: list[Task], show: object = None, watch: object = None
        ) -> list[TaskResult]:
            return [change(run_task(task)) if isinstance(task, kinds) else run_task(task) for task in tasks]

        monkeypatch.setattr(job, "run_tasks", run_blind)

    def unseen(result: TaskResult) -> TaskResult:
        return TaskResult(cluster="made", problem="no such file", path=log, where=result.where)

    blind((SurveyTask,), unseen)
    with pytest.raises(ExecutorError, match=rf"executor on .* cannot read {log}, which the driver can"):
        run(tmp_path / "logs", tmp_path / "out")
    blind((RecordsTask,), unseen)
    with pytest.raises(ExecutorError, match=r"executor on .* failed on cluster made: no such file"):
        run(tmp_path / "logs", tmp_path / "out")
    away = WrittenFile(table="topics", cluster="made", date="2026-01-01", path="x", rows=1, final=True)
    blind((ReplayTask,), lambda result: msgspec.structs.replace(result, files=[away]))
    with pytest.raises(ExecutorError, match="which the driver cannot read"):
        run(tmp_path / "logs", tmp_path / "out")
    assert unpublished(tmp_path / "out") == []


def two_clusters(logs: Path) -> Path:
    """Two clusters' directories. The log of "made" has two segments, and a snapshot before the second."""
    write(logs, 6)
    given, log = story(), logs / "n1" / "__cluster_metadata-0"
    put(logs / "other" / "n2", cluster(b"a"))
    put(logs / "kept" / "n1", given[6:], snapshot=image_at(given, 6))
    for file in (logs / "kept" / "n1" / "__cluster_metadata-0").iterdir():
        file.rename(log / file.name)
    shutil.rmtree(logs / "kept")
    return log


Hook = Callable[[Task, TaskResult], TaskResult]


def interfere(monkeypatch: pytest.MonkeyPatch, hook: Hook) -> None:
    """Tasks run here. `hook` gets each task and its result, and gives the result that is told."""

    def run_here(
        session: object, tasks: list[Task], show: object = None, watch: object = None
    ) -> list[TaskResult]:
        return [hook(task, run_task(task)) for task in tasks]

    monkeypatch.setattr(job, "run_tasks", run_here)


def test_a_segment_that_is_deleted_while_a_run_reads_costs_neither_run_nor_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention deletes it after the survey: the log is read once more, as it is now."""
    logs, out = tmp_path / "logs", tmp_path / "out"
    log = two_clusters(logs)

    def delete(task: Task, result: TaskResult) -> TaskResult:
        if isinstance(task, SurveyTask):
            (log / f"{0:020d}.log").unlink(missing_ok=True)
        return result

    interfere(monkeypatch, delete)
    report = run(logs, out)
    assert (report.ingested, report.unreadable) == (["MkU3OEVBNTcwNTJ", "made"], [])
    assert unpublished(out) == []
    interfere(monkeypatch, lambda task, result: result)
    run(logs, tmp_path / "whole")
    for name in TABLES:
        assert table(out, name) == table(tmp_path / "whole", name), name


def test_a_cluster_that_cannot_be_read_is_a_row_of_damage_and_every_other_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has tables of an earlier run; when it can be read again, the row is gone."""
    logs, out = tmp_path / "logs", tmp_path / "out"
    log = two_clusters(logs)
    last = next(file for file in log.glob("*.log") if int(file.stem))
    later = last.read_bytes()
    last.unlink()
    asked: list[Task] = []

    def changes(task: Task, result: TaskResult) -> TaskResult:
        if isinstance(task, RecordsTask) and result.cluster == "made":
            asked.append(task)
            said = "the object changed while it was read"
            return TaskResult(cluster="made", problem=said, path=task.piece.file, where=result.where)
        return result

    for number in (1, 2):
        asked.clear()
        interfere(monkeypatch, changes)
        for file in (logs / "other" / "n2" / "__cluster_metadata-0").iterdir():
            with file.open("ab") as into:
                into.write(b"torn"[:number])
        report = run(logs, out)
        assert report.ingested == ["MkU3OEVBNTcwNTJ"]
        assert report.unreadable == ["cluster made: the object changed while it was read"]
        assert len(asked) == job.ATTEMPTS * number  # the second time, a piece of each segment
        (row,) = [row for row in table(out, "damage") if row["cluster"] == "made"]
        assert (row["kind"], "changed while it was read" in row["reason"]) == ("unreadable", True)
        assert number == 2 or unpublished(out) == []
        before = [row for row in table(out, "records") if row["cluster"] == "made"]
        assert bool(before) == (number == 2)
        interfere(monkeypatch, lambda task, result: result)
        if number == 1:
            assert run(logs, out).ingested == ["made"]
            assert [row for row in table(out, "damage") if row["cluster"] == "made"] == []
            last.write_bytes(later)
    last.unlink()  # the logs are again as the tables have them, but for the row of damage
    assert "made" in run(logs, out).ingested
    assert [row for row in table(out, "damage") if row["cluster"] == "made"] == []
    last.write_bytes(later)
    run(logs, out)
    run(logs, tmp_path / "whole")
    for name in TABLES:
        assert table(out, name) == table(tmp_path / "whole", name), name


def test_a_log_that_changes_during_its_survey_is_surveyed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_clusters(tmp_path / "logs")
    failures = [2]

    def fail_twice(task: Task, result: TaskResult) -> TaskResult:
        if isinstance(task, SurveyTask) and result.cluster == "made" and failures[0]:
            failures[0] -= 1
            return TaskResult(
                cluster="made", problem="a segment is gone", path=f"{task.location.path}/gone.log"
            )
        return result

    interfere(monkeypatch, fail_twice)
    report = run(tmp_path / "logs", tmp_path / "out")
    assert (report.ingested, report.unreadable) == (["MkU3OEVBNTcwNTJ", "made"], [])


def test_the_summary_names_every_table_and_counts_no_record_as_lost_that_a_run_had_read(
    tmp_path: Path,
) -> None:
    """The first run reads all of a log, the second finds that a segment is gone from its middle."""
    logs, out = tmp_path / "logs", tmp_path / "out"
    given = story()
    write(logs, 4)
    log = logs / "n1" / "__cluster_metadata-0"
    for first, last in ((4, 8), (8, 12)):
        data = b"".join(batch.data for batch in given[first:last])
        (log / f"{given[first].header.base_offset:020d}.log").write_bytes(data)
    report = run(logs, out)
    assert report.rows.keys() == TABLES.keys()
    assert min(report.rows.values()) == 0 < report.rows["records"]
    (log / f"{given[4].header.base_offset:020d}.log").unlink()
    data = b"".join(batch.data for batch in given[8:])
    (log / f"{given[8].header.base_offset:020d}.log").write_bytes(data)
    report = run(logs, out)
    assert [line for line in report.left_out if "no log holds" in line] == []
    offsets = {row["offset"] for row in table(out, "records")}
    assert offsets == set(range(given[-1].header.next_offset))


def test_a_snapshot_that_comes_to_a_log_which_was_read_gives_the_state(tmp_path: Path) -> None:
    """The records are the same: only the snapshot is new."""
    logs, out, given = tmp_path / "logs", tmp_path / "out", story()
    put(logs / "n1", given[6:])
    run(logs, out)
    assert {row["state"] for row in table(out, "coverage")} == {"not-in-log", "state-unknown"}
    put(tmp_path / "later" / "n1", [], snapshot=image_at(given, 9))
    for file in (tmp_path / "later" / "n1" / "__cluster_metadata-0").iterdir():
        file.rename(logs / "n1" / "__cluster_metadata-0" / file.name)
    run(logs, out)
    assert "known" in {row["state"] for row in table(out, "coverage")}
    run(logs, tmp_path / "whole")
    for name in TABLES:
        assert table(out, name) == table(tmp_path / "whole", name), name


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


@pytest.mark.shared_data
def test_a_trimmed_log_has_every_epoch_registration_and_fence_from_its_first_record_on(
    shared_data: Path, tmp_path: Path
) -> None:
    """As production logs are: whole segments are gone, the oldest snapshot is far behind the first record."""
    source = shared_data / "kafka-3.7" / "controller-3000" / "__cluster_metadata-0"
    given = read_log(source)
    first = next(at for at, batch in enumerate(given) if batch.header.base_offset >= 500)
    log = tmp_path / "logs" / "n1" / "__cluster_metadata-0"
    put(tmp_path / "logs" / "n1", given[first:])
    for file in sorted(source.glob("*.checkpoint"))[-3:]:
        (log / file.name).write_bytes(file.read_bytes())
    run(tmp_path / "logs", tmp_path / "out")
    job.ingest(NOBODY, [str(source)], tmp_path / "whole")
    start = given[first].header.base_offset
    for name, columns in (
        ("quorum_epochs", ("from_offset", "epoch", "leader_id", "to_offset")),
        ("broker_sessions", ("from_offset", "broker_id", "broker_epoch", "state")),
    ):
        told, expected = (
            [
                tuple(row[column] for column in columns)
                for row in sorted(table(out, name), key=lambda row: row["from_offset"])
                if row["from_offset"] >= start
                and row["from_known"]
                and row.get("began_by") != "BROKER_REGISTRATION_CHANGE_RECORD"
            ]
            for out in (tmp_path / "out", tmp_path / "whole")
        )
        assert told == expected != [], name
    (known,) = [row for row in table(tmp_path / "out", "coverage") if row["state"] == "known"]
    assert known["from_offset"] > 3000
    states = {row["state"]: row["records"] for row in table(tmp_path / "out", "coverage")}
    assert states["state-unknown"] == known["from_offset"] - start
    violations = table(tmp_path / "out", "violations")
    assert all(row["from_offset"] >= known["from_offset"] for row in violations)

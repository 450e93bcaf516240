"""What is said when Spark cannot start, and where Spark is bound."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from metaquorum.cli.main import main
from metaquorum.pipeline.ingest.spark import HERE_RECORDS, SLICE_RECORDS, SURVEYED_BYTES, run_tasks, slots_of
from metaquorum.pipeline.ingest.work import RecordsTask, SurveyTask, Task
from metaquorum.pipeline.logs.pieces import Piece
from metaquorum.pipeline.logs.places import LogPlace
from metaquorum.pipeline.session import (
    LOOPBACK,
    PUSHDOWN,
    SessionError,
    java_version,
    register,
    require_java,
    settings,
)


def fake_java(folder: Path, says: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_the_version_of_java(text: str, version: int | None) -> None:
    assert java_version(text) == version


def test_java_that_is_missing_or_too_old_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(SessionError, match="Java was not found: install Java 17"):
        require_java()
    monkeypatch.setenv(
        "PATH", str(fake_java(tmp_path / "old", 'openjdk version "11.0.2"')) + ":/bin:/usr/bin"
    )
    with pytest.raises(SessionError, match="is Java 11, Spark needs 17 or newer: install Java 17"):
        require_java()
    fake_java(tmp_path / "home" / "bin", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert require_java() == 17


def test_the_command_says_so_on_one_line(
    tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    log = str(shared_data / "kafka-3.7" / "controller-3000")
    found = CliRunner().invoke(main, ["pipeline", "ingest", log, "--out", str(tmp_path / "out")])
    assert found.exit_code == 1
    assert found.stderr.count("\n") == 1
    assert "Java was not found" in found.stderr
    assert not (tmp_path / "out").exists()


def test_a_path_without_logs_is_said_before_java_starts(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["pipeline", "ingest", str(tmp_path), "--out", str(tmp_path / "out")])
    assert (found.exit_code, found.stderr.count("\n")) == (1, 1)
    assert "holds no metadata log" in found.stderr


@pytest.mark.parametrize("master", ["local", "local[2]", "local-cluster[2,1,1024]"])
def test_on_this_machine_spark_listens_on_loopback_only(master: str) -> None:
    found = settings(master)
    assert (found["spark.driver.host"], found["spark.driver.bindAddress"]) == (LOOPBACK, LOOPBACK)
    assert found["spark.ui.enabled"] == "false"
    assert "spark.driver.host" not in settings("spark://host:7077")


def test_spark_announces_no_log_level_and_shows_errors_only() -> None:
    found = settings("local[2]")
    assert "spark.log.level" not in found, "Spark says so on standard error"
    option = found["spark.driver.extraJavaOptions"]
    path = Path(option.removeprefix("-Dlog4j2.configurationFile=file://"))
    lines = dict(line.split(" = ", 1) for line in path.read_text().splitlines() if " = " in line)
    assert lines["rootLogger.level"] == lines["logger.gateway.level"] == "error"
    assert lines["appender.stderr.target"] == "SYSTEM_ERR"


class Session:
    """A session of a master, that makes no job."""

    def __init__(self, master: str) -> None:
        self.sparkContext = SimpleNamespace(master=master)

    def createDataFrame(self, *given: object) -> None:
        raise PySparkException("a job of Spark")


def test_where_the_driver_is_the_executor_it_does_small_tasks_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A session of end-to-end tests in the same process has another one until it ends.
    monkeypatch.setattr("metaquorum.pipeline.ingest.spark.HERE_RECORDS", HERE_RECORDS)

    def run(master: str, size_bytes: int) -> str | None:
        place = LogPlace(path=str(tmp_path / "none"), cluster="c", node_id=None)
        task = SurveyTask(location=place, size_bytes=size_bytes, split_bytes=1)
        thresholds = gc.get_threshold()
        (result,) = run_tasks(Session(master), [task])  # type: ignore[arg-type]
        assert gc.get_threshold() == thresholds
        return result.problem

    for master in ("local", "local[2]", "local[*]"):
        assert "no such file" in (run(master, 0) or "")
    for master, size_bytes in (
        ("local[2]", HERE_RECORDS * SURVEYED_BYTES),
        ("local-cluster[2,1,1024]", 0),
        ("spark://host:7077", 0),
    ):
        with pytest.raises(PySparkException, match="a job of Spark"):
            run(master, size_bytes)


def test_a_session_that_only_moves_tasks_compiles_less() -> None:
    assert "TieredStopAtLevel" in settings("local[2]", light=True)["spark.driver.extraJavaOptions"]
    for given in (settings("local[2]"), settings("spark://host:7077", light=True)):
        assert "TieredStopAtLevel" not in given["spark.driver.extraJavaOptions"]


def test_small_tasks_share_a_task_of_spark_and_large_ones_have_their_own() -> None:
    def reading(records: int) -> Task:
        piece = Piece(cluster="c", node_id=None, file="f")
        return RecordsTask(piece=piece, records=records, final_below=0, out="", run="")

    large, small = reading(10 * SLICE_RECORDS), reading(SLICE_RECORDS // 10)
    slots = slots_of([large, large, *[small] * 100, large])
    assert slots[:2] == [0, 1] and slots == sorted(slots)
    shared = slots[2:-1]
    assert all(4 <= shared.count(slot) <= 10 for slot in set(shared)) and slots[-1] not in shared

    def looking(path: str, size_bytes: int) -> Task:
        place = LogPlace(path=path, cluster="c", node_id=None)
        return SurveyTask(location=place, size_bytes=size_bytes, split_bytes=1)

    assert slots_of([looking("/p", 1 << 30)] * 16) == list(range(16))
    assert max(slots_of([looking("/p", 4_000)] * 1_000)) < 100
    assert max(slots_of([looking("s3://b/p", 4_000)] * 40)) > 9, "most of it is waiting"


def test_a_session_that_was_made_elsewhere_gets_the_setting_that_reading_needs() -> None:
    """Or one line says which setting it must be made with."""
    done: list[object] = []
    session: Any = SimpleNamespace(
        conf=SimpleNamespace(set=lambda name, value: done.append((name, value))),
        dataSource=SimpleNamespace(register=lambda source: done.append(source.name())),
    )
    register(session)
    assert done == [(PUSHDOWN, "true"), "metadata_log"]

    def refuse(name: str, value: str) -> None:
        raise PySparkException("CANNOT_MODIFY_CONFIG\nand a long trace")

    session.conf.set = refuse
    with pytest.raises(SessionError, match=rf"the setting {PUSHDOWN} \(CANNOT_MODIFY_CONFIG\); make it with"):
        register(session)

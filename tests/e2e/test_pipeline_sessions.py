"""The pipeline in every kind of Spark session: over Spark Connect, on executors that share only a store with
the driver, and on executors without the package."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from metaquorum import pipeline
from metaquorum.pipeline.audit.gather import gather
from metaquorum.pipeline.audit.source import TableSource
from metaquorum.pipeline.session import SessionError, require_java, spark_session
from metaquorum.pipeline.tables import TABLES
from tests.conftest import REPOSITORY
from tests.unit.pipeline.intervals.telling import read_log, replayed, tables_of
from tests.unit.pipeline.stores.endpoint import BUCKET, s3_endpoint, upload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.shared_data]
GOLDEN = "kafka-3.7/controller-3000"
LOG = "__cluster_metadata-0"
START_SECONDS = 120


@pytest.fixture(scope="module", autouse=True)
def _java() -> None:
    try:
        require_java()
    except SessionError as error:
        pytest.skip(str(error))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Spark Connect server on loopback; its address."""
    import pyspark

    home, port = Path(pyspark.__path__[0]), free_port()
    folder = tmp_path_factory.mktemp("connect")
    given = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    words = [str(home / "bin" / "spark-submit"), "--master", "local[2]"]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    words += [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(
            [*words, "spark-internal"],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert started.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(started.pid, signal.SIGTERM)
        started.wait(60)


@pytest.fixture(scope="module")
def remote(server: str) -> Iterator[SparkSession]:
    session = spark_session(server)
    yield session
    session.stop()


def test_over_spark_connect_the_functions_make_the_tables(
    remote: SparkSession, shared_data: Path, tmp_path: Path
) -> None:
    logs, out = str(shared_data / GOLDEN), str(tmp_path / "out")
    assert type(remote).__module__.startswith("pyspark.sql.connect")
    assert pipeline.read_logs(remote, logs, type="partition-change").filter("leader = -1").count() > 0
    fleet = pipeline.read_fleet(remote, logs)
    (row,) = fleet.select("cluster", "records", "end_offset").collect()
    assert (row["records"], row["end_offset"]) == (4758, 4758)
    expected = tables_of(replayed(read_log(shared_data / GOLDEN / LOG)))
    for name in ("partition_states", "quorum_epochs"):
        assert pipeline.make_table(fleet, name).count() == len(expected[name])
    records = pipeline.make_table(fleet, "records")
    assert records.select("offset").distinct().count() == 4758
    assert pipeline.write_tables(remote, logs, out).records == 4758
    tables = pipeline.read_tables(remote, out)
    assert set(tables) == set(TABLES)
    made = pipeline.make_table(fleet, "broker_sessions")
    assert made.exceptAll(tables["broker_sessions"]).count() == 0
    comments = {field.name: field.metadata.get("comment") for field in tables["topics"].schema}
    assert comments["topic_id"] == "id; a topic that is created again has another"
    found = {row["kind"] for row in pipeline.audit_tables(tables).collect()}
    assert "unclean-election" in found
    page = pipeline.render_report(tables, title="over Connect")
    assert "over Connect" in page and "ycvx3IyUTJ2ANvCy7N_YyA" in page
    here = gather(TableSource(out)).clusters[0]
    assert f"{here.records:,}" in page or str(here.records) in page


WITHOUT = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "metaquorum":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refused())
"""


def run(words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_an_executor_without_the_package_is_one_line(shared_data: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(WITHOUT)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}/bare:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    words = ["-m", "metaquorum.cli", "pipeline", "ingest", str(shared_data / GOLDEN), "--master", "local[1]"]
    done = run([*words, "--out", "out"], tmp_path, PYSPARK_PYTHON=str(python))
    assert done.returncode == 1, done.stderr[-3000:]
    said = [line for line in done.stderr.splitlines() if "incubator modules" not in line]
    assert "an executor cannot import metaquorum: install metaquorum[pipeline]" in said[-1]
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").rglob("*.parquet"))


STORE = """
import json, sys
from metaquorum import pipeline
from metaquorum.pipeline.session import spark_session

if __name__ == "__main__":
    session = spark_session("local-cluster[2,1,1024]", extra={"spark.sql.shuffle.partitions": "2"})
    logs, out = sys.argv[1:]
    report = pipeline.write_tables(session, logs, out)
    changes = pipeline.read_logs(session, logs, type="topic").count()
    states = pipeline.make_table(pipeline.read_fleet(session, logs), "partition_states").count()
    print(json.dumps({"records": report.records, "rows": report.rows, "topics": changes, "states": states}))
    session.stop()
"""


def test_executors_that_share_only_a_store_with_the_driver(shared_data: Path, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(STORE)
    with s3_endpoint() as environment:
        upload(shared_data / GOLDEN, "logs/node")
        words = [str(tmp_path / "run.py"), f"s3a://{BUCKET}/logs/*", f"s3a://{BUCKET}/tables"]
        done = run(words, tmp_path, **environment)
        assert done.returncode == 0, done.stderr[-3000:]
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        expected = tables_of(replayed(read_log(shared_data / GOLDEN / LOG)))
        assert said["records"] == 4758
        assert said["states"] == said["rows"]["partition_states"] == len(expected["partition_states"])
        assert said["topics"] > 0
        source = TableSource(f"s3://{BUCKET}/tables")
        for name, rows in expected.items():
            assert source.dataset(name).count_rows() == len(rows), name

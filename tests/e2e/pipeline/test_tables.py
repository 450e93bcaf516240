"""Tables that Spark makes: compared with the replay, with `metaquorum log history`, and from executors that
share nothing with the driver but files or a store.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from metaquorum import pipeline
from metaquorum.cli.main import main
from metaquorum.metadata.inspect.entities.history import history
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.pipeline import read_tables
from metaquorum.pipeline.audit.gather import TableSource, gather
from metaquorum.pipeline.tables import PARTITION_COLUMNS, TABLES
from metaquorum.storage.disk.posix import PosixDisk
from tests.conftest import REPOSITORY
from tests.e2e.pipeline.conftest import Ingested
from tests.unit.pipeline.intervals.telling import read_log, replayed, tables_of
from tests.unit.pipeline.recorded import (
    GOLDEN,
    GOLDEN_CLUSTER,
    LIGHT_JVM,
    LOG,
    WILD,
    WILD_CLUSTER,
    node_copy,
    of_cluster,
    run_alone,
    table,
    without_files,
)
from tests.unit.pipeline.stores.endpoint import BUCKET, s3_endpoint, upload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.shared_data]
TIMES = ("from_time", "to_time")


def test_the_tables_are_what_the_replay_tells(
    recorded: Ingested, shared_data: Path, spark: SparkSession
) -> None:
    out, cluster = recorded.out, GOLDEN_CLUSTER
    assert recorded.records == TableSource(out).dataset("records").count_rows()
    expected = tables_of(replayed(read_log(shared_data / GOLDEN / LOG)))
    for name, rows in expected.items():
        assert len(of_cluster(table(out, name), cluster)) == len(rows), name
    states = read_tables(spark, str(out))["partition_states"].filter(f"cluster = '{cluster}'")
    last = states.filter("to_offset IS NULL").select("topic_id", "partition", "leader", "partition_epoch")
    assert {tuple(row) for row in last.collect()} == {
        (row[1], row[2], row[3], row[5]) for row in expected["partition_states"] if row[17] is None
    }
    plan = states.filter("date >= '2026-11-01' AND leader = -1")._jdf.queryExecution().toString()
    (scanned,) = {line for line in plan.splitlines() if "PartitionFilters" in line}
    assert "cluster" in scanned.partition("PartitionFilters")[2] and "EqualTo(leader,-1)" in scanned
    lagging = of_cluster(table(out, "files"), WILD_CLUSTER)
    assert sorted(row["used"] for row in lagging) == [False, False, True]
    assert of_cluster(table(out, "damage"), cluster, WILD_CLUSTER) == []
    assert sorted(at.name for at in out.iterdir()) == ["_data", "_runs", "_state", "_versions"]


def state_word(fields: Any) -> str:
    if fields["fenced"]:
        return "fenced"
    return "controlled_shutdown" if fields["inControlledShutdown"] else "active"


def test_the_tables_are_what_log_history_tells(recorded: Ingested, shared_data: Path) -> None:
    """Spark's rows of partitions and brokers compared with those of `metaquorum log history` for the same
    log."""
    partitions, brokers = set(), set()
    for span in history(open_log(PosixDisk(), str(shared_data / GOLDEN))):
        at = span.fields
        assert span.cause is not None
        begun = (span.cause.offset, span.from_ms)
        ended = (None, None) if span.ended_by is None else (span.ended_by.offset, span.to_ms)
        match span.entity.split("/"):
            case ["topic", topic, index]:
                epochs = (at["leader"], at["leaderEpoch"], at["partitionEpoch"])
                lists = (tuple(at["replicas"]), tuple(at["isr"]), tuple(at["directories"]))
                partitions.add((topic, int(index), *epochs, *lists, *begun, *ended))
            case ["broker", broker_id]:
                types = (span.cause.type_name, span.ended_by.type_name if span.ended_by else None)
                told = (at["epoch"], at.get("rack"), state_word(at), tuple(sorted(at["logDirs"])))
                brokers.add((int(broker_id), *told, *types, *begun, *ended))
            case _:
                pass

    def times(row: dict[str, Any]) -> tuple[int | None, ...]:
        moments = [None if row[at] is None else round(row[at].timestamp() * 1000) for at in TIMES]
        return (row["from_offset"], moments[0], row["to_offset"], moments[1])

    def rows_of(name: str) -> list[dict[str, Any]]:
        return of_cluster(table(recorded.out, name), GOLDEN_CLUSTER)

    columns = ("topic", "partition", "leader", "leader_epoch", "partition_epoch")
    lists = ("replicas", "isr", "directories")
    found = [
        (*(row[at] for at in columns), *(tuple(row[at]) for at in lists), *times(row))
        for row in rows_of("partition_states")
    ]
    assert len(found) == len(partitions) > 3000
    assert set(found) == partitions
    sessions = {
        (
            *(row[at] for at in ("broker_id", "broker_epoch", "rack", "state")),
            *(tuple(sorted(row["directories"])), row["began_by"], row["ended_by"], *times(row)),
        )
        for row in rows_of("broker_sessions")
    }
    assert sessions == brokers
    assert len(brokers) > 40


def test_tables_in_a_catalog_say_what_they_and_their_columns_mean(
    recorded: Ingested, spark: SparkSession, tmp_path: Path
) -> None:
    tables = read_tables(spark, str(recorded.out))
    spark.sql(f"CREATE SCHEMA saved LOCATION '{tmp_path / 'saved'}'")
    try:
        saved = ("topics", "incidents", "availability", "partition_states")
        pipeline.save_tables({"topics": tables["topics"].limit(1)}, "saved")  # an existing table is replaced
        pipeline.save_tables({name: tables[name] for name in saved}, "saved")
        for name in saved:
            listed = spark.sql(f"DESCRIBE TABLE EXTENDED saved.{name}").collect()
            described = {row.col_name: row for row in listed}
            assert described["Comment"].data_type == TABLES[name].meaning
            told = {at.name: at.meaning for at in TABLES[name].columns}
            assert {at: described[at].comment for at in told} == told
            partitioned = [row.col_name for row in listed].index("# Partition Information")
            assert [row.comment for row in listed[partitioned + 2 :][:2]] == [
                told[at] for at in PARTITION_COLUMNS
            ]
            rows = spark.table(f"saved.{name}").select(*told).collect()
            assert sorted(map(repr, rows)) == sorted(map(repr, tables[name].select(*told).collect()))
            assert rows
    finally:
        spark.sql("DROP SCHEMA saved CASCADE")


def test_spark_submit_makes_the_same_tables(recorded: Ingested, shared_data: Path, tmp_path: Path) -> None:
    """Started by Spark's own script, in a folder from which nothing of the project can be imported by
    chance."""
    submit, out = Path(sys.executable).with_name("spark-submit"), tmp_path / "out"
    words = [str(submit), "--master", "local[1]", str(REPOSITORY / "pipeline" / "submit.py")]
    done = run_alone(
        [*words, "--out", str(out), str(shared_data / WILD)],
        tmp_path,
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "version 1: 2989 records, 1 clusters read" in done.stdout
    for name in TABLES:
        assert table(out, name) == of_cluster(table(recorded.out, name), WILD_CLUSTER), name


WITHOUT = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "metaquorum":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refused())
"""


def test_an_executor_without_the_package_is_one_line(
    spark: SparkSession, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(WITHOUT)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}/bare:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    fleet = pipeline.read_fleet(spark, str(shared_data / GOLDEN))
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    monkeypatch.setattr(type(spark), "stop", lambda self: None)  # the command's own session is this one
    words = ["pipeline", "ingest", str(shared_data / GOLDEN), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, [*words, "--master", "local[2]"])
    assert done.exit_code == 1
    assert (
        "an executor cannot import metaquorum: install metaquorum[pipeline]" in done.stderr.splitlines()[-1]
    )
    assert "Traceback" not in done.output
    assert not list((tmp_path / "out").rglob("*.parquet"))
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as raised:
        pipeline.make_table(fleet, "topics").collect()
    said = [line for line in str(raised.value).splitlines() if "an executor cannot import metaquorum" in line]
    assert said and "Traceback" not in str(raised.value)


SCRIPT = """
import json, sys
from pathlib import Path
from metaquorum import pipeline
from metaquorum.pipeline.session import spark_session

def where(batches):
    import os, pyarrow as pa
    from metaquorum.metadata import replay
    from metaquorum.pipeline.ingest import tasks
    for batch in batches:
        said = [f"{os.getcwd()} {tasks.__file__} {replay.__file__}"] * batch.num_rows
        yield pa.RecordBatch.from_arrays([pa.array(said)], names=["said"])

if __name__ == "__main__":
    jvm, logs, out = sys.argv[1:]
    extra = {"spark.sql.shuffle.partitions": "2", "spark.executor.extraJavaOptions": jvm}
    session = spark_session("local-cluster[2,1,1024]", extra=extra)
    places = session.range(0, 2, 1, 2).mapInArrow(where, "said STRING").distinct().collect()
    report = pipeline.write_tables(session, "logs", "out")
    wide = pipeline.read_logs(session, "logs").count()
    stored = pipeline.write_tables(session, logs, out)
    topics = pipeline.read_logs(session, logs, type="topic").count()
    refused = []
    print("from here on Spark tells of errors", file=sys.stderr)
    for attempt in (
        lambda: pipeline.write_tables(session, "/proc/self/cwd/logs", "other"),
        lambda: pipeline.read_logs(session, "/proc/self/cwd/logs").count(),
    ):
        try:
            refused.append(f"no error: {attempt()}")
        except Exception as error:
            refused.append(str(error))
    said = {"places": [row.said for row in places], "records": report.records, "wide": wide}
    said |= {"stored": stored.records, "topics": topics, "refused": refused}
    print(json.dumps(said))
    session.stop()
"""


def test_executors_that_share_only_files_or_a_store_with_the_driver(
    recorded: Ingested, shared_data: Path, tmp_path: Path
) -> None:
    """Processes of their own, in folders of their own, write tables to a folder and to a store."""
    (tmp_path / "run.py").write_text(SCRIPT)
    node_copy(shared_data / GOLDEN, tmp_path / "logs")
    short = node_copy(shared_data / GOLDEN, tmp_path / "short", 1000)
    with s3_endpoint() as environment:
        upload(short, "logs/node")
        words = [sys.executable, str(tmp_path / "run.py"), LIGHT_JVM]
        words += [f"s3a://{BUCKET}/logs/*", f"s3a://{BUCKET}/tables"]
        done = run_alone(words, tmp_path, PYTHONPATH=str(REPOSITORY), **environment)
        assert done.returncode == 0, done.stderr[-3000:]
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        batches = read_log(short / LOG)
        assert said["stored"] == batches[-1].header.next_offset
        assert said["topics"] > 0
        for name, rows in tables_of(replayed(batches)).items():
            assert TableSource(f"s3://{BUCKET}/tables").dataset(name).count_rows() == len(rows), name
    before_errors = done.stderr.partition("from here on Spark tells of errors")[0]
    quiet = [line for line in before_errors.splitlines() if not line.startswith("WARNING: Using incubator")]
    assert quiet == [], "Spark says something that is no error"
    assert (said["records"], said["wide"]) == (4758, 4758)
    assert said["places"]
    for place in said["places"]:
        working_directory, tasks, replay = place.split(" ")
        assert "/app-" in working_directory
        assert tasks.startswith(str(REPOSITORY))
        assert replay.startswith(str(REPOSITORY))
    for refused in said["refused"]:
        assert "the executor on" in refused
        assert "cannot read /proc/self/cwd/logs/__cluster_metadata-0" in refused
    for name in TABLES:
        if name != "files":  # the copy has no checkpoints
            expected = without_files(of_cluster(table(recorded.out, name), GOLDEN_CLUSTER))
            assert without_files(table(tmp_path / "out", name)) == expected, name


CONNECT = """
import json, sys
from metaquorum import pipeline
from metaquorum.pipeline.session import spark_session

if __name__ == "__main__":
    address, logs, out = sys.argv[1:]
    remote = spark_session(address)
    fleet = pipeline.read_fleet(remote, logs)
    (row,) = fleet.select("cluster", "records", "end_offset").collect()
    rows = {name: pipeline.make_table(fleet, name).count() for name in ("partition_states", "quorum_epochs")}
    records = pipeline.make_table(fleet, "records").select("offset").distinct().count()
    written = pipeline.write_tables(remote, logs, out).records
    tables = pipeline.read_tables(remote, out)
    made = pipeline.make_table(fleet, "broker_sessions").exceptAll(tables["broker_sessions"]).count()
    comments = {field.name: field.metadata.get("comment") for field in tables["topics"].schema}
    print(json.dumps({
        "kind": type(remote).__module__,
        "leaderless": pipeline.read_logs(remote, logs, type="partition-change").filter("leader = -1").count(),
        "fleet": [row["records"], row["end_offset"]],
        "rows": rows, "records": records, "written": written, "tables": sorted(tables), "differ": made,
        "comment": comments["topic_id"],
        "findings": sorted({row["kind"] for row in pipeline.audit_tables(tables).collect()}),
        "page": pipeline.render_report(tables, title="over Connect"),
    }))
    remote.stop()
"""


def test_over_spark_connect_the_functions_make_the_tables(
    spark: SparkSession, connect_port: int, shared_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.py").write_text(CONNECT)
    logs, out = str(shared_data / GOLDEN), str(tmp_path / "out")
    words = [sys.executable, str(tmp_path / "run.py"), f"sc://127.0.0.1:{connect_port}", logs, out]
    done = run_alone(words, tmp_path, PYTHONPATH=str(REPOSITORY))
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    expected = tables_of(replayed(read_log(shared_data / GOLDEN / LOG)))
    assert said["kind"].startswith("pyspark.sql.connect")
    assert said["leaderless"] > 0
    assert (said["fleet"], said["records"], said["written"]) == ([4758, 4758], 4758, 4758)
    assert said["rows"] == {name: len(expected[name]) for name in ("partition_states", "quorum_epochs")}
    assert (set(said["tables"]), said["differ"]) == (set(TABLES), 0)
    assert said["comment"] == "id; a topic that is created again has another"
    assert "unclean-election" in said["findings"]
    page = said["page"]
    assert "over Connect" in page and GOLDEN_CLUSTER in page
    here = gather(TableSource(out)).clusters[0]
    assert f"{here.records:,}" in page or str(here.records) in page

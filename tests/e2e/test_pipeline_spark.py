"""The pipeline on real Spark: the data source, its stream, and ingest in one go, in steps, and on executors
that share nothing with the driver but the files. One session serves all tests but the last."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from metaquorum.metadata.inspect.entities.history import history
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.text.dump import payload_json
from metaquorum.pipeline import read_tables
from metaquorum.pipeline.audit.source import TableSource
from metaquorum.pipeline.ingest.job import IngestReport, ingest
from metaquorum.pipeline.logs.survey import hop
from metaquorum.pipeline.session import SessionError, require_java, spark_session
from metaquorum.pipeline.tables import TABLES
from metaquorum.storage.disk.interface import name_of
from metaquorum.storage.disk.posix import PosixDisk
from tests.conftest import REPOSITORY
from tests.unit.pipeline.intervals.telling import read_log, replayed, tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.e2e, pytest.mark.shared_data]
GOLDEN = "kafka-3.7/controller-3000"
GOLDEN_CLUSTER = "ycvx3IyUTJ2ANvCy7N_YyA"
LOG = "__cluster_metadata-0"
TIMES = ("from_time", "to_time")
WILD = "kraft-wild/kafka-3.3-three-nodes-lagging"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    try:
        require_java()
    except SessionError as error:
        pytest.skip(str(error))
    session = spark_session("local[2]", extra={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()


def load(spark: SparkSession, *paths: Path, **options: str) -> DataFrame:
    return spark.read.format("metadata_log").options(**options).load([str(path) for path in paths])


def node_copy(source: Path, target: Path, up_to: int | None = None) -> Path:
    """A node's directory, its log cut at the first batch boundary at or after an offset."""
    shutil.rmtree(target, ignore_errors=True)
    (target / LOG).mkdir(parents=True)
    shutil.copy(source / "meta.properties", target)
    for segment in sorted((source / LOG).glob("*.log")):
        end = segment.stat().st_size
        for header in hop(str(segment), None):
            if up_to is not None and header.base_offset >= up_to:
                end = header.position
                break
        if end:
            (target / LOG / segment.name).write_bytes(segment.read_bytes()[:end])
    return target


def table(out: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table as any reader of Parquet sees them, without the order of files."""
    rows = TableSource(out).dataset(name).to_table().to_pylist()
    return sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))


def without_files(out: Path, name: str) -> list[dict[str, Any]]:
    """The same without what depends on which node's copy was read, and on where it lies."""
    rows = table(out, name)
    for row in rows:
        row.pop("node_id", None)
        if "file" in row:
            row["file"] = name_of(row["file"])
    return sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))


def test_the_wide_view_and_what_is_pushed_into_the_reader(spark: SparkSession, shared_data: Path) -> None:
    wide = load(spark, shared_data / GOLDEN, splitBytes="40000")
    assert wide.rdd.getNumPartitions() > 5
    found = {row.offset: row for row in wide.collect()}
    assert sorted(found) == list(range(4758))
    from metaquorum.metadata.records.batches import decode_batch

    for batch in read_log(shared_data / GOLDEN / LOG)[500:600]:
        for at in decode_batch(batch):
            assert json.loads(found[at.offset].payload) == payload_json(at.record, at.version)
    some = wide.filter("type = 'TOPIC_RECORD' AND offset BETWEEN 100 AND 2000 AND timestamp > '2026-11-21'")
    assert "PushedFilters" in some._jdf.queryExecution().toString() or some.count() > 0
    expected = [at for at, row in found.items() if row.type == "TOPIC_RECORD" and 100 <= at <= 2000]
    assert sorted(row.offset for row in some.collect()) == sorted(expected)


def test_typed_tables_and_a_single_history(spark: SparkSession, shared_data: Path) -> None:
    changes = load(spark, shared_data / GOLDEN, type="partition-change")
    assert changes.filter("leader = -1").count() == sum(
        json.loads(row.payload)["data"].get("leader") == -1
        for row in load(spark, shared_data / GOLDEN, types="partition-change").collect()
    )
    every, one = (load(spark, shared_data / WILD, nodes=nodes).count() for nodes in ("all", "one"))
    assert (every, one) == (2989 + 2986 + 2982, 2989)
    snapshot = load(
        spark, shared_data / "kraft-wild/kafka-4.0-with-snapshot", checkpoints="only", nodes="one"
    )
    assert {"SNAPSHOT_HEADER", "SNAPSHOT_FOOTER"} <= {row.type for row in snapshot.collect()}


def test_damage_is_a_table_and_a_wrong_option_names_itself(
    spark: SparkSession, shared_data: Path, tmp_path: Path
) -> None:
    node = node_copy(shared_data / GOLDEN, tmp_path / "node")
    last = sorted((node / LOG).glob("*.log"))[-1]
    data = bytearray(last.read_bytes())
    data[5000] ^= 0xFF
    last.write_bytes(bytes(data[:-20]))
    damage = load(spark, node, type="damage").collect()
    assert [row.kind for row in damage] == ["corrupt", "tail"]
    assert all(row.file == str(last) and row.reason for row in damage)
    assert 4700 < load(spark, node).count() < 4758
    from pyspark.errors import PySparkException

    for options, message in (
        ({"type": "tpoic"}, "did you mean"),
        ({"fromTime": "yesterday"}, "is not a time"),
        ({"nodse": "one"}, "has no option"),
    ):
        with pytest.raises(PySparkException, match=message) as raised:
            load(spark, node, **options)
        first, *rest = str(raised.value).strip().splitlines()
        assert first.startswith("[PYTHON_DATA_SOURCE_ERROR]") and message in first
        assert [line.strip() for line in rest] == ["SQLSTATE: 38000"]
    for path, message in (
        (tmp_path / "absent", "there is no such file"),
        ("ftp://bucket/logs", "ftp is not a store that can be read"),
    ):
        with pytest.raises(PySparkException, match=message) as raised:
            spark.read.format("metadata_log").load(str(path)).collect()
        assert message in str(raised.value).splitlines()[0]


def test_a_stream_follows_a_growing_log(spark: SparkSession, shared_data: Path, tmp_path: Path) -> None:
    node = node_copy(shared_data / GOLDEN, tmp_path / "node", 1000)

    def follow() -> int:
        stream = spark.readStream.format("metadata_log").load(str(node))
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(once=True)
            .start(str(tmp_path / "stream"))
        )
        assert query.awaitTermination(120)
        return spark.read.parquet(str(tmp_path / "stream")).count()

    assert follow() == read_log(node / LOG)[-1].header.next_offset
    node_copy(shared_data / GOLDEN, node, 2000)
    end = read_log(node / LOG)[-1].header.next_offset
    assert follow() == end
    assert spark.read.parquet(str(tmp_path / "stream")).select("offset").distinct().count() == end


def test_a_stream_names_damage_or_goes_on_behind_it(
    spark: SparkSession, shared_data: Path, tmp_path: Path
) -> None:
    """A bad batch length in the middle, which nothing but the bytes behind it can get past."""
    node = node_copy(shared_data / GOLDEN, tmp_path / "node", 2000)
    segment = sorted((node / LOG).glob("*.log"))[-1]
    headers = list(hop(str(segment), None))
    data = bytearray(segment.read_bytes())
    at = headers[-20]
    data[at.position + 8 : at.position + 12] = b"\x7f\xff\xff\xff"
    segment.write_bytes(bytes(data))

    def follow(**options: str) -> StreamingQuery:
        stream = spark.readStream.format("metadata_log").options(**options).load(str(node))
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(once=True)
            .start(str(tmp_path / "stream"))
        )
        query.awaitTermination(120)
        return query

    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=rf"{segment.name} at byte {at.position}"):
        follow()
    assert follow(onDamage="skip").exception() is None
    found = {row.offset for row in spark.read.parquet(str(tmp_path / "stream")).select("offset").collect()}
    assert found == set(range(headers[-1].next_offset)) - set(range(at.base_offset, at.next_offset))


@pytest.fixture(scope="module")
def whole(spark: SparkSession, shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of one run over the golden log and three nodes from the wild."""
    out = tmp_path_factory.mktemp("whole") / "out"
    report = ingest(spark, [str(shared_data / GOLDEN), str(shared_data / WILD)], out)
    assert report.records == 4758 + 2989
    return out


def test_the_tables_are_what_the_replay_tells(whole: Path, shared_data: Path, spark: SparkSession) -> None:
    expected = tables_of(replayed(read_log(shared_data / GOLDEN / LOG)))
    cluster = GOLDEN_CLUSTER
    for name, rows in expected.items():
        found = [row for row in table(whole, name) if row["cluster"] == cluster]
        assert len(found) == len(rows), name
    states = read_tables(spark, str(whole))["partition_states"].filter(f"cluster = '{cluster}'")
    last = states.filter("to_offset IS NULL").select("topic_id", "partition", "leader", "partition_epoch")
    assert {tuple(row) for row in last.collect()} == {
        (row[1], row[2], row[3], row[5]) for row in expected["partition_states"] if row[17] is None
    }
    lagging = [row for row in table(whole, "files") if row["cluster"] != cluster]
    assert sorted(row["used"] for row in lagging) == [False, False, True]
    assert table(whole, "damage") == []
    assert sorted(at.name for at in whole.iterdir()) == ["_data", "_runs", "_state", "_versions"]


def state_word(fields: Any) -> str:
    if fields["fenced"]:
        return "fenced"
    return "controlled_shutdown" if fields["inControlledShutdown"] else "active"


def test_the_tables_are_what_log_history_tells(whole: Path, shared_data: Path) -> None:
    """Spark's rows of partitions and brokers against those of `metaquorum log history` on the same log."""
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
        return [row for row in table(whole, name) if row["cluster"] == GOLDEN_CLUSTER]

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


def test_spark_submit_makes_the_same_tables(whole: Path, shared_data: Path, tmp_path: Path) -> None:
    """Started by Spark's own script, in a folder where nothing of the project can be imported by chance."""
    submit = Path(sys.executable).with_name("spark-submit")
    out = tmp_path / "out"
    done = subprocess.run(
        [
            *(str(submit), "--master", "local[2]", str(REPOSITORY / "pipeline" / "submit.py")),
            *("--out", str(out), str(shared_data / GOLDEN)),
        ],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "version 1: 4758 records, 1 clusters read" in done.stdout
    for name in TABLES:
        assert table(out, name) == [row for row in table(whole, name) if row["cluster"] == GOLDEN_CLUSTER]


def test_runs_over_growing_logs_give_the_tables_of_one_run(
    spark: SparkSession, whole: Path, shared_data: Path, tmp_path: Path
) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    steps: list[tuple[int | None, int | None]] = [(2900, 2500), (4300, None), (None, None)]
    reports: list[IngestReport] = []
    for golden, wild in steps:
        node_copy(shared_data / GOLDEN, logs / "golden", golden)
        for node in ("kafka1", "kafka2", "kafka3"):
            node_copy(shared_data / WILD / "data" / node, logs / node, wild)
        reports.append(ingest(spark, [str(logs)], out))
    assert [len(report.ingested) for report in reports] == [2, 2, 1]
    assert [report.unchanged for report in reports[:2]] == [[], []]
    assert reports[2].records < 1000, "the last run reads what is new and little before it"
    for name in TABLES:
        if name != "files":
            assert without_files(out, name) == without_files(whole, name), name
    again = ingest(spark, [str(logs)], out)
    assert (again.version, again.records, len(again.unchanged)) == (3, 0, 2)


def test_a_log_that_is_shorter_or_of_another_cluster_changes_no_row(
    spark: SparkSession, shared_data: Path, tmp_path: Path
) -> None:
    """A log that is shorter than it was read: its tables stay. One of another cluster has its own."""
    logs, out = tmp_path / "logs", tmp_path / "out"
    node_copy(shared_data / GOLDEN, logs / "node", 3000)
    first = ingest(spark, [str(logs)], out)
    before = {name: table(out, name) for name in TABLES}
    node_copy(shared_data / GOLDEN, logs / "node", 1500)
    said: list[str] = []
    shorter = ingest(spark, [str(logs)], out, say=said.append)
    assert (shorter.version, shorter.kept) == (first.version, first.ingested)
    assert "its tables stay as they are" in said[0]
    node_copy(shared_data / WILD / "data" / "kafka1", logs / "node")
    (cluster,) = first.ingested
    other = tmp_path / "other"
    for target, name in ((out, f"{cluster}~2"), (other, cluster)):
        report = ingest(spark, [str(logs)], target, cluster=cluster, say=said.append)
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


SCRIPT = """
import json, sys
from pathlib import Path
from metaquorum.pipeline.audit.source import TableSource
from metaquorum.pipeline import read_tables
from metaquorum.pipeline.ingest.job import ingest
from metaquorum.pipeline.session import spark_session

def where(batches):
    import os, pyarrow as pa
    from metaquorum.metadata import replay
    from metaquorum.pipeline.ingest import tasks
    for batch in batches:
        said = [f"{os.getcwd()} {tasks.__file__} {replay.__file__}"] * batch.num_rows
        yield pa.RecordBatch.from_arrays([pa.array(said)], names=["said"])

if __name__ == "__main__":
    session = spark_session("local-cluster[2,1,1024]", extra={"spark.sql.shuffle.partitions": "2"})
    places = session.range(0, 2, 1, 2).mapInArrow(where, "said STRING").distinct().collect()
    report = ingest(session, sys.argv[2:], Path(sys.argv[1]))
    wide = session.read.format("metadata_log").load(sys.argv[2]).count()
    refused = []
    print("from here on Spark tells of errors", file=sys.stderr)
    for attempt in (
        lambda: ingest(session, ["/proc/self/cwd/logs"], Path("other")),
        lambda: session.read.format("metadata_log").load("/proc/self/cwd/logs").count(),
    ):
        try:
            refused.append(f"no error: {attempt()}")
        except Exception as error:
            refused.append(str(error))
    said = {"places": [row.said for row in places], "records": report.records, "wide": wide}
    print(json.dumps({**said, "refused": refused}))
    session.stop()
"""


def test_executors_that_share_nothing_make_the_same_tables(
    whole: Path, shared_data: Path, tmp_path: Path
) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out"
    node_copy(shared_data / GOLDEN, tmp_path / "logs")
    done = subprocess.run(
        [sys.executable, str(script), "out", "logs"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    before_errors = done.stderr.partition("from here on Spark tells of errors")[0]
    quiet = [line for line in before_errors.splitlines() if not line.startswith("WARNING: Using incubator")]
    assert quiet == [], "Spark says something that is no error"
    said = json.loads(done.stdout.splitlines()[-1])
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
            rows = [row for row in without_files(whole, name) if row["cluster"] == GOLDEN_CLUSTER]
            assert without_files(out, name) == rows, name

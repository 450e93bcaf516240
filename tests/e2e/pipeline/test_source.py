"""The data source `metadata_log` on real Spark: batches, filters, typed tables, damage, and a stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from metaquorum import pipeline
from metaquorum.metadata.text.dump import payload_json
from metaquorum.pipeline.logs.survey import hop
from tests.unit.pipeline.intervals.telling import read_log
from tests.unit.pipeline.recorded import GOLDEN, LOG, WILD, node_copy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.shared_data]


def load(spark: SparkSession, *paths: Path, **options: str) -> DataFrame:
    return spark.read.format("metadata_log").options(**options).load([str(path) for path in paths])


def test_the_wide_view_and_what_is_pushed_into_the_reader(spark: SparkSession, shared_data: Path) -> None:
    wide = load(spark, shared_data / GOLDEN, splitBytes="40000")
    assert wide.rdd.getNumPartitions() > 5
    assert wide.schema["epoch"].metadata == {"comment": "leader epoch of its batch"}
    found = {row.offset: row for row in wide.collect()}
    assert sorted(found) == list(range(4758))
    from metaquorum.metadata.records.batches import decode_batch

    for batch in read_log(shared_data / GOLDEN / LOG)[500:600]:
        for at in decode_batch(batch):
            assert json.loads(found[at.offset].payload) == payload_json(at.record, at.version)
    some = wide.filter("type = 'TOPIC_RECORD' AND offset BETWEEN 100 AND 2000 AND timestamp > '2026-11-21'")
    plan = spark._jvm.PythonSQLUtils.explainString(some._jdf.queryExecution(), "formatted")  # type: ignore[union-attr]
    (pushed,) = (line for line in plan.splitlines() if line.startswith("PushedFilters"))
    assert all(name in pushed for name in ("type", "offset", "timestamp"))
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
    lagging = load(spark, shared_data / WILD).filter("node_id = 3")
    (piece,) = {row.file for row in lagging.select("file").distinct().collect()}
    assert lagging.rdd.getNumPartitions() == 1 and "kafka3" in piece
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


def test_a_stream_follows_a_growing_log_and_names_damage(
    spark: SparkSession, shared_data: Path, tmp_path: Path
) -> None:
    node = node_copy(shared_data / GOLDEN, tmp_path / "node", 1000)

    def follow() -> set[int]:
        stream = spark.readStream.format("metadata_log").load(str(node))
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(once=True)
            .start(str(tmp_path / "stream"))
        )
        assert query.awaitTermination(120)
        found = spark.read.parquet(str(tmp_path / "stream")).select("offset").collect()
        assert len(found) == len(set(found))
        return {row.offset for row in found}

    assert follow() == set(range(read_log(node / LOG)[-1].header.next_offset))
    node_copy(shared_data / GOLDEN, node, 2000)
    assert follow() == set(range(read_log(node / LOG)[-1].header.next_offset))
    node_copy(shared_data / GOLDEN, node, 2500)
    segment = sorted((node / LOG).glob("*.log"))[-1]
    at = list(hop(str(segment), None))[-20]
    data = bytearray(segment.read_bytes())
    data[at.position + 8 : at.position + 12] = b"\x7f\xff\xff\xff"  # the batch's length
    segment.write_bytes(bytes(data))
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=rf"{segment.name} at byte {at.position}"):
        follow()


def test_a_session_that_was_made_elsewhere_reads_and_a_stream_ends_with_every_record(
    spark: SparkSession, shared_data: Path, tmp_path: Path
) -> None:
    """The stream stops before the commit of its second micro-batch, and goes on under availableNow after the
    log grew."""
    node = node_copy(shared_data / GOLDEN, tmp_path / "node", 600)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")  # as it is unless somebody sets it
    assert pipeline.read_logs(spark, str(node)).count() == read_log(node / LOG)[-1].header.next_offset

    def follow() -> list[int]:
        stream = spark.readStream.format("metadata_log").option("maxBytesPerTrigger", "40000").load(str(node))
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "stream"))
        )
        assert query.awaitTermination(120)
        found = spark.read.parquet(str(tmp_path / "stream")).select("offset").collect()
        return sorted(row.offset for row in found)

    assert follow() == list(range(read_log(node / LOG)[-1].header.next_offset))
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    assert len(commits) > 1
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink()
    node_copy(shared_data / GOLDEN, node, 900)
    assert follow() == list(range(read_log(node / LOG)[-1].header.next_offset))

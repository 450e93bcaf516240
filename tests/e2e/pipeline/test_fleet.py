"""Spark's tables compared with the truth of a synthetic fleet, and the queries of docs/pipeline.md on real
logs.

`METAQUORUM_REWRITE_DOCS=1` records the outputs of the page's queries again: review them as a diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from metaquorum.pipeline import read_tables
from metaquorum.pipeline.audit.gather import TableSource, gather
from metaquorum.pipeline.fleet.files import CLUSTERS, TRUTH, write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from metaquorum.pipeline.ingest.job import ingest
from tests.e2e.pipeline.conftest import Ingested
from tests.e2e.pipeline.page import (
    PAGE,
    printed,
    queries,
    record,
    recorded_outputs,
    shown_outputs,
    views,
)
from tests.unit.pipeline.asked import write_node
from tests.unit.pipeline.local_tables import write_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.e2e


class Fleet:
    """A fleet with three nodes per cluster, including damage, and its tables."""

    def __init__(self, spark: SparkSession, out: Path) -> None:
        write_fleet(FleetPlan(clusters=3, records=6000, seed=21, nodes=2, damaged_every=2), out / "fleet")
        self.tables = out / "tables"
        ingest(spark, [str(out / "fleet" / CLUSTERS)], self.tables)
        listed = [json.loads(path.read_text()) for path in (out / "fleet" / TRUTH).glob("cluster-*.json")]
        self.truths: dict[str, dict[str, Any]] = {truth["cluster_id"]: truth for truth in listed}


@pytest.fixture(scope="module")
def fleet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    found = Fleet(spark, tmp_path_factory.mktemp("fleet"))
    views(spark, found.tables)
    return found


def rows(spark: SparkSession, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(sql).collect()]


def test_records_are_there_once_by_type(spark: SparkSession, fleet: Fleet) -> None:
    seen: dict[str, dict[str, int]] = {}
    for cluster, kind, count in rows(spark, "SELECT cluster, type, COUNT(*) FROM records GROUP BY 1, 2"):
        seen.setdefault(cluster, {})[kind] = count
    assert seen == {cluster: truth["records_by_type"] for cluster, truth in fleet.truths.items()}


def test_epochs_and_broker_states_are_those_of_the_truth(spark: SparkSession, fleet: Fleet) -> None:
    for cluster, truth in fleet.truths.items():
        epochs = rows(
            spark,
            f"SELECT epoch, leader_id, from_offset FROM quorum_epochs WHERE cluster = '{cluster}' ORDER BY 3",
        )
        assert epochs == [(one["epoch"], one["leader"], one["offset"]) for one in truth["epochs"]]
        sessions = rows(
            spark,
            "SELECT broker_id, from_offset, state, CAST(unix_millis(from_time) AS BIGINT) "
            f"FROM broker_sessions WHERE cluster = '{cluster}' ORDER BY 1, 2",
        )
        told = {
            (one["broker"], one["offset"]): (one["state"], one["time_ms"]) for one in truth["broker_states"]
        }
        # A lost directory begins a new row in the same state; every change of state begins its own row.
        seen = {(broker, offset): (state, time_ms) for broker, offset, state, time_ms in sessions}
        assert {key: seen.get(key) for key in told} == told
        extra = len(seen) - len(told)
        assert extra == sum(one["kind"] == "directory_failure" for one in truth["incidents"])


def test_sums_and_failovers_are_those_of_the_truth(fleet: Fleet) -> None:
    facts = gather(TableSource(fleet.tables)).clusters
    assert {one.cluster for one in facts} == set(fleet.truths)
    for one in facts:
        truth = fleet.truths[one.cluster]
        totals = truth["totals"]
        assert (one.records, one.partitions) == (truth["records"], truth["final"]["partitions"])
        for name in ("leader_changes", "isr_shrinks", "isr_expands", "unclean_elections"):
            assert one.sums[name] == totals[name], name
        for name in ("leaderless", "under_min_isr"):
            told = totals[f"{name}_partition_ms"] / 1000
            assert one.sums[f"{name}_seconds"] == pytest.approx(told)
            assert sum(getattr(at, f"{name}_ms") for at in one.trouble.values()) / 1000 == pytest.approx(told)
        lost = sum(at["leaders_moved"] + at["left_leaderless"] for at in truth["failovers"])
        known = sum(count for cause, count in one.failover_causes.items() if cause != "unknown")
        assert known == lost
        assert one.failovers_open == truth["final"]["leaderless"]


def test_sampled_partitions_have_every_state_of_the_truth(spark: SparkSession, fleet: Fleet) -> None:
    compared = 0
    for cluster, truth in fleet.truths.items():
        for sample in truth["samples"]:
            seen = rows(
                spark,
                "SELECT leader, sort_array(isr), leader_epoch, partition_epoch, unix_millis(from_time) "
                f"FROM partition_states WHERE cluster = '{cluster}' AND topic = '{sample['topic']}' "
                f"AND partition = {sample['partition']} ORDER BY from_offset",
            )
            told = [
                (
                    one["leader"],
                    sorted(one["isr"]),
                    one["leader_epoch"],
                    one["partition_epoch"],
                    one["time_ms"],
                )
                for one in sample["states"]
            ]
            assert seen == told
            compared += len(told)
    assert compared > 50


def test_every_broken_invariant_is_told_from_where_it_broke_to_where_it_was_mended(
    spark: SparkSession, fleet: Fleet
) -> None:
    query = "SELECT cluster, rule, `where`, from_offset, to_offset FROM violations WHERE severity = 'error'"
    told = {
        (cluster, one["rule"], one["where"], one["broken_offset"], one["mended_offset"])
        for cluster, truth in fleet.truths.items()
        for one in truth["incidents"]
        if one["kind"] == "broken_invariant"
    }
    assert set(rows(spark, query)) == told
    assert {one[-1] is None for one in told} == {True, False}


def test_damage_is_told_where_it_was_made(spark: SparkSession, fleet: Fleet) -> None:
    seen = {
        (cluster, position, offset)
        for cluster, position, offset in rows(
            spark, "SELECT cluster, position, offset FROM damage WHERE kind IN ('tail', 'corrupt')"
        )
    }
    told = {
        (cluster, one["position"], one["offset"])
        for cluster, truth in fleet.truths.items()
        for one in truth["damage"]
    }
    assert seen == told and told


@pytest.mark.shared_data
def test_every_query_of_the_page_prints_what_is_recorded(
    spark: SparkSession, recorded: Ingested, tmp_path: Path
) -> None:
    views(spark, recorded.out)
    assert spark.table("audit_trail").isEmpty()
    write_tables([write_node(tmp_path / "node")], tmp_path / "tables")
    read_tables(spark, str(tmp_path / "tables"))["audit_trail"].createOrReplaceTempView("audit_trail")
    page = PAGE.read_text()
    outputs = {title: printed(spark, sql) for title, sql in queries(page).items()}
    if os.environ.get("METAQUORUM_REWRITE_DOCS"):
        record(outputs)
    assert len(outputs) >= 12
    assert outputs == recorded_outputs()
    shown = shown_outputs(page)
    assert shown and shown.items() <= outputs.items()

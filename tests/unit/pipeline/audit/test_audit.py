"""Audits find what the generator planted, with the numbers that it knows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.cli.main import main
from metaquorum.pipeline.audit.facts import (
    BrokerPeriod,
    ClusterFacts,
    Fleet,
    TimeSpan,
    bursts,
    histogram,
    quantiles,
)
from metaquorum.pipeline.audit.findings import (
    AuditFinding,
    AuditLimits,
    findings,
    flapping,
    seconds_text,
    violations,
)
from metaquorum.pipeline.audit.gather import TableSource, gather
from metaquorum.pipeline.fleet.files import CLUSTERS, TRUTH, write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from metaquorum.pipeline.ingest.layout import Manifest, WrittenFile, begin, load_manifest, publish
from metaquorum.pipeline.stores.folder import Folder
from tests.unit.pipeline.local_tables import write_tables

UNCLEAR = ("unexplained", "stopping-or-fenced")

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
PLAN = FleetPlan(clusters=4, records=9000, seed=3, damaged_every=2)


class Tables:
    def __init__(self, out: Path) -> None:
        write_fleet(PLAN, out / "fleet")
        self.path = out / "tables"
        nodes = sorted(path / "controller-3000" for path in (out / "fleet" / CLUSTERS).iterdir())
        write_tables(nodes, self.path)
        listed = [json.loads(path.read_text()) for path in (out / "fleet" / TRUTH).glob("cluster-*.json")]
        self.truths: dict[str, dict[str, Any]] = {truth["cluster_id"]: truth for truth in listed}
        self.fleet: Fleet = gather(TableSource(self.path))
        self.found = findings(self.fleet, AuditLimits())

    def of(self, cluster: str, kind: str) -> list[AuditFinding]:
        return [one for one in self.found if (one.cluster, one.kind) == (cluster, kind)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(tmp_path_factory.mktemp("audit"))


def test_sums_are_those_of_the_truth(tables: Tables) -> None:
    assert {one.cluster for one in tables.fleet.clusters} == set(tables.truths)
    for one in tables.fleet.clusters:
        truth = tables.truths[one.cluster]
        totals = truth["totals"]
        assert (one.records, one.partitions) == (truth["records"], truth["final"]["partitions"])
        assert one.brokers == len(truth["brokers"])
        assert (one.start_ms, one.end_ms) == (truth["start_ms"], truth["end_ms"])
        assert one.sums["unclean_elections"] == totals["unclean_elections"]
        for name in ("leader_changes", "isr_shrinks", "isr_expands"):
            assert one.sums[name] == totals[name], name
        assert one.sums["leaderless_seconds"] == pytest.approx(totals["leaderless_partition_ms"] / 1000)
        assert one.sums["under_min_isr_seconds"] == pytest.approx(totals["under_min_isr_partition_ms"] / 1000)
        assert [row["from_offset"] for row in one.elections] == [at["offset"] for at in truth["epochs"]]


def test_trouble_by_partition_adds_up_to_the_truth(tables: Tables) -> None:
    for one in tables.fleet.clusters:
        totals = tables.truths[one.cluster]["totals"]
        troubles = one.trouble.values()
        assert sum(at.leaderless_ms for at in troubles) == totals["leaderless_partition_ms"] > 0
        assert sum(at.under_min_isr_ms for at in troubles) == totals["under_min_isr_partition_ms"] > 0
        assert sum(at.unclean for at in troubles) == totals["unclean_elections"]


def test_buckets_hold_all_of_it(tables: Tables) -> None:
    fleet = tables.fleet
    for number, one in enumerate(fleet.clusters):
        totals = tables.truths[one.cluster]["totals"]
        for drawn, told in (
            (fleet.leaderless, totals["leaderless_partition_ms"]),
            (fleet.under_min_isr, totals["under_min_isr_partition_ms"]),
        ):
            assert drawn[number].sum() * fleet.bucket_ms == pytest.approx(told)
        assert fleet.leader_changes[number].sum() == totals["leader_changes"]


def test_every_planted_incident_is_found(tables: Tables) -> None:
    kinds = set()
    for cluster, truth in tables.truths.items():
        for incident in truth["incidents"]:
            found = {
                "flapping_broker": [
                    one
                    for one in tables.of(cluster, "flapping-broker")
                    if one.subject == f"broker/{incident.get('broker')}"
                ],
                "fence_storm": [
                    one
                    for one in tables.of(cluster, "fence-storm")
                    if one.time_ms is not None and one.time_ms <= incident.get("last_fence_ms", 0)
                ],
                "unclean_election": tables.of(cluster, "unclean-election"),
                "leaderless": tables.of(cluster, "leaderless"),
                "under_min_isr": tables.of(cluster, "under-min-isr"),
                "directory_failure": tables.of(cluster, "lost-directory"),
            }.get(incident["kind"])
            if found is not None:
                assert found, incident
                kinds.add(incident["kind"])
        assert len(tables.of(cluster, "damage")) == len(truth["damage"])
    assert kinds == {
        *("flapping_broker", "fence_storm", "unclean_election", "leaderless", "under_min_isr"),
        "directory_failure",
    }


def test_an_invariant_that_stays_broken_is_found(tables: Tables) -> None:
    planted = 0
    for cluster, truth in tables.truths.items():
        for incident in truth["incidents"]:
            if incident["kind"] == "broken_invariant" and incident["mended_offset"] is None:
                planted += 1
                found = [one for one in tables.of(cluster, "violation") if incident["rule"] in one.text]
                assert [one.severity for one in found] == ["error"]
                assert found[0].count >= 1 and "1 ongoing" in found[0].text
    assert planted == 2


def test_leaderless_is_an_error_where_the_log_ends_so(tables: Tables) -> None:
    for cluster, truth in tables.truths.items():
        outages = tables.of(cluster, "leaderless")
        still = [one for one in outages if one.severity == "error"]
        assert len(still) == (1 if truth["final"]["leaderless"] else 0) and outages
        assert [one for one in outages if one.end_ms is None] == still
        told = truth["totals"]["leaderless_partition_ms"] / 1000
        assert sum(one.seconds or 0 for one in outages) == pytest.approx(told)


def test_failovers_are_as_many_as_leaders_were_lost(tables: Tables) -> None:
    for one in tables.fleet.clusters:
        truth = tables.truths[one.cluster]
        by_cause: dict[str, int] = {}
        for told in truth["failovers"]:
            lost = told["leaders_moved"] + told["left_leaderless"]
            by_cause[told["cause"]] = by_cause.get(told["cause"], 0) + lost
        known = {cause: count for cause, count in one.failover_causes.items() if cause not in UNCLEAR}
        assert known == {cause: count for cause, count in by_cause.items() if count}
        assert one.failovers_open == truth["final"]["leaderless"]


@pytest.mark.parametrize(
    ("times", "bursts"),
    [((0, 1, 2), 1), ((0, 1), 0), ((0, 5000, 10_000), 0), ((0, 1, 2, 3, 5000, 5001, 5002), 2)],
)
def test_flapping_needs_enough_fences_in_the_window(times: tuple[int, ...], bursts: int) -> None:
    one = ClusterFacts("c")
    for at in times:
        one.sessions[1] += [
            BrokerPeriod(1, "active", at, at, at, None),
            BrokerPeriod(1, "fenced", at, at, at, None),
        ]
    found = list(flapping(one, AuditLimits(flaps=3, flap_window_ms=100)))
    seen = [(one.time_ms, one.end_ms, one.count) for one in found]
    assert seen == [(0, times[-1] if bursts == 1 else 3, 3 if bursts == 1 else 4), (5000, 5002, 3)][:bursts]


def test_quantiles_and_histogram_of_known_values() -> None:
    values = np.array([0, 0, 10, 11, 3_600_001])
    assert quantiles(values) == (10, pytest.approx(11 + 0.8 * 3_599_990), 3_600_001)
    assert quantiles(values[:0]) is None
    counted = histogram(values)
    assert (counted[0], counted[1], counted[2], counted[-1], sum(counted)) == (2, 1, 1, 1, 5)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.44, "0.4 s"), (38, "38 s"), (720, "12 min"), (12_600, "3.5 h"), (259_200, "3.0 days")],
)
def test_seconds_are_readable(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["pipeline", "audit", *arguments], standalone_mode=False)


def test_the_command_prints_and_its_exit_code_tells(tables: Tables) -> None:
    shown = run(str(tables.path), "--limit", "3")
    assert shown.return_value == 11
    assert "SEVERITY" in shown.output and "more; see them with --limit" in shown.output
    assert "How long failovers took" in shown.output
    assert run(str(tables.path), "--fail-on", "never").return_value == 0
    assert run(str(tables.path), "--kind", "unstable-quorum", "--fail-on", "error").return_value == 0


def test_json_holds_every_finding(tables: Tables) -> None:
    told = json.loads(run(str(tables.path), "--json").output)
    assert len(told["findings"]) == len(tables.found)
    assert told["records"] == 9000
    cluster = next(iter(tables.truths))
    only = json.loads(run(str(tables.path), "--json", "--cluster", cluster).output)
    assert {one["cluster"] for one in only["findings"]} == {cluster}


def test_mistakes_are_one_line(tables: Tables, tmp_path: Path) -> None:
    for arguments, said in (
        ((str(tmp_path / "absent"),), "holds no pipeline tables"),
        ((str(tmp_path),), "holds no pipeline tables"),
        ((str(tables.path), "--cluster", "nobody"), "no cluster nobody"),
    ):
        assert said in str(run(*arguments).exception)


def test_records_are_counted_where_they_are_kept(tables: Tables, tmp_path: Path) -> None:
    """A log that was trimmed, or lost bytes, has fewer records than its end says."""
    root = tmp_path / "tables"
    shutil.copytree(tables.path, root)
    folder = Folder(str(root))
    before = load_manifest(folder)
    files = list(before.files)
    first, second = (one.cluster for one in tables.fleet.clusters[:2])
    for date, rows in (("2026-01-01", 3), ("2026-01-02", 4)):
        path = f"_data/records/cluster={quote(first, safe='')}/date={date}/part.parquet"
        (root / path).parent.mkdir(parents=True)
        files.append(WrittenFile(table="records", cluster=first, date=date, path=path, rows=rows, final=True))
        times = pa.array([0] * rows, pa.timestamp("us", tz="UTC"))
        kept = {"offset": list(range(100, 100 + rows)), "timestamp": times}
        pq.write_table(pa.table(kept), root / path)
    publish(folder, begin(folder, before), Manifest(files=files))
    counted = {one.cluster: one.records for one in gather(TableSource(root)).clusters}
    assert (counted[first], counted[second]) == (7, 0)


def test_a_warning_that_is_no_more_is_info_and_an_error_never_is() -> None:
    row = {"where": "topic/a/0", "found": "x", "from_time": 1, "to_time": 7, "from_offset": 2, "count": 3}
    one = ClusterFacts(cluster="a")
    one.violations = {
        ("warning", "isr-active"): {**row, "open": 0},
        ("warning", "leader-active"): {**row, "open": 1},
        ("error", "leader-in-isr"): {**row, "open": 0},
    }
    found = [(at.severity, at.text, at.end_ms) for at in violations(one, AuditLimits())]
    assert found == [
        ("error", "leader-in-isr: x", 7),
        ("info", "isr-active: x, no longer", 7),
        ("warning", "leader-active: x, 1 ongoing", None),
    ]


def facts_of(**spans: list[TimeSpan]) -> ClusterFacts:
    one = ClusterFacts("c", start_ms=0, end_ms=100_000, **spans)
    return one


def test_time_that_nobody_saw_and_time_switched_off_is_not_judged() -> None:
    one = facts_of(
        silences=[TimeSpan(20_000, 30_000, 7)],
        offs=[TimeSpan(28_000, 50_000, 9), TimeSpan(90_000, 95_000, 11)],
    )
    assert list(one.judged(10_000, 60_000)) == [(10_000, 20_000), (50_000, 60_000)]
    assert list(one.judged(22_000, 40_000)) == []
    assert list(one.judged(0, 10_000)) == [(0, 10_000)]
    assert list(one.judged(45_000, 92_000)) == [(50_000, 90_000)]
    assert list(ClusterFacts("c").judged(3, 9)) == [(3, 9)]


def test_a_silent_quorum_is_a_finding_and_less_of_one_where_the_brokers_had_been_stopped() -> None:
    one = facts_of(
        silences=[TimeSpan(0, 60_000, 5), TimeSpan(70_000, 80_000, 8), TimeSpan(90_000, 99_000, 12)],
        offs=[TimeSpan(65_000, 85_000, 9), TimeSpan(86_000, 95_000, 11)],  # of the last one, a part
    )
    fleet = Fleet([one], 0, 100_000)
    found = findings(fleet, AuditLimits(), frozenset({"quorum-silent"}))
    assert [(at.severity, at.time_ms, at.offset, at.seconds) for at in found] == [
        ("warning", 0, 5, 60.0),
        ("warning", 90_000, 12, 9.0),
        ("info", 70_000, 8, 10.0),
    ]
    assert (
        found[0].text
        == "nothing was written for 60 s, until offset 5; whether brokers served clients is unknown"
    )


# Bursts of events, against their definition.


pytest.importorskip("pyarrow")


@given(st.lists(st.integers(0, 40), max_size=14).map(sorted), st.integers(1, 5), st.integers(0, 20))
def test_a_burst_goes_on_while_its_neighbors_are_within_the_window(
    times: list[int], least: int, window_ms: int
) -> None:
    events = list(enumerate(times))
    groups = [events[at : at + least] for at in range(len(events) - least + 1)]
    expected: list[list[tuple[int, int]]] = []
    goes_on = False
    for group in groups:
        is_near = group[-1][1] - group[0][1] <= window_ms
        if is_near and goes_on:
            expected[-1].append(group[-1])
        elif is_near:
            expected.append(list(group))
        goes_on = is_near
    assert list(bursts(events, least, window_ms, lambda event: event[1])) == expected

"""One incident is one finding, with its time, its end and its full subject."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("pyarrow")

from metaquorum.cli.main import main
from metaquorum.metadata.records import types as r
from metaquorum.pipeline.audit.facts import (
    INCIDENT_GAP_MS,
    BrokerPeriod,
    ClusterFacts,
    Fleet,
    Sections,
    TimeSpan,
)
from metaquorum.pipeline.audit.findings import AuditFinding, AuditLimits, findings
from metaquorum.pipeline.audit.gather import TableSource, gather
from metaquorum.pipeline.fleet.files import CLUSTERS, write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from tests.unit.pipeline.intervals.telling import alive as unfenced
from tests.unit.pipeline.intervals.telling import batches, broker, fence, leads, named, replayed, tables_of
from tests.unit.pipeline.local_tables import write_tables

ORDERS, LOGS = ("orders", "A", 7), ("logs", "B", 0)
MINUTE = 60_000


def found_in(one: ClusterFacts, *kinds: str, limits: AuditLimits | None = None) -> list[AuditFinding]:
    return findings(Fleet([one], 0, 1_000_000), limits or AuditLimits(), frozenset(kinds))


def brokers_go(one: ClusterFacts, *, before: str, began_by: str = "FENCE_BROKER_RECORD") -> ClusterFacts:
    """Four brokers, of which each is fenced 10 s after the one before and back 5 s later."""
    for number in range(4):
        at = number * 10_000
        one.sessions[number] = [
            BrokerPeriod(number, before, 0, at, number, "UNFENCE_BROKER_RECORD"),
            BrokerPeriod(number, "fenced", at, at + 5_000, 10 + number, began_by),
            BrokerPeriod(number, "active", at + 5_000, None, 20 + number, "UNFENCE_BROKER_RECORD"),
        ]
    return one


def test_stretches_that_touch_or_nearly_do_are_one_incident() -> None:
    trouble = Sections()
    trouble.add(ORDERS, 0, 1_000, 5)
    trouble.add(LOGS, 500, 3_000, 6)
    trouble.add(ORDERS, 3_000 + INCIDENT_GAP_MS, 4_000 + INCIDENT_GAP_MS, 9)
    late = 5_001 + 2 * INCIDENT_GAP_MS
    trouble.add(LOGS, late, late + 10, 12, is_open=True)
    first, second = trouble.incidents()
    assert (first.start_ms, first.until_ms, first.offset) == (0, 4_000 + INCIDENT_GAP_MS, 5)
    assert (first.partitions, first.sections, first.subject) == (2, 3, "topic/logs/0")
    assert (first.worst_ms, first.total_ms) == (2_500, 4_500)
    assert (second.start_ms, second.until_ms, second.open_partitions) == (late, None, 1)
    assert list(Sections().incidents()) == []


def test_a_long_stretch_holds_later_short_ones() -> None:
    trouble = Sections()
    trouble.add(ORDERS, 0, 10 * MINUTE, 1)
    trouble.add(LOGS, 1, 2, 2)
    trouble.add(LOGS, 9 * MINUTE, 9 * MINUTE + 1, 3)
    assert len(list(trouble.incidents())) == 1


def test_an_outage_with_slow_failovers_is_one_finding() -> None:
    one = ClusterFacts("c")
    for name in (ORDERS, LOGS):
        one.leaderless.add(name, 1_000, 51_000, 5)
        one.slow.add(name, 1_000, 51_000, 5)
    (only,) = found_in(one)
    assert (only.kind, only.subject) == ("leaderless", "topic/logs/0")
    assert (only.time_ms, only.end_ms, only.seconds) == (1_000, 51_000, 100.0)
    assert only.text == (
        "2 partitions, the longest for 50 s; 2 leaders were replaced only after more than 30 s"
    )
    (asked,) = found_in(one, "slow-failover")
    assert (asked.subject, asked.time_ms, asked.end_ms, asked.count) == ("topic/logs/0", 1_000, 51_000, 2)
    assert found_in(one, "slow-failover", limits=AuditLimits(slow_failover_ms=50_000)) == []


def test_two_outages_are_two_findings() -> None:
    one = ClusterFacts("c")
    one.leaderless.add(ORDERS, 0, 1_000, 5)
    one.leaderless.add(ORDERS, 10 * MINUTE, 11 * MINUTE, 50, is_open=True)
    assert [(at.severity, at.time_ms, at.end_ms, at.offset) for at in found_in(one)] == [
        ("error", 10 * MINUTE, None, 50),
        ("warning", 0, 1_000, 5),
    ]


def test_brokers_that_were_fenced_one_soon_after_the_other_are_a_storm_with_an_end() -> None:
    one = brokers_go(ClusterFacts("c"), before="active")
    (storm,) = found_in(one, "fence-storm")
    assert (storm.subject, storm.time_ms, storm.end_ms, storm.count) == ("broker/0", 0, 35_000, 4)
    one.sessions[2][1].to_ms = None
    (storm,) = found_in(one, "fence-storm")
    assert storm.end_ms is None


@pytest.mark.parametrize(
    ("times", "counts"),
    [
        ((0, 0, MINUTE), [3]),
        ((0, 0, MINUTE + 1), []),
        ((0, MINUTE, 2 * MINUTE), []),
        ((0, 1, 2, 2 + MINUTE, 3 + 2 * MINUTE, 4 + 2 * MINUTE, 5 + 2 * MINUTE), [3, 3]),
    ],
)
def test_a_storm_is_so_many_brokers_within_a_minute(times: tuple[int, ...], counts: list[int]) -> None:
    one = ClusterFacts("c")
    for node, at in enumerate(times):
        one.sessions[node] = [
            BrokerPeriod(node, "active", 0, at, 1, None),
            BrokerPeriod(node, "fenced", at, at + 1, 2, "FENCE_BROKER_RECORD"),
        ]
    assert [each.count for each in found_in(one, "fence-storm")] == counts


def test_orderly_stops_and_restarts_are_no_storm() -> None:
    assert found_in(brokers_go(ClusterFacts("c"), before="controlled_shutdown")) == []
    again = brokers_go(ClusterFacts("c"), before="active", began_by="REGISTER_BROKER_RECORD")
    assert found_in(again, "fence-storm") == []
    off = brokers_go(ClusterFacts("c", offs=[TimeSpan(0, MINUTE, 30)]), before="active")
    assert found_in(off) == []


@pytest.mark.parametrize(
    ("racks", "said"),
    [
        ((None, None, None, None), False),
        (("", "", "", ""), False),
        (("a", None, "a", "a"), False),
        (("a", "a", "a", "a"), True),
    ],
)
def test_a_rack_is_named_only_where_it_is_known(racks: tuple[str | None, ...], said: bool) -> None:
    one = brokers_go(ClusterFacts("c"), before="active")
    one.racks = dict(enumerate(racks))
    (storm,) = found_in(one, "fence-storm")
    assert storm.text.endswith(" (all in rack a)") == said
    assert "None" not in storm.text and ("rack" in storm.text) == said


def test_the_table_counts_no_storm_of_orderly_stops() -> None:
    def storms(in_order: bool) -> int:
        lines = [(0, [leads(3000)])]
        lines += [(0, [broker(number, number)]) for number in range(1, 5)]
        lines += [(0, [unfenced(number, number)]) for number in range(1, 5)]
        for number in range(1, 4):
            if in_order:
                stop = r.BrokerRegistrationChangeRecord(number, number, in_controlled_shutdown=1)
                lines.append((1_000 * number, [stop]))
            lines.append((1_000 * number + 500, [fence(number, number)]))
        rows = named("availability", [row[1:] for row in tables_of(replayed(batches(lines)))["availability"]])
        (whole,) = [row for row in rows if row["scope"] == "cluster"]
        assert whole["fences"] == 3
        return int(whole["fence_storms"])

    assert (storms(True), storms(False)) == (0, 1)


def test_a_lost_directory_is_over_when_one_is_back_or_the_broker_gone() -> None:
    one = ClusterFacts("c")
    one.sessions[3] = [BrokerPeriod(3, "active", 0, None, 40, None)]
    lost = {"broker_id": 3, "replicas": 2, "offset": 40, "time": 4_000}
    one.directories_lost = [{**lost, "directory_id": name} for name in ("X", "Y")]
    (found,) = found_in(one)
    assert (found.subject, found.time_ms, found.end_ms, found.count) == ("broker/3", 4_000, None, 2)
    assert found.text == "lost 2 log directories: X, Y, with 4 replicas"
    one.directories_found = [
        {"broker_id": 3, "offset": 1, "time": 1},
        {"broker_id": 4, "offset": 50, "time": 5_000},
        {"broker_id": 3, "offset": 60, "time": 6_000},
    ]
    assert found_in(one)[0].end_ms == 6_000
    one.directories_found, one.sessions[3][-1].to_ms = [], 7_000
    assert found_in(one)[0].end_ms == 7_000


def test_every_finding_of_a_fleet_has_a_time_an_end_and_a_full_subject(tmp_path: Path) -> None:
    write_fleet(FleetPlan(clusters=3, records=6000, seed=9, damaged_every=1), tmp_path / "fleet")
    nodes = sorted(path / "controller-3000" for path in (tmp_path / "fleet" / CLUSTERS).iterdir())
    write_tables(nodes, tmp_path / "tables")
    fleet = gather(TableSource(tmp_path / "tables"))
    found = findings(fleet, AuditLimits())
    ends = {one.cluster: one.end_ms for one in fleet.clusters}
    assert len({one.kind for one in found}) >= 6
    for one in found:
        assert one.time_ms is not None, one
        assert one.end_ms is None or one.time_ms <= one.end_ms <= ends[one.cluster], one
        kind, *rest = one.subject.split("/")
        whole = {"topic": len(rest) >= 2 and rest[-1].isdigit(), "broker": rest[-1:] and rest[-1].isdigit()}
        assert whole.get(kind, kind == "quorum" or one.kind == "damage" or len(rest) >= 1), one
    told = CliRunner().invoke(main, ["pipeline", "audit", str(tmp_path / "tables"), "--json"])
    listed = json.loads(told.output)["findings"]
    assert [(at["time_ms"], at["end_ms"], at["subject"]) for at in listed] == [
        (one.time_ms, one.end_ms, one.subject) for one in found
    ]
    shown = CliRunner().invoke(main, ["pipeline", "audit", str(tmp_path / "tables"), "--limit", "999"])
    assert "SINCE" in shown.output and "UNTIL" in shown.output

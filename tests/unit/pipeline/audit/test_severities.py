"""How severe each kind of finding is, and what makes it more or less so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from metaquorum.pipeline.audit.facts import BrokerPeriod, ClusterFacts, Fleet, TimeSpan
from metaquorum.pipeline.audit.findings import RULES, SEVERITIES, AuditFinding, AuditLimits, findings
from tests.conftest import REPOSITORY
from tests.unit.pipeline.audit.test_incidents import LOGS, ORDERS, brokers_go

VIOLATION = {
    "where": "w",
    "found": "f",
    "from_time": 1,
    "to_time": 7,
    "from_offset": 2,
    "count": 3,
    "open": 1,
}
DAMAGE = {"file": "f", "position": 9, "offset": 5, "reason": "why", "time": 4}
PLACE = {"kind": "damage", "seconds": None, "time_ms": 4, "end_ms": None, "offset": 5, "subject": "f"}


def test_the_page_has_a_line_for_every_rule() -> None:
    page = (REPOSITORY / "docs" / "pipeline.md").read_text("utf-8")
    missing = [kind for kind in RULES if f"\n- `{kind}` (" not in page]
    assert not missing, f"docs/pipeline.md lists the findings of `audit`; it lacks {missing}"


def test_a_test_names_every_kind() -> None:
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    missing = [kind for kind in RULES if f'"{kind}"' not in tests]
    assert not missing, f"test_audit.py has no fleet with {missing}, nor one that is nearly alike without it"


def told(one: ClusterFacts, **limits: int) -> list[AuditFinding]:
    return findings(Fleet([one], 0, 1_000_000), AuditLimits(**limits))


def levels(one: ClusterFacts, **limits: int) -> list[tuple[str, str]]:
    return [(at.kind, at.severity) for at in told(one, **limits)]


def violated(severity: str, still: int) -> ClusterFacts:
    one = ClusterFacts("c")
    one.violations = {(severity, "rule"): {**VIOLATION, "open": still}}
    return one


@pytest.mark.parametrize(
    ("severity", "still", "level"),
    [("error", 0, "error"), ("error", 2, "error"), ("warning", 0, "info"), ("warning", 2, "warning")],
)
def test_of_a_broken_rule(severity: str, still: int, level: str) -> None:
    assert levels(violated(severity, still)) == [("violation", level)]


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("superseded", "info"),
        *[(kind, "warning") for kind in ("unknown", "tail", "missing", "shared-id")],
        *[(kind, "error") for kind in ("corrupt", "conflict", "a kind of tomorrow")],
    ],
)
def test_of_damage(kind: str, level: str) -> None:
    one = ClusterFacts("c", damage=[{**DAMAGE, "kind": kind}, {**DAMAGE, "kind": kind, "position": 3}])
    (found,) = told(one)
    where = "" if kind == "shared-id" else " at byte 3"
    assert (found.severity, found.count, found.text) == (level, 2, f"{kind}{where}: why")
    assert {name: getattr(found, name) for name in PLACE} == PLACE


@pytest.mark.parametrize(("is_open", "level"), [(False, "warning"), (True, "error")])
def test_of_an_outage(is_open: bool, level: str) -> None:
    one = ClusterFacts("c", start_ms=0, end_ms=9_000)
    one.leaderless.add(ORDERS, 0, 2_000, 5)
    one.leaderless.add(LOGS, 500, 4_000, 6, is_open=is_open)
    (found,) = told(one)
    assert (found.kind, found.severity, found.count, found.seconds) == ("leaderless", level, 2, 5.5)
    assert (found.time_ms, found.end_ms, found.offset) == (0, None if is_open else 4_000, 5)


def test_of_what_happened_to_partitions() -> None:
    one = ClusterFacts("c", start_ms=0, end_ms=900_000)
    one.unclean.add(ORDERS, 5, 5, 1)
    one.under_min_isr.add(ORDERS, 0, 2_000, 5, is_open=True)
    one.slow.add(LOGS, 100_000, 140_000, 7)
    assert levels(one) == [
        ("unclean-election", "error"),
        ("under-min-isr", "warning"),
        ("slow-failover", "warning"),
    ]
    assert levels(one, slow_failover_ms=40_000)[2:] == []
    assert levels(one, slow_failover_ms=39_999)[2:] == [("slow-failover", "warning")]
    unclean = told(one)[0]
    assert (unclean.count, unclean.seconds, unclean.time_ms, unclean.offset) == (1, None, 5, 1)


@pytest.mark.parametrize(
    ("before", "began_by", "found"),
    [
        ("active", "FENCE_BROKER_RECORD", [("fence-storm", "warning")]),
        ("active", "BROKER_REGISTRATION_CHANGE_RECORD", [("fence-storm", "warning")]),
        ("active", None, [("fence-storm", "warning")]),
        ("active", "REGISTER_BROKER_RECORD", []),  # restarted
        ("controlled-shutdown", "FENCE_BROKER_RECORD", []),
    ],
)
def test_of_brokers_that_go(before: str, began_by: Any, found: list[tuple[str, str]]) -> None:
    assert levels(brokers_go(ClusterFacts("c"), before=before, began_by=began_by)) == found


def test_of_one_broker_that_comes_and_goes() -> None:
    one = ClusterFacts("c")
    one.sessions[0] = [
        BrokerPeriod(0, state, at * 1_000, (at + 1) * 1_000, at, "FENCE_BROKER_RECORD")
        for at, state in enumerate(["active", "fenced"] * 3)
    ]
    assert levels(one) == [("flapping-broker", "warning")]
    (found,) = told(one)
    assert (found.subject, found.count, found.time_ms, found.end_ms) == ("broker/0", 3, 1_000, 6_000)
    assert levels(one, flaps=4) == levels(one, flap_window_ms=3_999) == []
    assert levels(one, flap_window_ms=4_000) == [("flapping-broker", "warning")]


def test_of_the_quorum() -> None:
    one = ClusterFacts("c", silences=[TimeSpan(0, 60_000, 5), TimeSpan(70_000, 80_000, 8)])
    one.offs = [TimeSpan(70_000, 80_000, 9)]
    one.elections = [{"from_time": at * 1_000, "from_offset": at} for at in (*range(5), 5_000)]
    assert levels(one) == [
        ("unstable-quorum", "warning"),
        ("quorum-silent", "warning"),
        ("quorum-silent", "info"),
    ]
    first = told(one)[0]
    assert (first.count, first.time_ms, first.end_ms, first.offset) == (5, 0, 4_000, 0)
    assert levels(one, elections=6) == levels(one, election_window_ms=3_999) == levels(one)[1:]


def test_of_a_lost_directory() -> None:
    one = ClusterFacts("c")
    one.sessions[3] = [BrokerPeriod(3, "active", 0, None, 7, None)]
    one.directories_lost = [
        {"offset": 7, "broker_id": 3, "replicas": count, "directory_id": f"d{count}", "time": 40}
        for count in (2, 5)
    ]
    assert levels(one) == [("lost-directory", "warning")]
    (found,) = told(one)
    assert (found.count, found.text) == (2, "lost 2 log directories: d2, d5, with 7 replicas")
    assert set(RULES) >= {found.kind} and SEVERITIES == ("error", "warning", "info")

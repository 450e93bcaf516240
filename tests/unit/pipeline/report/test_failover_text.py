"""What the report says of failovers, in words."""

from __future__ import annotations

from collections import Counter

import numpy as np

from metaquorum.pipeline.audit.facts import ClusterFacts, Fleet
from metaquorum.pipeline.report.details import failovers


def facts(name: str, *durations_ms: int, still: int = 0, **causes: int) -> ClusterFacts:
    by_rule = Counter({name.replace("_", "-"): number for name, number in causes.items()})
    one = ClusterFacts(name, failovers_open=still, failover_causes=by_rule)
    if durations_ms:
        one.failover_ms.append(np.array(durations_ms, dtype=np.int64))
    return one


def text(*clusters: ClusterFacts) -> str:
    """The first paragraph."""
    return failovers(Fleet([*clusters], 0, 1_000_000)).partition("<p")[2].partition("</p>")[0]


def test_what_is_open_and_how_long_the_others_took() -> None:
    found = text(facts("a", 1_000, 3_000, 5_000, still=2, broker_fenced=4, controlled_shutdown=1))
    assert "5 leaders had to be replaced. Causes: fenced 4, controlled shutdown 1." in found
    assert " 2 were not replaced by the end." in found
    assert " Median 3.0 s, 95th percentile " in found and ", longest 5.0 s." in found


def test_nothing_is_said_of_what_did_not_happen() -> None:
    found = text(facts("a", 1_000, fenced=1), facts("b", 2_000, fenced=1))
    assert "2 leaders had to be replaced. Causes: fenced 2." in found
    assert "were not replaced" not in found and "Median" not in found, "of several clusters"
    assert "No leader had to be replaced." in text(facts("a"))


def test_all_that_are_open_count() -> None:
    found = text(facts("a", still=1, fenced=1), facts("b", still=2, fenced=2))
    assert " 3 were not replaced by the end." in found and "Median" not in found

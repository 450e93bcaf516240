"""`pipeline audit`: each option reaches the rules or the answer, in its own unit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from metaquorum.cli.main import main
from metaquorum.cli.pipeline import audit as module
from metaquorum.pipeline.audit.facts import BrokerPeriod, ClusterFacts, Fleet, PartitionName

PARTITION: PartitionName = ("orders", "A", 7)


def fleet() -> Fleet:
    """In `a` a broker is fenced three times within 4 s, in `b` a leader is replaced after 40 s."""
    first, second = ClusterFacts("a", records=3, partitions=5), ClusterFacts("b", records=40, partitions=60)
    first.sessions[0] = [
        BrokerPeriod(0, state, at * 1_000, (at + 1) * 1_000, at, "FENCE_BROKER_RECORD")
        for at, state in enumerate(["active", "fenced"] * 3)
    ]
    second.slow.add(PARTITION, 100_000, 140_000, 7)
    for at, one in enumerate((first, second), start=1):
        one.sums.update(leaderless_seconds=at, under_min_isr_seconds=10 * at, unclean_elections=100 * at)
    return Fleet([first, second], 0, 1_000_000)


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr(module, "load_fleet", lambda tables: fleet())
    result = CliRunner().invoke(main, ["pipeline", "audit", str(tmp_path), "--json", *options])
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize(
    ("options", "kinds", "code"),
    [
        ((), ["flapping-broker", "slow-failover"], 11),
        (("--flaps", "4"), ["slow-failover"], 11),
        (("--flap-window", "4"), ["flapping-broker", "slow-failover"], 11),
        (("--flap-window", "3"), ["slow-failover"], 11),
        (("--slow-failover", "39"), ["flapping-broker", "slow-failover"], 11),
        (("--slow-failover", "40"), ["flapping-broker"], 11),
        (("--kind", "slow-failover"), ["slow-failover"], 11),
        (("--cluster", "a"), ["flapping-broker"], 11),
        (("--cluster", "b", "--slow-failover", "40"), [], 0),
        (("--fail-on", "error"), ["flapping-broker", "slow-failover"], 0),
        (("--fail-on", "never"), ["flapping-broker", "slow-failover"], 0),
    ],
)
def test_an_option_decides_what_is_a_finding(
    options: tuple[str, ...],
    kinds: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    found, answer = run(monkeypatch, tmp_path, *options)
    assert (sorted(one["kind"] for one in answer["findings"]), found) == (kinds, code)


@pytest.mark.parametrize(("chosen", "factor"), [((), 3), (("a",), 1), (("b",), 2), (("a", "b"), 3)])
def test_the_numbers_are_those_of_the_clusters_that_were_chosen(
    chosen: tuple[str, ...], factor: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, answer = run(monkeypatch, tmp_path, *(word for name in chosen for word in ("--cluster", name)))
    names = chosen or ("a", "b")
    assert {name: answer[name] for name in answer if name != "findings"} == {
        "clusters": len(names),
        "brokers": int("a" in names),
        "partitions": 5 * ("a" in names) + 60 * ("b" in names),
        "records": 3 * ("a" in names) + 40 * ("b" in names),
        "leaderlessPartitionSeconds": factor,
        "underMinIsrPartitionSeconds": 10 * factor,
        "uncleanElections": 100 * factor,
        "failovers": [],
    }

"""The log commands on logs of real clusters: nothing surprises them, and nothing is left out silently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import needs_shared_data, shared_data_path
from tests.unit.cli.running import run

ROOT = shared_data_path() or Path("absent")
pytestmark = [
    pytest.mark.shared_data,
    needs_shared_data,
]
LOGS = sorted(path.parent for path in ROOT.rglob("__cluster_metadata-0/partition.metadata"))
ODD = "synthetic-oddities"
GOLDEN = ROOT / "kafka-3.7" / "controller-3000" / "__cluster_metadata-0"


@pytest.mark.parametrize("command", ["dump", "state", "timeline"])
@pytest.mark.parametrize("path", LOGS, ids=lambda path: "/".join(path.relative_to(ROOT).parts[:-1]))
def test_every_recorded_log_is_read(path: Path, command: str) -> None:
    result = run("log", command, path)
    assert result.exit_code == (1 if ODD in str(path) else 0), result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.stdout


def test_an_odd_log_is_shown_whole_and_every_oddity_is_told() -> None:
    path = next(path for path in LOGS if ODD in str(path))
    result = run("log", "dump", "--json", path)
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert records[0]["type"] == "FEATURE_LEVEL_RECORD"
    assert len(records) == 8
    told = result.stderr.splitlines()
    assert "expected base offset 0, found 1" in told[0]
    assert len(told) == 4
    assert all(f"{path}/00000000000000000000.log at byte" in line for line in told)
    stopped = run("log", "state", "--json", path)
    assert json.loads(stopped.stdout)["topic"] == {}
    assert "stopped at offset 0: offset 0 is missing" in stopped.stderr
    state = run("log", "state", "--json", "--past-corruption", path)
    named = {record["data"]["name"] for record in records if record["type"] == "TOPIC_RECORD"}
    assert set(json.loads(state.stdout)["topic"]) == named == {"foo", "pax", "paz"}
    # Only the dump has to say how to go past a damaged base offset: this command just did.
    facts = [line.split("; the next batch is shown")[0] for line in told]
    more = ("continued at", "not covered: offset 0 (missing)")
    assert [line for line in state.stderr.splitlines() if not any(one in line for one in more)] == facts


def test_a_later_segment_stands_on_the_snapshot_beside_it() -> None:
    whole = run("log", "state", GOLDEN)
    assert run("log", "state", GOLDEN / "00000000000000003299.log").stdout == whole.stdout
    before = run("log", "state", GOLDEN, "--at", "3299")
    assert run("log", "state", GOLDEN / "00000000000000001850.log").stdout == before.stdout
    assert before.stdout.startswith("provenance: offset=3299 ")


def test_the_final_state_is_what_kafkas_tools_printed() -> None:
    state = json.loads(run("log", "state", "--json", GOLDEN, "--at", "3957").stdout)
    printed = 0
    for line in (ROOT / "kafka-3.7" / "final-state" / "topics-describe.txt").read_text().splitlines():
        if not line.startswith("\tTopic: "):
            continue
        fields = dict(part.split(": ", 1) for part in line.strip().split("\t"))
        found = state["topic"][fields["Topic"]]["partitions"][fields["Partition"]]
        assert ",".join(map(str, found["replicas"])) == fields["Replicas"]
        assert ",".join(map(str, found["isr"])) == fields["Isr"]
        assert str(found["leader"]) == fields["Leader"]
        printed += 1
    assert printed == 300


def test_an_entity_is_followed_through_segments() -> None:
    found = [
        json.loads(line)
        for line in run("log", "dump", "--json", "--entity", "topic/t06/4", GOLDEN).stdout.splitlines()
    ]
    assert {181, 200, 1317, 1606, 1622} <= {record["offset"] for record in found}
    assert {record["data"]["partitionId"] for record in found} == {4}
    assert len({record["data"]["topicId"] for record in found}) == 1

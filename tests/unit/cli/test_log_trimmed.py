"""Logs without their beginning, as retention leaves them: what each tool tells, and what it does not know."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.conftest import needs_shared_data, shared_data_path
from tests.unit.cli.running import run_log as run

ROOT = shared_data_path() or Path("absent")
GOLDEN = ROOT / "kafka-3.7" / "controller-3000" / "__cluster_metadata-0"
pytestmark = [
    pytest.mark.shared_data,
    needs_shared_data,
]
BEGINS = 1850
"""The first offset of the golden log's second segment; snapshots end at 2280, 2520, ..., 4496."""


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def trimmed(directory: Path, *snapshots: int) -> Path:
    """The golden log from its second segment on, with the snapshots that end at those offsets only."""
    home = directory / "__cluster_metadata-0"
    shutil.copytree(GOLDEN, home)
    for path in sorted(home.iterdir()):
        number = path.name[:20]
        if path.suffix == ".checkpoint" and int(number) not in snapshots:
            path.unlink()
        elif path.suffix in (".log", ".index", ".timeindex", ".snapshot") and int(number) < BEGINS:
            path.unlink()
    return home


def test_a_check_is_sound_only_where_it_looked(tmp_path: Path) -> None:
    path = trimmed(tmp_path / "late", 2520, 3212)
    result = run("check", path)
    assert result.exit_code == 4
    assert "not covered: offsets 1850 to 2519 (state-unknown)" in result.stdout
    told = json.loads(run("check", path, "--json").stdout)
    assert told["sound"] is False and told["logs"][0]["startOffset"] == BEGINS
    assert [(one["fromOffset"], one["toOffset"], one["reason"]) for one in told["uncovered"]] == [
        (BEGINS, 2520, "state-unknown")
    ]
    without = run("check", trimmed(tmp_path / "none"))
    assert without.exit_code == 4 and "offsets from 1850 on (state-unknown)" in without.stdout
    before = run("check", trimmed(tmp_path / "gap", 1411))
    assert before.exit_code == 4 and "offsets from 1850 on (state-unknown)" in before.stdout
    whole = run("check", GOLDEN, "--json")
    assert whole.exit_code == 0 and json.loads(whole.stdout)["sound"] is True


def test_damage_before_the_first_known_state_is_found(tmp_path: Path) -> None:
    path = trimmed(tmp_path, 2520)
    segment = path / "00000000000000001850.log"
    data = bytearray(segment.read_bytes())
    data[2000] ^= 0xFF
    segment.write_bytes(data)
    result = run("check", path)
    assert result.exit_code == 1 and "offset 18" in result.stderr


def test_a_timeline_begins_with_the_first_record(tmp_path: Path) -> None:
    path = trimmed(tmp_path, 2520, 3212)
    result = run("timeline", path, "--json", "--to", 1967)
    *told, last = lines(result)
    assert result.exit_code == 4
    ranges = [(one["fromOffset"], one["toOffset"], one["reason"]) for one in last["uncovered"]]
    assert ranges == [(BEGINS, 1967, "state-unknown")]
    kinds = [(one["offset"], one["kind"]) for one in told]
    assert (1921, "unclean election") in kinds and (1866, "broker unfenced") in kinds
    named = {one["entity"] for one in told if one["entity"].startswith("topic/")}
    assert "topic/unclean/0" in {entity for one in told for entity in one["entities"]}
    assert all(len(entity.split("/")[1]) < 22 for entity in named), "a later snapshot says the names"
    narrow = run("timeline", path, "--from", 1914, "--to", 1930)
    assert "unclean-0: ? -> 2; broker 2 was not in the ISR" in narrow.stdout
    assert "not covered: offsets 1914 to 1929 (state-unknown)" in narrow.stderr
    known = run("timeline", path, "--from", 2520)
    assert known.exit_code == 0 and not known.stderr
    before = run("timeline", path, "--from", 100, "--to", 1900)
    assert "not covered: offsets 100 to 1849 (not-in-log)" in before.stderr


def test_why_is_told_by_records_before_the_first_known_state(tmp_path: Path) -> None:
    path = trimmed(tmp_path, 2520, 3212)
    found = run("why", path, "topic/unclean/0.leader", "--at", "1921+", "--json")
    told = json.loads(found.stdout)
    assert found.exit_code == 4 and told["endOffset"] == 1922
    assert (told["value"], [one["offset"] for one in told["records"]]) == (2, [1921])
    assert told["records"][0]["changes"] == [{"field": "leader", "before": None, "after": 2}]
    assert told["uncovered"][0]["toOffset"] == 1922
    plain = run("why", path, "topic/unclean/0.leader", "--at", 1922)
    assert plain.stdout.startswith("topic/unclean/0.leader is 2 since 1921 (2026-11-21T03:14:35.365Z)")
    before = run("why", path, "topic/unclean/0.leader", "--at", 1900)
    assert before.exit_code == 1 and "is unknown: no record from offset 1850 on shows it" in before.stderr
    earlier = run("why", path, "topic/unclean/0.leader", "--at", 1000)
    assert earlier.exit_code == 1 and "begins at offset 1850, after 1000" in earlier.stderr
    broker = json.loads(run("why", path, "broker/2", "--at", "1867+", "--json").stdout)
    assert [one["offset"] for one in broker["records"]] == [1859, 1862, 1864, 1866]
    assert broker["exists"] is True and broker["value"]["fenced"] is False


def test_why_behind_the_snapshot_has_the_records_before_it_too(tmp_path: Path) -> None:
    path = trimmed(tmp_path, 2520, 3212)
    told = json.loads(run("why", path, "topic/unclean/0", "--json").stdout)
    whole = json.loads(run("why", GOLDEN, "topic/unclean/0", "--json").stdout)
    assert told["value"] == whole["value"]
    types = [one["type"] for one in told["records"]]
    offsets = [one["offset"] for one in told["records"] if one["type"] != "SNAPSHOT"]
    assert types.count("SNAPSHOT") == 1
    assert offsets == [one["offset"] for one in whole["records"] if one["offset"] >= BEGINS]


def test_the_quorum_needs_no_state(tmp_path: Path) -> None:
    for snapshots in ((3431,), ()):
        path = trimmed(tmp_path / str(len(snapshots)), *snapshots)
        found = run("why", path, "quorum", "--at", 3300, "--json")
        told = json.loads(found.stdout)
        whole = json.loads(run("why", GOLDEN, "quorum", "--at", 3300, "--json").stdout)
        assert found.exit_code == 0 and not told["uncovered"] and told["value"] == whole["value"]
        elections = [one["offset"] for one in whole["records"] if one["offset"] >= BEGINS]
        assert elections and [one["offset"] for one in told["records"]] == elections


def bare(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the names of files."""
    for cause in (row["cause"], row["endedBy"]):
        if cause is not None:
            cause["file"] = ""
    return row


def test_history_has_rows_of_what_began_in_the_log(tmp_path: Path) -> None:
    path = trimmed(tmp_path, 2520, 3212)
    whole = [bare(row) for row in lines(run("history", GOLDEN, "quorum", "--json"))]
    found = run("history", path, "quorum", "--json")
    assert found.exit_code == 0
    assert [bare(row) for row in lines(found)] == [row for row in whole if row["fromOffset"] >= BEGINS]
    broker = run("history", path, "broker/2", "--json")
    *rows, last = lines(broker)
    expected = [bare(row) for row in lines(run("history", GOLDEN, "broker/2", "--json"))]
    assert broker.exit_code == 4 and last["uncovered"][0]["toOffset"] == 2520
    assert [bare(row) for row in rows] == [row for row in expected if row["fromOffset"] >= 1859]
    partition = run("history", path, "topic/t18/2", "--json")
    *rows, last = lines(partition)
    assert rows[0]["fromOffset"] == 2520 and rows[0]["cause"] is None
    early = run("history", path, "broker/2", "--from", 1862, "--to", 1866, "--json")
    *rows, last = lines(early)
    assert [row["fromOffset"] for row in rows] == [1862, 1864] and early.exit_code == 4
    assert (last["uncovered"][0]["fromOffset"], last["uncovered"][0]["toOffset"]) == (1862, 1866)


def test_bisect_says_where_it_did_not_ask(tmp_path: Path) -> None:
    path = trimmed(tmp_path, 2520, 3212)
    never = run("bisect", path, "--predicate", "len(brokers) < 100", "--json")
    told = json.loads(never.stdout)
    assert never.exit_code == 4 and not told["turnedFalse"]
    assert (told["fromOffset"], told["uncovered"][0]["fromOffset"]) == (2520, BEGINS)
    assert run("bisect", path, "--predicate", "len(brokers) < 100", "--from", 2520).exit_code == 12
    headers = run("bisect", path, "--predicate", "offset < 1900", "--json")
    told = json.loads(headers.stdout)
    assert headers.exit_code == 0 and told["uncovered"] == [] and told["batchBaseOffset"] == 1877
    refused = run("bisect", path, "--check", "all-led", "--to", 2000)
    assert refused.exit_code == 1 and "from offset 2520 on it can" in refused.stderr


def test_lost_records_make_no_false_unclean_election(tmp_path: Path) -> None:
    """The lost batches reassigned partitions; what came next looked unclean to a state that did not know."""
    path = tmp_path / "node"
    shutil.copytree(GOLDEN, path)
    segment = path / "00000000000000001850.log"
    segment.chmod(0o600)
    content = bytearray(segment.read_bytes())
    content[20_000] ^= 0xFF
    segment.write_bytes(content)
    found = run("timeline", path, "--severity", "critical")
    assert found.exit_code == 1
    assert "from the records alone, up to the snapshot that ends at 2280" in found.stderr
    unclean = [line.split()[0] for line in found.stdout.splitlines() if "unclean election" in line]
    assert unclean == ["1921"]
    whole = run("timeline", GOLDEN, "--severity", "critical", "--from", 2280)
    assert found.stdout.endswith(whole.stdout[-200:])

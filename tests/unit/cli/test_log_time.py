"""`log state`, `log diff` and `log history` at the terminal: on every recorded log, and for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metaquorum.metadata.inspect.log.points import utc_text
from metaquorum.metadata.records import types as r
from metaquorum.storage.disk.posix import PosixDisk
from tests.conftest import needs_shared_data, shared_data_path
from tests.unit.cli.running import run
from tests.unit.metadata.made_logs import STORY, make_node
from tests.unit.metadata.test_inspect_diff import story
from tests.unit.metadata.test_inspect_states import FUTURE, T0, TOPIC, feature

ROOT = shared_data_path() or Path("absent")
absent = needs_shared_data
FILES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("partition.metadata", "*.log", "*.checkpoint")
    for path in ROOT.rglob(pattern)
    if "kafka-3.7-wire" not in path.parts or "__cluster_metadata-0" in path.parts
)
GOLDEN = ROOT / "kafka-3.7" / "controller-3000"


def expected_codes(name: str, *fine: int) -> set[int]:
    """Logs with oddities, and the one file that holds records in an order that nobody writes, are damaged."""
    return {1} if "synthetic-oddities" in name or "all-records" in name else set(fine)


@pytest.mark.shared_data
@absent
@pytest.mark.parametrize("name", FILES)
def test_every_recorded_file_goes_through_every_tool(name: str) -> None:
    path = ROOT / name
    if path.name == "partition.metadata":
        path = path.parent
    checkpoint = path.suffix == ".checkpoint"
    first_is_later = path.suffix == ".log" and path.name.strip("0") not in (".log",)
    for args in (
        ("state", path, "--format", "table"),
        ("state", path, "--json", "broker"),
        ("diff", path, path),
    ):
        result = run("log", *args, *(["--past-corruption"] if "synthetic" in name else []))
        assert result.exit_code in expected_codes(name, 0), (args, result.stderr)
        assert result.stdout
    history = run("log", "history", "--json", path)
    if checkpoint:
        assert history.exit_code == 1
        assert "is a single state, not a history" in history.stderr
        return
    # A later segment alone begins before the snapshots beside it: a stretch is not covered.
    assert history.exit_code in expected_codes(name, 4 if first_is_later else 0), history.stderr
    rows = [row for line in history.stdout.splitlines() if "entity" in (row := json.loads(line))]
    assert rows or "synthetic" in name
    if first_is_later:
        return
    changes = run("log", "diff", "--json", path, "0", "end")
    assert changes.exit_code in expected_codes(name, 10), changes.stderr
    lines = [json.loads(line) for line in changes.stdout.splitlines()]
    told = {line["entity"] for line in lines if "uncovered" not in line}
    assert told == {row["entity"] for row in rows if row["toOffset"] is None}


@pytest.mark.shared_data
@absent
def test_the_quorum_of_the_golden_log() -> None:
    assert run("log", "state", GOLDEN, "quorum").stdout == (
        "quorum: leader=3000 epoch=6 sinceOffset=2070 sinceMs=1795230907390"
        " voters=[3000,3001,3002] kraftVersion=0\n"
    )
    rows = [
        json.loads(line) for line in run("log", "history", GOLDEN, "quorum", "--json").stdout.splitlines()
    ]
    assert [(row["fromOffset"], row["toOffset"], row["fields"]["leader"]) for row in rows] == [
        (0, 2016, 3000), (2016, 2070, 3001), (2070, None, 3000)
    ]  # fmt: skip


@pytest.mark.shared_data
@absent
def test_logs_of_different_clusters_and_of_different_nodes() -> None:
    other = ROOT / "kraft-wild" / "kafka-3.5" / "data" / "kafka"
    mixed = run("log", "diff", GOLDEN, other)
    assert mixed.exit_code == 1
    assert "belongs to cluster ycvx3IyUTJ2ANvCy7N_YyA, but" in mixed.stderr
    assert mixed.stdout == ""
    assert run("log", "diff", "--across-clusters", GOLDEN, other).exit_code == 10
    nodes = ROOT / "kraft-wild" / "kafka-3.3-three-nodes-lagging" / "data"
    same = run("log", "diff", nodes / "kafka1", nodes / "kafka3")
    assert (same.exit_code, same.stdout) == (0, "no difference between offset 2982 and 2989\n")
    dumped = run("log", "dump", GOLDEN, other, "--type", "snapshot-header")
    assert "belong to different clusters" in dumped.stderr


def test_a_state_can_be_asked_for_by_entity_and_form(tmp_path: Path) -> None:
    story(tmp_path)
    whole = json.loads(run("log", "state", tmp_path, "--format", "json").stdout)
    assert whole == json.loads(run("log", "state", tmp_path, "--json").stdout)
    part = run("log", "state", tmp_path, "topic/orders/0", "--json")
    assert json.loads(part.stdout) == whole["topic"]["orders"]["partitions"]["0"]
    early = run("log", "state", tmp_path, "topic/orders/0", "--json", "--at", "4")
    assert json.loads(early.stdout)["isr"] == [1, 2]
    assert run("log", "state", tmp_path, "feature").stdout.startswith("feature: metadata.version=5")
    table = run("log", "state", tmp_path, "topic/orders", "--format", "table").stdout
    assert table.splitlines()[0].split() == ["ENTITY", "TOPICID"]
    assert "topic/orders/1  1" in table
    assert "config/topic/orders  retention.ms" in table
    none = run("log", "state", tmp_path, "broker/7")
    assert (none.exit_code, none.stderr) == (1, "metaquorum: no broker/7 in the state at offset 9\n")
    assert run("log", "state", tmp_path, "broker/7", "--format", "table").exit_code == 1
    assert run("log", "state", tmp_path, "quorum").exit_code == 1
    wrong = run("log", "state", tmp_path, "brokers")
    assert wrong.exit_code == 2
    assert "there is no entity 'brokers'" in wrong.stderr


def test_differences_have_an_exit_code(tmp_path: Path) -> None:
    story(tmp_path)
    assert run("log", "diff", tmp_path, "4", "4").exit_code == 0
    changed = run("log", "diff", tmp_path, "4", "end", "topic/orders/0")
    assert changed.exit_code == 10
    assert changed.stdout.splitlines()[:3] == [
        "~ topic/orders/0",
        "    leader: 1 -> 2",
        f"        by offset 5  {utc_text(T0 + 3000)}  epoch 1  PARTITION_CHANGE_RECORD",
    ]
    added = run("log", "diff", tmp_path, "0", "@1795000000000")
    assert added.stdout.startswith("+ feature/metadata.version  level=5\n    by offset 0  ")
    sides = run("log", "diff", f"{tmp_path}@4", f"{tmp_path}@5", "topic")
    assert "isr: [1,2] -> [1]" in sides.stdout
    assert run("log", "diff", tmp_path, "4", "end", "broker").exit_code == 0


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("4", "99"), 1, "ends at offset 9, before 99; give 9 or less"),
        (("4", "yesterday"), 2, "'yesterday' is neither an offset nor a time"),
        (("4", "5", "brokers"), 2, "there is no entity"),
        (("4", "5", "topic", "more"), 2, "one argument too many"),
        ((), 2, "give PATH A B, or two logs"),
        (("2020-01-01", "5"), 1, "give a later time"),
        (("nowhere",), 1, "nowhere does not exist"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, args: tuple[str, ...], code: int, text: str) -> None:
    story(tmp_path)
    result = run("log", "diff", tmp_path, *args)
    assert result.exit_code == code
    assert text in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_history_is_a_row_a_line(tmp_path: Path) -> None:
    story(tmp_path)
    lines = run("log", "history", tmp_path, "topic/orders/0").stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].split()[:3] == ["1", "..", "4"]
    assert lines[-1].split()[:3] == ["5", "..", "now"]
    assert lines[-1].endswith("(by 6 PARTITION_CHANGE_RECORD)")
    none = run("log", "history", tmp_path, "broker/3")
    assert none.exit_code == 1
    assert "never holds broker/3" in none.stderr


def test_corruption_stops_the_state_or_is_passed(tmp_path: Path) -> None:
    maker = story(tmp_path)
    path = tmp_path / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    position, size = maker.places[2]
    data[position + size - 2] ^= 0xFF
    path.write_bytes(data)
    stopped = run("log", "state", tmp_path, "topic/orders/0", "--json")
    assert stopped.exit_code == 1
    assert json.loads(stopped.stdout)["leader"] == 1
    assert "stopped at offset 4" in stopped.stderr
    beyond = run("log", "state", tmp_path, "topic/orders/0", "--json", "--past-corruption")
    assert beyond.exit_code == 1
    assert json.loads(beyond.stdout)["leader"] == 2
    assert "continued at offset 5" in beyond.stderr
    assert run("log", "diff", tmp_path, "0", "end").exit_code == 1
    assert run("log", "history", tmp_path).exit_code == 1


def test_records_from_the_future_are_told_by_the_exit_code(tmp_path: Path) -> None:
    maker = story(tmp_path)
    maker.batch(feature(7), raw=[FUTURE])
    result = run("log", "state", tmp_path, "feature/metadata.version")
    assert (result.exit_code, result.stdout) == (3, "7\n")
    assert "1 record of a newer release" in result.stderr


def test_a_topic_that_is_gone_is_found_by_its_id(tmp_path: Path) -> None:
    maker = story(tmp_path)
    maker.batch(r.RemoveTopicRecord(TOPIC))
    rows = run("log", "history", tmp_path, "topic/AAECAwQFBgcICQoLDA0ODw/1", "--json").stdout.splitlines()
    assert [json.loads(row)["toOffset"] for row in rows] == [9]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--from-offset", "5", "--to-offset", "3"), "--from-offset 5 is past --to-offset 3; swap them"),
        (("--from-time", "5", "--to-time", "3"), "--from-time is past --to-time; swap them"),
        (("--entity", "broker/3"), "broker/3 never occurs; remove a filter"),
        (("--type", "noop", "--to-offset", "4"), "type NO_OP_RECORD never occurs in that range"),
        (("--from-offset", "77"), "the log holds none in that range"),
    ],
)
def test_a_dump_that_shows_nothing_says_why(tmp_path: Path, args: tuple[str, ...], text: str) -> None:
    story(tmp_path)
    args = tuple("no-op" if arg == "noop" else arg for arg in args)
    result = run("log", "dump", tmp_path, *args)
    assert (result.exit_code, result.stdout) == (0, "")
    assert text in result.stderr
    assert result.stderr.count("\n") == 1


def test_history_from_a_place_behind_the_last_change_is_the_row_that_holds_then(tmp_path: Path) -> None:
    make_node(PosixDisk(), STORY, home=str(tmp_path / "node"))
    log = tmp_path / "node"
    for place, rows in (("15", 1), ("14", 1), ("13", 1), ("0", 2)):
        result = run("log", "history", log, "topic/orders/1", "--from", place, "--json")
        assert (result.exit_code, result.stderr) == (0, "")
        found = [json.loads(line) for line in result.stdout.splitlines()]
        assert [one["toOffset"] for one in found if one["toOffset"] is None] == [None]
        assert len(found) >= rows
        assert found[-1]["fields"]["leader"] == -1
    result = run("log", "history", log, "topic/orders/1", "--from", "15")
    assert "snapshot" not in result.stdout and "(the state at the start)" in result.stdout
    result = run("log", "history", log, "topic/payments", "--from", "15")
    assert result.exit_code == 1 and "has no row for topic/payments" in result.stderr


def test_named_offsets_are_included_at_both_ends(tmp_path: Path) -> None:
    """The story has offsets 0 to 14; every command says it so."""
    make_node(PosixDisk(), STORY, home=str(tmp_path / "node"))
    log = tmp_path / "node"
    assert "offsets 0 to 14, epoch 2" in run("log", "check", log).stdout
    never = run("log", "bisect", log, "--predicate", "len(topics) < 9").stdout.splitlines()
    assert never[0].startswith("scan of offsets 0 to 14,")
    assert never[1] == "never turns false up to offset 14: len(topics) < 9"
    dry = run("log", "repair", log, "--drop", "14", "--dry-run").stdout.splitlines()
    assert dry[-1].startswith("would write offsets 0 to 14, epoch 2")

"""What the log tools say where a question misses the log: places outside of it, names nobody has, records
from the future, foreign batches, snapshots that are not whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.log.input.source import ReadProgress, open_path
from metaquorum.cli.main import main
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.records import types as r
from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.storage.files.snapshots import snapshot_name
from metaquorum.storage.types import LogPosition
from tests.unit.metadata.test_inspect_states import FUTURE, T0, TOPIC, Maker, feature

END = "2040-01-01T00:00:00Z"
BEFORE = "1999-01-01"


def run(*args: object) -> Result:
    result = CliRunner().invoke(main, ["log", *(str(arg) for arg in args)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def story(directory: Path) -> Maker:
    """Two epochs, a broker, a topic with one partition: offsets 0 to 7."""
    maker = Maker(directory)
    maker.leader(1, 1)
    maker.batch(feature(7))
    maker.batch(r.BrokerRecord(3, TOPIC, 2, fenced=False))
    maker.batch(
        r.TopicRecord("orders", TOPIC),
        r.PartitionRecord(0, TOPIC, (3,), (3,), leader=3, leader_epoch=0, partition_epoch=0),
    )
    maker.batch(r.NoOpRecord())
    maker.leader(2, 2)
    maker.batch(r.ConfigRecord(2, "orders", "retention.ms", "1"), epoch=2)
    return maker


def add_snapshot(maker: Maker, offset: int, epoch: int = 1, *, damaged: bool = False) -> None:
    image = state_at(maker.log(), Point(offset=offset)).image
    position = LogPosition(epoch, offset)
    content = bytearray(b"".join(snapshot_batches(image, position=position)))
    if damaged:
        content[len(content) // 2] ^= 0xFF
    (maker.directory / snapshot_name(position)).write_bytes(bytes(content))


def flip(maker: Maker, batch: int) -> None:
    path = maker.directory / f"{0:020}.log"
    position, size = maker.places[batch]
    data = bytearray(path.read_bytes())
    data[position + size - 1] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("args", "code", "parts"),
    [
        (["timeline", "LOG", "--from", "99"], 4, ["ends at offset 8, before 99"]),
        (["timeline", "LOG", "--from", END], 4, ["ends at 2026-", f"before {END[:-1]}.000Z"]),
        (["timeline", "LOG", "--to", BEFORE], 0, ["begins at 2026-", "after 1999-01-01"]),
        (["timeline", "LOG", "--severity", "critical"], 0, ["no event of severity critical or above"]),
        (["timeline", "LOG", "--entity", "topic/nope"], 0, ["or above about topic/nope"]),
        (["why", "LOG", "broker/3", "--at", "99"], 1, ["ends at offset 8, before 99; give 8 or less"]),
        (["why", "LOG", "broker/3", "--at", BEFORE], 1, ["begins at 2026-", "give a later time"]),
        (["history", "LOG", "broker/3", "--to", BEFORE], 1, ["no row for broker/3 between --from and --to"]),
        (["history", "LOG", "broker/9"], 1, ["never holds broker/9"]),
        (["bisect", "LOG", "--check", "no-errors", "--to", "99"], 12, ["ends at offset 8, before 99"]),
        (["bisect", "LOG", "--check", "no-errors", "--to", BEFORE], 12, ["no batch is between"]),
        (["state", "LOG", "--at", str(T0)], 1, [f"a time in milliseconds is written @{T0}"]),
        (["state", "LOG", "config/topic/nope"], 1, ["no config/topic/nope in the state at offset 8"]),
        (["diff", "LOG", "1", "3", "topic/nope", "--json"], 0, ["neither state holds topic/nope"]),
    ],
)
def test_a_question_beside_the_log_is_answered_in_one_line(
    tmp_path: Path, args: list[str], code: int, parts: list[str]
) -> None:
    story(tmp_path)
    result = run(*(tmp_path if arg == "LOG" else arg for arg in args))
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1), result.output
    assert all(part in result.stderr for part in parts), result.stderr


def test_places_within_the_log_are_not_commented(tmp_path: Path) -> None:
    story(tmp_path)
    for args in (("--from", "2", "--to", "8"), ("--from", f"@{T0}"), ("--to", f"@{T0 + 3000}")):
        result = run("timeline", tmp_path, *args)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout


def test_no_difference_says_where_neither_side_has_the_entity(tmp_path: Path) -> None:
    story(tmp_path)
    nobody = run("diff", tmp_path, "2", "8", "topic/nope")
    assert (nobody.exit_code, nobody.stdout) == (
        0,
        "no difference between offset 2 and 8: neither holds topic/nope\n",
    )
    assert run("diff", tmp_path, "3", "8", "broker/3").stdout == "no difference between offset 3 and 8\n"


def test_a_slash_at_the_end_of_an_entity_says_nothing(tmp_path: Path) -> None:
    story(tmp_path)
    for args in (("state", "--json"), ("history", "--json"), ("why", "--json")):
        plain, slash = (
            run(args[0], tmp_path, entity, *args[1:]) for entity in ("topic/orders", "topic/orders/")
        )
        assert (slash.exit_code, slash.stdout) == (0, plain.stdout)
        assert plain.stdout


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["state", "LOG", "broker/3"], 3),
        (["diff", "LOG", "8", "end"], 3),
        (["diff", "LOG", "2", "end"], 10),
        (["history", "LOG", "broker/3"], 3),
        (["timeline", "LOG", "--severity", "critical"], 3),
        (["why", "LOG", "broker/3"], 3),
        (["check", "LOG"], 3),
        (["bisect", "LOG", "--check", "no-errors"], 3),
    ],
)
def test_every_command_names_records_from_the_future(tmp_path: Path, args: list[str], code: int) -> None:
    maker = story(tmp_path)
    maker.batch(raw=[FUTURE], epoch=2)
    result = run(*(tmp_path if arg == "LOG" else arg for arg in args))
    assert result.exit_code == code
    assert "1 record of a newer release" in result.stderr


def test_a_foreign_segment_behind_the_log_is_told_although_a_snapshot_is_nearer(tmp_path: Path) -> None:
    maker = story(tmp_path)
    add_snapshot(maker, 5)
    whole = run("state", tmp_path, "--json")
    assert (whole.exit_code, whole.stderr) == (0, "")
    foreign = tmp_path / f"{0:020}.log"
    (tmp_path / f"{8:020}.log").write_bytes(foreign.read_bytes())
    for args in (("state",), ("diff", "7", "end"), ("check",)):
        result = run(args[0], tmp_path, *args[1:])
        assert result.exit_code == 1, args
        assert "expected base offset 8, found 0" in result.stderr
    assert "offsets go back, the next batch begins at 0" in run("state", tmp_path).stderr
    told = json.loads(run("state", tmp_path, "--json").stdout)
    (uncovered,) = told.pop("uncovered")
    assert (uncovered["fromOffset"], uncovered["reason"]) == (8, "not-looked-at")
    assert told == json.loads(whole.stdout)


def test_a_foreign_segment_is_told_where_the_state_stands_at_its_name(tmp_path: Path) -> None:
    maker = story(tmp_path)
    add_snapshot(maker, 8, 2)
    (tmp_path / f"{8:020}.log").write_bytes((tmp_path / f"{0:020}.log").read_bytes())
    result = run("state", tmp_path)
    assert result.exit_code == 1
    assert "expected base offset 8, found 0" in result.stderr


def test_causes_behind_lost_records_are_named_where_a_snapshot_leads_past_them(tmp_path: Path) -> None:
    maker = story(tmp_path)
    late = maker.batch(feature(8), epoch=2)
    add_snapshot(maker, late, 2)
    flip(maker, 6)  # the ConfigRecord at 7
    result = run("diff", tmp_path, "6", "end", "--json")
    assert result.exit_code == 1
    causes = {one["entity"]: one["cause"] for one in map(json.loads, result.stdout.splitlines())}
    assert causes["feature/metadata.version"]["offset"] == late
    assert causes["config/topic/orders"] is None
    text = run("diff", tmp_path, "6", "end").stdout
    assert "which has its effect" in text


def test_a_snapshot_that_is_not_whole_is_not_held_against_the_log(tmp_path: Path) -> None:
    maker = story(tmp_path)
    add_snapshot(maker, 5, damaged=True)
    result = run("check", tmp_path)
    assert result.exit_code == 1
    assert "0 snapshots compared: 0 errors, 0 warnings" in result.stdout
    assert "is incomplete and was not compared with the log" in result.stderr


def test_why_knows_the_elections_of_others(tmp_path: Path) -> None:
    """The target led epoch 1 and 3, another controller epoch 2: that one was won."""
    maker = story(tmp_path)
    maker.leader(1, 3)
    found = json.loads(run("why", tmp_path, "controller/1", "--json").stdout)
    newest = found["records"][-1]
    assert newest["leaderEpoch"] == 3
    texts = [cause["text"] for cause in newest["causes"]]
    assert not any("no controller won" in text for text in texts)
    assert any(text.startswith("controller 2 led before") for text in texts)


@pytest.mark.parametrize(
    "expression",
    ["broker(9).fenced", "brokers[9].fenced", "partition('orders', 5).leader >= 0", "topic('x').name"],
)
def test_an_expression_about_nothing_is_no_answer(tmp_path: Path, expression: str) -> None:
    story(tmp_path)
    result = run("bisect", tmp_path, "--predicate", expression)
    assert result.exit_code == 1
    assert "never true nor false, because it refers to something that does not exist" in result.stdout
    there = run("bisect", tmp_path, "--predicate", "not brokers[3].fenced")
    assert there.exit_code == 12
    assert "never turns false" in there.stdout


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("violations('leader-actve') == []", "no such rule; did you mean leader-active?"),
        ("quorum.leader == 1", "did you mean leader_id?"),
        ("quorum.zzz == 1", "it has after, "),
        ("config('topic/orders') == '1'", "TypeError: config() missing 1 required positional argument"),
    ],
)
def test_a_mistake_in_an_expression_says_what_to_write(tmp_path: Path, expression: str, reason: str) -> None:
    story(tmp_path)
    result = run("bisect", tmp_path, "--predicate", expression)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert "locals" not in result.stderr


def test_a_log_that_takes_seconds_shows_progress_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story(tmp_path)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert open_path(str(tmp_path)).on_read is None
    with (tmp_path / f"{0:020}.log").open("ab") as file:
        file.truncate(4 << 20)
    assert isinstance(open_path(str(tmp_path)).on_read, ReadProgress)
    assert open_path(str(tmp_path), progress=False).on_read is None


def test_repair_names_the_first_records_that_do_not_fit_and_says_that_more_follow(tmp_path: Path) -> None:
    directory = tmp_path / "node" / "__cluster_metadata-0"
    directory.mkdir(parents=True)
    maker = Maker(directory)
    maker.leader(1, 1)
    maker.batch(feature(14))
    for _ in range(25):
        maker.batch(r.PartitionChangeRecord(0, TOPIC, leader=1))
    drop = maker.batch(r.NoOpRecord())
    result = run("repair", tmp_path / "node", "--drop", drop, "--dry-run")
    assert result.stderr.count("cannot be applied") == 11
    assert result.stderr.splitlines()[-1].endswith("--drop-failing removes all of them")


def test_events_of_several_entities(tmp_path: Path) -> None:
    """About any of them, in the order of the log."""
    story(tmp_path)

    def events(*entities: str) -> list[str]:
        words = [word for entity in entities for word in ("--entity", entity)]
        result = run("timeline", tmp_path, "--severity", "info", *words)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    one, other, everything = events("broker/3"), events("topic"), events()
    assert one and other
    assert events("broker/3", "topic") == [line for line in everything if line in {*one, *other}]
    assert events("broker/3", "topic/nope") == one

"""Places inside a batch or a transaction: shown as of its beginning, and said so by every tool alike."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.log.points import END, Point, parse_point
from metaquorum.metadata.inspect.walk.states import settle, state_at, steps
from metaquorum.metadata.records import types as r
from metaquorum.storage.disk.posix import PosixDisk
from tests.conftest import REPOSITORY
from tests.unit.cli.running import run_log as run
from tests.unit.metadata.made_logs import STORY, Batch, add_snapshot, make_node

UPGRADE = REPOSITORY / "tests" / "data" / "kafka-3.7-upgrade"
OPEN: list[Batch] = [
    *STORY,  # up to 14
    (2, [r.BeginTransactionRecord("grow"), r.ConfigRecord(2, "orders", "retention.ms", "2")]),  # 15, 16
    (2, [r.ConfigRecord(2, "orders", "retention.ms", "3"), r.NoOpRecord()]),  # 17, 18
    (2, [r.EndTransactionRecord()]),  # 19
    (2, [r.NoOpRecord()]),  # 20
]


def made(tmp_path: Path, story: list[Batch] = STORY) -> Path:
    make_node(PosixDisk(), story, home=str(tmp_path / "node"))
    return tmp_path / "node"


def last(result: Result) -> Any:
    return json.loads(result.stdout.splitlines()[-1])


def test_forms_of_a_place() -> None:
    assert parse_point("1003+") == Point(offset=1003, after=True)
    assert parse_point("1003") == Point(offset=1003) and parse_point("end") == END
    for text in ("+", "-3+", "1003++", "2026-11-21+"):
        with pytest.raises(ValueError, match=r"4321\+ \(after that record\)"):
            parse_point(text)


SAID = "batch 4 to 6 is atomic: shown as of 4; 5+ is the state after it"


@pytest.mark.parametrize(
    "arguments",
    [
        ("state", "PATH", "--at", "5", "--json"),
        ("state", "PATH", "broker/1", "--at", "5", "--json"),
        ("diff", "PATH", "5", "end", "--json"),
        ("diff", "PATH", "0", "5", "--json"),
        ("history", "PATH", "--from", "5", "--json"),
        ("history", "PATH", "--to", "5", "--json"),
        ("why", "PATH", "broker/1", "--at", "5", "--json"),
        ("timeline", "PATH", "--to", "5", "--json"),
        ("timeline", "PATH", "--from", "5", "--json"),
        ("bisect", "PATH", "--check", "all-led", "--from", "5", "--json"),
        ("bisect", "PATH", "--predicate", "offset < 100", "--to", "5", "--json"),
    ],
    ids=" ".join,
)
def test_every_tool_says_that_a_place_is_inside_a_batch(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = made(tmp_path)
    result = run(*[str(path) if one == "PATH" else one for one in arguments])
    assert result.stderr.count(SAID) == 1, result.stderr
    assert last(result)["shownAs"] == [
        {"asked": 5, "offset": 4, "atomic": "batch", "firstOffset": 4, "lastOffset": 6, "text": SAID}
    ]
    plain = run(*[str(path) if one == "PATH" else one for one in arguments if one != "--json"])
    assert plain.exit_code == result.exit_code and SAID in plain.stderr
    exact = run(*[{"PATH": str(path), "5": "4"}.get(one, one) for one in arguments])
    assert "atomic" not in exact.stderr and not last(exact).get("shownAs")
    assert exact.exit_code == result.exit_code


def test_the_shell_says_it_too(tmp_path: Path) -> None:
    path = made(tmp_path)
    told = run("shell", path, "-c", "at 5", "-c", "diff 5", "-c", "records 5 7", "-c", "timeline 5 7")
    assert told.exit_code == 0 and told.stdout.count(SAID) == 4
    assert run("shell", path, "-c", "at 5+").stdout.startswith("offset 7 ")


def test_an_offset_that_a_tool_printed_leads_to_the_state_after_it() -> None:
    """Property: for every record of a log, N+ is the state behind its batch."""
    log = open_log(PosixDisk(), str(UPGRADE))
    ends = {
        offset: step.next_offset for step in steps(log) for offset in range(step.offset, step.next_offset)
    }
    assert len(ends) > len(set(ends.values()))
    for offset, end in ends.items():
        assert settle(log, Point(offset=offset, after=True))[0] == Point(offset=end)
    last_offset = max(ends)
    beyond = run("state", UPGRADE, "--at", f"{last_offset + 1}+")
    assert beyond.exit_code == 1 and f"has no record at offset {last_offset + 1}" in beyond.stderr


def test_a_transaction_is_atomic_as_well(tmp_path: Path) -> None:
    path = made(tmp_path, OPEN)
    said = "the metadata transaction that begins at 15 is atomic: shown as of 15; 15+ is the state after it"
    for at in ("17", "18", "19"):
        shown = run("state", path, "config/topic/orders", "--at", at, "--json")
        assert json.loads(shown.stdout)["retention.ms"] == "1000" and said in shown.stderr
        why = run("why", path, "config/topic/orders/retention.ms", "--at", at, "--json")
        assert said in why.stderr
        assert [one["offset"] for one in json.loads(why.stdout)["records"]] == [14]
        assert json.loads(why.stdout)["shownAs"][0]["atomic"] == "transaction"
        history = run("history", path, "config/topic/orders", "--to", at, "--json")
        assert said in history.stderr and last(history)["shownAs"]
    for inside in ("15+", "16+", "17+", "19+"):
        shown = run("state", path, "config/topic/orders", "--at", inside, "--json")
        assert json.loads(shown.stdout) == {"retention.ms": "3"} and not shown.stderr
        assert state_at(open_log(PosixDisk(), str(path)), parse_point(inside)).end_offset == 20


# A node deletes old segments while a tool reads its log: an answer about the end is the same whenever.


SNAPSHOT = 11
CALLS = ("open_read", "list_directory", "file_size")
IDLE: list[Any] = [(2, [r.NoOpRecord()]) for _ in range(8)]


WORDS = ("summary", "LOG", "--json", "--last", "4s")


def test_a_summary_of_the_end_does_not_depend_on_segments_that_are_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, cut_at, log = 0, 0, tmp_path / "log"

    def cut() -> None:
        segments = sorted(log.rglob("*.log"))
        for path, following in pairwise(segments):
            if int(following.stem) <= SNAPSHOT:
                path.unlink()

    def counted(name: str) -> Any:
        own = getattr(PosixDisk, name)

        def call(disk: PosixDisk, *given: Any) -> Any:
            nonlocal count
            count += 1
            if count == cut_at:
                cut()
            return own(disk, *given)

        return call

    def answer(at: int) -> tuple[int, str, str]:
        nonlocal count, cut_at, log
        log = tmp_path / f"cut-at-{at}"
        add_snapshot(make_node(PosixDisk(), [*STORY, *IDLE], home=str(log), per_segment=4), SNAPSHOT)
        count, cut_at = 0, at
        ended = run(*(str(log) if word == "LOG" else word for word in WORDS))
        return ended.exit_code, ended.stdout.replace(str(log), ""), ended.stderr.replace(str(log), "")

    for name in CALLS:
        monkeypatch.setattr(PosixDisk, name, counted(name))
    before = answer(0)
    calls = count
    cut()
    assert len(list(log.rglob("*.log"))) > 1
    count = 0
    ended = run(*(str(log) if word == "LOG" else word for word in WORDS))
    allowed = {
        before,
        (ended.exit_code, ended.stdout.replace(str(log), ""), ended.stderr.replace(str(log), "")),
    }
    assert calls > 5 and before[0] != 1, before
    odd = {at: found for at in range(1, calls + 1) if (found := answer(at)) not in allowed}
    assert not odd

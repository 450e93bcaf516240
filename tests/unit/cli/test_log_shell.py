"""The shell as text in and lines out: where it stands, what it shows, and one line for every mistake."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.log.shell import commands
from metaquorum.cli.log.shell.commands import COMMANDS
from metaquorum.cli.log.shell.session import KEPT_STEPS, ShellError, ShellSession
from metaquorum.cli.main import main
from metaquorum.metadata.inspect.entities.diff import changes_between
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.walk.states import state_at, steps
from metaquorum.metadata.records import types as r
from metaquorum.storage.disk.posix import PosixDisk
from tests.conftest import REPOSITORY, needs_shared_data, shared_data_path
from tests.unit.metadata.made_logs import (
    STORY,
    Batch,
    all_files,
    encoded,
    flip,
    make_node,
    memory_disk,
    write,
)

UPGRADE = REPOSITORY / "tests" / "data" / "kafka-3.7-upgrade"
ROOT = shared_data_path() or Path("absent")
RECORDED = sorted({path.parent for path in ROOT.rglob("__cluster_metadata-0/*.log")})
CHECKPOINTS = sorted(path for path in ROOT.rglob("*.checkpoint"))[:3]


def session(batches: list[Batch] | None = None, at: Point = END) -> ShellSession:
    node = make_node(memory_disk(), STORY if batches is None else batches)
    return ShellSession(node.log, COMMANDS, [].append, point=at)


def lines(made: ShellSession, command: str) -> list[str]:
    return list(made.execute(command))


def run(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["log", "shell", *map(str, arguments)], input=text)


# --- moving


def test_next_shows_a_batch_and_what_it_changed() -> None:
    made = session(at=Point(offset=12))
    head, record, *changes = lines(made, "next")
    assert head == "12  2026-11-18T11:06:48.000Z  epoch 2  1 record"
    assert record.split()[:3] == ["12", "REMOVE_TOPIC_RECORD", "v0"]
    assert changes == ["  - topic/payments", "  - topic/payments/0", "  - topic/payments/1"]
    assert made.cursor.offset == 13
    assert made.prompt == "13 /> "


def test_prev_undoes_and_next_does_again() -> None:
    made = session()
    forth: list[int] = []
    while (shown := lines(made, "prev"))[-1] != "the log begins at offset 0":
        assert any(line.startswith("taken back: ") for line in shown)
        forth.append(made.cursor.offset)
    assert forth == sorted(forth, reverse=True)
    assert made.cursor.offset == 0
    while lines(made, "step") != ["the log ends at offset 15"]:
        here = state_at(made.log, Point(offset=made.cursor.offset))
        assert changes_between(here.image, made.cursor.image, quorums=(here.quorum, made.cursor.quorum)) == []
    assert made.cursor.offset == 15
    assert [topic.name for topic in made.cursor.image.topics.all()] == ["orders"]


def test_next_passes_idle_batches_and_step_does_not() -> None:
    made = session(at=Point(offset=10))
    assert lines(made, "next")[:2] == [
        "(idle batches passed: 1)",
        lines(session(at=Point(offset=11)), "next")[0],
    ]
    made = session(at=Point(offset=10))
    assert lines(made, "step")[0].startswith("10  ")


def test_next_of_an_entity_goes_where_it_changes() -> None:
    made = session(at=Point(offset=0))
    shown = lines(made, "next 2 topic/orders/1")
    assert made.cursor.offset == 14
    assert any("leader 1 -> -1" in line for line in shown)
    assert "(batches not about topic/orders/1 passed: 4)" in shown


def test_until_stops_behind_the_batch_that_made_it_true_and_stays_where_it_never_is() -> None:
    made = session(at=Point(offset=0))
    lines(made, "until leaderless() > 0")
    assert made.cursor.offset == 14
    with pytest.raises(ShellError, match="never true after offset 14"):
        lines(made, "until len(topics) > 7")
    assert made.cursor.offset == 14
    with pytest.raises(ShellError, match="there is no name leaderles; did you mean leaderless"):
        lines(made, "until leaderles() > 0")
    with pytest.raises(ShellError, match="until needs an expression"):
        lines(made, "until")


@pytest.mark.parametrize(
    ("place", "offset"),
    [("start", 0), ("end", 15), ("7", 7), ("@1795000006000", 11), ("here", 12), ("+2", 14), ("-2", 10)],
)
def test_at_goes_to_offsets_times_and_steps_from_here(place: str, offset: int) -> None:
    made = session(at=Point(offset=12))
    (line,) = lines(made, f"at {place}")
    assert made.cursor.offset == offset
    assert line.startswith(f"offset {made.cursor.offset} ")


def test_going_back_farther_than_what_is_kept() -> None:
    many: list[Batch] = [*STORY, *[(2, [r.NoOpRecord()])] * (KEPT_STEPS + 50)]
    made = session(many)
    for _ in range(KEPT_STEPS + 60):
        lines(made, "prev 1 topic/orders/1")
        break
    assert made.cursor.offset == 13
    for expected in (12, 11, 10):
        assert made.cursor.previous() is not None
        assert made.cursor.offset == expected


@pytest.mark.parametrize(
    ("steps_kept", "bytes_kept", "kept"),
    [(3, 1 << 30, 3), (1000, 1, 1), (3, 1, 1), (1000, 1 << 30, 15)],
)
def test_how_many_steps_are_kept(
    monkeypatch: pytest.MonkeyPatch, steps_kept: int, bytes_kept: int, kept: int
) -> None:
    """Not more than either bound allows; the last one is always kept."""
    monkeypatch.setattr("metaquorum.cli.log.shell.session.KEPT_STEPS", steps_kept)
    monkeypatch.setattr("metaquorum.cli.log.shell.session.KEPT_BYTES", bytes_kept)
    made = session(at=Point(offset=0)).cursor
    taken = 0
    while (step := made.next()) is not None:
        taken += 1
        size = sum(len(each.batch.data) for each in made._behind)
        assert made._behind_bytes == size and len(made._behind) <= kept
        assert made._behind[-1] is step
    assert len(made._behind) == min(kept, taken)


@pytest.mark.parametrize("bytes_kept", [200, 300, 400])
def test_how_many_bytes_of_steps_are_kept(monkeypatch: pytest.MonkeyPatch, bytes_kept: int) -> None:
    monkeypatch.setattr("metaquorum.cli.log.shell.session.KEPT_BYTES", bytes_kept)
    made = session(at=Point(offset=0)).cursor
    sizes: list[int] = []
    while (step := made.next()) is not None:
        sizes.append(len(step.batch.data))
        while sum(sizes) > bytes_kept and len(sizes) > 1:
            sizes.pop(0)
        assert [len(each.batch.data) for each in made._behind] == sizes


# --- typing


class Typed:
    """What a person types; a class of error is raised."""

    def __init__(self, *typed: str | type[BaseException]) -> None:
        self.typed = list(typed)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        line = self.typed.pop(0)
        if isinstance(line, str):
            return line
        raise line


def test_a_prompt_until_ctrl_d(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = session(at=Point(offset=12))
    keyboard = Typed("pwd", KeyboardInterrupt, "nonsense", "at +2", EOFError, "pwd")
    monkeypatch.setattr("builtins.input", keyboard)
    assert commands.run_interactive(made) == 0
    out, err = capsys.readouterr()
    pwd, interrupted, moved, end = out.split("\n", 3)
    assert (pwd, interrupted, end) == ("/", "^C", "\n") and moved.startswith("offset 14 ")
    assert err.startswith("metaquorum: ") and err.count("\n") == 1
    assert keyboard.prompts == ["12 /> "] * 4 + ["14 /> "]
    assert keyboard.typed == ["pwd"]


def test_the_prompt_ends_with_exit_and_ctrl_c_ends_only_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = session(at=Point(offset=12))
    monkeypatch.setattr("builtins.input", Typed("pwd", "exit"))
    asked: list[str] = []

    def execute(line: str) -> list[str]:
        asked.append(line)
        if line == "pwd":
            raise KeyboardInterrupt
        made.ended = True
        return []

    monkeypatch.setattr(ShellSession, "execute", lambda self, line: execute(line))
    assert commands.run_interactive(made) == 0
    assert asked == ["pwd", "exit"]
    assert capsys.readouterr().out == "\ninterrupted; this is still offset 12\n"


def test_completion_in_the_line_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    set_up: dict[str, Any] = {"parse_and_bind": []}

    class Editor(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name == "parse_and_bind":
                return set_up[name].append
            return lambda value: set_up.__setitem__(name, value)

        @staticmethod
        def get_line_buffer() -> str:
            return "cd topic/o; not yet"

        @staticmethod
        def get_endidx() -> int:
            return len("cd topic/o")

    monkeypatch.setitem(sys.modules, "readline", Editor("readline"))
    made = session(at=Point(offset=12))
    commands._Editor(made).install()
    complete = set_up["set_completer"]
    assert [complete("topic/o", state) for state in (0, 1)] == ["topic/orders/", None]
    assert set_up["parse_and_bind"] == ["tab: complete", "set show-all-if-ambiguous on"]
    assert (set_up["set_completer_delims"], set_up["set_history_length"]) == (" \t", commands.HISTORY_MAX)

    def fail(line: str, word: str) -> list[str]:
        raise ValueError((line, word))

    monkeypatch.setattr(ShellSession, "complete", lambda self, line, word: fail(line, word))
    assert complete("topic/o", 0) is None


# --- looking


def test_the_state_is_a_tree_of_directories() -> None:
    made = session(at=Point(offset=12))
    assert lines(made, "ls") == ["quorum", "feature/", "broker/", "topic/"]
    assert lines(made, "ls topic") == ["orders/", "payments/"]
    assert lines(made, "cd topic/orders") == []
    assert lines(made, "pwd") == ["/topic/orders"]
    assert lines(made, "ls") == ["0", "1"]
    assert lines(made, "cat 0")[0].split() == ["leader", "1"]
    assert lines(made, "cat 0/isr") == ["[1]"]
    assert lines(made, "cat broker/1/fenced") == ["false"]
    assert lines(made, "cd ..") == []
    assert made.here == "topic"
    assert lines(made, "tree orders")[1].startswith("topic/orders/0: leader=1 ")
    assert lines(made, "cd /") == []
    assert len(lines(made, "tree")) == 9
    assert lines(made, "cat topic/orders")[1].startswith("0: leader=1")


def test_find_by_name_pattern_and_field() -> None:
    made = session()
    assert lines(made, "find orders") == [
        "topic/orders",
        "topic/orders/0",
        "topic/orders/1",
        "config/topic/orders",
    ]
    assert lines(made, "find 'topic/*/0'") == ["topic/orders/0"]
    assert lines(made, "find topic leader=-1") == ["topic/orders/1  leader=-1"]
    assert lines(made, "find nothing") == []


def test_a_config_is_listed_below_its_resource() -> None:
    made = session()
    assert lines(made, "ls config") == ["topic/"]
    assert lines(made, "ls config/topic") == ["orders"]
    assert lines(made, "cat config/topic/orders") == ["retention.ms  1000"]


# --- telling


def test_diff_takes_two_places_and_then_a_name() -> None:
    made = session(at=Point(offset=14))
    head, *changes = lines(made, "diff 0 14")
    assert head == f"from offset 0 to 14: {len(changes)} changes" and len(changes) > 1
    assert lines(made, "diff 0 14 14") == ["from offset 0 to 14: no changes"]


def test_diff_with_one_place_ends_here() -> None:
    made = session(at=Point(offset=12))
    assert lines(made, "diff 10") == lines(made, "diff 10 12") != lines(made, "diff 10 end")
    assert lines(made, "diff 10 topic/payments") == lines(made, "diff 10 12 topic/payments")


def test_diff_names_the_records() -> None:
    made = session()
    assert lines(made, "diff 13 end topic/orders/1") == [
        "from offset 13 to 15: 1 change",
        "~ topic/orders/1  leader 1 -> -1  leaderEpoch 0 -> 1  partitionEpoch 0 -> 1"
        "  (13 PARTITION_CHANGE_RECORD)",
    ]
    lines(made, "at 12")
    lines(made, "next")
    assert lines(made, "diff")[1] == "- topic/payments  (12 REMOVE_TOPIC_RECORD)"
    assert lines(made, "diff 10 10") == ["from offset 10 to 10: no changes"]


def test_why_history_records_and_timeline_are_about_the_place() -> None:
    made = session(at=Point(offset=14))
    assert lines(made, "why topic/orders/1.leader")[0].startswith("topic/orders/1.leader is -1 since 13 ")
    lines(made, "cd topic/orders")
    assert lines(made, "why 1.leader") == lines(made, "why topic/orders/1.leader")
    assert [line.split()[0] for line in lines(made, "history 1")] == ["4", "13"]
    assert [line.split()[-4] for line in lines(made, "history 1.leader")] == ["leader=1", "leader=-1"]
    assert [line.split()[0] for line in lines(made, "records 11 13") if line.startswith(" ")] == ["11", "12"]
    assert any("payments" in line for line in lines(made, "timeline"))
    lines(made, "at 4")
    assert not any("payments" in line for line in lines(made, "timeline"))
    assert [line.split()[0] for line in lines(made, "records 0 here quorum") if line.startswith(" ")] == ["0"]


def test_refresh_fetches_what_is_new_and_moves_nothing() -> None:
    """Of a running quorum; files are read as they are."""
    disk = memory_disk()
    node = make_node(disk, STORY[:8])
    path = f"{node.log.path}/00000000000000000000.log"

    def refresh() -> str:
        write(disk, path, b"".join(encoded(STORY)))
        return "read offsets 0 to 14"

    made = ShellSession(node.log, COMMANDS, [].append, refresh=refresh)
    stood = made.cursor.offset
    assert lines(made, "step") == [f"the log ends at offset {stood}"]
    assert lines(made, "refresh") == ["read offsets 0 to 14"]
    assert made.cursor.offset == stood
    assert lines(made, "step")[0].startswith(f"{stood}")
    lines(made, "at end")
    assert made.cursor.offset == 15
    with pytest.raises(ShellError, match="refresh is only for --bootstrap"):
        lines(session(), "refresh")


def test_help_names_every_command_and_exit_ends() -> None:
    made = session()
    shown = lines(made, "help")
    assert [line.split()[0] for line in shown[: len(COMMANDS)]] == [command.name for command in COMMANDS]
    assert lines(made, "help at") == [f"{made.commands['at'].usage}  {made.commands['at'].help}"]
    assert not made.ended
    lines(made, "ex")
    assert made.ended


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("frob", "there is no command frob; help lists the commands"),
        ("nxt", "there is no command nxt; did you mean next"),
        ("c", "did you mean cd or cat"),
        ("cat nowhere", "no nowhere at offset 15; ls shows what there is"),
        ("cat topic/orders/0/colour", "no topic/orders/0/colour at offset 15"),
        ("cat", "is a directory"),
        ("cd topic/orders/0", "has nothing below it; use cat topic/orders/0"),
        ("at", None),
        ("at noon", "is neither a time"),
        ("at 1 2", "at needs one position"),
        ("next 0x", "next 0x"),
        ("step two", "'two' is not a number of batches"),
        ("ls a b", "is one argument too many; write ls"),
        ("find", "find needs a pattern"),
        ("why", "why needs one entity"),
        ("why topic/orders/0.colour", "has no field 'colour'"),
        ("history", "history needs one entity"),
        ("history broker/99", "there was no broker/99 before offset 15"),
        ("diff", "after next, diff shows what that batch changed"),
        ("records", "after next, records shows that batch"),
        ("diff 1 2 a b", "is one argument too many"),
        ("diff 1 2 3 broker/1", "'3 broker/1' is one argument too many"),
        ("help me", "there is no command me"),
        ("cat 'x", "close the quote"),
    ],
)
def test_a_mistake_is_one_line_and_moves_nothing(command: str, reason: str | None) -> None:
    made = session()
    if reason is None or command == "next 0x":
        lines(made, command)
        return
    with pytest.raises(ShellError) as caught:
        lines(made, command)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (made.cursor.offset, made.here) == (15, "")


# --- completion


def test_completion_offers_commands_then_paths() -> None:
    made = session()
    assert made.complete("ne", "ne") == ["next "]
    assert made.complete("cat to", "to") == ["topic/"]
    assert made.complete("cat topic/", "topic/") == ["topic/orders/"]
    assert made.complete("cat topic/orders/", "topic/orders/") == ["topic/orders/0 ", "topic/orders/1 "]
    lines(made, "cd topic")
    assert made.complete("cat or", "or") == ["orders/"]
    assert made.complete("cat bro", "bro") == ["broker/"]
    assert made.complete("help h", "h") == ["help", "history"]
    assert made.complete("at ", "") == []
    assert made.complete("frob x", "x") == []


# --- the command


def test_commands_come_from_options_or_a_pipe() -> None:
    once = run(UPGRADE, "-c", "at", "-c", "ls feature")
    assert once.exit_code == 0
    assert once.stdout.splitlines()[0].startswith("offset ")
    piped = run(UPGRADE, text="# what is there\n\nls feature\nexit\nls broker\n")
    assert piped.exit_code == 0
    assert piped.stdout == "".join(f"{line}\n" for line in once.stdout.splitlines()[1:])


def test_a_failed_command_is_told_on_standard_error_and_in_the_exit_code() -> None:
    result = run(UPGRADE, text="frob\nat 999999\nls feature\n")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 2
    assert "ends at offset" in result.stderr
    assert "metadata.version" in result.stdout


def test_it_begins_where_it_is_told_to() -> None:
    assert run(UPGRADE, "--at", "3", "-c", "at").stdout.startswith("offset 3 ")
    wrong = run(UPGRADE, "--at", "999999", "-c", "at")
    assert (wrong.exit_code, wrong.stdout) == (1, "")


def test_without_a_path_it_says_what_to_give() -> None:
    assert run().exit_code == 2
    both = run(UPGRADE, "--bootstrap", "127.0.0.1:1")
    assert both.exit_code == 2


def test_damage_is_told_and_can_be_passed(tmp_path: Path) -> None:
    node = make_node(PosixDisk(), STORY, home=str(tmp_path / "node"))
    flip(node, 12)
    stopped = run(tmp_path / "node", "-c", "at", "-c", "step")
    assert stopped.stdout.splitlines()[0].startswith("offset 12 ")
    assert "expected CRC" in stopped.stderr
    passed = run(tmp_path / "node", "--past-corruption", "-c", "at", "-c", "ls topic")
    assert passed.stdout.splitlines()[0].startswith("offset 15 ")
    assert passed.stdout.splitlines()[1:] == ["orders/", "payments/"]


@needs_shared_data
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: "/".join(path.relative_to(ROOT).parts))
def test_every_recorded_log_can_be_walked(path: Path) -> None:
    kept = all_files(path)
    log = open_log(PosixDisk(), str(path))
    told: list[str] = []
    made = ShellSession(log, COMMANDS, told.append, past_corruption=True)
    end = made.cursor.offset
    for line in (
        "at",
        "ls",
        "tree",
        "find 0",
        "prev 3",
        "prev",
        "diff start here",
        "timeline",
        "at start",
    ):
        lines(made, line)
    walked = 0
    while made.cursor.next() is not None:
        walked += 1
    assert made.cursor.offset == end
    assert walked == sum(1 for _ in steps(log, past_corruption=True))
    for kind in [one for one in lines(made, "ls") if one.endswith("/")]:
        for name in [one for one in lines(made, f"ls {kind}")[:2] if one.isprintable()]:
            lines(made, f"cat {shlex.quote(kind + name)}")
    assert all_files(path) == kept


@needs_shared_data
@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.name)
def test_a_checkpoint_is_one_state(path: Path) -> None:
    result = run(path, "-c", "ls", "-c", "cat feature/metadata.version", "-c", "next")
    assert "feature/" in result.stdout
    assert "is a single state, not a history" in result.stderr


TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""Makes the terminal the controlling one, so that Ctrl-C is a signal, and becomes the command."""


def test_a_person_types_completes_interrupts_and_leaves() -> None:
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "INPUTRC": "/dev/null"}
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, "-m", "metaquorum.cli", "log", "shell", str(UPGRADE)],
        stdin=child,
        stdout=child,
        stderr=child,
        cwd=REPOSITORY,
        env=environment,
        start_new_session=True,
    )
    os.close(child)
    screen = ""

    def until(part: str, again: bytes = b"") -> str:
        """Reads up to `part`; `again` is typed once more wherever nothing comes for a while."""
        nonlocal screen
        deadline = time.monotonic() + 60
        while part not in screen:
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([parent], [], [], min(left_s, 3.0) if again else left_s)
            assert ready or (again and left_s), screen
            if ready:
                screen += os.read(parent, 65536).decode()
            else:
                os.write(parent, again)
        before, screen = screen[: screen.index(part) + len(part)], screen[screen.index(part) + len(part) :]
        return before

    try:
        greeting = until("/> ")
        assert "help lists the commands" in greeting
        os.write(parent, b"cat feature/metadata.v\t\n")
        assert "level" in until("/> ")
        os.write(parent, b"half a line")
        until("half a line")
        # The interpreter's line editor can miss an interrupt that comes just before it waits for a key.
        os.write(parent, b"\x03")
        until("/> ", again=b"\x03")
        os.write(parent, b"frob\n")
        until("metaquorum: there is no command frob")
        until("/> ")
        os.write(parent, b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)

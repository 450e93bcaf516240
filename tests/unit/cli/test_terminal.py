"""What the tools look like on a terminal: width, colours, suggestions for mistyped names, and the Tab key."""

from __future__ import annotations

import os
import pty
import shlex
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.cli.log.time_text import entity_tables
from metaquorum.cli.main import main
from metaquorum.cli.text.output import table_lines, trimmed
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.types import BrokerEndpoint, BrokerFeature
from metaquorum.storage.disk.posix import PosixDisk
from tests.conftest import REPOSITORY, shared_data_path
from tests.unit.cli.running import run_log as run
from tests.unit.metadata.made_logs import STORY, Batch, make_node

GOLDEN = (shared_data_path() or Path("absent")) / "kafka-3.7" / "controller-3000"
BROKER = r.BrokerRecord(
    7,
    bytes(range(16)),
    9,
    end_points=(BrokerEndpoint("PLAINTEXT", "broker-7.example.de", 9092, 0),),
    features=(BrokerFeature("metadata.version", 1, 19),),
    rack="rack-b",
    log_dirs=(bytes(range(16)), bytes(range(16, 32))),
)
NAMED: list[Batch] = [
    *STORY,
    (2, [BROKER]),
    (2, [r.UserScramCredentialRecord("alice", 1, b"salt", b"key", b"key", 4096)]),
]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    make_node(PosixDisk(), NAMED, home=str(tmp_path / "node"))
    return tmp_path / "node"


def on_terminal(width: int, *arguments: object, **more: str) -> list[str]:
    """What a command prints on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-m", "metaquorum.cli", "log", *map(str, arguments)],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env={**environment, **more},
        cwd=REPOSITORY,
    ) as process:
        os.close(theirs)
        found = b""
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # what Linux says when the other side is closed
                break
            if not piece:
                break
            found += piece
        process.wait()
    os.close(ours)
    return found.decode().replace("\r\n", "\n").splitlines()


# --- width


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_are_no_wider_than_the_terminal_unless_asked(node: Path, width: int) -> None:
    lines = on_terminal(width, "state", node, "topic", "--format", "table")
    assert max(map(len, lines)) <= width
    assert any("topic/orders/0" in line for line in lines), "what a row is about stays whole"
    wide = on_terminal(width, "state", node, "topic", "--format", "table", "--wide")
    assert wide == run("state", node, "topic", "--format", "table").stdout.splitlines()
    assert not any("…" in line for line in wide)


def test_one_broker_is_readable_in_80_columns_and_whole(node: Path) -> None:
    lines = on_terminal(80, "state", node, "broker/7", "--format", "table")
    assert lines == [
        "entity                     broker/7",
        "epoch                      9",
        "incarnationId              AAECAwQFBgcICQoLDA0ODw",
        "fenced                     true",
        "inControlledShutdown       false",
        "isMigratingZkBroker        false",
        "rack                       rack-b",
        "endPoints PLAINTEXT        host=broker-7.example.de port=9092 securityProtocol=0",
        "features metadata.version  [1,19]",
        "logDirs                    [AAECAwQFBgcICQoLDA0ODw,EBESExQVFhcYGRobHB0eHw]",
    ]
    assert run("state", node, "broker/7", "--format", "table").stdout.splitlines() == lines


@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize(
    "entity", ["broker", "broker/1", "controller", "topic/t01", "config", "topic", "acl"]
)
def test_recorded_states_fit_into_80_columns(entity: str) -> None:
    lines = on_terminal(80, "state", GOLDEN, entity, "--format", "table")
    assert lines
    assert max(map(len, lines)) <= 80


CELLS = st.text(st.characters(codec="ascii", exclude_categories=("C",)), max_size=40)


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=6)
    ),
    st.integers(10, 120),
)
def test_no_line_of_a_table_is_wider_and_nothing_is_cut_that_fits(rows: list[list[str]], width: int) -> None:
    whole = list(table_lines(rows[0], rows[1:]))
    cut = list(table_lines(rows[0], rows[1:], width))
    assert max(map(len, cut)) <= width
    longest = sum(max(len(row[at]) for row in rows) for at in range(len(rows[0]))) + 2 * (len(rows[0]) - 1)
    if longest <= width:
        assert cut == whole


@given(st.text(max_size=50), st.integers(1, 60))
def test_a_cut_line_ends_in_an_ellipsis(line: str, width: int) -> None:
    cut = trimmed(line, width)
    assert len(cut) <= width
    assert cut == line if len(line) <= width else cut.endswith("…")


def test_a_long_value_goes_on_below_its_field() -> None:
    fields = {"name": "x", "listed": [f"{number:022}" for number in range(12)]}
    lines = list(entity_tables([("broker/1", fields)], 60))
    assert max(map(len, lines)) <= 60
    assert "".join(line[8:] for line in lines[2:]) == "[" + ",".join(map(str, fields["listed"])) + "]"


# --- colours


@pytest.mark.parametrize("command", ["summary", "timeline"])
def test_no_color_is_obeyed(node: Path, command: str) -> None:
    assert any("\x1b[" in line for line in on_terminal(80, command, node))
    assert not any("\x1b[" in line for line in on_terminal(80, command, node, NO_COLOR="1"))
    assert any("\x1b[" in line for line in on_terminal(80, command, node, NO_COLOR="")), "empty means no wish"


# --- suggestions


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("state", "topic/ordres"), "no topic/ordres in the state at offset 17; did you mean topic/orders?"),
        (("state", "topic/ORDERS"), "did you mean topic/orders?"),
        (("state", "topic/orders/9"), "topic/orders has partitions 0 to 1"),
        (("state", "broker/9"), "no broker/9 in the state at offset 17; known are 1, 7"),
        (("state", "user/alcie"), "did you mean user/alice?"),
        (("state", "feature/metadata.verison"), "did you mean feature/metadata.version?"),
        (("state", "topc/orders"), "did you mean topic/orders?"),
        (("why", "topic/ordres/1.leader"), "did you mean topic/orders/1?"),
        (("why", "topic/payment"), "did you mean topic/payments?"),
        (("history", "topic/payment"), "did you mean topic/payments?"),
        (("timeline", "--entity", "topic/payment"), "did you mean topic/payments?"),
        (("dump", "--entity", "topic/payment"), "did you mean topic/payments?"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_one_that_was_meant(
    node: Path, arguments: tuple[str, ...], told: str
) -> None:
    result = run(arguments[0], node, *arguments[1:])
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_diff_of_nothing_suggests_too(node: Path) -> None:
    assert (
        "neither holds topic/ordres; did you mean topic/orders?"
        in run("diff", node, "7", "12", "topic/ordres").stdout
    )


def test_what_is_there_gets_no_suggestion(node: Path) -> None:
    result = run("timeline", node, "--entity", "topic/orders/0", "--severity", "critical")
    assert "did you mean" not in result.stderr
    assert "no event" in result.stderr


def test_milliseconds_without_a_sign_get_a_hint(node: Path) -> None:
    for command in (("timeline", "--from"), ("timeline", "--to"), ("state", "--at"), ("summary", "--from")):
        result = run(command[0], node, command[1], "1795230851926")
        assert "(a time in milliseconds is written @1795230851926)" in result.stderr, command


@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize("end", [1, 900, 1000, 1790, 1800, 2000, 4000])
def test_nothing_past_to_is_shown(end: int) -> None:
    lines = run("timeline", GOLDEN, "--to", str(end), "--severity", "detail").stdout.splitlines()
    assert lines
    assert all(int(line.split()[0]) <= end for line in lines)


# --- completion


def completed(*words: object) -> list[str]:
    result = CliRunner().invoke(
        main,
        [],
        prog_name="metaquorum",
        env={
            "_METAQUORUM_COMPLETE": "bash_complete",
            "COMP_WORDS": shlex.join(["metaquorum", *map(str, words)]),
            "COMP_CWORD": str(len(words)),
        },
    )
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


def offered(node: Path, *words: str) -> list[str]:
    return completed("log", words[0], node, *words[1:])


def test_entities_of_the_log_are_completed_part_by_part(node: Path) -> None:
    assert offered(node, "state", "to") == ["topic", "token"]
    assert offered(node, "state", "topic/") == ["topic/orders"]
    assert offered(node, "state", "topic/orders/") == ["topic/orders/0", "topic/orders/1"]
    assert offered(node, "history", "broker/") == ["broker/1", "broker/7"]
    assert offered(node, "state", "user/a") == ["user/alice"]
    assert offered(node, "timeline", "--entity", "topic/o") == ["topic/orders"]
    assert offered(node, "why", "topic/orders/1.le") == [
        *("topic/orders/1.leader", "topic/orders/1.leaderEpoch", "topic/orders/1.leaderRecoveryState")
    ]


def test_checks_and_types_and_severities_are_completed(node: Path) -> None:
    assert offered(node, "bisect", "--check", "all-") == ["all-led"]
    assert offered(node, "dump", "--type", "partition") == ["partition", "partition-change"]
    assert offered(node, "timeline", "--severity", "c") == ["critical"]


def test_completion_is_silent_where_there_is_no_log(tmp_path: Path) -> None:
    assert offered(tmp_path / "absent", "state", "topic/") == []
    assert offered(tmp_path, "state", "topic/") == []
    assert offered(tmp_path / "absent", "state", "bro") == ["broker"]


def test_the_script_of_each_shell_is_printed() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_METAQUORUM_COMPLETE" in CliRunner().invoke(main, ["completion", shell]).stdout

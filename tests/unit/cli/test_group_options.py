"""`metaquorum groups` and `transactions`: command lines that are wrong, and files of offsets."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.cli.admin.groups import read_offsets
from metaquorum.cli.errors import Failure
from metaquorum.cli.main import main

NOWHERE = ("--bootstrap", "127.0.0.1:1", "--timeout", "0.2")
RESET = ("groups", "reset", "g")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((*RESET, "--all-topics"), "give exactly one of --by-duration, --from-file"),
        ((*RESET, "--to-latest", "--to-offset", "3", "--all-topics"), "give exactly one of"),
        ((*RESET, "--to-offset", "0", "--to-earliest", "--all-topics"), "give exactly one of"),
        ((*RESET, "--to-latest"), "give either --topic or --all-topics"),
        ((*RESET, "--to-latest", "--topic", "t", "--all-topics"), "give either --topic or --all-topics"),
        ((*RESET, "--to-latest", "--topic", "t:"), "'t:' is not a topic with partitions; write orders or"),
        ((*RESET, "--to-latest", "--topic", "t:1,x"), "is not a topic with partitions"),
        ((*RESET, "--to-offset", "-1", "--topic", "t"), "-1 is not in the range"),
        ((*RESET, "--to-datetime", "noon", "--topic", "t"), "'noon' is not a time"),
        ((*RESET, "--by-duration", "P1M", "--topic", "t"), "'P1M' is not a duration"),
        ((*RESET, "--to-latest", "--topic", "t", "--execute", "--dry-run"), "exclude each other"),
        ((*RESET, "--to-latest", "--topic", "t", "--export", "--json"), "exclude each other"),
        (("groups", "describe"), "give either GROUP... or --all"),
        (("groups", "describe", "g", "--all"), "give either GROUP... or --all"),
        (("groups", "delete", "g", "--offsets"), "--offsets and --topic go together"),
        (("groups", "delete", "g", "--topic", "t"), "--offsets and --topic go together"),
        (("transactions", "list", "--state", "Hanging"), "is not one of 'Empty', 'Ongoing'"),
        (("transactions", "abort", "--topic", "t", "--partition", "0"), "give either --start-offset, or"),
        (
            (*("transactions", "abort", "--topic", "t", "--partition", "0"), "--producer-id", "1"),
            "give either --start-offset, or",
        ),
        (
            (
                *("transactions", "abort", "--topic", "t", "--partition", "0", "--start-offset", "1"),
                *("--producer-id", "1"),
            ),
            "give either --start-offset, or",
        ),
    ],
)
def test_a_wrong_command_line_asks_nothing(words: tuple[str, ...], problem: str) -> None:
    result = CliRunner().invoke(main, [*words, *NOWHERE])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_file_of_offsets_is_read_as_kafkas_tool_exports_it(tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text('orders,0,12\n"orders",1,9223372036854775807\n\ng,other.topic,2147483647,0\n')
    assert read_offsets(path, "g") == {
        ("orders", 0): 12,
        ("orders", 1): 2**63 - 1,
        ("other.topic", 2147483647): 0,
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no offsets; write lines of topic,partition,offset"),
        ("orders,0,1\norders,1\n", "line 2: expected topic,partition,offset, found 'orders,1'"),
        ("orders,0,-1\n", "line 1: expected"),
        ("orders,0,1.5\n", "line 1: expected"),
        ("orders,2147483648,1\n", "line 1: expected"),
        ("orders,0,9223372036854775808\n", "line 1: expected"),
        (",0,1\n", "line 1: expected"),
        ("orders,0,1\norders,0,1\n", "line 2: orders-0 is listed twice"),
        ("h,orders,0,1\n", "line 1: 'h' is not the group g"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text(text)
    with pytest.raises(Failure, match=problem.replace("(", r"\(")):
        read_offsets(path, "g")
    result = CliRunner().invoke(main, [*RESET, "--from-file", str(path), *NOWHERE])
    assert result.exit_code == 1
    assert problem in result.stderr


def test_a_file_that_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    for data in (b"\xff\xfe\0", b"orders,0,1\0\n", b'"' + b"x" * 200_000):
        path.write_bytes(data)
        result = CliRunner().invoke(main, [*RESET, "--from-file", str(path), *NOWHERE])
        assert result.exit_code == 1, result.output
        assert isinstance(result.exception, SystemExit), result.exception
        assert result.stderr.count("\n") == 1

"""Values that click takes and nobody means are refused everywhere: an empty path or text, a number or a file
without end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from metaquorum.cli.given import MAY_BE_EMPTY
from metaquorum.cli.pipeline.commands import Place
from tests.unit.cli.running import run
from tests.unit.cli.test_command_words import ALL


def parameters(is_one: Callable[[Any], bool]) -> Iterator[tuple[str, str]]:
    for path, command in ALL.items():
        given = (each for each in command.params if not getattr(each, "is_flag", False))
        yield from ((path, str(each.name)) for each in given if is_one(each.type))


def given(path: str, name: str, value: str) -> object:
    (parameter,) = (each for each in ALL[path].params if each.name == name)
    words = value if not parameter.multiple and parameter.nargs == 1 else (value,)
    return parameter.type_cast_value(click.Context(ALL[path]), words)


def is_path(kind: Any) -> bool:
    return isinstance(kind, click.Path | Place)


def is_fraction(kind: Any) -> bool:
    return kind is click.FLOAT or isinstance(kind, click.FloatRange)


@pytest.mark.parametrize(("path", "name"), [*parameters(is_path)])
def test_an_empty_path_is_not_the_current_directory(path: str, name: str) -> None:
    with pytest.raises(click.BadParameter, match="the path is empty"):
        given(path, name, "")


@pytest.mark.parametrize("value", ["nan", "inf", "1e400", "1e308"])
@pytest.mark.parametrize(("path", "name"), [*parameters(is_fraction)])
def test_a_number_has_an_end(path: str, name: str, value: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is not a finite number|is too large|is not in the range"):
        given(path, name, value)


def is_text(kind: Any) -> bool:
    return isinstance(kind, click.types.StringParamType)


def is_whole(kind: Any) -> bool:
    return isinstance(kind, click.types.IntParamType)


@pytest.mark.parametrize(("path", "name"), [*parameters(is_text)])
def test_an_empty_text_is_refused_unless_it_means_something(path: str, name: str) -> None:
    if name in MAY_BE_EMPTY:
        return
    with pytest.raises(click.BadParameter, match="the text is empty"):
        given(path, name, "")


@pytest.mark.parametrize("value", [2**63, -(2**63), 10**30])
@pytest.mark.parametrize(("path", "name"), [*parameters(is_whole)])
def test_a_whole_number_is_an_int64(path: str, name: str, value: int) -> None:
    with pytest.raises(click.BadParameter, match=r"is too large|is not in the range"):
        given(path, name, str(value))


def test_what_is_wrong_is_one_short_line_whatever_was_given() -> None:
    for value in ("y" * 20_000, "a\x1b[31mb\nc", "y z " * 5_000, "\udcff"):
        result = run("log", "dump", value)
        (line,) = result.stderr.splitlines()
        assert result.exit_code != 0 and len(line) < 5_000 and line.isprintable()


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no file without an end")
@pytest.mark.parametrize(
    "words",
    [
        ("storage", "info", "--config", "/dev/zero"),
        ("topics", "list", "-b", "127.0.0.1:1", "--truststore", "/dev/zero"),
        ("topics", "list", "-b", "127.0.0.1:1", "--command-config", "/dev/zero"),
        ("partitions", "reassign", "-b", "127.0.0.1:1", "--plan", "/dev/zero"),
        ("groups", "reset", "g", "-b", "127.0.0.1:1", "--from-file", "/dev/zero"),
    ],
)
def test_a_file_without_an_end_is_not_read_to_its_end(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert "larger than" in result.stderr

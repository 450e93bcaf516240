"""Values that click takes and nobody means are refused everywhere: an empty path, a number without end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest

from metaquorum.cli.pipeline.paths import Place
from tests.unit.cli.test_help import ALL


def parameters(is_one: Callable[[Any], bool]) -> Iterator[tuple[str, str]]:
    for path, command in ALL.items():
        yield from ((path, str(each.name)) for each in command.params if is_one(each.type))


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


@pytest.mark.parametrize("value", ["nan", "inf", "1e400"])
@pytest.mark.parametrize(("path", "name"), [*parameters(is_fraction)])
def test_a_number_has_an_end(path: str, name: str, value: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is not a finite number|is not in the range"):
        given(path, name, value)

"""Types of options and arguments that refuse values which click takes and no one means."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import click

from metaquorum.cli.interrupts import quiet_interrupts

_LARGEST = 2**63 - 1
"""What the protocols and the files hold: int64."""
_LONGEST = 1e15
"""Of a number with a fraction, such as seconds, which are counted in ms."""
MAY_BE_EMPTY = frozenset({"names", "lines", "parameters"})
"""Parameters whose values may be empty: Kafka has groups without a name, a line of `log shell` may say
nothing, and a parameter of `fault` is checked by who takes it."""


class GivenText(click.types.StringParamType):
    """A text that is not empty: `--topic ''` would match nothing, and is a variable that a script did not
    set."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the text is empty; give one, or leave it out", param, ctx)
        return super().convert(value, param, ctx)


class GivenNumber(click.IntRange):
    """A whole number that is not larger than an int64."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not -_LARGEST <= number <= _LARGEST:
            self.fail(f"{value} is too large", param, ctx)
        return number


class GivenPath(click.Path):
    """A path that is not empty: as a path, an empty text is the current directory, which no one means."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        refuse_no_path(self, str(value), param, ctx)
        return super().convert(value, param, ctx)


def refuse_no_path(
    kind: click.ParamType,  # type: ignore[type-arg]
    value: str,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> None:
    """Refuses an empty text, for every type whose values are paths."""
    if not value:
        kind.fail("the path is empty; give one, or . for the current directory", param, ctx)


class FiniteRange(click.FloatRange):
    """A number within bounds, and not too large. "nan" is in all bounds, and "inf" in those without an
    end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        if abs(number) > _LONGEST:
            self.fail(f"{value} is too large", param, ctx)
        return number


def refuse_what_no_one_means(command: click.Command) -> None:
    """Gives each parameter of a command, and of the commands below it, the type here for the one of click."""
    for parameter in command.params:
        kind = parameter.type
        if getattr(parameter, "is_flag", False):
            continue
        if kind is click.STRING and parameter.name not in MAY_BE_EMPTY:
            parameter.type = GivenText()
        elif type(kind) is click.IntRange:
            parameter.type = GivenNumber(kind.min, kind.max, kind.min_open, kind.max_open, kind.clamp)
        elif kind is click.INT:
            parameter.type = GivenNumber()
    if isinstance(command, click.Group):
        for below in command.commands.values():
            refuse_what_no_one_means(below)


class LazyGroup(click.Group):
    """A group whose commands are imported on first use."""

    places: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Of each command `MODULE:NAME`, and its line in the help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.places, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        module_name, attribute = self.places[cmd_name][0].split(":")
        with quiet_interrupts():
            command: click.Command = getattr(importlib.import_module(module_name), attribute)
        refuse_what_no_one_means(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        rows = [(name, text) for name, (_, text) in self.places.items()]
        rows += [(name, command.get_short_help_str()) for name, command in sorted(self.commands.items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

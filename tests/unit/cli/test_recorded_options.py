"""What every command takes, what `log shell` knows, and every bound of the commands, as recorded.

Scripts hold on to options, and people to the rest. Who changes one changes a line here
(`pytest tests/unit/cli/test_recorded_options.py --rewrite`), which is reviewed like code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from metaquorum.cli.log.shell import commands
from tests.unit.cli.test_command_words import ALL
from tests.unit.test_figures import figures_of

RECORDED = Path(__file__).with_name("options.txt")
OF_PARAMETERS = (
    *(
        "required",
        "nargs",
        "multiple",
        "is_flag",
        "flag_value",
        "default",
        "count",
        "is_eager",
        "expose_value",
    ),
    *("envvar", "hidden", "prompt", "metavar", "help", "show_default"),
)


def parameters() -> Iterator[str]:
    """One line a parameter, below its command: what differs from an option that nothing is said of."""
    plain = click.Option(["--plain"])
    for path, command in ALL.items():
        yield path
        for each in command.params:
            said = [type_of(each.type)]
            for name in OF_PARAMETERS:
                value, usual = getattr(each, name, None), getattr(plain, name)
                if value != usual and value is not None and (name != "help" or value.startswith("Default")):
                    said.append(f"{name}={shown(value)}")
            if isinstance(each, click.Option) and not each.help:
                said.append("without help")
            yield f"    {'/'.join([*each.opts, *each.secondary_opts])}: {', '.join(said)}"


def type_of(kind: click.ParamType) -> str:
    told = {name: value for name, value in sorted(vars(kind).items()) if value not in (None, False)}
    fields = ", ".join(f"{name}={shown(value)}" for name, value in told.items() if name != "name")
    return f"{type(kind).__name__.removesuffix('ParamType')}({fields})"


def shown(value: Any) -> str:
    if callable(value):
        home = value.__module__.removesuffix("._local")  # where pathlib keeps its classes in Python 3.13
        return f"{home.rpartition('.')[2]}.{value.__qualname__}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{shown(key)}: {shown(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(shown, value))})"
    return repr(value)


def shell() -> Iterator[str]:
    for command in commands.COMMANDS:
        fields = msgspec.structs.asdict(command)
        yield ", ".join(f"{name}={shown(value)}" for name, value in fields.items())


def test_what_commands_take_is_what_was_recorded(request: pytest.FixtureRequest) -> None:
    actual = "\n".join([*parameters(), "", *shell(), "", *figures_of(("cli",)), ""])
    if request.config.getoption("--rewrite"):
        RECORDED.write_text(actual, encoding="utf-8")
    assert actual == RECORDED.read_text(encoding="utf-8"), f"review: pytest {Path(__file__).name} --rewrite"

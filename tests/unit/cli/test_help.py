"""Every --help is one screen, names each command in one sentence, and explains each option and its value."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from metaquorum.cli.main import main

COLUMNS = 80
LINES = 45


def commands(command: click.Command = main, path: str = "metaquorum") -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}")


ALL = dict(commands())
GROUPS = {path: command for path, command in ALL.items() if isinstance(command, click.Group)}


def shown(path: str, command: click.Command) -> str:
    return click.Context(command, info_name=path, terminal_width=COLUMNS).get_help()


@pytest.mark.parametrize("path", ALL)
def test_a_help_is_one_screen_and_explains_every_option(path: str) -> None:
    text = shown(path, ALL[path])
    assert len(text.splitlines()) <= LINES and max(map(len, text.splitlines())) <= COLUMNS
    assert " RANGE" not in text and " INTEGER" not in text, "give the option a metavar: ID, N, SECONDS..."
    options = [one for one in ALL[path].params if isinstance(one, click.Option)]
    assert [one.opts for one in options if not (one.help or "").endswith((".", ".]"))] == []


@pytest.mark.parametrize("path", GROUPS)
def test_a_group_lists_its_commands_in_one_line_each(path: str) -> None:
    _, _, listed = shown(path, GROUPS[path]).partition("Commands:\n")
    assert listed and [line for line in listed.splitlines() if line.endswith("...") or line[2] == " "] == []


def test_the_first_page_says_of_each_command_what_its_own_page_says() -> None:
    page = " ".join(shown("metaquorum", main).split())
    first = {path.split()[1]: command.get_short_help_str(200) for path, command in ALL.items() if " " in path}
    own = {name: ALL[f"metaquorum {name}"].get_short_help_str(200) for name in first}
    assert [name for name, text in own.items() if f" {name} {' '.join(text.split())}" not in page] == []

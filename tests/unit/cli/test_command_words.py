"""What happens before the commands are imported, and what words of a command line mean."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from metaquorum.cli import __main__ as entry
from metaquorum.cli import interrupts
from metaquorum.cli.admin import acls
from metaquorum.cli.log import time as time_command
from metaquorum.cli.log.input import source as archive_input
from metaquorum.cli.main import main
from metaquorum.cli.pipeline.commands import FilePath, Place
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType
from metaquorum.storage.uuids import uuid_to_text
from tests.unit.metadata.made_logs import ORDERS, make_node, memory_disk

pytest.importorskip("pyarrow")


# ---- acls


@pytest.mark.parametrize("kind", [ResourceType, PatternType, Operation, Permission])
def test_every_word_of_a_filter_is_its_number(kind: Any) -> None:
    words = acls._words(kind)
    assert [acls._number(kind, word) for word in words.choices] == [int(each) for each in kind]
    assert not words.case_sensitive and not any("_" in word for word in words.choices)
    assert [*acls._words(kind, "any").choices] == [word for word in words.choices if word != "any"]
    assert acls._listed(kind).split(", ") == list(words.choices)


def test_a_filter_without_words_takes_everything() -> None:
    words = dict.fromkeys(
        ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")
    )
    found = acls._filter(words)
    assert (found.resource_type, found.pattern_type, found.operation, found.permission_type) == (1, 1, 1, 1)
    assert (found.resource_name, found.principal, found.host) == (None, None, None)
    more = acls._filter({**words, "resource_type": "topic", "operation": "idempotent-write", "host": "*"})
    assert (more.resource_type, more.operation, more.host) == (2, int(Operation.IDEMPOTENT_WRITE), "*")


# ---- the entry point


@pytest.mark.parametrize(
    ("words", "node", "forks"),
    [
        (["controller", "run"], True, False),
        (["broker", "run"], True, False),
        (["node", "run"], True, False),
        (["local", "up"], False, True),
        (["local", "down"], False, False),
        (["run", "node"], False, False),
    ],
)
def test_what_happens_before_the_commands_are_imported(
    monkeypatch: pytest.MonkeyPatch, words: list[str], node: bool, forks: bool
) -> None:
    done: list[str] = []
    monkeypatch.setattr(sys, "argv", ["metaquorum", *words, "more"])
    monkeypatch.setattr(interrupts, "end_while_starting", lambda role: done.append(f"ends {role}"))
    monkeypatch.setattr(entry, "prepare_node", lambda: done.append("node"))
    begin = SimpleNamespace(begin=lambda: done.append("forks"))
    monkeypatch.setattr("metaquorum.cli.main.main", lambda **more: done.extend(more.values()))
    monkeypatch.setattr("importlib.import_module", lambda name: done.append(name.rpartition(".")[2]) or begin)
    entry.main()
    expected = [f"ends {words[0]}", "node"] if node else []
    assert done == [*expected, *(["forks", "forks"] if forks else []), "metaquorum"]


@pytest.mark.parametrize(
    ("verbosity", "trace", "expected"),
    [
        (None, None, ("INFO", "handshaker")),
        ("NONE", "api", ("INFO", "api,handshaker")),
        ("DEBUG", "api", ("DEBUG", "api")),
    ],
)
def test_a_node_logs_what_grpc_says_of_handshakes(
    monkeypatch: pytest.MonkeyPatch, verbosity: str | None, trace: str | None, expected: tuple[str, str]
) -> None:
    environment = {"GRPC_VERBOSITY": verbosity, "GRPC_TRACE": trace}
    known = {name: value for name, value in environment.items() if value is not None}
    monkeypatch.setattr(entry, "os", SimpleNamespace(environ=known))
    entry.prepare_node()
    assert (known["GRPC_VERBOSITY"], known["GRPC_TRACE"]) == expected


# ---- words of a command line


@pytest.mark.parametrize("kind", [FilePath(), Place()])
@pytest.mark.parametrize("text", ["ftp://x/y", "s3://"])
def test_an_address_that_is_none_is_refused_in_words(kind: click.ParamType[Any], text: str) -> None:
    option = click.Option(["--out"])
    with pytest.raises(click.BadParameter) as refused:
        kind.convert(text, option, click.Context(click.Command("c")))
    assert refused.value.param is option and isinstance(refused.value.message, str)
    assert text.partition("/")[0] in refused.value.message


@pytest.mark.parametrize("name", ["topic", "broker", "config"])
@pytest.mark.parametrize("rest", ["", "/3"])
@pytest.mark.parametrize("known", [True, False])
def test_a_topic_is_named_by_its_id(name: str, rest: str, known: bool) -> None:
    """Only a topic, and only by an id that the log has; a name may be as long as an id."""
    node = make_node(memory_disk())
    topic_id = uuid_to_text(ORDERS)
    given = topic_id if known else "x" * len(topic_id)
    expected = "orders" if name == "topic" and known else given
    assert time_command._named(node.log, f"{name}/{given}{rest}") == f"{name}/{expected}{rest}"


def test_an_archive_is_unpacked_with_and_without_a_command() -> None:
    """Until the command ends; without one, until the stack is closed."""
    with ExitStack() as stack:
        alone = archive_input._enter(stack)
        assert Path(alone).is_dir()
    with click.Context(click.Command("c")) as context:
        within = archive_input._enter(context)
        assert Path(within).is_dir()
    assert not Path(alone).exists() and not Path(within).exists()


# Every --help is one screen, names each command in one sentence, and explains each option and its value.


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

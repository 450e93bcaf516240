"""The shell's commands that show the state here: ls, cd, pwd, cat, tree, find."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from metaquorum.cli.log.shell.session import ShellCommand, ShellError, ShellSession
from metaquorum.cli.log.time_text import fields_text, value_text
from metaquorum.metadata.inspect.entities.views import EVERYTHING, Fields, Wanted, entities_below, entities_of


def ls(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Lists names below a path, with a slash for those that have something below them."""
    path = session.path(_one(arguments, "ls [PATH]"))
    places = session.places
    for name in places.children(path):
        inner = f"{path}/{name}" if path else name
        yield f"{name}/" if places.children(inner) else name


def cd(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Changes to a path; without one, to the root."""
    text = _one(arguments, "cd [PATH]")
    path = "" if text is None else session.path(text)
    if path and not session.places.children(path):
        raise ShellError(f"{path} has nothing below it; use cat {path}")
    session.here = path
    return iter(())


def pwd(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Prints the current path."""
    yield f"/{session.here}"


def cat(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Prints one entity field by field, or the value of one field."""
    text = _one(arguments, "cat PATH")
    places = session.places
    try:
        path = session.path(text)
    except ShellError:
        path, _, name = session.named(text or "").rpartition("/")
        fields = places.fields(path)
        if fields is None or name not in fields:
            raise
        yield value_text(fields[name])
        return
    fields = places.fields(path)
    if fields is not None:
        width = max((len(name) for name in fields), default=0)
        yield from (f"{name.ljust(width)}  {value_text(value)}" for name, value in fields.items())
    elif path in ("", "config"):
        raise ShellError(f"/{path} is a directory; use ls {path} or tree {path}")
    for name in places.children(path):
        inner = places.fields(f"{path}/{name}")
        if inner is not None:
            yield f"{name}: {fields_text(inner)}"


def tree(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Prints every entity at and below a path, one per line."""
    path = session.path(_one(arguments, "tree [PATH]"))
    for entity, fields in _below(session, path):
        yield f"{entity}: {fields_text(fields)}"


def find(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Finds entities by name and by the values of their fields."""
    if not arguments:
        raise ShellError("find needs a pattern, such as: find orders, find 'topic/*/0', find topic leader=-1")
    conditions = [one for one in arguments if "=" in one and "/" not in one.partition("=")[0]]
    patterns = [one.lstrip("/") for one in arguments if one not in conditions]
    wanted = [_condition(one) for one in conditions]
    for entity in entities_of(session.cursor.image, session.cursor.quorum):
        if all(_matches(entity, pattern) for pattern in patterns):
            fields = session.places.fields(entity) or {}
            if all(name in fields and value_text(fields[name]) == value for name, value in wanted):
                shown = {name: fields[name] for name, _ in wanted}
                yield f"{entity}  {fields_text(shown)}".rstrip()


def _condition(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _matches(entity: str, pattern: str) -> bool:
    """A pattern with wildcards matches the whole path, a plain text any part of it."""
    if any(sign in pattern for sign in "*?["):
        return fnmatch.fnmatchcase(entity, pattern)
    return pattern in entity


def _below(session: ShellSession, path: str) -> Iterator[tuple[str, Fields]]:
    image, quorum = session.cursor.image, session.cursor.quorum
    wanted = Wanted(path) if path else EVERYTHING
    for entity, fields in entities_below(image, wanted, quorum):
        if not path or entity == path or entity.startswith(path + "/"):
            yield entity, fields


def _one(arguments: list[str], usage: str) -> str | None:
    if len(arguments) > 1:
        raise ShellError(f"{' '.join(arguments)!r} is one argument too many; write {usage}")
    return arguments[0] if arguments else None


COMMANDS = (
    ShellCommand(
        name="ls", usage="ls [PATH]", help="list what is below a path of the state", handler=ls, paths=True
    ),
    ShellCommand(
        name="cd", usage="cd [PATH]", help="go to a path; .. is one up, / the root", handler=cd, paths=True
    ),
    ShellCommand(name="pwd", usage="pwd", help="print the current path", handler=pwd),
    ShellCommand(
        name="cat", usage="cat PATH", help="show an entity, or one field of it", handler=cat, paths=True
    ),
    ShellCommand(
        name="tree",
        usage="tree [PATH]",
        help="show every entity at and below a path",
        handler=tree,
        paths=True,
    ),
    ShellCommand(
        name="find",
        usage="find PATTERN... [FIELD=VALUE]...",
        help="entities by name ('topic/*/0') and by field: find topic leader=-1",
        handler=find,
        paths=True,
    ),
)

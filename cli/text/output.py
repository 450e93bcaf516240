"""Prints lists and objects: tables for people, JSON for programs."""

from __future__ import annotations

import base64
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click

from metaquorum.cli.errors import Failure
from metaquorum.metadata.inspect.log.points import utc_text
from metaquorum.metadata.secrets import REDACTED, Redacted, json_bytes

__all__ = [
    "echo_json",
    "echo_table",
    "fits_well",
    "json_line",
    "json_option",
    "secret_text",
    "secrets_option",
    "shows_secrets",
    "table_lines",
    "table_options",
    "table_width",
    "terminal_width",
    "text_or_base64",
    "trimmed",
    "utc_text",
]

ELLIPSIS = "…"
_SECRETS = "metaquorum.secrets"
F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")

_WIDE = "metaquorum.wide"


def table_options(command: F) -> F:
    """Adds --json and --wide to a command that prints a table."""
    wide = click.option(
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=lambda context, _, value: context.meta.__setitem__(_WIDE, value),
        help="Do not cut long lines. Output to a pipe is never cut.",
    )
    return json_option(wide(command))


def terminal_width() -> int | None:
    """The columns of the terminal on standard output; None: not a terminal (a pipe, a
    file), so nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def trimmed(line: str, width: int | None) -> str:
    """A line without colors, cut to `width` with an ellipsis; None: not cut."""
    return line if width is None or len(line) <= width else line[: max(0, width - 1)] + ELLIPSIS


def echo_json(value: object) -> None:
    """Prints one JSON document on one line. Keys keep their order."""
    click.echo(json_line(value))


def json_line(value: object) -> str:
    """Compact JSON. Bytes in base64, sets sorted."""
    return json_bytes(value, secrets=shows_secrets()).decode()


def write_line(line: str) -> None:
    """One of many lines. Flushed on a terminal only: a flush costs as much as the line."""
    if sys.stdout.isatty():
        click.echo(line)
    else:
        sys.stdout.write(f"{line}\n")


def text_or_base64(name: str, content: bytes | None) -> dict[str, str | None]:
    """Text as it is; bytes that are not UTF-8 in base64, under a name that shows it."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(content).decode()}


def secrets_option(command: F) -> F:
    """Adds --secrets, which shows secrets, to a command. `metadata.secrets` defines what a secret is."""
    return click.option(
        "--secrets",
        is_flag=True,
        expose_value=False,
        callback=lambda context, _, value: context.meta.__setitem__(_SECRETS, value),
        help="Show SCRAM salts and keys, and passwords in settings.",
    )(command)


def shows_secrets() -> bool:
    """Whether the running command was started with --secrets."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_SECRETS))


def secret_text(value: Redacted) -> str:
    """A secret, redacted unless this command may show it."""
    return value.secret if shows_secrets() else REDACTED


def table_width() -> int | None:
    """The longest line of a table; None: unlimited, with --wide or without a terminal."""
    context = click.get_current_context(silent=True)
    return None if context is not None and context.meta.get(_WIDE) else terminal_width()


def echo_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints columns padded with blanks, two apart; the last one is not padded, so that the output is easy to
    parse. On a terminal, the widest cells are cut with an ellipsis if a line would be too long."""
    for line in table_lines(columns, rows, table_width()):
        click.echo(line)


def table_lines(
    columns: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None
) -> Iterator[str]:
    """The lines that `echo_table` prints, no longer than `width`."""
    table = [list(columns), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    if width is not None:
        widths = _fitting(widths, width)
    for row in table:
        padded = [
            trimmed(cell, columns_width).ljust(columns_width)
            for cell, columns_width in zip(row, widths, strict=True)
        ]
        yield trimmed(_GAP.join(padded).rstrip(), width)


_GAP = "  "


def _fitting(widths: list[int], width: int) -> list[int]:
    """Column widths with which a line fits: the widest columns are cut to the same width. The first column,
    by which people find a row, stays whole while it takes less than half."""
    kept = [one if at == 0 and one <= width // 2 else 0 for at, one in enumerate(widths)]
    room = width - len(_GAP) * (len(widths) - 1)
    cap = max(widths, default=0)
    while cap > 1 and sum(max(min(one, cap), kept[at]) for at, one in enumerate(widths)) > room:
        cap -= 1
    narrow = [max(min(one, cap), kept[at]) for at, one in enumerate(widths)]
    left = room - sum(narrow)
    for column, natural in enumerate(widths):  # the remainder of the division
        more = min(max(0, left), natural - narrow[column], 1)
        narrow[column] += more
        left -= more
    return narrow


def fits_well(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> bool:
    """Whether a table of this width is still readable: no column is cut to less than READABLE."""
    table = [list(columns), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    return all(now >= min(one, READABLE) for one, now in zip(widths, _fitting(widths, width), strict=True))


READABLE = 10


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Redacted):
        return secret_text(value)
    if isinstance(value, (tuple, list)):
        return ",".join(str(item) for item in value) or "-"
    return str(value)


def confirm(question: str) -> None:
    """Raises Failure unless the answer is yes. No input counts as no."""
    try:
        meant = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        meant = False
    if not meant:
        raise Failure("nothing was changed; use --yes to skip the question")

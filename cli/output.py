"""How lists and objects are printed: tables for people, JSON for programs. Knows no cluster."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console

from metadata.inspect.points import utc_text
from metadata.secrets import REDACTED, Redacted

__all__ = [
    "console",
    "echo_json",
    "echo_table",
    "json_line",
    "json_option",
    "secret_text",
    "secrets_option",
    "shows_secrets",
    "table_lines",
    "terminal_width",
    "trimmed",
    "utc_text",
]

ELLIPSIS = "…"
_SECRETS = "metaquorum.secrets"
F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def console() -> Console:
    """A console on standard output as it is now (tests replace it)."""
    return Console(highlight=False, soft_wrap=True)


def terminal_width() -> int | None:
    """Columns of the terminal on standard output; None where it is none (a pipe, a file): nothing is cut
    there."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def trimmed(line: str, width: int | None) -> str:
    """A line (without colours) no longer than `width`, with an ellipsis for what is cut; None: as it is."""
    return line if width is None or len(line) <= width else line[: max(0, width - 1)] + ELLIPSIS


def echo_json(value: object) -> None:
    """One JSON document on one line; keys keep the order in which they were put."""
    click.echo(json_line(value))


def json_line(value: object) -> str:
    """Compact JSON; bytes in base64, sets sorted."""
    return msgspec.json.encode(value, enc_hook=_plain).decode()


def secrets_option(command: F) -> F:
    """`--secrets`: secrets are shown by this command. What a secret is says `metadata.secrets`."""
    return click.option(
        "--secrets",
        is_flag=True,
        expose_value=False,
        callback=lambda context, _, value: context.meta.__setitem__(_SECRETS, value),
        help="Show SCRAM salts and keys, and passwords in settings.",
    )(command)


def shows_secrets() -> bool:
    """Whether the running command was asked to show secrets."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_SECRETS))


def secret_text(value: Redacted) -> str:
    """A secret as this command may show it."""
    return value.secret if shows_secrets() else REDACTED


def _plain(value: object) -> object:
    if isinstance(value, Redacted):
        return secret_text(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise NotImplementedError(f"no JSON form for {type(value).__name__}")


def echo_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns padded with blanks, two apart, the last one not padded: easy to read, easy to cut."""
    for line in table_lines(columns, rows):
        click.echo(line)


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The lines that `echo_table` prints."""
    table = [list(columns), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    for row in table:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(padded).rstrip()


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

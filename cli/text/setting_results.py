"""Prints the results of changed settings: one line or JSON object each, refusals on standard error.

Owns the exit code for several results, and the parsing of `key=value` arguments. Does not know what was
changed; descriptions of settings are in `settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from metaquorum.cli.errors import EXIT_FAILED
from metaquorum.cli.text.output import echo_json
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.settings import SettingResult


def report(
    results: Sequence[SettingResult], done: str | Callable[[SettingResult], str], as_json: bool
) -> int:
    """Returns the exit code: failed if anything was refused. `done`: what holds now; the result does not
    say whether it held before."""
    for result in results:
        if as_json:
            subject = {"subject": result.subject, "error": result.error.name, "message": result.message}
            echo_json({**subject, "note": result.note})
        elif result.error is ErrorCode.NONE:
            text = done if isinstance(done, str) else done(result)
            click.echo(f"{result.subject}: {text}")
            remark(result.subject, result.note)
        else:
            refuse(result.subject, result.error, result.message)
    return EXIT_FAILED if any(result.error is not ErrorCode.NONE for result in results) else 0


def refuse(subject: str, error: ErrorCode, message: str | None) -> None:
    """Prints one line on standard error."""
    click.echo(f"metaquorum: {subject}: {error.name}: {message or 'refused'}", err=True)


def remark(subject: str, note: str | None) -> None:
    """Prints one line on standard error about a change that was accepted and has no effect yet."""
    if note is not None:
        click.echo(f"metaquorum: {subject}: note: {note}", err=True)


def pairs(texts: Sequence[str], what: str) -> list[tuple[str, str]]:
    """`key=value` arguments, split at the first `=`. Raises UsageError."""
    found = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{text!r} is not a {what}; write key=value")
        found.append((key, value))
    return found

"""Errors that a user can cause, on the terminal: one line on standard error and a non-zero exit code.

An exception that is not in the table keeps its traceback: nothing here may hide a bug.
"""

from __future__ import annotations

import errno

import click

from metaquorum.errors import ConfigError, StartError
from metaquorum.lines import one_line
from metaquorum.metadata.errors import ApiError, InspectError, RecordDecodeError, ReplayError
from metaquorum.metadata.extras import missing_module
from metaquorum.platforms import UnsupportedError
from metaquorum.storage.errors import StorageError

EXIT_FAILED = 1
"""The command could not do what was asked, or its input is damaged."""
EXIT_USAGE = 2
"""The command line is wrong."""
EXIT_UNKNOWN_RECORDS = 3
"""Everything was read, but this release does not know the type or version of some records."""
EXIT_NOT_COVERED = 4
"""Everything that is there was read, but the answer does not cover all that was asked about. Lines on
standard error name each range, and JSON lists them under `uncovered`."""
EXIT_DIFFERENT = 10
"""`log diff`: there is a difference."""
EXIT_VIOLATIONS = 11
"""`log check`: an invariant is broken, or two logs of one quorum differ."""
EXIT_NEVER_FALSE = 12
"""`log bisect`: the check never turns false."""
EXIT_REMAINS = 13
"""`log repair`: the new log still holds records that cannot be applied."""
EXIT_CRITICAL = 14
"""`log summary`: the worst that happened is critical."""
EXIT_WARNING = 15
"""`log summary`: the worst that happened is a warning."""
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
"""The exit codes that a shell reports for a program that a signal ended: 128 plus SIGINT or SIGPIPE."""


def log_exit_code(*, damaged: bool, uncovered: bool, unknown: bool, verdict: int = 0) -> int:
    """The exit code of the `log` tools: damage first, then a verdict (a difference, a broken rule), then
    ranges that were not covered, then records that this release does not know.

    The verdict "nothing found" is only valid for a log that was read whole: pass it as `verdict` only then.
    """
    if damaged:
        return EXIT_FAILED
    if verdict:
        return verdict
    if uncovered:
        return EXIT_NOT_COVERED
    return EXIT_UNKNOWN_RECORDS if unknown else 0


class Failure(click.ClickException):
    """A refusal by the command line itself. The text says what is wrong and what to do next."""

    exit_code = EXIT_FAILED


class Interrupted(Failure):
    """Ctrl-C ended a command that says what it leaves."""

    exit_code = EXIT_INTERRUPTED


def print_problem(problem: object) -> None:
    """Says on standard error, in one line, what is wrong, while the command continues."""
    click.echo(f"metaquorum: {one_line(problem)}", err=True)


def as_failure(error: Exception) -> Failure | None:
    """The failure to show for a known error; None for an error that a user cannot cause."""
    match error:
        case ApiError() | ConfigError() | StartError() | UnsupportedError():
            return Failure(one_line(error))
        case StorageError() | RecordDecodeError() | ReplayError() | InspectError():
            return Failure(one_line(error))
        case OSError():
            return Failure(os_error_text(error))
        case ModuleNotFoundError():
            line = missing_module(error)
            return None if line is None else Failure(line)
        case UnicodeEncodeError():
            where = error.object[max(0, error.start - 40) : error.end + 20]
            return Failure(f"{where!r} is not UTF-8 text; rename it")
        case UnicodeDecodeError():
            return Failure(f"the file is not UTF-8 text ({one_line(error)}); check that it is the right file")
    return None


def os_error_text(error: OSError) -> str:
    """`<path>: <reason>; <advice>` for an error of the operating system."""
    reason = (error.strerror or one_line(error)).lower()
    where = f"{error.filename}: " if error.filename else ""
    advice = {
        FileNotFoundError: "check the path",
        PermissionError: "check the owner and the permissions",
        IsADirectoryError: "give a file",
        NotADirectoryError: "give a directory",
        FileExistsError: "choose another path",
    }.get(type(error))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "free some, or write to another disk"
    return f"{where}{reason}" + (f"; {advice}" if advice else "")

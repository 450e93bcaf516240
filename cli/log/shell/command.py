"""`metaquorum log shell`: opens a log and starts the shell on it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from metaquorum.cli.errors import EXIT_FAILED, as_failure, print_problem
from metaquorum.cli.log.input.live import REFRESH, LiveCommand
from metaquorum.cli.log.input.options import PATH, POINT, Complaints, past_corruption_option
from metaquorum.cli.log.input.source import open_path
from metaquorum.cli.log.shell.commands import COMMANDS, where
from metaquorum.cli.log.shell.session import ShellError, ShellSession
from metaquorum.cli.text.output import secrets_option
from metaquorum.lines import printable
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.platforms import line_editor

HISTORY_MAX = 1000
"""Lines that the editor remembers, in memory only."""


def run_lines(session: ShellSession, lines: Iterable[str]) -> int:
    """Runs commands one after another, without a prompt. Returns 1 if any failed."""
    code = 0
    for line in lines:
        if not _run(session, line):
            code = EXIT_FAILED
        if session.ended:
            break
    return code


def run_interactive(session: ShellSession) -> int:
    """Prompts for commands until exit or Ctrl-D. Ctrl-C ends a command, not the shell."""
    _Editor(session).install()
    while not session.ended:
        try:
            line = input(session.prompt)
        except EOFError:
            click.echo()
            break
        except KeyboardInterrupt:
            click.echo("^C")
            continue
        try:
            _run(session, line)
        except KeyboardInterrupt:
            click.echo("\ninterrupted; this is still offset " + str(session.cursor.offset))
    return 0


def _run(session: ShellSession, line: str) -> bool:
    """Runs one command. False: it failed, after one line with the reason."""
    try:
        for answer in session.execute(line):
            click.echo(printable(answer))
    except ShellError as error:
        print_problem(error)
        return False
    except BrokenPipeError:
        raise
    except Exception as error:
        failure = as_failure(error)
        if failure is None:
            raise
        print_problem(failure.format_message())
        return False
    return True


class _Editor:
    """Completion in the standard line editor, if there is one."""

    def __init__(self, session: ShellSession) -> None:
        self._session = session
        self._completions: list[str] = []

    def install(self) -> None:
        self._readline = readline = line_editor()
        if readline is None:
            return  # lines can still be typed
        readline.set_completer(self._complete)
        readline.set_completer_delims(" \t")
        readline.set_history_length(HISTORY_MAX)
        readline.parse_and_bind("set show-all-if-ambiguous on")

    def _complete(self, word: str, state: int) -> str | None:
        if state == 0:
            line = self._readline.get_line_buffer()[: self._readline.get_endidx()]
            try:
                self._completions = self._session.complete(line, word)
            except Exception:  # an error in completion must not end the line being typed
                self._completions = []
        return self._completions[state] if state < len(self._completions) else None


def is_interactive() -> bool:
    """Whether standard input and output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


@click.command("shell", cls=LiveCommand)
@click.argument("path", type=PATH)
@click.option(
    "--at",
    "point",
    type=POINT,
    default=None,
    help="Start at this offset, after this record (4321+), or at this time. Default: the end.",
)
@click.option(
    "--command",
    "-c",
    "lines",
    metavar="COMMAND",
    multiple=True,
    help="Run this command instead of prompting; may be repeated.",
)
@past_corruption_option
@secrets_option
def shell(path: str, point: Point | None, lines: tuple[str, ...], past_corruption: bool) -> int:
    """Step through a log with commands. `help` lists them: at, next, prev, until, ls, cat, find, diff, why...

    Without a terminal, reads commands from standard input, one per line.
    """
    session = ShellSession(
        open_path(path),
        COMMANDS,
        Complaints(),
        point=point or END,
        past_corruption=past_corruption,
        refresh=click.get_current_context().meta.get(REFRESH),
    )
    if lines:
        return run_lines(session, lines)
    if not is_interactive():
        return run_lines(session, sys.stdin)
    click.echo(f"{session.log.name}\n{where(session)}\nhelp lists the commands, Ctrl-D ends")
    return run_interactive(session)

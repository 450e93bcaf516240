"""`metaquorum log shell`: opens a log and starts the shell on it."""

from __future__ import annotations

import sys

import click

from metaquorum.cli.log.input.live import REFRESH, LiveCommand
from metaquorum.cli.log.input.options import PATH, POINT, Complaints, past_corruption_option
from metaquorum.cli.log.input.source import open_path
from metaquorum.cli.log.shell import moving, past_commands, state_commands
from metaquorum.cli.log.shell.moving import where
from metaquorum.cli.log.shell.session import ShellSession
from metaquorum.cli.log.shell.terminal import is_interactive, run_interactive, run_lines
from metaquorum.cli.text.output import secrets_option
from metaquorum.metadata.inspect.log.points import END, Point

COMMANDS = (*moving.COMMANDS, *state_commands.COMMANDS, *past_commands.COMMANDS)


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
        at=point or END,
        past_corruption=past_corruption,
        refresh=click.get_current_context().meta.get(REFRESH),
    )
    if lines:
        return run_lines(session, lines)
    if not is_interactive():
        return run_lines(session, sys.stdin)
    click.echo(f"{session.log.path}\n{where(session)}\nhelp lists the commands, Ctrl-D ends")
    return run_interactive(session)

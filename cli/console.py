"""`metaquorum console`: shows any moment of a log in a browser."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Callable

import click

from metaquorum.cli.errors import Failure
from metaquorum.cli.log.input.live import BOOTSTRAP, REFRESH, LiveCommand
from metaquorum.cli.log.input.nodes import open_merged, tell_nodes
from metaquorum.cli.log.input.options import PATH, Complaints, clear_progress
from metaquorum.metadata.errors import InspectError
from metaquorum.platforms import opens_windows


@click.command(cls=LiveCommand)
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port on 127.0.0.1. Default: a free one.",
)
@click.option(
    "--memory",
    "memory_mib",
    metavar="MIB",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Limit for the states that are kept along the log, in MiB.",
)
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
@click.pass_context
def console(
    context: click.Context, paths: tuple[str, ...], port: int, memory_mib: int, no_browser: bool
) -> None:
    """Show any moment of a log in a browser, with a time slider.

    PATH is what the log tools read: a node's directory, a segment, a snapshot, an archive, or several nodes
    of one quorum. Prints a URL that only this machine can open, and serves until Ctrl-C. It writes nothing.
    """
    from metaquorum.console.server import Console

    log, nodes = open_merged(paths)
    if nodes is not None:
        tell_nodes(nodes, Complaints())
    clear_progress(log)
    words: tuple[str, ...] = context.meta.get(BOOTSTRAP) or paths
    server = Console(log, words, port=port, memory_bytes=memory_mib << 20)
    click.echo(server.url)
    if not no_browser and _has_browser():
        webbrowser.open(server.url)
    server.serve(_refreshing(context.meta.get(REFRESH)))


def _refreshing(refresh: Callable[[], str] | None) -> Callable[[], None] | None:
    """What brings the copy of a running cluster's log up to date, with errors that the page can show."""
    if refresh is None:
        return None

    def again() -> None:
        try:
            refresh()
        except Failure as error:
            raise InspectError(error.format_message()) from error

    return again


def _has_browser() -> bool:
    """Whether a person sits at a terminal that can open windows."""
    return sys.stdout.isatty() and opens_windows()

"""`metaquorum console`: shows any moment of a log in a browser."""

from __future__ import annotations

import sys
import webbrowser
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metaquorum.cli.errors import Failure
from metaquorum.cli.log.input.live import BOOTSTRAP, CLUSTER, REFRESH, VOTERS, Live, LiveCommand
from metaquorum.cli.log.input.nodes import open_merged, report_nodes
from metaquorum.cli.log.input.options import PATH, Complaints, clear_progress
from metaquorum.cli.log.input.source import logs_at
from metaquorum.metadata.errors import ApiError, InspectError
from metaquorum.metadata.extras import install_command, is_installed
from metaquorum.metadata.inspect.nodes.nodes import home_of
from metaquorum.platforms import opens_windows

if TYPE_CHECKING:
    from metaquorum.clients.kafka.quorum import VoterReport
    from metaquorum.console.server import Console, LogPage

_VOTERS_TIMEOUT_S = 3.0
"""The log is not followed while the voters are asked."""


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
    help="Limit for what is kept of the log, in MiB; the process needs about 130 MiB more.",
)
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
@click.pass_context
def console(
    context: click.Context, paths: tuple[str, ...], port: int, memory_mib: int, no_browser: bool
) -> None:
    """Show any moment of a log in a browser, with a time slider.

    PATH is what the log tools read: a node's directory, a segment, a snapshot, an archive, or several nodes
    of one quorum. If the first PATH holds the tables that `pipeline ingest` wrote, shows the whole fleet, and
    the logs at the other paths when a cluster is chosen. Prints a URL that only this machine can open, and
    serves until Ctrl-C. It writes nothing.
    """
    memory_bytes = memory_mib << 20
    with _opened(context, paths, port, memory_bytes) as server:
        click.echo(server.url)
        if not no_browser and _has_browser():
            webbrowser.open(server.url)
        server.serve()


def _opened(
    context: click.Context, paths: tuple[str, ...], port: int, memory_bytes: int
) -> AbstractContextManager[Console]:
    if BOOTSTRAP not in context.meta and _holds_tables(paths[0]):
        return _fleet(paths[0], paths[1:], port, memory_bytes)
    from metaquorum.console.server import log_console

    words: tuple[str, ...] = context.meta.get(BOOTSTRAP) or paths
    live: Live | None = context.meta.get(CLUSTER)
    ask_voters = context.meta.get(VOTERS)
    page = _page(
        paths,
        words,
        memory_bytes,
        refresh=_refreshing(context.meta.get(REFRESH)),
        groups=None if live is None else partial(_groups, live),
        voters=None if ask_voters is None else partial(_voters, ask_voters),
    )
    return log_console(page, port)


def _page(paths: tuple[str, ...], words: tuple[str, ...], memory_bytes: int, **live: Any) -> LogPage:
    from metaquorum.console.server import LogPage

    log, nodes = open_merged(paths)
    if nodes is not None:
        report_nodes(nodes, Complaints())
    clear_progress(log)
    return LogPage(log, words, memory_bytes, **live)


def _holds_tables(path: str) -> bool:
    """Whether a path is a folder in which the pipeline publishes tables."""
    from metaquorum.pipeline.ingest.layout import DATA, VERSIONS
    from metaquorum.pipeline.stores.address import PathError, address, is_remote

    try:
        store_path = address(path)
    except PathError:
        return False
    if not is_remote(store_path):
        return all((Path(store_path) / name).is_dir() for name in (DATA, VERSIONS))
    from metaquorum.pipeline.stores.folder import Folder

    return {DATA, VERSIONS} <= set(Folder(store_path).children())


def _fleet(tables: str, logs: Sequence[str], port: int, memory_bytes: int) -> AbstractContextManager[Console]:
    if not is_installed("pyarrow"):
        raise Failure(f"pyarrow is not installed; install it with: {install_command('pyarrow')}")
    from metaquorum.console.server import fleet_console

    paths_by_cluster: dict[str, list[str]] = defaultdict(list)
    for path in logs:
        for log in logs_at(path):
            identity = log.identity
            if identity is None or identity.cluster_id is None:
                raise InspectError(
                    f"nothing beside {log.path} names its cluster; give the directory of its node, which has"
                    " meta.properties"
                )
            paths_by_cluster[identity.cluster_id].append(home_of(log))
    pages = {
        cluster: partial(_page, tuple(nodes), tuple(nodes), memory_bytes)
        for cluster, nodes in paths_by_cluster.items()
    }
    return fleet_console(tables, pages, port)


def _groups(live: Live) -> list[dict[str, Any]]:
    """Every group of the running cluster, with errors that the page can show."""
    from metaquorum.cli.admin.groups import group_rows

    try:
        return group_rows(live.options())
    except Failure as error:
        raise InspectError(error.format_message()) from error
    except ApiError as error:
        raise InspectError(f"the cluster does not show its groups: {error}") from error


def _voters(ask: Callable[[float], list[VoterReport]]) -> list[dict[str, Any]]:
    """Every voter of the running quorum, with errors that the page can show."""
    try:
        reports = ask(_VOTERS_TIMEOUT_S)
    except Failure as error:
        raise InspectError(f"the voters are unknown: {error.format_message()}") from error
    return [
        {
            "controller": report.node_id,
            "answers": report.is_in_order,
            "said": report.said,
            "silentSinceMs": report.silent_since_ms,
            "endOffset": report.end_offset if report.end_offset >= 0 else None,
            "behind": report.behind,
        }
        for report in reports
    ]


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

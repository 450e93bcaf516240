"""`metaquorum pipeline ingest`: turns logs into tables. PySpark is only imported when the command runs."""

from __future__ import annotations

import logging
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import click
import msgspec

from metaquorum.cli.errors import Failure, Interrupted, print_problem
from metaquorum.cli.pipeline.commands import Place
from metaquorum.cli.text.output import echo_json, echo_table, table_options
from metaquorum.pipeline.logs.places import NoLogsError
from metaquorum.pipeline.session import DEFAULT_MASTER, SessionError, require_pyspark, spark_session, watched
from metaquorum.pipeline.stores.address import PathError
from metaquorum.storage.errors import StorageError

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

    from metaquorum.pipeline.ingest.plan import IngestReport

LINE_SECONDS = 5.0
"""Interval of progress lines where standard error is not a terminal, in seconds."""


class IngestProgress:
    """The progress of the run on standard error: a redrawn line on a terminal,
    elsewhere a line per interval."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._last: tuple[str, int, int] | None = None
        self._shown_at = 0.0
        self._width = 0

    def show(self, what: str, done: int, of: int) -> None:
        """Shows that `done` of `of` tasks have ended."""
        now = time.monotonic()
        if (what, done, of) == self._last or (not self._terminal and now - self._shown_at < LINE_SECONDS):
            return
        self._last, self._shown_at = (what, done, of), now
        line = f"{what}: {done} of {of} tasks"
        if self._terminal:
            sys.stderr.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            sys.stderr.write(f"metaquorum: {line}\n")
        sys.stderr.flush()

    def say(self, line: str) -> None:
        self.end()
        print_problem(line)

    def end(self) -> None:
        """Removes the redrawn line."""
        if self._terminal and self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            self._width = 0


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATHS...", type=Place())
@click.option("--out", type=Place(), required=True, help="Directory or address of the tables.")
@click.option(
    "--master",
    metavar="MASTER",
    default=None,
    help=f"Spark master, such as local[4], spark://host:7077 or sc://host:15002. Default: {DEFAULT_MASTER}.",
)
@click.option(
    "--cluster",
    metavar="ID",
    default=None,
    help="Cluster name for all PATHS, instead of the id in meta.properties.",
)
@table_options
def ingest(paths: tuple[str, ...], out: str, master: str | None, cluster: str | None, as_json: bool) -> None:
    """Update the tables in the directory --out from the logs under PATHS.

    A path is a segment, a log directory, a node's directory, or a directory above many of them. A later run
    reads only new records. The logs are never changed. Damage is listed in the table `damage`.
    """
    try:
        report = _ingest(paths, out, master, cluster)
    except KeyboardInterrupt:
        raise Interrupted("interrupted before the end; run it again") from None
    if as_json:
        echo_json(msgspec.to_builtins(report))
        return
    clusters = len(report.ingested) + len(report.unchanged) + len(report.kept)
    click.echo(
        f"{clusters} clusters: {len(report.ingested)} read, {len(report.unchanged)} unchanged, "
        f"{report.records:,} records written, version {report.version} of {out}"
    )
    echo_table(("TABLE", "ROWS"), [(name, f"{count:,}") for name, count in sorted(report.rows.items())])


def _ingest(paths: tuple[str, ...], out: str, master: str | None, cluster: str | None) -> IngestReport:
    progress = IngestProgress()
    try:
        require_pyspark()
    except SessionError as error:
        raise Failure(str(error)) from error
    from metaquorum.pipeline.ingest.job import ingest as run
    from metaquorum.pipeline.ingest.layout import LayoutError
    from metaquorum.pipeline.ingest.work import ExecutorError
    from metaquorum.pipeline.logs.places import find_logs
    from metaquorum.pipeline.stores.disk import StoreDisk

    try:
        given = list(paths)
        find_logs(StoreDisk(), given, cluster)  # reports a wrong path before Java starts
        with _Interrupts() as interrupts:
            session = _started(master)
            try:
                interrupts.end_the_run()
                report = run(
                    session, given, out, cluster=cluster, show=progress.show, watch=watched, say=progress.say
                )
            finally:
                interrupts.wait()
                progress.end()
                session.stop()
    except (SessionError, NoLogsError, LayoutError, ExecutorError, PathError, StorageError) as error:
        raise Failure(str(error)) from error
    for problem in report.unreadable:
        progress.say(f"left out: {problem}")
    for line in report.left_out:
        progress.say(f"left out: {line}")
    return report


def _started(master: str | None) -> SparkSession:
    """The session. It is made in a thread, because on the main thread Spark sets a handler of its own for
    Ctrl-C, which asks the JVM on the connection that was interrupted: that fails with tracebacks."""
    with ThreadPoolExecutor(1, "Spark's start") as threads:
        return threads.submit(spark_session, master, light=True).result()


class _Interrupts:
    """While entered, Ctrl-C ends the run as it ends other commands, and waits for the end of Spark's start
    and stop: a JVM whose Python leaves while it starts never ends."""

    def __enter__(self) -> Self:
        self._waits, self._is_interrupted = True, False
        self._earlier = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._earlier)
        logging.disable(logging.NOTSET)

    def _take(self, number: int, frame: FrameType | None) -> None:
        logging.disable()  # py4j logs a traceback
        self._is_interrupted = True
        if not self._waits:
            raise KeyboardInterrupt

    def end_the_run(self) -> None:
        """From now on Ctrl-C raises KeyboardInterrupt; raises it if Ctrl-C came before."""
        self._waits = False
        if self._is_interrupted:
            raise KeyboardInterrupt

    def wait(self) -> None:
        """From now on Ctrl-C is only noted."""
        self._waits = True

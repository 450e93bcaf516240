"""The option `--bootstrap` of commands that read logs: the log of a running quorum instead of files.

Owns the options, and the private temporary directory into which the log is copied and which is removed,
however the command ends. Does not fetch (`runtime.client.live_log` does) and knows no command's options. A
command of this class has PATH (or PATH...) as its first argument; with --bootstrap it is left out.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metaquorum.cli.errors import Failure, one_line
from metaquorum.cli.interrupts import terminated_in_order
from metaquorum.cli.log.input.options import offsets_text
from metaquorum.metadata.text.addresses import address_text

if TYPE_CHECKING:
    from metaquorum.runtime.client.live_log import LiveLog

_TIMEOUT_S = 10.0
REFRESH = "metaquorum.cli.log.input.live.refresh"
"""Key in a context's `meta`: a function that fetches new records and says what the copy holds."""
BOOTSTRAP = "metaquorum.cli.log.input.live.bootstrap"
"""Key in a context's `meta`: the words that were given instead of PATH, as a tuple."""
_PLACEHOLDER = "/dev/null/live"
"""A placeholder for PATH until the log is copied. No file can have that path."""


class LiveCommand(click.Command):
    """A command that reads a log from files or from a running quorum."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.params += _options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(one in ("--bootstrap", "-b") or one.startswith("--bootstrap=") for one in args):
            args = [_PLACEHOLDER, *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        bootstrap, timeout_s, truststore, keystore = (ctx.params.pop(one.name) for one in _options())
        if bootstrap is None:
            return super().invoke(ctx)
        if ctx.params.get("follow"):
            raise click.UsageError("--follow reads files; leave out --bootstrap, or run it on the node", ctx)
        with live_directory(bootstrap, timeout_s, truststore, keystore) as (directory, refresh):
            ctx.meta[REFRESH] = refresh
            ctx.meta[BOOTSTRAP] = _words(bootstrap, truststore, keystore)
            for name, value in ctx.params.items():
                if value == _PLACEHOLDER:
                    ctx.params[name] = directory
                elif isinstance(value, tuple):
                    ctx.params[name] = tuple(directory if one == _PLACEHOLDER else one for one in value)
            return super().invoke(ctx)


def _words(bootstrap: str, truststore: Path | None, keystore: Path | None) -> tuple[str, ...]:
    files = (("--truststore", truststore), ("--keystore", keystore))
    stores = [word for name, path in files if path is not None for word in (name, str(path))]
    return ("--bootstrap", bootstrap, *stores)


def _options() -> list[click.Option]:
    return [
        click.Option(
            ["--bootstrap", "-b"],
            metavar="HOST:PORT,...",
            help="Read the log of a running quorum instead of PATH.",
        ),
        click.Option(
            ["--timeout", "timeout_s"],
            metavar="SECONDS",
            type=click.FloatRange(min=0.1),
            default=_TIMEOUT_S,
            show_default=True,
            help="With --bootstrap: request timeout in seconds.",
        ),
        click.Option(
            ["--truststore"],
            type=click.Path(path_type=Path),
            help="With --bootstrap: PEM file with the CA certificates of the cluster; enables TLS.",
        ),
        click.Option(
            ["--keystore"],
            type=click.Path(path_type=Path),
            help="With --bootstrap: PEM file with the client's private key and certificate chain.",
        ),
    ]


@contextmanager
def live_directory(
    bootstrap: str, timeout_s: float, truststore: Path | None, keystore: Path | None
) -> Iterator[tuple[str, Callable[[], str]]]:
    """A directory that only this user can read, with the committed log of the quorum at `bootstrap`, and
    a function that adds new records to it. Removed afterwards. Reports on standard error which offsets
    it holds. Raises Failure."""
    with terminated_in_order():
        directory = tempfile.mkdtemp(prefix="metaquorum-live-")
        try:
            found = _copy(directory, bootstrap, timeout_s, truststore, keystore, None)
            click.echo(f"metaquorum: {live_line(found)}", err=True)

            def refresh() -> str:
                nonlocal found
                found = _copy(directory, bootstrap, timeout_s, truststore, keystore, found)
                return live_line(found)

            yield directory, refresh
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def live_line(found: LiveLog) -> str:
    """What was read, and from which node."""
    where = address_text(*found.address)
    snapshot = "" if found.snapshot is None else f", with the snapshot at offset {found.snapshot.offset}"
    return (
        f"read {offsets_text(found.start_offset, found.end_offset)}{snapshot}, of cluster"
        f" {found.cluster_id} from controller {found.leader_id} at {where}, leader of epoch"
        f" {found.epoch}"
    )


def _copy(
    directory: str,
    bootstrap: str,
    timeout_s: float,
    truststore: Path | None,
    keystore: Path | None,
    known: LiveLog | None,
) -> LiveLog:
    """Copies the log, or adds to the copy `known`."""
    # gRPC is imported only to ask a quorum, not to read files.
    import asyncio
    import random

    from metaquorum.cli.client import TlsOptions
    from metaquorum.runtime.client.admin import ClientError, parse_bootstrap
    from metaquorum.runtime.client.live_log import copy_log, extend_log
    from metaquorum.storage.disk.posix import PosixDisk

    def room() -> int:
        return shutil.disk_usage(directory).free

    try:
        where = (parse_bootstrap(bootstrap), PosixDisk(), directory)
        more: dict[str, Any] = {
            "timeout_ms": max(1, int(timeout_s * 1000)),
            "tls": TlsOptions(keystore=keystore, truststore=truststore).material(),
            "rng": random.SystemRandom(),
            "on_progress": _progress if sys.stderr.isatty() else None,
            "room": room,
        }
        made = copy_log(*where, **more) if known is None else extend_log(*where, known, **more)
        return asyncio.run(made)
    except ClientError as error:
        raise Failure(one_line(error)) from error


def _progress(offset: int, target: int) -> None:
    """A progress line that is overwritten and finally cleared."""
    text = f"fetched {offset} of {target} offsets" if offset < target else ""
    sys.stderr.write(f"\r\033[K{text}")
    sys.stderr.flush()

"""The option `--bootstrap` of commands that read logs: the log of a running quorum instead of files.

The log is copied into a private temporary directory. A command of this class has PATH (or PATH...) as its
first argument; with --bootstrap it is left out.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from metaquorum.cli.errors import Failure, print_problem
from metaquorum.cli.given import FiniteRange, GivenPath
from metaquorum.cli.log.input.options import offsets_text
from metaquorum.cli.log.input.source import BEFORE_OPENING, NAMES, temporary_directory
from metaquorum.lines import one_line
from metaquorum.metadata.text.addresses import address_text
from metaquorum.storage.disk.interface import join
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.segment import list_segments, segment_name

if TYPE_CHECKING:
    from metaquorum.cli.cluster import ClusterOptions
    from metaquorum.clients.kafka.live_log import FollowingCopy, LiveSource
    from metaquorum.clients.kafka.observer import LiveLog
    from metaquorum.clients.kafka.quorum import VoterReport

T = TypeVar("T")

_TIMEOUT_S = 10.0
_LOOK_S = 0.2
REFRESH = "metaquorum.cli.log.input.live.refresh"
"""Key in a context's `meta`: a function that fetches new records and says what the copy holds."""
CLUSTER = "metaquorum.cli.log.input.live.cluster"
"""Key in a context's `meta`: the options (`Live`) with which the cluster is reached."""
BOOTSTRAP = "metaquorum.cli.log.input.live.bootstrap"
"""Key in a context's `meta`: the words that were given instead of PATH, as a tuple."""
FOLLOWED = "metaquorum.cli.log.input.live.followed"
"""Key in a context's `meta`: a function that raises Failure once the log grows no more."""
VOTERS = "metaquorum.cli.log.input.live.voters"
"""Key in a context's `meta`: a function that says what can be learned of the quorum's voters."""
LIVE_COPY = "metaquorum.cli.log.input.live.copy"
"""Key in a context's `meta`: the `LiveCopy` that is followed."""
_PLACEHOLDER = "/dev/null/live"
"""A placeholder for PATH until the copy has a directory. No file can have that path."""


class LiveCommand(click.Command):
    """A command that reads a log from files or from a running quorum."""

    always_follows = False

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.params += _options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(one in ("--bootstrap", "-b") or one.startswith("--bootstrap=") for one in args):
            args = [_PLACEHOLDER, *args]
        return super().parse_args(ctx, args)

    def refuse_live(self, ctx: click.Context) -> None:
        """Raises UsageError for options that only make sense with files; overridden by commands."""

    def refuse_files(self, ctx: click.Context) -> None:
        """Raises UsageError if there is no --bootstrap; overridden by commands that need one."""

    def invoke(self, ctx: click.Context) -> Any:
        options = _options()
        given = [option.opts[0] for option in options if _is_given(ctx, option)]
        live = Live(**{str(option.name): ctx.params.pop(option.name) for option in options})
        if live.bootstrap is None:
            self.refuse_files(ctx)
            if given:
                text = f"{given[0]} is for a running cluster: give --bootstrap instead of paths"
                raise click.UsageError(text, ctx)
            return super().invoke(ctx)
        if live.command_config is not None and (live.truststore or live.keystore):
            raise click.UsageError("give the TLS files either in --command-config or as options", ctx)
        self.refuse_live(ctx)
        follows = self.always_follows or bool(ctx.params.get("follow"))
        with temporary_directory("live") as directory:
            copy = LiveCopy(live, directory)
            if follows:
                ctx.meta[BEFORE_OPENING] = copy.follow
                ctx.meta[FOLLOWED], ctx.meta[LIVE_COPY] = copy.check, copy
            else:
                ctx.meta[BEFORE_OPENING] = lambda: print_problem(copy.refresh())
                ctx.meta[REFRESH], ctx.meta[VOTERS] = copy.refresh, copy.voters
            ctx.meta[BOOTSTRAP] = live.words()
            ctx.meta[NAMES] = {directory: "the cluster's log"}
            ctx.meta[CLUSTER] = live
            for name, value in ctx.params.items():
                if value == _PLACEHOLDER:
                    ctx.params[name] = directory
                elif isinstance(value, tuple):
                    ctx.params[name] = tuple(directory if one == _PLACEHOLDER else one for one in value)
            try:
                return super().invoke(ctx)
            finally:
                copy.close()


def words_to_read(paths: tuple[str, ...]) -> tuple[str, ...]:
    """What to type to read the same log: `paths`, or how a running quorum is reached instead of its copy."""
    live = click.get_current_context().meta.get(BOOTSTRAP)
    return live if isinstance(live, tuple) else paths


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The options."""

    bootstrap: str | None
    timeout_s: float
    truststore: Path | None
    keystore: Path | None
    command_config: Path | None
    rate: int | None

    def options(self) -> ClusterOptions:
        """The options for other questions to the same cluster."""
        from metaquorum.cli.client import TlsOptions
        from metaquorum.cli.cluster import ClusterOptions

        tls = TlsOptions(keystore=self.keystore, truststore=self.truststore)
        return ClusterOptions(
            bootstrap=self.bootstrap, timeout_s=self.timeout_s, tls=tls, command_config=self.command_config
        )

    def words(self) -> tuple[str, ...]:
        """What to type to read the same log."""
        files = (
            ("--command-config", self.command_config),
            ("--truststore", self.truststore),
            ("--keystore", self.keystore),
        )
        stores = [word for name, path in files if path is not None for word in (name, str(path))]
        return ("--bootstrap", self.bootstrap or "", *stores)


def _is_given(ctx: click.Context, option: click.Option) -> bool:
    return ctx.get_parameter_source(str(option.name)) is not click.core.ParameterSource.DEFAULT


def _options() -> list[click.Option]:
    return [
        click.Option(
            ["--bootstrap", "-b"],
            metavar="HOST:PORT,...",
            help="Read the log of a running cluster instead of PATH: of Apache Kafka or metaquorum.",
        ),
        click.Option(
            ["--timeout", "timeout_s"],
            metavar="SECONDS",
            type=FiniteRange(min=0.1),
            default=_TIMEOUT_S,
            show_default=True,
            help="With --bootstrap: request timeout in seconds.",
        ),
        click.Option(
            ["--truststore"],
            type=GivenPath(path_type=Path),
            help="With --bootstrap: PEM file with the CA certificates of the cluster; enables TLS.",
        ),
        click.Option(
            ["--keystore"],
            type=GivenPath(path_type=Path),
            help="With --bootstrap: PEM file with the client's private key and certificate chain.",
        ),
        click.Option(
            ["--command-config"],
            type=GivenPath(path_type=Path),
            help="With --bootstrap: properties of a Kafka client: security.protocol, sasl.*, ssl.*.",
        ),
        click.Option(
            ["--rate"],
            metavar="BYTES",
            type=click.IntRange(min=1),
            help="With --bootstrap: the most bytes to read per second.",
        ),
    ]


class LiveCopy:
    """The committed log of a quorum, copied into a directory. Raises Failure."""

    def __init__(self, live: Live, directory: str) -> None:
        self._live = live
        self._directory = directory
        self.is_lost = False
        """Whether the cluster does not answer at present, while it is followed."""
        self._log: LiveLog | None = None
        self._thread: threading.Thread | None = None
        self._is_complete = threading.Event()
        self._stop: Callable[[], object] = self._is_complete.set
        self._is_closed = False
        self._problem: BaseException | None = None
        # gRPC hands what comes late for a call to the loop that made it, and complains if that is closed.
        self._runner = asyncio.Runner()
        self._is_running = threading.Lock()

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def cluster_id(self) -> str | None:
        """None, too, if no node names it."""
        return None if self._log is None else self._log.cluster_id

    def refresh(self) -> str:
        """Copies the log, or adds what was committed since; returns what the directory holds."""
        self._log = self._run(None)
        return live_line(self._log)

    def follow(self) -> None:
        """Copies the log, and continues in the background until `close`."""
        self._thread = threading.Thread(target=self._follow, name="live log", daemon=True)
        self._thread.start()
        while not self._is_complete.wait(_LOOK_S):  # a signal ends the wait
            pass
        self.check()

    def check(self) -> None:
        """Raises Failure if nothing more comes."""
        if isinstance(self._problem, Failure):
            raise self._problem
        if self._problem is not None:
            raise Failure(one_line(self._problem)) from self._problem

    def forget_below(self, offset: int) -> None:
        """Removes segments that a reader at `offset` no longer needs."""
        from metaquorum.storage.disk.posix import PosixDisk

        disk, directory = PosixDisk(), join(self._directory, METADATA_DIRECTORY)
        for base, following in pairwise(list_segments(disk, directory)):
            if following <= offset:
                disk.remove(join(directory, segment_name(base)))

    def close(self) -> None:
        self._is_closed = True
        with suppress(RuntimeError):  # the loop has ended by itself
            self._stop()
        if self._thread is not None:
            self._thread.join()
        if self._is_running.acquire(
            blocking=False
        ):  # else a thread of the caller reads, and ends with the process
            self._runner.close()

    def _run_loop(self, asking: Coroutine[Any, Any, T]) -> T:
        with self._is_running:
            return self._runner.run(asking)

    def _follow(self) -> None:
        from metaquorum.clients.kafka.live_log import FollowingCopy

        def complete(log: LiveLog) -> None:
            self._log = log
            print_problem(live_line(log))
            self._is_complete.set()

        def trouble(text: str) -> None:
            self.is_lost = True
            print_problem(text)

        def there_again(text: str) -> None:
            self.is_lost = False
            print_problem(text)

        try:
            self._run(FollowingCopy(on_complete=complete, on_trouble=trouble, on_return=there_again))
        except BaseException as error:
            self._problem = error
        finally:
            self._is_complete.set()

    def voters(self, timeout_s: float | None = None) -> list[VoterReport]:
        """What can be learned of the quorum's voters. `timeout_s` replaces --timeout if it is less."""
        from metaquorum.clients.kafka.live_log import ask_voters
        from metaquorum.clients.search import ClientError

        if self._log is None:
            return []
        try:
            return self._run_loop(ask_voters(self._source(timeout_s), self._log))
        except ClientError as error:
            raise Failure(one_line(error)) from error

    def _source(self, timeout_s: float | None = None) -> LiveSource:
        # gRPC is imported only to ask a quorum, not to read files.
        from metaquorum.clients.kafka.live_log import LiveSource
        from metaquorum.clients.search import parse_bootstrap

        live = self._live
        options = live.options()
        if timeout_s is not None and timeout_s < options.timeout_s:
            options = msgspec.structs.replace(options, timeout_s=timeout_s)
        return LiveSource(
            addresses=parse_bootstrap(live.bootstrap or ""),
            timeout_ms=options.timeout_ms,
            security=options.security(),
            rate=live.rate,
        )

    def _run(self, following: FollowingCopy | None) -> LiveLog:
        import random

        from metaquorum.clients.kafka.live_log import LogSpool, copy_log
        from metaquorum.clients.search import ClientError
        from metaquorum.storage.disk.posix import PosixDisk

        def room() -> int:
            return shutil.disk_usage(self._directory).free

        async def run(source: LiveSource) -> LiveLog:
            task = asyncio.current_task()
            if task is not None and following is not None:
                self._stop = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
                if self._is_closed:  # before it began: Ctrl-C came at once
                    task.cancel()
            return await copy_log(
                source,
                LogSpool(PosixDisk(), self._directory, room=room, copied=self._log),
                rng=random.SystemRandom(),
                copied=self._log,
                on_progress=_progress if sys.stderr.isatty() and following is None else None,
                following=following,
            )

        try:
            return self._run_loop(run(self._source()))
        except ClientError as error:
            raise Failure(one_line(error)) from error


def live_line(live: LiveLog) -> str:
    """What was read, and from which node."""
    where = address_text(*live.address)
    snapshot = "" if live.snapshot is None else f", with the snapshot at offset {live.snapshot.offset}"
    return (
        f"read {offsets_text(live.start_offset, live.end_offset)}{snapshot}, of cluster"
        f" {live.cluster_id or '(unnamed)'} from controller {live.leader_id} at {where}, leader of epoch"
        f" {live.epoch}"
    )


def _progress(offset: int, target: int) -> None:
    """A progress line that is overwritten and finally cleared."""
    text = f"fetched {offset} of {target} offsets" if offset < target else ""
    sys.stderr.write(f"\r\033[K{text}")
    sys.stderr.flush()

"""`metaquorum log watch`: the command, its options, and how its parts work together."""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from metaquorum import platforms
from metaquorum.cli.errors import Failure, os_error_text, print_problem
from metaquorum.cli.given import GivenPath
from metaquorum.cli.log.input import source as log_source
from metaquorum.cli.log.input.follow import COPY_INTERVAL_S, follow_story
from metaquorum.cli.log.input.live import LIVE_COPY, LiveCommand, LiveCopy
from metaquorum.cli.log.input.options import POINT, Checked, Complaints
from metaquorum.cli.log.timeline import plain
from metaquorum.cli.log.watch.delivery import Delivery
from metaquorum.cli.log.watch.incidents import ReportedSoFar, WatchIncident, WatchIncidents
from metaquorum.cli.log.watch.receivers import Command, Webhook
from metaquorum.cli.text.output import json_option
from metaquorum.metadata.inspect.causes.rule import SEVERITIES
from metaquorum.metadata.inspect.causes.rule import WARNING as WARNING_SEVERITY
from metaquorum.metadata.inspect.log.clock import clock_of
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.timeline.event import TimelineEvent, at_least
from metaquorum.metadata.inspect.timeline.growing import GrowingStory
from metaquorum.storage.disk.interface import read_file, write_atomically
from metaquorum.storage.disk.posix import PosixDisk

NOTE_S = 60.0
"""How often it is noted how far a quiet log was read."""
SHORT_S = 30.0
"""How long a log may end before what an earlier watch saw: a new leader learns late what is committed."""
END_S = 5.0
"""How long reports that wait are tried when the watch ends."""
_LISTENER = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):)?(?P<port>\d{1,5})")


def _listener(text: str) -> tuple[str, int]:
    """Host and port of PORT or HOST:PORT. Raises ValueError."""
    found = _LISTENER.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise ValueError(f"{text!r} is neither PORT nor HOST:PORT")
    return (found["host"] or "127.0.0.1").strip("[]"), int(found["port"])


class WatchCommand(LiveCommand):
    """A command that only reads running clusters."""

    always_follows = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Command.parse_args(self, ctx, args)

    def refuse_files(self, ctx: click.Context) -> None:
        raise click.UsageError("give --bootstrap HOST:PORT,... of the cluster to watch", ctx)

    def refuse_live(self, ctx: click.Context) -> None:
        webhook, command = ctx.params["webhook"], ctx.params["command"]
        if webhook is not None and command is not None:
            raise click.UsageError(
                "--webhook and --exec are two watches: start each with a --state of its own", ctx
            )
        if webhook is None and command is None and ctx.params["listener"] is None:
            raise click.UsageError("give --webhook URL, --exec COMMAND or --prometheus PORT", ctx)


@click.command(cls=WatchCommand)
@click.option(
    "--severity",
    type=click.Choice(SEVERITIES),
    default=WARNING_SEVERITY,
    show_default=True,
    help="Only events of this severity and above.",
)
@click.option("--webhook", type=Checked("url", Webhook), metavar="URL", help="POST each incident as JSON.")
@click.option(
    "--exec",
    "command",
    type=Checked("command", Command),
    metavar="COMMAND",
    help="Start this program for each incident, with JSON on standard input. No shell is used.",
)
@click.option(
    "--prometheus",
    "listener",
    type=Checked("port", _listener),
    metavar="[HOST:]PORT",
    help="Serve counters at /metrics. Default host: 127.0.0.1.",
)
@click.option(
    "--state",
    "state_path",
    type=GivenPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to note what was reported. Default: ~/.local/state/metaquorum/watch-CLUSTER.json.",
)
@click.option(
    "--from",
    "start",
    type=POINT,
    metavar="OFFSET|OFFSET+|TIME",
    help="Where to begin if there is no state yet. Default: with what is committed from now on.",
)
@click.option(
    "--attempts",
    metavar="N",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="How often to try to report one incident.",
)
@json_option
@click.pass_context
def watch(
    context: click.Context,
    severity: str,
    webhook: Webhook | None,
    command: Command | None,
    listener: tuple[str, int] | None,
    state_path: Path | None,
    start: Point | None,
    attempts: int,
    as_json: bool,
) -> None:
    """Report incidents of a running cluster as they are committed.

    Incidents are the events of `log timeline` from --severity on. Each is printed and reported once, also
    across restarts: a state file notes what was reported. If the watch is killed between a report and its
    note, the report is repeated with the same `id`. Ends with Ctrl-C.
    """
    copy: LiveCopy = context.meta[LIVE_COPY]
    log = log_source.open_path(copy.directory, progress=False)
    cluster_id = copy.cluster_id or "unnamed"
    state = StateFile(state_path or default_path(cluster_id))
    try:
        reported = _begun(state, log, cluster_id, start)
        receiver = webhook or command
        delivery = Delivery(receiver, reported, state.store, _warn, attempts=attempts, rng=random.Random())
        watching = _Watch(copy, log, state, reported, delivery, as_json=as_json)
        watching.run(at_least(severity), listener)
    finally:
        state.close()


def _warn(line: str) -> None:
    print_problem(line)


def _begun(state: StateFile, log: MetadataLog, cluster_id: str, start: Point | None) -> ReportedSoFar:
    """What was reported before; at first, what counts as reported."""
    reported = state.load(cluster_id)
    if reported is None:
        offset = log.end_offset
        if start is not None and start.time_ms is not None:
            offset = clock_of(log).place(start.time_ms, first=True)[0].offset or 0
        elif start is not None and start.offset is not None:
            offset = start.offset + start.after
        reported = ReportedSoFar(cluster_id=cluster_id, offset=offset)
        state.store(reported)
    _warn(f"incidents from offset {reported.offset} on are reported; state: {state.path}")
    return reported


class _Watch:
    """A followed log, and where its incidents go."""

    def __init__(
        self,
        copy: LiveCopy,
        log: MetadataLog,
        state: StateFile,
        reported: ReportedSoFar,
        delivery: Delivery,
        *,
        as_json: bool,
    ) -> None:
        self._copy = copy
        self._log = log
        self._state = state
        self._before = reported
        self._incidents = WatchIncidents(reported.cluster_id)
        self._delivery = delivery
        self._as_json = as_json
        self._counts: Any = None
        self._story: GrowingStory
        self._begun_s = self._noted_s = time.monotonic()

    def run(self, shown: frozenset[str], listener: tuple[str, int] | None) -> None:
        """Reports until it is interrupted, or nothing more comes."""
        before = Point(offset=self._before.offset)
        self._story = GrowingStory(self._log, Complaints(), shown=shown, quiet_before=before)
        ends: list[Callable[[], None]] = [self._story.close]
        if listener is not None:
            ends.append(self._serve(listener))
        self._delivery.start()
        try:
            follow_story(
                self._story, self._log.path, self._take, interval_s=COPY_INTERVAL_S, check=self._check
            )
        finally:
            self._delivery.close(END_S)
            for end in ends:
                end()

    def _serve(self, listener: tuple[str, int]) -> Callable[[], None]:
        """Serves the counters; returns what ends that. Only here, the metrics are imported."""
        from metaquorum.cli.log.watch.page import WatchCounts, WatchPage

        counts = self._counts = WatchCounts()
        delivery, copy = self._delivery, self._copy
        page = WatchPage(
            *listener,
            lambda: counts.families(
                reported=delivery.delivered,
                given_up=delivery.given_up,
                waiting=delivery.waiting,
                is_reached=not copy.is_lost,
            ),
        )
        page.start()
        _warn(f"metrics at http://{page.address}/metrics")
        return page.close

    def _take(self, events: Iterable[TimelineEvent]) -> None:
        for event in events:
            incident = self._incidents.incident(event)
            held_before = event.offset <= self._before.offset and event.kind.startswith("already ")
            if not (held_before or self._before.has(incident)):
                self._report(incident, event)
        if self._counts is not None:
            self._counts.last_offset = self._story.place - 1
        self._copy.forget_below(self._story.place)

    def _report(self, incident: WatchIncident, event: TimelineEvent) -> None:
        sys.stdout.write((incident.body().decode() if self._as_json else plain(event)) + "\n")
        sys.stdout.flush()
        if self._counts is not None:
            self._counts.take(incident)
        self._delivery.take(incident)

    def _check(self) -> None:
        """Raises Failure if there is nothing more to report; notes now and then how far the log was read."""
        self._copy.check()
        if self._delivery.problem is not None:
            raise Failure(f"what was reported cannot be noted: {self._delivery.problem}")
        now_s, position = time.monotonic(), self._story.place
        if position < self._before.offset and now_s - self._begun_s >= SHORT_S:
            raise Failure(
                f"{self._state.path} says that offsets below {self._before.offset} were seen, but the log"
                f" of the cluster ends at {position}: committed records were lost, or it is another log; to"
                " watch its end, give another --state"
            )
        if now_s - self._noted_s >= NOTE_S and not self._story.holds_back:
            self._noted_s = now_s
            self._delivery.nothing_left_below(position)


def default_path(cluster_id: str) -> Path:
    """Where the note of a cluster is kept by default."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "metaquorum" / f"watch-{cluster_id}.json"


class StateFile:
    """The file of one watch, which has it to itself until it is closed: what was reported, durable before the
    next report begins. Raises Failure, in one line."""

    def __init__(self, path: Path) -> None:
        self._disk = PosixDisk()
        self._path = platforms.slashed(str(path.absolute()))
        try:
            path.absolute().parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Failure(os_error_text(error)) from error
        if not platforms.lock_file(self._lock):
            os.close(self._lock)
            raise Failure(f"another log watch uses {path}; end it, or give another --state")

    def load(self, cluster_id: str) -> ReportedSoFar | None:
        """The note; None if there is none yet. Raises Failure if it is damaged or another cluster's."""
        if not self._disk.exists(self._path):
            return None
        try:
            reported = msgspec.json.decode(read_file(self._disk, self._path), type=ReportedSoFar)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Failure(
                f"{self._path} is not the state of a log watch ({error}); give another --state, or remove it"
            ) from error
        if reported.cluster_id != cluster_id:
            raise Failure(
                f"{self._path} is about cluster {reported.cluster_id}, but {cluster_id} answers; give another"
                " --state"
            )
        return reported

    def store(self, reported: ReportedSoFar) -> None:
        """Replaces the note; it is durable on return. Raises StorageError."""
        write_atomically(self._disk, self._path, msgspec.json.encode(reported) + b"\n")

    @property
    def path(self) -> str:
        return self._path

    def close(self) -> None:
        os.close(self._lock)

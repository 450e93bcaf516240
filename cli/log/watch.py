"""`metaquorum log watch`: reports what goes wrong in a running cluster, as it is committed.

A report counts as done once it is noted in the state file; a watch that is killed between the two repeats it
with the same id.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

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
from metaquorum.cli.text.output import json_option
from metaquorum.lines import one_line
from metaquorum.metadata.inspect.answers import event_json
from metaquorum.metadata.inspect.causes.rule import SEVERITIES
from metaquorum.metadata.inspect.causes.rule import WARNING as WARNING_SEVERITY
from metaquorum.metadata.inspect.log.clock import clock_of
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.timeline.event import TimelineEvent, at_least
from metaquorum.metadata.inspect.timeline.story import GrowingStory
from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.backoff import BackoffPolicy
from metaquorum.network.tls import new_client_context
from metaquorum.storage.disk.interface import read_file, write_atomically
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import StorageError

ENTITIES_MAX = 1_000
"""The most entities that one report lists; `moreEntities` counts the rest."""


class WatchIncident(msgspec.Struct, frozen=True, kw_only=True):
    """An event to report. `report` is JSON in one line, without the braces around it."""

    incident_id: str
    offset: int
    severity: str
    kind: str
    report: bytes

    def body(self, missed: int = 0) -> bytes:
        """The report; `missed`: how many before it were given up."""
        suffix = b',"missed":%d' % missed if missed else b""
        return b"{" + self.report + suffix + b"}"


class WatchIncidents:
    """Makes incidents of a cluster's events, which come in the order of the log."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._offset = -1
        self._seen: Counter[str] = Counter()

    def incident(self, event: TimelineEvent) -> WatchIncident:
        """The incident of an event. Its id names cluster, offset, kind and entity: a reader that begins
        elsewhere, or again, gives it the same one."""
        if event.offset != self._offset:
            self._offset = event.offset
            self._seen.clear()
        name = f"{self._cluster_id}:{event.offset}:{event.kind.replace(' ', '-')}:{event.entity}"
        self._seen[name] += 1
        count = self._seen[name]
        incident_id = name if count == 1 else f"{name}:{count}"
        fields: dict[str, Any] = {"id": incident_id, "clusterId": self._cluster_id, **event_json(event)}
        more = len(fields["entities"]) - ENTITIES_MAX
        if more > 0:
            fields |= {"entities": fields["entities"][:ENTITIES_MAX], "moreEntities": more}
        return WatchIncident(
            incident_id=incident_id,
            offset=event.offset,
            severity=event.severity,
            kind=event.kind,
            report=msgspec.json.encode(fields)[1:-1],
        )


class ReportedSoFar(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was reported of a cluster: every incident below `offset`, and at `offset` those in `ids`."""

    cluster_id: str
    offset: int
    ids: tuple[str, ...] = ()

    def has(self, incident: WatchIncident) -> bool:
        """Whether it was reported."""
        return incident.offset < self.offset or (
            incident.offset == self.offset and incident.incident_id in self.ids
        )

    def after(self, incident: WatchIncident) -> ReportedSoFar:
        """The note after one more report."""
        if incident.offset < self.offset:
            return self
        ids = self.ids if incident.offset == self.offset else ()
        return ReportedSoFar(
            cluster_id=self.cluster_id, offset=incident.offset, ids=(*ids, incident.incident_id)
        )

    def through(self, offset: int) -> ReportedSoFar:
        """The note if nothing below `offset` is left to report."""
        return self if offset <= self.offset else ReportedSoFar(cluster_id=self.cluster_id, offset=offset)


WEBHOOK_S = 10.0
"""How long a webhook may take for its answer, in seconds."""
COMMAND_S = 60.0
"""How long a command may run, in seconds; then it is killed."""


class NotReported(Exception):
    """A receiver did not take a report; the text says why."""


class Receiver(Protocol):
    """Who gets reports."""

    @property
    def name(self) -> str:
        """The receiver in messages, without secrets."""

    def report(self, incident: WatchIncident, body: bytes) -> str | None:
        """Hands over one report; returns what is worth a line. Raises NotReported."""


class Webhook:
    """A POST of JSON; any status of 200 to 299 takes the report. Redirects are not followed."""

    def __init__(self, url: str, *, limit_s: float = WEBHOOK_S) -> None:
        """Raises ValueError for what is no http or https URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("give a URL that begins with http:// or https://")
        if any(ord(each) <= 32 or ord(each) > 126 for each in url):
            raise ValueError("a URL has neither spaces nor letters beyond ASCII; percent-encode them")
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port or (443 if self._is_tls else 80)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._limit_s = limit_s
        self._headers = {"Content-Type": "application/json", "User-Agent": "metaquorum"}
        if parts.username is not None:
            words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(words.encode()).decode()}"

    @property
    def name(self) -> str:
        return f"{'https' if self._is_tls else 'http'}://{address_text(self._host, self._port)}"

    def report(self, incident: WatchIncident, body: bytes) -> str | None:
        connection = self._connection()
        is_late = threading.Event()
        watchdog = threading.Timer(self._limit_s, _cut, (connection, is_late))
        watchdog.daemon = True
        watchdog.start()
        try:
            connection.request("POST", self._target, body, self._headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            # What an answer that was cut off looks like says nothing.
            has_waited = is_late.is_set() or isinstance(error, TimeoutError)
            reason = f"no answer within {self._limit_s:g} s" if has_waited else _reason(error)
            raise NotReported(reason) from error
        finally:
            watchdog.cancel()
            connection.close()
        if not 200 <= status < 300:
            raise NotReported(f"it answers {status}")
        return None

    def _connection(self) -> http.client.HTTPConnection:
        if self._is_tls:
            context = new_client_context()
            context.load_default_certs()
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._limit_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._limit_s)


def _cut(connection: http.client.HTTPConnection, is_late: threading.Event) -> None:
    """Ends a connection whose answer arrives byte by byte."""
    is_late.set()
    with contextlib.suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or one_line(error)


class Command:
    """A program, started for each report, which reads it from standard input. No shell sees its words, and
    nothing of a report is among them."""

    def __init__(self, line: str, *, limit_s: float = COMMAND_S) -> None:
        """`line` as in a shell, with quotes. Raises ValueError if it is none, or the program is missing."""
        self._words = shlex.split(line)
        if not self._words:
            raise ValueError("give a command")
        if shutil.which(self._words[0]) is None:
            raise ValueError(f"there is no program {self._words[0]!r} that can be started")
        self._limit_s = limit_s

    @property
    def name(self) -> str:
        return self._words[0]

    def report(self, incident: WatchIncident, body: bytes) -> str | None:
        try:
            ended = subprocess.run(
                self._words, input=body + b"\n", stdout=2, timeout=self._limit_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise NotReported(f"it ran for {self._limit_s:g} s and was killed") from error
        except OSError as error:
            raise NotReported(_reason(error)) from error
        if ended.returncode:
            raise NotReported(f"it ended with exit code {ended.returncode}")
        return "it ended with exit code 0"


WAITING_MAX_BYTES = 16 * 1024 * 1024
"""The most bytes of reports that wait for a receiver; beyond that the oldest are given up."""
RETRY = BackoffPolicy(initial_ms=500, max_ms=60_000)


class Delivery:
    """One receiver (None: incidents are only counted), on a thread of its own. `note` makes a state durable,
    `warn` prints a line."""

    def __init__(
        self,
        receiver: Receiver | None,
        reported: ReportedSoFar,
        note: Callable[[ReportedSoFar], None],
        warn: Callable[[str], None],
        *,
        attempts: int,
        rng: random.Random,
        retry: BackoffPolicy = RETRY,
        waiting_max_bytes: int = WAITING_MAX_BYTES,
    ) -> None:
        self._receiver = receiver
        self._reported = reported
        self._note = note
        self._warn = warn
        self._attempts = attempts
        self._rng = rng
        self._retry = retry
        self._max_bytes = waiting_max_bytes
        self._waiting: deque[WatchIncident] = deque()
        self._bytes = 0
        self._missed = 0
        self._is_busy = False
        self._ends = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self.problem: StorageError | None = None
        """Why reports have ended."""
        self.delivered = 0
        self.given_up = 0

    def start(self) -> None:
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many incidents are not reported yet."""
        return len(self._waiting) + self._is_busy

    def take(self, incident: WatchIncident) -> None:
        """The next incident of the log. Never waits for the receiver."""
        with self._changed:
            self._waiting.append(incident)
            self._bytes += len(incident.report)
            dropped = 0
            while self._bytes > self._max_bytes and len(self._waiting) > 1:
                self._bytes -= len(self._waiting.popleft().report)
                dropped += 1
            self._missed += dropped
            self.given_up += dropped
            self._changed.notify_all()
        if dropped:
            self._warn(f"given up, too many reports wait: {dropped}")

    def nothing_left_below(self, offset: int) -> None:
        """Every incident below `offset` was taken: notes that, if all of them are done."""
        with self._changed:
            if self._waiting or self._is_busy:
                return
            before, self._reported = self._reported, self._reported.through(offset)
        if self._reported is not before:
            self._store()

    def close(self, wait_s: float) -> None:
        """Ends after the reports that wait, or after `wait_s`."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(wait_s)

    def _run(self) -> None:
        while self.problem is None:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ends)
                if not self._waiting:
                    return
                incident = self._waiting.popleft()
                self._bytes -= len(incident.report)
                missed, self._is_busy = self._missed, True
            is_done = self._deliver(incident, missed)
            with self._changed:
                if is_done:
                    self.delivered += 1
                    self._missed -= missed
                else:
                    self.given_up += 1
                    self._missed += 1
                self._reported = self._reported.after(incident)
            self._store()
            self._is_busy = False

    def _deliver(self, incident: WatchIncident, missed: int) -> bool:
        """Whether the receiver took a report."""
        if self._receiver is None:
            return True
        name = self._receiver.name
        for attempt in range(1, self._attempts + 1):
            try:
                outcome = self._receiver.report(incident, incident.body(missed))
            except NotReported as error:
                text = f"{incident.incident_id} was not reported to {name}: {error}"
                if attempt == self._attempts:
                    self._warn(f"{text}; given up after {count(attempt)}")
                    return False
                if attempt == 1:
                    self._warn(f"{text}; trying again")
                self._pause(self._retry.delay_ms(attempt, self._rng) / 1000)
            else:
                if outcome is not None or attempt > 1:
                    self._warn(f"{incident.incident_id} was reported to {name}: {outcome or count(attempt)}")
                return True
        return False

    def _pause(self, wait_s: float) -> None:
        """Waits, also while the watch ends: `close` has a limit of its own."""
        time.sleep(wait_s)

    def _store(self) -> None:
        try:
            self._note(self._reported)
        except StorageError as error:
            self.problem = error


def count(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


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
        from metaquorum.cli.log.watch_page import WatchCounts, WatchPage

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
            self._counts.take(incident.severity, incident.kind)
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

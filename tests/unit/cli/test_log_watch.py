"""The parts of `log watch`: what is new, what reaches a receiver, and what becomes of what does not."""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.cli.errors import Failure
from metaquorum.cli.log.watch import (
    ENTITIES_MAX,
    Command,
    Delivery,
    NotReported,
    ReportedSoFar,
    StateFile,
    WatchCommand,
    WatchIncident,
    WatchIncidents,
    Webhook,
    default_path,
)
from metaquorum.cli.log.watch_page import WatchCounts, WatchPage
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.network.backoff import BackoffPolicy
from metaquorum.storage.errors import DiskError
from tests.unit.server.nodes import silent_port
from tests.waiting import LIMIT_S

CLUSTER = "d2lyZS1jYXB0dXJlLTM3MA"
AT_ONCE = BackoffPolicy(initial_ms=1, max_ms=1)


def event(offset: int, entity: str = "broker/3") -> TimelineEvent:
    return TimelineEvent(
        offset=offset,
        epoch=2,
        time_ms=1_795_000_000_000,
        kind="broker fenced",
        entity=entity,
        text="t",
        severity="warning",
    )


def incident(offset: int, entity: str = "broker/3") -> WatchIncident:
    return WatchIncidents(CLUSTER).incident(event(offset, entity=entity))


def eventually(what: str, reached: Callable[[], bool]) -> None:
    ends = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < ends, f"waited {LIMIT_S:g} s for {what}"
        time.sleep(0.002)


# --- what is reported


def test_an_incident_has_an_id_and_the_fields_of_the_timeline() -> None:
    made = incident(7)
    assert made.incident_id == f"{CLUSTER}:7:broker-fenced:broker/3"
    body = json.loads(made.body())
    assert (body["id"], body["clusterId"], body["offset"], body["severity"]) == (
        made.incident_id,
        CLUSTER,
        7,
        "warning",
    )
    assert "missed" not in body and json.loads(made.body(3))["missed"] == 3


def test_two_events_of_one_record_have_two_ids() -> None:
    incidents = WatchIncidents(CLUSTER)
    ids = [incidents.incident(event(offset)).incident_id for offset in (7, 7, 8)]
    assert ids[1] == f"{ids[0]}:2" and len(set(ids)) == 3


def test_a_report_lists_a_bounded_number_of_entities() -> None:
    entities = tuple(f"topic/t/{at}" for at in range(ENTITIES_MAX + 5))
    many = TimelineEvent(
        offset=1, epoch=1, time_ms=1, kind="leaderless", entity=entities[0], text="t", entities=entities
    )
    body = json.loads(WatchIncidents(CLUSTER).incident(many).body())
    assert (len(body["entities"]), body["moreEntities"]) == (ENTITIES_MAX, 5)


PLACES = st.tuples(st.integers(0, 6), st.sampled_from(["broker/1", "broker/2"]))


@given(st.lists(PLACES, max_size=20), st.data())
def test_a_restart_at_any_moment_reports_the_rest_and_nothing_else(
    places: list[tuple[int, str]], data: st.DataObject
) -> None:
    def read() -> list[WatchIncident]:
        incidents = WatchIncidents(CLUSTER)
        return [incidents.incident(event(offset, entity=entity)) for offset, entity in sorted(places)]

    reported = ReportedSoFar(cluster_id=CLUSTER, offset=data.draw(st.integers(0, 6)))
    wanted = [each for each in read() if not reported.has(each)]
    told: list[str] = []
    for _ in range(3):
        fresh = [each for each in read() if not reported.has(each)]
        for each in fresh[: data.draw(st.integers(0, len(fresh)))]:
            told.append(each.incident_id)
            reported = reported.after(each)
    told += [each.incident_id for each in read() if not reported.has(each)]
    assert told == [each.incident_id for each in wanted]


def test_what_was_passed_in_silence_is_noted_too() -> None:
    reported = ReportedSoFar(cluster_id=CLUSTER, offset=5).after(incident(7)).through(9)
    assert reported == ReportedSoFar(cluster_id=CLUSTER, offset=9)
    assert reported.through(3) is reported and reported.after(incident(8)) is reported


# --- the state file


def test_the_note_outlasts_the_watch_and_belongs_to_one(tmp_path: Path) -> None:
    path = tmp_path / "below" / "state.json"
    state = StateFile(path)
    assert state.load(CLUSTER) is None
    noted = ReportedSoFar(cluster_id=CLUSTER, offset=7, ids=("a", "b"))
    state.store(noted)
    with pytest.raises(Failure, match="another log watch uses"):
        StateFile(path)
    state.close()
    again = StateFile(path)
    assert again.load(CLUSTER) == noted
    with pytest.raises(Failure, match=f"is about cluster {CLUSTER}, but other answers"):
        again.load("other")
    path.write_text('{"offset": "seven"}')
    with pytest.raises(Failure, match="is not the state of a log watch") as refused:
        again.load(CLUSTER)
    again.close()
    assert "\n" not in refused.value.format_message()


def test_a_state_file_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure, match="file"):
        StateFile(tmp_path / "file" / "state.json")


def test_the_default_place_names_the_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path(CLUSTER) == tmp_path / "metaquorum" / f"watch-{CLUSTER}.json"


# --- delivery


class Scripted:
    """A receiver that takes a report, or not, by what `script` says of each attempt."""

    name = "scripted"

    def __init__(self, *script: str) -> None:
        self.script = list(script)
        self.bodies: list[dict[str, object]] = []
        self.may_go = threading.Event()

    def report(self, incident: WatchIncident, body: bytes) -> str | None:
        found = self.script.pop(0) if self.script else "takes"
        if found == "hangs":
            assert self.may_go.wait(LIMIT_S)
        if found == "refuses":
            raise NotReported("no")
        self.bodies.append(json.loads(body))
        return None


def delivery(receiver: Scripted | None, notes: list[ReportedSoFar], told: list[str], **more: Any) -> Delivery:
    options: dict[str, Any] = {"attempts": 3, "rng": random.Random(1), "retry": AT_ONCE, **more}
    made = Delivery(
        receiver, ReportedSoFar(cluster_id=CLUSTER, offset=0), notes.append, told.append, **options
    )
    made.start()
    return made


def test_each_report_is_noted_before_the_next_begins() -> None:
    receiver, notes, told = Scripted(), list[ReportedSoFar](), list[str]()
    reports = delivery(receiver, notes, told)
    made = [incident(at) for at in (3, 4, 9)]
    for each in made:
        reports.take(each)
    reports.close(LIMIT_S)
    assert [body["id"] for body in receiver.bodies] == [each.incident_id for each in made]
    assert [each.ids for each in notes] == [(each.incident_id,) for each in made]
    assert (told, reports.delivered, reports.given_up, reports.waiting) == ([], 3, 0, 0)


def test_a_refused_report_is_tried_again_and_at_last_given_up() -> None:
    receiver = Scripted("refuses", "takes", "refuses", "refuses", "refuses", "takes")
    notes, told = list[ReportedSoFar](), list[str]()
    reports = delivery(receiver, notes, told)
    for at in (3, 4, 5):
        reports.take(incident(at))
    reports.close(LIMIT_S)
    assert [(body["offset"], body.get("missed")) for body in receiver.bodies] == [(3, None), (5, 1)]
    assert [each.offset for each in notes] == [3, 4, 5]
    assert [line.partition(" was ")[2] for line in told] == [
        "not reported to scripted: no; trying again",
        "reported to scripted: 2 attempts",
        "not reported to scripted: no; trying again",
        "not reported to scripted: no; given up after 3 attempts",
    ]


def test_a_receiver_that_hangs_costs_bounded_memory_and_never_the_reader() -> None:
    receiver, notes, told = Scripted("hangs"), list[ReportedSoFar](), list[str]()
    size = len(incident(1).report)
    reports = delivery(receiver, notes, told, waiting_max_bytes=20 * size)
    reports.take(incident(1))
    eventually("the first report", lambda: not receiver.script)
    for at in range(2, 200):
        reports.take(incident(at))
    assert reports.waiting <= 21 and reports.given_up >= 170
    receiver.may_go.set()
    reports.close(LIMIT_S)
    first, second, *others = receiver.bodies
    assert first["offset"] == 1 and second["missed"] == reports.given_up
    assert others[-1]["offset"] == 199 and not any("missed" in each for each in others)
    assert reports.delivered + reports.given_up == 199


def test_a_note_that_cannot_be_made_ends_the_reports() -> None:
    receiver, told = Scripted(), list[str]()

    def note(reported: ReportedSoFar) -> None:
        raise DiskError("/state", "append", "no space left on device")

    first = ReportedSoFar(cluster_id=CLUSTER, offset=0)
    reports = Delivery(receiver, first, note, told.append, attempts=1, rng=random.Random(1))
    reports.start()
    reports.take(incident(1))
    reports.take(incident(2))
    eventually("the problem", lambda: reports.problem is not None)
    reports.close(LIMIT_S)
    assert len(receiver.bodies) == 1


def test_silence_is_noted_only_if_nothing_waits() -> None:
    receiver, notes = Scripted("hangs"), list[ReportedSoFar]()
    reports = delivery(receiver, notes, [])
    reports.nothing_left_below(4)
    reports.take(incident(6))
    reports.nothing_left_below(8)
    receiver.may_go.set()
    reports.close(LIMIT_S)
    assert [each.offset for each in notes] == [4, 6]


# --- receivers


class _Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, HookServer)
        body = self.rfile.read(int(self.headers["content-length"]))
        server.seen.append((self.path, dict(self.headers), json.loads(body)))
        if server.status:
            self.send_response(server.status)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        with contextlib.suppress(OSError):
            for byte in b"HTTP/1.1 200 O" * 100:  # byte by byte, for longer than anybody waits
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)

    def log_message(self, format: str, *args: object) -> None:
        pass


class HookServer(ThreadingHTTPServer):
    """Answers each POST with `status`; 0: byte by byte."""

    daemon_threads = True
    block_on_close = False
    status = 204

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hook)
        self.seen: list[tuple[str, dict[str, str], dict[str, object]]] = []


@contextlib.contextmanager
def hook_server() -> Iterator[HookServer]:
    with HookServer() as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01), daemon=True)
        thread.start()
        yield server
        server.shutdown()


def test_a_webhook_gets_json_and_any_2xx_takes_it() -> None:
    made = incident(7)
    with hook_server() as server:
        hook = Webhook(f"http://user:s%20cret@127.0.0.1:{server.server_port}/hook?token=abc")
        assert hook.report(made, made.body()) is None
        server.status = 302
        with pytest.raises(NotReported, match="it answers 302"):
            hook.report(made, made.body())
    (path, headers, body), _ = server.seen
    assert path == "/hook?token=abc" and body == json.loads(made.body())
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Basic dXNlcjpzIGNyZXQ="
    assert hook.name == f"http://127.0.0.1:{server.server_port}"


def test_a_webhook_that_never_ends_its_answer_is_left_in_time() -> None:
    made = incident(7)
    with hook_server() as server:
        server.status = 0
        hook = Webhook(f"http://127.0.0.1:{server.server_port}", limit_s=0.3)
        with pytest.raises(NotReported, match=r"no answer within 0.3 s"):
            hook.report(made, made.body())


def test_a_webhook_that_does_not_listen_or_speaks_no_tls_is_one_line() -> None:
    made = incident(7)
    with silent_port() as port, pytest.raises(NotReported, match=r"^Connection refused$|^timed out"):
        Webhook(f"http://127.0.0.1:{port}", limit_s=0.2).report(made, made.body())
    with hook_server() as server, pytest.raises(NotReported, match="SSL"):
        Webhook(f"https://127.0.0.1:{server.server_port}", limit_s=10).report(made, made.body())


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:80",
        "ftp://h/",
        "http://",
        "http://h/a b",
        "http://h/\n",
        "http://h:99999/",
        "http://ü/",
        "http://h/\x7f",
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Webhook(url)


def test_a_url_may_have_every_printed_letter_of_ascii() -> None:
    assert Webhook("http://h/!~")._target == "/!~"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "give --webhook URL, --exec COMMAND or --prometheus PORT"),
        ({"webhook": 1, "command": 2}, "are two watches"),
        ({"webhook": 1, "command": 2, "listener": 3}, "are two watches"),
        ({"webhook": 1}, None),
        ({"command": 2}, None),
        ({"listener": 3}, None),
        ({"command": 2, "listener": 3}, None),
    ],
)
def test_a_watch_has_one_that_it_tells(options: dict[str, int], problem: str | None) -> None:
    params = {"webhook": None, "command": None, "listener": None, **options}
    context: Any = SimpleNamespace(params=params, command=None)
    try:
        WatchCommand("watch").refuse_live(context)
    except click.UsageError as error:
        assert problem is not None and problem in error.message
    else:
        assert problem is None


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(text)
    return f"'{sys.executable}' '{path}'"


def test_a_command_gets_json_on_standard_input_and_no_shell_sees_it(tmp_path: Path) -> None:
    made = incident(7, entity="topic/$(touch gone); touch gone")
    target = tmp_path / "got"
    text = f"import sys; open({str(target)!r}, 'w').write(repr(sys.argv[1:]) + sys.stdin.read())"
    line = program(tmp_path, text)
    told = Command(f"{line} '$(touch gone)' ;touch gone").report(made, made.body())
    assert told == "it ended with exit code 0"
    words, _, body = target.read_text().partition("]")
    assert words == "['$(touch gone)', ';touch', 'gone'"
    assert json.loads(body) == json.loads(made.body())
    assert not (tmp_path / "gone").exists() and not Path("gone").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("raise SystemExit(7)", "exit code 7"),
        ("import time; time.sleep(60)", "for 1 s and was killed"),
    ],
)
def test_a_command_that_fails_or_hangs_did_not_take_it(tmp_path: Path, text: str, problem: str) -> None:
    made = incident(7)
    with pytest.raises(NotReported, match=problem):
        Command(program(tmp_path, text), limit_s=1.0).report(made, b"x" * 1_000_000)


@pytest.mark.parametrize(
    ("line", "problem"), [("", "give a command"), ("'a", "quotation"), ("/no/such 1", "there is no program")]
)
def test_what_is_no_command_is_refused(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Command(line)


# --- counters


def test_counters_are_served_at_loopback() -> None:
    import urllib.request

    counts = WatchCounts()
    for at in (3, 4):
        counts.take((held := incident(at)).severity, held.kind)
    counts.last_offset = 9
    page = WatchPage(
        "127.0.0.1", 0, lambda: counts.families(reported=2, given_up=1, waiting=0, is_reached=True)
    )
    page.start()
    try:
        with urllib.request.urlopen(f"http://{page.address}/metrics", timeout=LIMIT_S) as answer:
            lines = answer.read().decode().splitlines()
        with pytest.raises(Failure, match=f"cannot listen on {page.address}: address already in use$"):
            WatchPage("127.0.0.1", int(page.address.rpartition(":")[2]), lambda: ())
    finally:
        page.close()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values['metaquorum_watch_incidents_total{kind="broker fenced",severity="warning"}'] == "2.0"
    assert values["metaquorum_watch_last_offset"] == "9.0"
    assert values["metaquorum_watch_given_up_total"] == "1.0"
    assert values["metaquorum_watch_cluster_reached"] == "1.0"

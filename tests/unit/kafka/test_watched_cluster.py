"""`log watch` at a scripted controller: each incident once, over restarts, lost notes and a lost cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.log.watch import StateFile
from metaquorum.cli.main import main
from metaquorum.storage.errors import DiskError
from tests.unit.cli.test_log_watch import hook_server
from tests.unit.clients.metadata_leader import CLUSTER
from tests.unit.kafka.kafka_controller import KafkaController, on_a_thread
from tests.unit.kafka.test_followed_events import LOG, batches, run, wait_for

SEVERITY = "info"


class Growing(KafkaController):
    """A controller whose log grows as told."""

    def __init__(self) -> None:
        super().__init__(LOG)
        self.rest = batches()
        self.quorum.log, self.quorum.snapshots = [], set()
        self.grow(100)

    def grow(self, offset: int) -> None:
        while self.rest and self.rest[0][0].offset <= offset:
            self.quorum.log.append(self.rest.pop(0))
        self.quorum.commit()


def expected(start: int, end: int) -> list[tuple[int, str, str]]:
    told = run("timeline", LOG, "--severity", SEVERITY, "--from", start, "--to", end, "--json").stdout
    events = [json.loads(line) for line in told.splitlines()]
    return [
        (each["offset"], each["kind"], each["entity"])
        for each in events
        if not each["kind"].startswith("still ")
    ]


def watched(node: Growing, meanwhile: Callable[[], None], *arguments: object) -> Result:
    """A watch that ends because the cluster refuses it, after `meanwhile`."""

    def then_refuse() -> None:
        try:
            meanwhile()
        finally:
            node.allowed = False

    node.allowed = True
    thread = threading.Thread(target=then_refuse, daemon=True)
    thread.start()
    words = ("watch", "--bootstrap", f"127.0.0.1:{node.port}", "--severity", SEVERITY, *arguments)
    found = run(*words)
    thread.join()
    assert found.exit_code == 1 and isinstance(found.exception, SystemExit), found.exception
    return found


def test_each_incident_is_reported_once_over_restarts(tmp_path: Path) -> None:
    node, state = Growing(), tmp_path / "state.json"
    with hook_server() as server, on_a_thread(node):
        url = f"http://127.0.0.1:{server.server_port}/"

        def bodies() -> list[dict[str, Any]]:
            return [body for _, _, body in list(server.seen)]

        def until(end: int, count: int) -> None:
            wait_for("the state", state.exists)
            node.grow(end)
            wait_for(f"{count} reports", lambda: len(bodies()) >= count)

        for end in (113, 156, 217):
            count = len(expected(100, end))
            last = watched(node, partial(until, end, count), "--webhook", url, "--state", state, "--json")
            assert "ClusterAction" in last.stderr.splitlines()[-1]
        printed = [json.loads(line) for line in last.stdout.splitlines()]
        found = [(body["offset"], body["kind"], body["entity"]) for body in bodies()]
        assert found == expected(100, 217)
        assert len({body["id"] for body in bodies()}) == len(found)
        assert printed == bodies()[len(bodies()) - len(printed) :]


def test_a_report_that_was_not_noted_is_repeated_with_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, state = Growing(), tmp_path / "state.json"
    own, notes, wanted = StateFile.store, list[Any](), expected(100, 133)

    def store(self: StateFile, reported: Any) -> None:
        notes.append(reported)
        if len(notes) == 3:
            raise DiskError(str(state), "append", "no space left on device")
        own(self, reported)

    with hook_server() as server, on_a_thread(node):
        url = f"http://127.0.0.1:{server.server_port}/"

        def grow() -> None:
            wait_for("the state", state.exists)
            node.grow(133)
            wait_for("two reports", lambda: len(server.seen) >= 2)

        def all_there() -> None:
            wait_for("the rest", lambda: len(server.seen) > len(wanted))

        with monkeypatch.context() as patched:
            patched.setattr(StateFile, "store", store)
            grower = threading.Thread(target=grow, daemon=True)
            grower.start()
            words = ("--webhook", url, "--state", state, "--severity", SEVERITY)
            failed = run("watch", "--bootstrap", f"127.0.0.1:{node.port}", *words)
            grower.join()
        assert failed.exit_code == 1
        assert "cannot be noted" in failed.stderr and "no space left" in failed.stderr.splitlines()[-1]
        watched(node, all_there, "--webhook", url, "--state", state)
    ids = [str(body["id"]) for _, _, body in server.seen]
    assert ids[1] == ids[2] and len(set(ids)) == len(ids) - 1 == len(wanted)


def test_a_watch_may_begin_in_the_past_and_only_count(tmp_path: Path) -> None:
    node, state = Growing(), tmp_path / "state.json"

    def is_done() -> None:
        wait_for("all notes", lambda: state.exists() and json.loads(state.read_text())["offset"] == last)

    last = expected(40, 101)[-1][0]
    with on_a_thread(node):
        found = watched(node, is_done, "--prometheus", "0", "--state", state, "--from", "40")
    assert "metrics at http://127.0.0.1:" in found.stderr
    assert len(found.stdout.splitlines()) == len(expected(40, 101))


def test_a_state_beyond_the_log_or_of_another_cluster_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaquorum.cli.log.watch.SHORT_S", 0.2)
    node, state = Growing(), tmp_path / "state.json"
    words = ("--prometheus", "0", "--state", state)
    with on_a_thread(node):
        for cluster_id, offset, problem in (
            (CLUSTER, 5_000, "committed records were lost, or it is"),
            ("other", 1, "is about cluster other"),
        ):
            state.write_text(json.dumps({"clusterId": cluster_id, "offset": offset}))
            found = run("watch", "--bootstrap", f"127.0.0.1:{node.port}", *words)
            assert found.exit_code == 1 and problem in found.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "give --bootstrap HOST:PORT"),
        (("-b", "h:1"), "give --webhook URL, --exec COMMAND or --prometheus PORT"),
        (("-b", "h:1", "--webhook", "http://h", "--exec", "true"), "are two watches"),
        (("-b", "h:1", "--webhook", "h"), "begins with http:// or https://"),
        (("-b", "h:1", "--exec", "/no/such"), "there is no program '/no/such'"),
        (("-b", "h:1", "--prometheus", "70000"), "is neither PORT nor HOST:PORT"),
        (("-b", "h:1", "--prometheus", "x"), "is neither PORT nor HOST:PORT"),
        (("-b", "h:1", "--webhook", "http://h", "--severity", "loud"), "'loud' is not one of"),
        (("-b", "h:1", "--webhook", "http://h", "/a/path"), "unexpected extra argument"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: tuple[str, ...], problem: str) -> None:
    found = CliRunner().invoke(main, ["log", "watch", *arguments])
    assert found.exit_code == 2 and problem in found.stderr.splitlines()[-1]

"""`--bootstrap` of the log commands: what is refused, in one line, and that nothing stays behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from metaquorum.cli.interrupts import EXIT_TERMINATED
from metaquorum.cli.log.input.live import Live, LiveCopy
from metaquorum.clients.kafka.live_log import LiveSource
from tests.conftest import REPOSITORY
from tests.unit.cli.running import run_log as run
from tests.unit.server.nodes import silent_port

UPGRADE = REPOSITORY / "tests" / "data" / "kafka-3.7-upgrade"
LIVE = ["dump", "state", "diff", "history", "timeline", "shell", "why", "bisect", "check", "archive"]


@pytest.mark.parametrize("command", LIVE)
def test_every_command_that_reads_a_log_can_read_a_running_quorum(command: str) -> None:
    shown = run(command, "--help").stdout
    for option in ("--bootstrap", "--timeout", "--truststore", "--keystore", "--rate"):
        assert option in shown


@pytest.mark.parametrize(
    "arguments",
    [("state",), ("dump",), ("timeline",), ("history",), ("why", "broker/1"), ("diff", "1", "2"), ("shell",)],
    ids=lambda arguments: arguments[0],
)
def test_a_quorum_that_does_not_answer_is_one_line(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with silent_port() as port:
        result = run(*arguments, "--bootstrap", f"127.0.0.1:{port}", "--timeout", "0.2")
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert f"no node at 127.0.0.1:{port} answered" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("state", "--bootstrap", "nonsense"), 1, "'nonsense' is not an address"),
        (("dump", "--follow", "--bootstrap", "nonsense"), 1, "'nonsense' is not an address"),
        (
            ("state", "-b", "127.0.0.1:9", "--command-config", "c", "--truststore", "t"),
            2,
            "either in --command-config or as options",
        ),
        (("archive", "-b", "127.0.0.1:9", "--verify"), 2, "leave out --bootstrap"),
        (("archive", "-b", "127.0.0.1:9"), 2, "give one of --to NAME.mqa"),
        (("archive", "-b", "127.0.0.1:9", "--to", "/dev/null/below.mqa"), 1, "is not a directory"),
        (("archive", "-b", "127.0.0.1:9", "--to", "logs.tar"), 2, "must end in .mqa"),
        (("bisect", "-b", "127.0.0.1:9"), 2, "give either --check NAME or --predicate EXPR"),
        (("bisect", "-b", "127.0.0.1:9", "--predicate", "("), 2, "--predicate: "),
        (("summary", "-b", "127.0.0.1:9", "--last", "1h", "--from", "5"), 2, "give --last or --from"),
        (("timeline", "-b", "127.0.0.1:9", "--from", "9", "--to", "5"), 2, "swap them"),
        (("timeline", "-b", "127.0.0.1:9", "--follow", "--from", "9", "--to", "5"), 2, "swap them"),
        (("diff", "-b", "127.0.0.1:9", "5", "now"), 2, "write B in the same form as A"),
        (("state", str(UPGRADE), "topic", "--bootstrap", "127.0.0.1:9"), 2, "there is no entity"),
        (("state", "--bootstrap", "127.0.0.1:9", "--truststore", "/nowhere.pem"), 1, "/nowhere.pem"),
        (("state", "--bootstrap"), 2, "requires an argument"),
    ],
)
def test_what_is_wrong_is_said_before_anybody_is_asked(
    arguments: tuple[str, ...], code: int, part: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    assert part in line


class Copied:
    """Stands for the copy of a running quorum's log."""

    def __init__(self, live: object, directory: str) -> None:
        shutil.copytree(UPGRADE, Path(directory) / "__cluster_metadata-0")

    def refresh(self) -> str:
        return "read all"

    close = refresh

    def voters(self) -> list[object]:
        return []


def test_what_the_log_does_not_hold_is_said_of_the_cluster_and_not_of_its_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metaquorum.cli.log.input.live.LiveCopy", Copied)
    for given, said in (
        ((), "the cluster's log never holds topic/nope; list what it holds with: metaquorum log state"),
        (("--from", "9"), "the cluster's log has no row for topic/nope between"),
    ):
        result = run("history", "topic/nope", *given, "--bootstrap", "127.0.0.1:9")
        assert result.exit_code == 1
        assert said in result.stderr and "metaquorum-live" not in result.stderr
    assert "log state --bootstrap 127.0.0.1:9" in run("history", "topic/nope", "-b", "127.0.0.1:9").stderr


def test_what_is_closed_before_it_begins_does_not_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the thread that copies still imports its modules."""
    began, may_begin = threading.Event(), threading.Event()
    real = LiveCopy._source

    def slowly(copy: LiveCopy) -> LiveSource:
        began.set()
        assert may_begin.wait(60)
        return real(copy)

    monkeypatch.setattr(LiveCopy, "_source", slowly)
    with silent_port() as port:
        live = Live(
            bootstrap=f"127.0.0.1:{port}",
            timeout_s=600,
            truststore=None,
            keystore=None,
            command_config=None,
            rate=None,
        )
        copy = LiveCopy(live, str(tmp_path))
        copy._thread = threading.Thread(target=copy._follow, daemon=True)
        copy._thread.start()
        assert began.wait(60)
        closed = threading.Thread(target=copy.close, daemon=True)
        closed.start()
        while not copy._is_closed:
            time.sleep(0.001)
        may_begin.set()
        closed.join(60)
        assert not closed.is_alive()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("check",), "the cluster's log: offsets 0 to"),
        (("state", "--at", "99999"), "the cluster's log ends at offset"),
        (("state", "--at", "1970-01-02"), "the cluster's log begins at"),
        (("timeline", "--to", "99999"), "the cluster's log ends at offset"),
        (("summary", "--to", "99999"), "the cluster's log ends at offset"),
        (("why", "broker/0", "--at", "99999+"), "the cluster's log has no record at offset"),
        (("bisect", "--predicate", "True", "--to", "99999"), "the cluster's log ends at offset"),
    ],
)
def test_a_running_clusters_log_is_not_named_by_its_copy(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr("metaquorum.cli.log.input.live.LiveCopy", Copied)
    result = run(*arguments, "--bootstrap", "127.0.0.1:9")
    assert said in result.output and "metaquorum-live" not in result.output


def test_files_are_read_as_before() -> None:
    assert run("state", UPGRADE, "feature/metadata.version").exit_code == 0
    assert run("state").exit_code == 2


def test_a_command_that_is_ended_removes_its_directory(tmp_path: Path) -> None:
    with silent_port() as port:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "metaquorum.cli",
                "log",
                "state",
                "-b",
                f"127.0.0.1:{port}",
                "--timeout",
                "100",
            ],
            cwd=REPOSITORY,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stderr=subprocess.PIPE,
        )
        try:
            deadline = time.monotonic() + 60
            while not (made := list(tmp_path.glob("metaquorum-live-*"))) and time.monotonic() < deadline:
                os.sched_yield()
            (directory,) = made
            assert directory.stat().st_mode & 0o777 == 0o700
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == EXIT_TERMINATED
            assert list(tmp_path.iterdir()) == []
        finally:
            process.kill()
            process.communicate()

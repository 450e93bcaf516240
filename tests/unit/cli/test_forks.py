"""Nodes as forks of one process: started, waited for, killed; and nodes whose starter is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from metaquorum.cli.layout import Layout, create
from metaquorum.cli.local import forks
from metaquorum.cli.local.cluster import Processes
from metaquorum.cli.local.forks import Forked, ForkError, ForkServer
from metaquorum.node.local_nodes import free_ports


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return create(tmp_path / "a cluster", controllers=1, brokers=0, ports=free_ports(1))


def start(server: ForkServer, directory: Path, *arguments: str, **environment: str) -> Forked:
    with (directory / "output").open("ab") as output:
        return server.start(
            arguments, environment=os.environ | environment, directory=directory, output=output.fileno()
        )


def wait_for_output(directory: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in (directory / "output").read_text():
        assert time.monotonic() < deadline, (directory / "output").read_text()
        time.sleep(0.02)


def test_a_command_runs_with_its_output_directory_environment_and_exit_code(
    server: ForkServer, tmp_path: Path
) -> None:
    (tmp_path / "node.properties").write_text("process.roles=nothing\n")
    child = start(server, tmp_path, "controller", "run", "node.properties")
    assert child.wait(60) == 1 and child.poll() == 1
    assert "metaquorum controller: node.properties" in (tmp_path / "output").read_text()
    assert start(server, tmp_path, "no-such-command").wait(60) == 2
    described = start(server, tmp_path, "quorum", "describe", METAQUORUM_BOOTSTRAP="nonsense")
    assert described.wait(60) == 1
    assert "nonsense" in (tmp_path / "output").read_text()


def test_nodes_run_side_by_side_under_their_own_names(
    server: ForkServer, layout: Layout, tmp_path: Path
) -> None:
    config = str(layout.config(layout.nodes[0]))
    first = start(server, tmp_path, "controller", "run", config)
    try:
        process = psutil.Process(first.pid)
        wait_for_output(tmp_path, "listens on")
        assert " ".join(process.cmdline()) == f"metaquorum controller run {config}"
        assert os.getsid(first.pid) == first.pid
        second = start(server, tmp_path, "controller", "run", config)
        assert second.wait(60) == 1, "the directory is in use"
        assert first.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(0.05)
        os.kill(first.pid, signal.SIGTERM)
        assert first.wait(60) == 0
    finally:
        first.kill()
    assert first.wait(10) == 0, "a process that has ended keeps its exit code"


def test_nodes_stay_when_their_starter_goes(layout: Layout, tmp_path: Path) -> None:
    server = ForkServer()
    child = start(server, tmp_path, "controller", "run", str(layout.config(layout.nodes[0])))
    try:
        wait_for_output(tmp_path, "listens on")
        server.close()
        assert psutil.Process(child.pid).is_running()
    finally:
        os.kill(child.pid, signal.SIGKILL)


def test_a_starter_whose_last_report_nobody_read_ends_in_order(tmp_path: Path) -> None:
    """Its end of the socket is reset then, not closed."""
    server = ForkServer()
    child = start(server, tmp_path, "no-such-command")
    deadline = time.monotonic() + 60
    while psutil.pid_exists(child.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    server.close()
    assert server._process.returncode == 0


def test_a_killed_node_says_so_and_a_killed_starter_too(server: ForkServer, tmp_path: Path) -> None:
    layout = create(tmp_path / "killed", controllers=1, brokers=0, ports=free_ports(1))
    child = start(server, tmp_path, "controller", "run", str(layout.config(layout.nodes[0])))
    wait_for_output(tmp_path, "listens on")
    child.kill()
    assert child.wait(60) == -signal.SIGKILL
    own = ForkServer()
    own._process.kill()
    with pytest.raises(ForkError, match="the process that starts nodes has ended"):
        start(own, tmp_path, "controller", "run", "nothing")
    own.close()


def test_a_pid_that_the_kernel_gives_again_has_no_exit_code_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Long runs start more processes than there are pids."""
    theirs: list[socket.socket] = []

    def answer_from_here(command: list[str], **given: object) -> None:
        theirs.append(socket.socket(fileno=os.dup(int(command[-1]))))

    monkeypatch.setattr(forks.subprocess, "Popen", answer_from_here)
    server = ForkServer()

    def report(**fields: int) -> None:
        theirs[0].send(msgspec.msgpack.encode(fields))

    report(pid=77)
    first = start(server, tmp_path, "first")
    report(pid=77, exit_code=3)
    assert first.poll() == 3
    report(pid=77)
    second = start(server, tmp_path, "second")
    assert second.poll() is None and first.poll() == 3
    report(pid=77, exit_code=0)
    assert (second.poll(), first.poll()) == (0, 3)
    theirs[0].close()


def test_what_was_begun_before_the_command_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ForkServer] = []

    def note(self: ForkServer) -> None:
        made.append(self)

    monkeypatch.setattr(ForkServer, "__init__", note)
    forks.begin()
    found = [forks.node_starter(), forks.node_starter()]
    assert found == made and len(made) == 2


class LateReport:
    """A child that is gone, and whose exit code comes while it is awaited."""

    def __init__(self) -> None:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        self.pid = gone.pid
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float) -> int:
        assert timeout > 0
        self.code = 3
        return 3


def test_a_node_that_is_gone_has_its_exit_code(layout: Layout) -> None:
    node = layout.nodes[0]
    processes = Processes(layout)
    processes._children[node.name] = LateReport()  # type: ignore[assignment]
    assert processes.wait_gone(node, 10.0)
    assert processes.exit_code(node) == 3

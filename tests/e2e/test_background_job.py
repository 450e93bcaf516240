"""A command that a script starts with `&` has SIGINT ignored: tests and commands stop on it nonetheless."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import COMMAND, ENVIRONMENT, REPOSITORY, run_cli, running

pytestmark = pytest.mark.e2e
IGNORED = ("bash", "-c", 'trap "" INT HUP; exec "$@"', "job")
"""Runs a command with both signals ignored, as a background job and nohup do."""


def test_the_tests_can_interrupt_what_they_start(tmp_path: Path) -> None:
    test = "tests/unit/cli/test_inspect.py::test_ctrl_c_ends_a_follower_without_a_word"
    done = subprocess.run(
        [*IGNORED, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=REPOSITORY,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_watch_and_its_cluster_end_in_order(tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "local"
    up = ("local", "up", "--watch", "--free-ports", "--controllers", 1, "--brokers", 0, "-d", directory)
    try:
        with running(*IGNORED[1:], *COMMAND, *up, prefix=IGNORED[:1], text=True) as process:
            assert process.stdout is not None
            while "leader 3000" not in (line := process.stdout.readline()):
                assert line, process.communicate()
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert "controller-3000: stopped" in out
    finally:
        run_cli("local", "down", "-d", directory)


def test_a_node_leaves_in_order_on_an_interrupt(tmp_path: Path) -> None:
    directory = tmp_path / "local"
    options = ("--free-ports", "--controllers", 1, "--brokers", 0, "-d", directory)
    run_cli("local", "up", *options, prefix=IGNORED)
    try:
        nodes = run_cli("local", "status", "-d", directory).stdout.splitlines()
        pid = nodes[2].split()[2]
        subprocess.run(["kill", "-INT", pid], check=True)
        log = directory / "controller-3000" / "process.log"
        with running(pid, "-f", log, prefix=("tail", "-n", "+1", "--pid"), text=True) as tail:
            assert tail.stdout is not None
            assert "SIGINT: shutting down" in tail.stdout.read()
    finally:
        run_cli("local", "down", "-d", directory)

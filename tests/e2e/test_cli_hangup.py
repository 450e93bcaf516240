"""`local up --watch` when its terminal closes: the cluster is shut down cleanly, not left running."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.processes import COMMAND, ENVIRONMENT, run_cli


def _running(directory: Path) -> int:
    status = json.loads(run_cli("local", "status", "-d", directory, "--json", expect=None).stdout)
    return sum(node["pid"] is not None for node in status["nodes"])


@pytest.mark.e2e
def test_a_terminal_that_closes_ends_the_cluster_in_order(tmp_path: Path) -> None:
    directory = tmp_path / "local"
    master, slave = pty.openpty()
    command = [*COMMAND, "local", "up", "--watch", "--free-ports", "-d", str(directory)]
    process = subprocess.Popen(
        [*command, "--controllers", "1", "--brokers", "1"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env=ENVIRONMENT,
    )
    os.close(slave)
    try:
        seen = b""
        while b"last events" not in seen:
            seen += os.read(master, 65_536)
        assert _running(directory) == 2
        os.close(master)
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=60) == 0
        assert _running(directory) == 0
    finally:
        process.kill()
        process.wait()
        run_cli("local", "down", "-d", directory, expect=None)

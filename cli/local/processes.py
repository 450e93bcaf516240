"""The processes of a local cluster: starts, finds, stops and kills them.

Owns `process.json` and the proof that a process is ours: we recorded its pid, its start time matches, and its
command line names our configuration file. It never signals any other process: the kernel may have reused a
recorded pid. Knows no protocol: `cluster` asks nodes whether they serve.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

import msgspec
import psutil

from metaquorum.cli.errors import Failure
from metaquorum.cli.layout import Layout, LocalNode
from metaquorum.cli.local.forks import Forked, ForkError, ForkServer
from metaquorum.storage.disk.private import private_file

STOP_WAIT_S = 40.0
"""Seconds before a node is killed: a broker's controlled shutdown takes up to 30 s by default."""
KILL_WAIT_S = 30.0
"""Seconds to wait after SIGKILL: a process that waits for a disk ends when the disk answers."""
_START_TOLERANCE_S = 2.0
_POLL_S = 0.02


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `process.json`. `created_s`: the process's start in Unix time."""

    pid: int
    created_s: float


class Processes:
    """The processes of one cluster, however started. `forks` starts them; None: a fork server of its own."""

    def __init__(self, layout: Layout, forks: ForkServer | None = None) -> None:
        self._layout = layout
        self._forks = forks
        self._children: dict[str, Forked] = {}

    def close(self) -> None:
        """Starts no more processes. Running ones continue."""
        if self._forks is not None:
            self._forks.close()
            self._forks = None

    def pid(self, node: LocalNode) -> int | None:
        """The pid of the node's running process, or None."""
        process = self._find(node)
        return None if process is None else process.pid

    def start(self, node: LocalNode) -> int:
        """Starts the node's process in its own session and records it. Raises Failure if one is running."""
        running = self.pid(node)
        if running is not None:
            raise Failure(
                f"{node.name} is already running (pid {running}); stop it with: metaquorum local down"
            )
        if self._forks is None:
            self._forks = ForkServer()
        with private_file(self._layout.log_file(node)).open("ab") as output:
            try:
                child = self._forks.start(
                    ["node" if node.role == "combined" else node.role, "run", str(self._layout.config(node))],
                    environment=os.environ,
                    directory=self._layout.home(node),
                    output=output.fileno(),
                )
            except ForkError as error:
                raise Failure(f"{node.name} did not start: {error}") from error
        self._children[node.name] = child
        record = ProcessRecord(pid=child.pid, created_s=psutil.Process(child.pid).create_time())
        private_file(self._layout.pid_file(node)).write_bytes(msgspec.json.encode(record))
        return child.pid

    def signal(self, node: LocalNode, number: int) -> bool:
        """Sends a signal to the node's process; False where none is running."""
        process = self._find(node)
        if process is None:
            return False
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return False
        return True

    def wait_gone(self, node: LocalNode, timeout_s: float) -> bool:
        """Waits until the node's process has ended. False: it has not within the time."""
        deadline = time.monotonic() + timeout_s
        while self._find(node) is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def kill(self, node: LocalNode) -> None:
        """Sends SIGKILL and waits for the end. Raises Failure if it does not end."""
        if self.signal(node, signal.SIGKILL) and not self.wait_gone(node, KILL_WAIT_S):
            raise Failure(f"{node.name} is still running after SIGKILL; inspect it with ps")
        self._layout.pid_file(node).unlink(missing_ok=True)

    def stop(self, node: LocalNode, wait_s: float = STOP_WAIT_S) -> str:
        """SIGTERM, a bounded wait, then SIGKILL. Returns `not running`, `stopped` or `killed`."""
        if not self.signal(node, signal.SIGTERM):
            self._layout.pid_file(node).unlink(missing_ok=True)
            return "not running"
        if self.wait_gone(node, wait_s):
            self._layout.pid_file(node).unlink(missing_ok=True)
            return "stopped"
        self.kill(node)
        return "killed"

    def clean(self, node: LocalNode) -> None:
        """Removes the record of a process that has ended."""
        self._layout.pid_file(node).unlink(missing_ok=True)

    def exit_code(self, node: LocalNode) -> int | None:
        """The exit code of a process that this object started and that has ended."""
        child = self._children.get(node.name)
        return None if child is None else child.poll()

    def last_line(self, node: LocalNode) -> str:
        """The last line that the node's process wrote, for a message about its end."""
        try:
            lines = self._layout.log_file(node).read_text(errors="replace").splitlines()
        except OSError:
            return "(no output)"
        return next((line for line in reversed(lines) if line.strip()), "(no output)")

    def ending(self, node: LocalNode) -> str | None:
        """The last line of a process that ended without a stop from here. None: it runs, or was stopped."""
        ended = self._layout.pid_file(node).exists() and self._find(node) is None
        return self.last_line(node) if ended else None

    def _find(self, node: LocalNode) -> psutil.Process | None:
        child = self._children.get(node.name)
        try:
            if child is not None and child.poll() is None:
                # Our child's pid cannot be reused before the child is waited for.
                with contextlib.suppress(psutil.NoSuchProcess):
                    return psutil.Process(child.pid)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(KILL_WAIT_S)  # it was waited for, and its exit code will arrive
            # The node may have been started again since by another command.
            record = msgspec.json.decode(self._layout.pid_file(node).read_bytes(), type=ProcessRecord)
            process = psutil.Process(record.pid)
            ours = (
                process.status() != psutil.STATUS_ZOMBIE
                and abs(process.create_time() - record.created_s) < _START_TOLERANCE_S
                and str(self._layout.config(node)) in " ".join(process.cmdline())
            )
        except (FileNotFoundError, msgspec.MsgspecError, psutil.Error):
            return None
        return process if ours else None

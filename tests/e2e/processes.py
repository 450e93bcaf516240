"""Real processes for tests and benchmarks: started, signalled by pid, waited for with a deadline, never
leaked.

Nothing here sleeps for a fixed time: `wait_until` polls until a condition holds or its time is up.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from metaquorum.cli.local.forks import ForkServer, NewProcesses, OwnerPipe, StartedProcess, node_starter
from tests.e2e.forked_commands import run_forked

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "metaquorum.cli")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}
ENVIRONMENT.pop("METAQUORUM_BOOTSTRAP", None)
ENVIRONMENT.pop("METAQUORUM_BOOTSTRAP_CONTROLLERS", None)

POLL_S = 0.02
EXIT_WAIT_S = 40.0
"""How long a process may take to end: generous, for a machine with other work."""

COMMAND_WAIT_S = 100.0

T = TypeVar("T")
_alive: dict[int, StartedProcess] = {}


@functools.cache
def _forks() -> ForkServer | NewProcesses:
    """One for all nodes of this test run: their imports would be a third of its processor time. However this
    process ends, they end with it."""
    return node_starter(OwnerPipe())


class Timeout(AssertionError):
    """A condition did not come true in time."""


def wait_until(
    condition: Callable[[], T | None],
    what: str,
    *,
    timeout_s: float = 30.0,
    details: Callable[[], str] = lambda: "",
) -> T:
    """The first true value that `condition` returns. Raises Timeout, with the last value and `details`."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Timeout(f"waited {timeout_s:.0f} s for {what}; last seen: {found!r}\n{details()}")
        time.sleep(POLL_S)


def run_cli(
    *arguments: object, expect: int | None = 0, prefix: Sequence[str] = (), given: str = ""
) -> subprocess.CompletedProcess[str]:
    """The command, run to its end. `expect` None: any exit code. `prefix`: a command that runs it; `given`:
    its standard input."""
    words = [str(each) for each in arguments]
    if prefix:
        command = [*prefix, *COMMAND, *words]
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMMAND_WAIT_S,
            env=ENVIRONMENT,
            input=given,
            check=False,
        )
    else:
        result = run_forked(words, environment=ENVIRONMENT, given=given, timeout_s=COMMAND_WAIT_S)
    if expect is not None:
        assert result.returncode == expect, f"{arguments} gave {result.returncode}: {result.stderr}"
    assert "Traceback" not in result.stderr, result.stderr
    return result


@contextlib.contextmanager
def running(
    *arguments: object, prefix: Sequence[str] = COMMAND, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """The command, running during the test. However the test ends, the process has ended then. `prefix`: what
    runs it instead; `options`: those of subprocess."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT, **options}
    child: subprocess.Popen[Any] = subprocess.Popen([*prefix, *map(str, arguments)], **options)
    try:
        yield child
    finally:
        child.kill()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        child.wait(EXIT_WAIT_S)


class Process:
    """One process of the command at a time, started any number of times; its output goes to a file."""

    def __init__(self, name: str, arguments: Sequence[object], log_file: Path) -> None:
        self.name = name
        self.log_file = log_file
        self._arguments = [str(each) for each in arguments]
        self._child: StartedProcess | None = None
        self._output_from = 0

    def start(self, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        """Starts it. `prefix`: a command that runs it, such as setpriv; `environment`: additional
        variables."""
        if self.is_running:
            raise AssertionError(f"{self.name} runs already")
        with self.log_file.open("ab") as output:
            self._output_from = output.tell()
            if prefix:
                self._child = subprocess.Popen(
                    [*prefix, *COMMAND, *self._arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=ENVIRONMENT,
                    cwd=self.log_file.parent,
                )
            else:
                self._child = _forks().start(
                    self._arguments,
                    environment={**ENVIRONMENT, **(environment or {})},
                    directory=self.log_file.parent,
                    output=output.fileno(),
                )
        _alive[self._child.pid] = self._child

    @property
    def pid(self) -> int:
        if self._child is None:
            raise AssertionError(f"{self.name} was never started")
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        if self._child is None:
            return None
        code = self._child.poll()
        if code is not None:
            _alive.pop(self._child.pid, None)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the running process."""
        if not self.is_running:
            raise AssertionError(f"{self.name} does not run: exit code {self.exit_code}\n{self.output()}")
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9; returns when it has ended."""
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)
            self.wait_exit()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait_exit()

    def pause(self) -> None:
        """SIGSTOP: no connection is reset, nothing responds."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def limit_file_size(self, limit_bytes: int) -> None:
        """From now on no file of the running process can grow beyond the limit: write fails with EFBIG."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    def wait_exit(self, timeout_s: float = EXIT_WAIT_S) -> int:
        """The exit code of a process that is ending."""
        if self._child is None:
            raise AssertionError(f"{self.name} was never started")
        try:
            code = self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Timeout(f"{self.name} did not end within {timeout_s:.0f} s\n{self.output()}") from None
        _alive.pop(self._child.pid, None)
        return code

    def output(self) -> str:
        """What this run has written so far, or the last run if it has ended."""
        with self.log_file.open("rb") as file:
            file.seek(self._output_from)
            return file.read().decode(errors="replace")

    def lines(self) -> list[str]:
        return [line for line in self.output().splitlines() if line.strip()]

    def last_line(self) -> str:
        return next(iter(self.lines()[-1:]), "(nothing)")

    def wait_for_line(self, part: str, timeout_s: float = 30.0) -> str:
        """The first line of this run that contains `part`."""

        def found() -> str | None:
            line = next((line for line in self.lines() if part in line), None)
            if line is None and not self.is_running:
                raise AssertionError(f"{self.name} ended without saying {part!r}\n{self.output()}")
            return line

        return wait_until(found, f"{self.name} to say {part!r}", timeout_s=timeout_s, details=self.output)


def _kill_leftovers() -> None:
    for child in list(_alive.values()):
        if child.poll() is None:
            child.kill()
            child.wait(10)


atexit.register(_kill_leftovers)

"""Nodes that start as forks of one process, which has imported everything: six nodes cost one import.

Where forks are unsafe (`platforms`), each node is a new process. The forking process reads one message per
node from a socket: how to start it (`_Order`), with the file for its output. It answers with the pid, and
later, when the node has ended, with the exit status. It ends when the socket is closed; the nodes continue.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

import msgspec

from metaquorum.cli.__main__ import OWNER_PIPE
from metaquorum.platforms import call_in_forks, forks_are_safe

_MESSAGE_MAX = 1 << 18
_START_WAIT_S = 60.0
_END_WAIT_S = 10.0
_POLL_S = 0.02


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    arguments: tuple[str, ...]
    environment: dict[str, str]
    directory: str


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    """`exit_code` None: the process has just started."""

    pid: int
    exit_code: int | None = None


class ForkError(Exception):
    """No process could be started; the text has the reason."""


class Forked:
    """A process that a ForkServer started, with the methods of subprocess.Popen."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.exit_code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.exit_code is None:
            self._server.read_reports()
        return self.exit_code

    def wait(self, timeout: float) -> int:
        """The exit code, awaited for up to `timeout` seconds. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_S)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class StartedProcess(Protocol):
    """What both a fork and subprocess.Popen have."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...
    def kill(self) -> None: ...


class OwnerPipe:
    """A pipe whose writing end only this process has: its end is seen at the other one, however it ends."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()
        _pipes.add(self)

    def close(self) -> None:
        """As the end of this process."""
        self.let_go()
        os.close(self.reading)

    def let_go(self) -> None:
        """Closes the writing end."""
        writing, self._writing = self._writing, -1
        if writing >= 0:
            os.close(writing)


_pipes: weakref.WeakSet[OwnerPipe] = weakref.WeakSet()


def _let_go_in_fork() -> None:
    """A fork of the owner is not the owner."""
    for pipe in list(_pipes):
        pipe.let_go()


call_in_forks(_let_go_in_fork)


def node_starter(owner: OwnerPipe | None = None) -> ForkServer | NewProcesses:
    """The server that `begin` created, or a new one. `owner`: the nodes end with this process."""
    if owner is not None:
        return ForkServer(owner) if forks_are_safe() else NewProcesses(owner)
    made, _early[:] = _early[:], []
    return made[0] if made else ForkServer() if forks_are_safe() else NewProcesses()


def _owned(environment: Mapping[str, str], owner: OwnerPipe | None) -> dict[str, str]:
    return {**environment} if owner is None else {**environment, OWNER_PIPE: str(owner.reading)}


class NewProcesses:
    """Starts nodes as new processes, with the methods of ForkServer."""

    def __init__(self, owner: OwnerPipe | None = None) -> None:
        self._owner = owner

    def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], directory: Path, output: int
    ) -> StartedProcess:
        """See `ForkServer.start`."""
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "metaquorum.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=directory,
                env=_owned(environment, self._owner),
                start_new_session=True,
                pass_fds=[] if self._owner is None else [self._owner.reading],
            )
        except OSError as error:
            raise ForkError(str(error)) from error

    def close(self) -> None:
        """The nodes continue."""


class ForkServer:
    """Starts nodes. Thread-safe. Starts importing when it is created."""

    def __init__(self, owner: OwnerPipe | None = None) -> None:
        self._owner = owner
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._running: dict[int, Forked] = {}
        """By pid. Without those that have ended: the kernel may reuse their pids."""
        self._was_asked = False
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "metaquorum.cli.local.forks", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno(), *([] if owner is None else [owner.reading])],
            )

    def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], directory: Path, output: int
    ) -> Forked:
        """Starts `metaquorum ARGUMENTS` in its own session. `output`: a file descriptor. Raises ForkError."""
        order = _Order(
            arguments=tuple(arguments),
            environment=_owned(environment, self._owner),
            directory=str(directory),
        )
        with self._lock:
            self._was_asked = True
            try:
                socket.send_fds(self._socket, [msgspec.msgpack.encode(order)], [output])
                self._socket.settimeout(_START_WAIT_S)
                while (report := self._read()).exit_code is not None:
                    self._note_end(report)
            except (OSError, EOFError) as error:
                raise ForkError(f"the process that starts nodes has ended: {error}") from error
            started = self._running[report.pid] = Forked(self, report.pid)
        return started

    def read_reports(self) -> None:
        """Sets the exit codes of processes that have ended."""
        with self._lock:
            self._socket.settimeout(0)
            with contextlib.suppress(BlockingIOError, EOFError, ConnectionError):
                while True:
                    self._note_end(self._read())

    def _note_end(self, report: _Report) -> None:
        ended = self._running.pop(report.pid, None)  # None: its start was given up
        if ended is not None:
            ended.exit_code = report.exit_code

    def close(self) -> None:
        """Ends the server process. The nodes that it started continue."""
        self._socket.close()
        if not self._was_asked:
            self._process.kill()  # it may still be importing
        try:
            self._process.wait(_END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> _Report:
        data = self._socket.recv(_MESSAGE_MAX)
        if not data:
            raise EOFError("it closed the connection")
        return msgspec.msgpack.decode(data, type=_Report)


_early: list[ForkServer] = []


def begin() -> None:
    """Creates the server for a command before the command is imported."""
    if forks_are_safe():
        with contextlib.suppress(OSError):  # the command tries again, and says why it cannot
            _early.append(ForkServer())


def _serve(orders: socket.socket) -> _Order:
    """Runs until the other end closes the socket, then ends the process. In a fork, returns its order."""
    awake, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _woken)
    while True:
        ready, _, _ = select.select([orders.fileno(), awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
            _report_ended(orders)
        if orders.fileno() not in ready:
            continue
        try:
            data, files, _, _ = socket.recv_fds(orders, _MESSAGE_MAX, 1)
        except ConnectionResetError:  # the other end closed the socket before it read a report
            data = b""
        if not data:
            os._exit(0)
        order = msgspec.msgpack.decode(data, type=_Order)
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            orders.close()
            os.close(awake)
            os.close(waking)
            os.setsid()
            os.dup2(files[0], 1)
            os.dup2(files[0], 2)
            os.close(files[0])
            return order
        os.close(files[0])
        _send(orders, _Report(pid=pid))


def _woken(number: int, frame: FrameType | None) -> None:
    """Does nothing: waking up is enough."""


def _report_ended(orders: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _send(orders, _Report(pid=pid, exit_code=os.waitstatus_to_exitcode(status)))


def _send(orders: socket.socket, report: _Report) -> None:
    # If the other end is gone, the next read of the socket ends this process.
    with contextlib.suppress(ConnectionError):
        orders.send(msgspec.msgpack.encode(report))


def _main() -> None:
    import gc
    import importlib

    # Must be first: it searches for the command line in memory, and a changed environment hides it.
    from setproctitle import getproctitle, setproctitle

    from metaquorum.cli.__main__ import main, prepare_node

    getproctitle()
    orders = socket.socket(fileno=int(sys.argv[1]))
    # A library of numpy's starts threads at import, and a fork would not have them.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    prepare_node()
    gc.disable()  # imports leave little garbage
    for name in ("metaquorum.cli.main", "metaquorum.combined.process"):
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    order = _serve(orders)
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.directory)
    sys.argv = ["metaquorum", *order.arguments]
    setproctitle(" ".join(sys.argv))
    main()


if __name__ == "__main__":
    _main()

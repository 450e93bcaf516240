"""The processes that compact logs: a broker has `log.cleaner.threads` of them for all its directories.

Each process starts with its first pass and ends after a while without one. The directory's io thread begins a
pass and swaps in its result. A broker without a process of its own compacts on the threads that would
communicate with the processes: its disk may be in memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from metaquorum.broker.server.data.cleaner_process import Begin, Continue, Drop, Order, Passes, main
from metaquorum.storage.cleaner.cleaning import Cleaning, CleaningEndedError, CleaningResult, Staged
from metaquorum.storage.disk.interface import Disk

IDLE_S = 60.0
"""A process without a pass ends after this long: its memory is needed elsewhere."""

ENDING_S = 5.0
"""How long a process that has closed its connection may take to end."""

Done = Callable[[Cleaning, Exception | None], None]
"""Called on a thread of the cleaners: something is staged, or the pass has ended, or failed."""

_MAIN = f"from {main.__module__} import main; main()"

_log = logging.getLogger(__name__)


class _Step(msgspec.Struct, frozen=True):
    cleaning: Cleaning
    done: Done


class _Forget(msgspec.Struct, frozen=True):
    cleaning: Cleaning


class CleanerProcesses:
    """See the module. `bytes_per_second` of reads and writes, for all processes together. `disk`: the disk
    to compact on in this process; None: processes do it on the real one."""

    def __init__(self, count: int, bytes_per_second: float, disk: Disk | None = None) -> None:
        rate = bytes_per_second / max(count, 1)
        self._cleaners = [_Cleaner(number, rate, disk) for number in range(count)]
        self._cleaner_of: dict[Cleaning, _Cleaner] = {}

    @property
    def enabled(self) -> bool:
        """Whether anything is ever compacted."""
        return bool(self._cleaners)

    def start(self) -> None:
        for cleaner in self._cleaners:
            cleaner.start()

    def stop(self) -> None:
        """Stops at once. What is not swapped in by then is removed at the next start."""
        for cleaner in self._cleaners:
            cleaner.stop()

    def submit(self, cleaning: Cleaning, done: Done) -> None:
        """Works on the pass until something is staged, or to its end."""
        at = self._cleaner_of.get(cleaning)
        if at is None:
            at = self._cleaner_of[cleaning] = min(self._cleaners, key=_Cleaner.load)
        at.put(_Step(cleaning, done))

    def forget(self, cleaning: Cleaning) -> None:
        """The pass is over."""
        at = self._cleaner_of.pop(cleaning, None)
        if at is not None:
            at.put(_Forget(cleaning))


class _OwnThread:
    """Passes without a process, used like the connection to one."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._answer: object = None

    def send(self, order: Order) -> None:
        self._answer = self._passes.take(order)

    def recv(self) -> Any:
        return self._answer

    def close(self) -> None:
        self._passes.close()


class _Cleaner:
    """One process and the thread that communicates with it."""

    def __init__(self, number: int, bytes_per_second: float, disk: Disk | None) -> None:
        self._disk = disk
        self._name = f"log cleaner {number}"
        self._bytes_per_second = bytes_per_second
        self._orders: SimpleQueue[_Step | _Forget | None] = SimpleQueue()
        self._numbers: dict[Cleaning, int] = {}
        self._next_number = count(1).__next__
        self._lock = threading.Lock()
        self._stopping = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | _OwnThread | None = None

    def load(self) -> int:
        return self._orders.qsize() + len(self._numbers)

    def put(self, order: _Step | _Forget) -> None:
        self._orders.put(order)

    def start(self) -> None:
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            self._kill()
        self._orders.put(None)

    # ---- on its thread

    def _run(self) -> None:
        while True:
            idle = self._connection is not None and not self._numbers
            try:
                order = self._orders.get(timeout=IDLE_S if idle else None)
            except Empty:
                self._end()
                continue
            if order is None:
                return
            if isinstance(order, _Forget):
                self._forget(order.cleaning)
                continue
            error = self._step(order.cleaning)
            if not self._stopping:
                order.done(order.cleaning, error)

    def _step(self, cleaning: Cleaning) -> Exception | None:
        """The error that ended the pass."""
        number = self._numbers.get(cleaning)
        if number is None and cleaning.is_begun:
            return CleaningEndedError()  # the process that held its keys is gone
        try:
            if number is None:
                number = self._numbers[cleaning] = self._next_number()
                cleaning.is_begun = True
                given = self._ask(Begin(number, cleaning.task, self._bytes_per_second))
            else:
                given = self._ask(Continue(number))
        except (OSError, EOFError) as error:
            self._lost(error)
            return CleaningEndedError()
        if not isinstance(given, Staged):
            del self._numbers[cleaning]
        if isinstance(given, Exception):
            return given
        cleaning.take(given)
        return None

    def _forget(self, cleaning: Cleaning) -> None:
        number = self._numbers.pop(cleaning, None)
        if number is not None and self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.send(Drop(number))

    def _ask(self, order: Order) -> Staged | CleaningResult | Exception:
        if self._connection is None:
            self._connection = self._started()
        self._connection.send(order)
        return self._connection.recv()  # type: ignore[no-any-return]

    def _started(self) -> Connection | _OwnThread:
        if self._disk is not None:
            return _OwnThread(Passes(self._until_stopped(), self._disk))
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            if self._stopping:
                raise EOFError
            # What Popen holds of the standard input is the end of the pipe that only this process has.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(theirs.fileno()), "0", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return Connection(ours.detach())

    def _until_stopped(self) -> Iterator[None]:
        while not self._stopping:
            yield
        raise CleaningEndedError

    def _lost(self, error: Exception) -> None:
        """The logs are found dirty again at the next search."""
        self._numbers.clear()
        if not self._stopping:
            code, reason = self._exit_code(), f"{type(error).__name__}: {error}"
            reason = reason if code is None else f"exit code {code}"
            _log.warning("%s was lost (%s): its logs are compacted later", self._name, reason)
        self._end()

    def _exit_code(self) -> int | None:
        """None if it did not start, or is running."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(ENDING_S)
        return None

    def _end(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            self._kill()
        if connection is not None:
            connection.close()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

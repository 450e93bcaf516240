"""The process that compacts logs for a broker: passes come in, staged segments and results go out.

Leaves the interpreter of its broker to clients. Owns the bound on bytes per second, the low priority, and its
own end: with its broker, however that ends, so that two never work in one directory. It swaps nothing in.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection

import msgspec

from metaquorum.storage.cleaner.cleaning_pass import CleaningPass
from metaquorum.storage.cleaner.task import CleaningEndedError, CleaningTask
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import StorageError

NICENESS = 10
"""Clients' requests come first; if every processor is busy, compaction gets a tenth of one."""

OPEN_FILES = 16
PAUSE_MAX_S = 1.0
_PR_SET_PDEATHSIG = 1


class Begin(msgspec.Struct, frozen=True):
    """A new pass, identified by `number` from now on; the answer is its first step."""

    number: int
    task: CleaningTask
    bytes_per_second: float


class Continue(msgspec.Struct, frozen=True):
    """What the pass has staged was swapped in; the answer is the next step."""

    number: int


class Drop(msgspec.Struct, frozen=True):
    """The pass has ended; there is no answer."""

    number: int


Order = Begin | Continue | Drop
Pieces = Generator[int, None, None]


class BugError(Exception):
    """An unexpected error, with its traceback."""


class Passes:
    """The passes in progress, by number. `alive` raises when the broker is gone."""

    def __init__(self, alive: Iterator[None]) -> None:
        self._alive = alive
        self._disk = PosixDisk()
        self._pool = FilePool(self._disk, OPEN_FILES)
        self._under_way: dict[int, tuple[CleaningPass, Pieces]] = {}

    def drop(self, number: int) -> None:
        _, pieces = self._under_way.pop(number)
        pieces.close()

    def begin(self, order: Begin) -> object:
        work = CleaningPass(order.task, self._disk, self._pool, self._check)
        self._under_way[order.number] = work, _paced(work.pieces(), order.bytes_per_second)
        return self.step(order.number)

    def step(self, number: int) -> object:
        """A `Staged`, the `CleaningResult`, or the error that ended the pass."""
        work, pieces = self._under_way[number]
        try:
            for _ in pieces:
                if work.staged is not None:
                    staged, work.staged = work.staged, None
                    return staged
        except (StorageError, CleaningEndedError) as error:
            del self._under_way[number]
            return error
        except Exception:
            del self._under_way[number]
            return BugError(traceback.format_exc())
        del self._under_way[number]
        return work.result

    def _check(self) -> None:
        next(self._alive)


def _paced(pieces: Pieces, bytes_per_second: float) -> Pieces:
    """The same pieces, each no earlier than the rate allows."""
    with contextlib.closing(pieces):
        begun_s, used = time.monotonic(), 0
        for size in pieces:
            used += size
            ahead_s = used / bytes_per_second - (time.monotonic() - begun_s)
            if ahead_s > 0:
                time.sleep(min(ahead_s, PAUSE_MAX_S))
            yield size


def _alive(broker: Connection) -> Iterator[None]:
    """While this process works it gets no requests: anything readable is the end of the connection."""
    while not broker.poll():
        yield
    os._exit(0)


def serve(broker: Connection) -> None:
    """Runs until the broker closes its end."""
    passes = Passes(_alive(broker))
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            match broker.recv():
                case Begin() as order:
                    broker.send(passes.begin(order))
                case Continue(number=number):
                    broker.send(passes.step(number))
                case Drop(number=number):
                    passes.drop(number)
                case other:
                    raise BugError(f"an order of type {type(other).__name__}")


def _end_with_the_broker(broker_pid: int) -> None:
    """If the kernel supports it; elsewhere `_alive` notices before the next file is touched."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != broker_pid:
        os._exit(0)


def main() -> None:
    """Arguments: the descriptor of a socket to the broker, and the broker's pid."""
    descriptor, broker_pid = map(int, sys.argv[1:3])
    _end_with_the_broker(broker_pid)
    os.nice(NICENESS)
    serve(Connection(descriptor))

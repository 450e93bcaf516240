"""The process that compacts logs for a broker: passes come in, staged segments and results go out.

Leaves the interpreter of its broker to clients. The bound on bytes per second, the low priority, and its own
end: with its broker, however that ends, so that two never work in one directory. It swaps nothing in.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection
from typing import assert_never

import msgspec

from metaquorum.platforms import end_with_parent, lower_priority
from metaquorum.storage.cleaner.cleaning import CleaningEndedError, CleaningPass, CleaningTask
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import StorageError

NICENESS = 10
"""Clients' requests come first; if every processor is busy, compaction gets a tenth of one."""

OPEN_FILES = 16
PAUSE_MAX_S = 1.0


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

    def __init__(self, alive: Iterator[None], disk: Disk) -> None:
        self._alive = alive
        self._disk = disk
        self._pool = FilePool(self._disk, OPEN_FILES)
        self._under_way: dict[int, tuple[CleaningPass, Pieces]] = {}

    def take(self, order: Order) -> object:
        """The answer to an order; None if it has none."""
        match order:
            case Begin():
                return self.begin(order)
            case Continue(number=number):
                return self.step(number)
            case Drop(number=number):
                self.drop(number)
                return None
            case other:
                assert_never(other)

    def drop(self, number: int) -> None:
        _, pieces = self._under_way.pop(number)
        pieces.close()

    def close(self) -> None:
        """Ends every pass."""
        for number in list(self._under_way):
            self.drop(number)

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
    passes = Passes(_alive(broker), PosixDisk())
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            answer = passes.take(broker.recv())
            if answer is not None:
                broker.send(answer)


def main() -> None:
    """Arguments: the descriptors of a socket to the broker and of a pipe that ends with it, and its pid."""
    descriptor, pipe, broker_pid = map(int, sys.argv[1:4])
    end_with_parent(broker_pid, pipe)
    lower_priority(NICENESS)
    serve(Connection(descriptor))

"""File descriptors kept in reserve: a log, a snapshot or a vote can always be opened.

A process without free descriptors (EMFILE), or on a machine without any (ENFILE), gives one of the reserve
back to the system and tries again; it waits a moment for others to be closed if that does not help. The
reserve is refilled when there is room.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from metaquorum.platforms import OPEN_READ

NO_MORE = (errno.EMFILE, errno.ENFILE)
WAIT_S = 0.02
WAIT_MAX_S = 20.0
"""How long a call to the disk waits for a descriptor before it fails: less than a directory's
log.dir.hang.timeout.ms by default. Only a machine without any (ENFILE) makes it wait for long."""

T = TypeVar("T")


def _nothing() -> None:
    return


class Descriptors:
    """Thread-safe. `shortage` is called, on any thread, when the reserve is used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[int] = []
        self._wanted = 0
        self.shortage: Callable[[], None] = _nothing
        self.used = 0
        """How often a call needed the reserve."""

    def hold(self, count: int) -> None:
        """Keeps `count` descriptors in reserve from now on."""
        self._wanted = count
        self.refill()

    def __len__(self) -> int:
        return len(self._held)

    def refill(self) -> None:
        """Takes as many as are missing and free."""
        with self._lock, contextlib.suppress(OSError):
            while len(self._held) < self._wanted:
                self._held.append(os.open(os.devnull, OPEN_READ))
            while len(self._held) > self._wanted:
                os.close(self._held.pop())

    def use(self, call: Callable[[], T]) -> T:
        """Returns what `call` does, which opens a descriptor; tries again if none is free. Raises OSError."""
        try:
            opened = call()
        except OSError as error:
            if error.errno not in NO_MORE:
                raise
            return self._with_reserve(call)
        if len(self._held) < self._wanted:
            self.refill()
        return opened

    def _with_reserve(self, call: Callable[[], T]) -> T:
        self.used += 1
        self.shortage()
        deadline = time.monotonic() + WAIT_MAX_S
        while True:
            self._give_one()
            try:
                return call()
            except OSError as error:
                if error.errno not in NO_MORE or (not self._held and time.monotonic() > deadline):
                    raise
            if not self._held:
                time.sleep(WAIT_S)

    def _give_one(self) -> None:
        with self._lock:
            if self._held:
                os.close(self._held.pop())


DESCRIPTORS = Descriptors()
"""Those of this process; empty until it runs a node."""

"""Accepts the connections of one port: limits come first, before TLS, a login or any byte is read.

A process without free file descriptors accepts nothing for a while, closes connections whose clients are
not known yet, logs this once in a while, and continues by itself.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from metaquorum.metadata.text.addresses import address_text, plain_host
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot, CreationRate
from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.storage.disk.descriptors import DESCRIPTORS, NO_MORE

NO_MORE_FILES = (*NO_MORE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_S = 0.5
"""How long accepting pauses if the process has no file descriptor left."""
MADE_FREE = 32
"""How many connections of unknown clients are closed then."""
AT_ONCE = 64
"""How many connections are accepted before the event loop does something else."""

_log = logging.getLogger(__name__)

OnAccepted = Callable[[socket.socket, str, ConnectionSlot], Coroutine[Any, Any, None]]
"""Takes an accepted socket, its peer as HOST:PORT, and its place, which it must leave at the end. Runs as a
task, which is cancelled if the connection must close meanwhile."""


class Acceptor:
    """See the module. `name`: the listener, for limits and log lines. `rates`: the connections are accepted
    no faster."""

    def __init__(
        self,
        bound: socket.socket,
        accepted: OnAccepted,
        *,
        name: str,
        limits: ConnectionLimits,
        refused: RefusedCallers,
        rates: Sequence[CreationRate] = (),
    ) -> None:
        self._bound, self._accepted, self._name = bound, accepted, name
        self._limits, self._refused, self._rates = limits, refused, rates
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_open = False

    def open(self, backlog: int | None = None) -> None:
        """Starts accepting; `backlog` None: the socket listens already."""
        self._bound.setblocking(False)
        if backlog is not None:
            self._bound.listen(backlog)
        self._is_open = True
        self._resume()

    def close(self) -> None:
        """Stops accepting, and cancels what is not connected yet. The caller closes the socket."""
        self._stop()
        self._is_open = False
        if self._pause is not None:
            self._pause.cancel()
        for task in list(self._tasks):
            task.cancel()

    def _resume(self) -> None:
        self._pause = None
        if self._is_open:
            self._loop.add_reader(self._bound, self._accept)

    def _stop(self, for_s: float | None = None) -> None:
        """Stops; `for_s`: and resumes after this time."""
        if self._is_open and self._pause is None:
            self._loop.remove_reader(self._bound)
            if for_s is not None:
                self._pause = self._loop.call_later(for_s, self._resume)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            now_s = self._loop.time()
            wait_s = max((rate.wait_s(now_s) for rate in self._rates), default=0.0)
            if wait_s > 0:
                self._stop(wait_s)
                return
            try:
                client, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._failed(error)
                return
            for rate in self._rates:
                rate.accepted(now_s)
            host = plain_host(address[0])
            self._admit(client, address_text(host, address[1]), host)

    def _failed(self, error: OSError) -> None:
        if error.errno not in NO_MORE_FILES:
            _log.debug("listener %s could not accept a connection: %s", self._name, error)
            return
        ended = 0
        while ended < MADE_FREE and self._limits.replace_new():
            ended += 1
        DESCRIPTORS.refill()
        self._refused.log(
            ":0", f"listener {self._name} accepts no connections for a while: {error.strerror} (ulimit -n)"
        )
        self._stop(PAUSE_S)

    def _admit(self, client: socket.socket, peer: str, address: str) -> None:
        slot = self._limits.admit(self._name, address)
        if isinstance(slot, str):
            client.close()
            text = f"closed the connection of {{peer}} to listener {self._name}: {slot}"
            self._refused.log(peer, text)
            return
        client.setblocking(False)
        task = self._loop.create_task(self._accepted(client, peer, slot))
        slot.end = lambda _: None if task.done() else _cancel(task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()

"""Accepts connections on a TLS listener: a handshake makes a connection, a failed one is one line in the log.

Owns accepting and the handshakes in progress. Does not know certificates (`runtime.tls`) or frames
(`connection`). asyncio's server does not report why a handshake failed; this module logs one line with the
peer, as gRPC's listeners do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from metaquorum.runtime.rpc.refused_callers import RefusedCallers
from metaquorum.runtime.tls.problems import ABORTED, problem_of

_log = logging.getLogger(__name__)

_NO_MORE_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_S = 1.0
"""How long accepting pauses if the process has no file descriptor left."""


class TlsAcceptor:
    """`make` returns the protocol of a new connection. A handshake that takes longer than `timeout_s` is
    aborted."""

    def __init__(
        self,
        bound: socket.socket,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        listener: str,
        timeout_s: float,
        refused: RefusedCallers,
    ) -> None:
        self._bound = bound
        self._context = context
        self._make = make
        self._listener = listener
        self._timeout_s = timeout_s
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, backlog: int) -> None:
        """Starts accepting clients."""
        self._bound.setblocking(False)
        self._bound.listen(backlog)
        self._run(self._accept())

    def close(self) -> None:
        """Stops accepting, and aborts handshakes in progress. The caller closes the socket."""
        for task in list(self._tasks):
            task.cancel()

    def _run(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            try:
                client, address = await self._loop.sock_accept(self._bound)
            except OSError as error:
                if error.errno in _NO_MORE_FILES:
                    _log.warning("listener %s accepts no clients now: %s", self._listener, error.strerror)
                    await asyncio.sleep(PAUSE_S)
                continue
            self._run(self._let_in(client, f"{address[0]}:{address[1]}"))

    async def _let_in(self, client: socket.socket, peer: str) -> None:
        try:
            if not await self._says_something(client):
                client.close()  # a check whether the port is open
                return
            await self._loop.connect_accepted_socket(
                self._make, client, ssl=self._context, ssl_handshake_timeout=self._timeout_s
            )
        except ssl.SSLError as error:
            self._tell(peer, problem_of(error))
        except (ConnectionAbortedError, TimeoutError):
            client.close()
            self._tell(peer, f"it did not end within {self._timeout_s:g} s")
        except OSError:
            client.close()
            self._tell(peer, ABORTED)
        except asyncio.CancelledError:
            client.close()
            raise

    async def _says_something(self, client: socket.socket) -> bool:
        """True if bytes arrive rather than the end or a reset of the connection. Raises TimeoutError."""
        readable = asyncio.Event()
        self._loop.add_reader(client, readable.set)
        try:
            async with asyncio.timeout(self._timeout_s):
                await readable.wait()
        finally:
            self._loop.remove_reader(client)
        with contextlib.suppress(OSError):
            return client.recv(1, socket.MSG_PEEK) != b""
        return False

    def _tell(self, peer: str, problem: str) -> None:
        where = f"TLS handshake with {{peer}} at listener {self._listener}"
        self._refused.tell(peer, f"{where} failed: {problem}")

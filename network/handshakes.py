"""What a server's handshake says last when it fails.

asyncio and uvloop close the connection of a handshake that fails and drop what OpenSSL has to say about it:
the client sees a reset where it should be told `certificate required` or `unknown ca`. `LastWords` keeps the
alert and the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from contextvars import ContextVar
from typing import Any

LINGER_S = 1.0
"""How long a client may take to close the connection after an alert."""
LINGERING_MAX = 32
"""How many may do so at once; others find the connection closed right after the alert."""
_READ_BYTES, _READS_MAX = 65_536, 16


class _Handshake(ssl.SSLObject):
    """One side of a connection, whose failure is noted."""

    last_words: LastWords | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.last_words is not None:
                self.last_words.keep_alert()
            raise


class ServerContext(ssl.SSLContext):
    """A context whose handshakes have last words, if the task that begins one has said so."""

    sslobject_class = _Handshake

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *more: Any, **options: Any
    ) -> ssl.SSLObject:
        handshake = super().wrap_bio(incoming, outgoing, *more, **options)
        last_words = _CURRENT.get()
        if last_words is not None and isinstance(handshake, _Handshake):
            handshake.last_words = last_words
            last_words.outgoing = outgoing
        return handshake


class LastWords:
    """Those of the next handshake of this task, with `client`. `drop` ends them."""

    lingering = 0

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._alert = b""
        self._open: socket.socket | None = None
        self.outgoing: ssl.MemoryBIO | None = None
        _CURRENT.set(self)

    def keep_alert(self) -> None:
        """The handshake has failed, and the loop is about to close the connection, but not this copy."""
        self._alert = b"" if self.outgoing is None else self.outgoing.read()
        if self._alert:
            with contextlib.suppress(OSError):
                self._open = self._client.dup()

    async def say(self) -> None:
        """Sends the alert. The client closes first, for a while: what it has sent meanwhile would make the
        kernel reset the connection, and the client could not read the alert."""
        left = self._open
        if left is None:
            return
        with contextlib.suppress(OSError, TimeoutError):
            left.setblocking(False)
            left.send(self._alert)
            left.shutdown(socket.SHUT_WR)
            if LastWords.lingering < LINGERING_MAX:
                await self._linger(left)
        self.drop()

    @staticmethod
    async def _linger(left: socket.socket) -> None:
        LastWords.lingering += 1
        try:
            async with asyncio.timeout(LINGER_S):
                for _ in range(_READS_MAX):
                    if not await asyncio.get_running_loop().sock_recv(left, _READ_BYTES):
                        break
        finally:
            LastWords.lingering -= 1

    def drop(self) -> None:
        """Lets go of the connection."""
        if self._open is not None:
            self._open.close()
            self._open = None


_CURRENT: ContextVar[LastWords | None] = ContextVar("last_words", default=None)

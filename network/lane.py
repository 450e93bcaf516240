"""A lane: a TCP connection of the event loop for the Raft messages of one gRPC stream.

By a handshake both ends know which stream a lane belongs to. The stream stays open: it identifies the
caller, and when it ends, so does the lane (ADR 18).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Final, cast

import msgspec

from metaquorum.errors import cannot_listen
from metaquorum.network.acceptor import Acceptor
from metaquorum.network.framing import SCRATCH_BYTES, FrameBuffer, FrameError
from metaquorum.network.limits import ConnectionLimits, ConnectionPlace
from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.network.sending import write_all

LANE_KEY: Final = "metaquorum-lane"
"""The metadata key of the stream with which its server offers a lane."""

PORT_KEY: Final = "controller.quorum.lane.port"
HANDSHAKE_S = 2.0
"""The time limit of a new connection's handshake."""

_LENGTH = struct.Struct(">i")
_SECRET_BYTES = 16
_FRAME_MAX_BYTES = 64 * 1024 * 1024
_COPIED_BYTES = 4096
"""Messages up to this size are copied, to write them together with their length."""
_log = logging.getLogger(__name__)

Take = Callable[[bytes], None]
"""Takes a message. A ValueError ends the lane."""


class Offer(msgspec.Struct, frozen=True):
    """How to connect to a lane. The caller sends `hello`, the server responds with `welcome`, so that each
    side knows that the other is the right one."""

    port: int
    hello: bytes
    welcome: bytes

    @classmethod
    def new(cls, port: int) -> Offer:
        return cls(port, secrets.token_bytes(_SECRET_BYTES), secrets.token_bytes(_SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Offer:
        """Parses the text of an offer. Raises ValueError."""
        port, hello, welcome = text.split(":")
        return cls(int(port), bytes.fromhex(hello), bytes.fromhex(welcome))

    def text(self) -> str:
        return f"{self.port}:{self.hello.hex()}:{self.welcome.hex()}"


def _nothing() -> None:
    return


class Lane(asyncio.BufferedProtocol):
    """One end of a lane. `take` gets each message, `lost` is called once, when the lane has ended. Before
    `open`, messages are limited to the length of a secret."""

    def __init__(self, take: Take, lost: Callable[[], None], scratch: bytearray) -> None:
        self._take, self._lost = take, lost
        self._buffer = FrameBuffer(_SECRET_BYTES, "a lane", scratch)
        self._transport: asyncio.Transport | None = None
        self._log_level = logging.DEBUG  # anyone can connect and send anything

    def open(self, take: Take, lost: Callable[[], None]) -> None:
        """The other end is authenticated: from now on, messages are Raft's."""
        self._take, self._lost = take, lost
        self._buffer.allow(_FRAME_MAX_BYTES, "a lane")
        self._log_level = logging.WARNING

    def write(self, message: bytes) -> None:
        """Sends a message; drops it if the lane has ended."""
        transport = self._transport
        if transport is None:
            return
        length = _LENGTH.pack(len(message))
        if len(message) <= _COPIED_BYTES:
            transport.write(length + message)
        else:
            write_all(transport, (length, message))

    def close(self) -> None:
        """Closes the lane without calling `lost`."""
        self._lost = _nothing
        self._end()

    def _end(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._buffer.received(nbytes):
                if self._transport is not None:
                    self._take(bytes(frame))
        except (FrameError, ValueError) as error:
            _log.log(self._log_level, "closed a lane on which there was no valid Raft message: %s", error)
            self._end()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        lost, self._lost = self._lost, _nothing
        lost()


class _AskedLane(Lane):
    """The server's end, which does not read from a caller that does not read its responses. `gone` is called
    when the connection has closed."""

    gone: Callable[[], None] = staticmethod(_nothing)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.gone()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket; an empty host means every interface. Raises OSError."""
    if not host:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", port), family=family, dualstack_ipv6=both)
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family)


async def take_up(
    offer: Offer, host: str, take: Take, lost: Callable[[], None], tls: ssl.SSLContext | None = None
) -> Lane:
    """Connects to an offered lane; returns the caller's end, ready for messages. Raises OSError or
    TimeoutError."""
    loop = asyncio.get_running_loop()
    welcomed: asyncio.Future[bytes] = loop.create_future()

    def welcome(message: bytes) -> None:
        if not welcomed.done():
            welcomed.set_result(message)

    lane = Lane(welcome, lambda: welcome(b""), bytearray(SCRATCH_BYTES))
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            await loop.create_connection(lambda: lane, host, offer.port, ssl=tls)
            lane.write(offer.hello)
            if await welcomed != offer.welcome:
                raise ConnectionError("another program listens there")
    except BaseException:
        lane.close()
        raise
    lane.open(take, lost)
    return lane


class LaneListener:
    """The server's port for lanes; `offer` creates one. Connections without a valid offer, or with one that
    is in use, are closed. `tls`: callers must use TLS."""

    def __init__(
        self,
        host: str,
        port: int,
        limits: ConnectionLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = host, port
        self._limits = limits
        self._tls = tls
        self._bound: socket.socket | None = None
        self._acceptor: Acceptor | None = None
        self._offers: dict[bytes, tuple[Offer, Callable[[Lane], None]]] = {}
        self._scratch = bytearray(SCRATCH_BYTES)

    async def open(self) -> None:
        """Starts accepting lanes. Raises StartError, in one line, if the port cannot be bound."""
        host, port = self.address
        try:
            bound = _bound(host, port)
        except OSError as error:
            raise cannot_listen(f"{host or '*'}:{port}", error, PORT_KEY) from error
        self.address = host, bound.getsockname()[1]
        self._bound = bound
        self._acceptor = Acceptor(
            bound, self._accepted, name=PORT_KEY, limits=self._limits, refused=RefusedCallers()
        )
        self._acceptor.open()

    def close(self) -> None:
        """Stops accepting. Lanes end with their streams."""
        self._offers.clear()
        if self._acceptor is not None:
            self._acceptor.close()
        if self._bound is not None:
            self._bound.close()

    def offer(self, taken_up: Callable[[Lane], None]) -> Offer:
        """Offers a lane. `taken_up` is called with it when the caller connects, and opens it."""
        offer = Offer.new(self.address[1])
        self._offers[offer.hello] = offer, taken_up
        return offer

    def withdraw(self, offer: Offer) -> None:
        """Withdraws an offer, once its stream has ended."""
        self._offers.pop(offer.hello, None)

    async def _accepted(self, client: socket.socket, peer: str, place: ConnectionPlace) -> None:
        """One time limit for TLS and the first message: the task runs until the lane is taken up or over."""
        loop = asyncio.get_running_loop()
        greeted: asyncio.Future[None] = loop.create_future()

        def greet(hello: bytes) -> None:
            self._greet(lane, hello)
            place.known()
            _settle(greeted)

        lane = _AskedLane(greet, lambda: _settle(greeted), self._scratch)
        lane.gone = place.leave
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await loop.connect_accepted_socket(
                    lambda: lane,
                    client,
                    ssl=self._tls,
                    ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S,
                )
                await greeted
        except (OSError, asyncio.CancelledError) as error:  # TimeoutError and SSLError are OSErrors
            _log.debug("closed a connection of %s to %s: %s", peer, PORT_KEY, error or "it took too long")
            lane.close()
            client.close()
            place.leave()
            if isinstance(error, asyncio.CancelledError):
                raise

    def _greet(self, lane: Lane, hello: bytes) -> None:
        offer, taken_up = self._offers.pop(hello, (None, None))
        if offer is None or taken_up is None:
            raise ValueError("its first message is not one that this node expects")
        lane.write(offer.welcome)
        taken_up(lane)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

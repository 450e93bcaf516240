"""A lane: a TCP connection of the event loop for the Raft messages of one gRPC stream.

Owns the frames, the handshake by which both ends know which stream a lane belongs to, and the port. The
stream stays open: it identifies the caller, and when it ends, so does the lane (ADR 18). Knows no Raft rule
and no gRPC.
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

from metaquorum.runtime.errors import StartError
from metaquorum.runtime.sockets.framing import SCRATCH_BYTES, FrameBuffer, FrameError

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
            transport.writelines((length, message))

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
    """The server's end, which does not read from a caller that does not read its responses."""

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()


def _nothing() -> None:
    return


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

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.address = host, port
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._offers: dict[bytes, tuple[Offer, Callable[[Lane], None]]] = {}
        self._scratch = bytearray(SCRATCH_BYTES)

    async def open(self) -> None:
        """Starts accepting lanes. Raises StartError, in one line, if the port cannot be bound."""
        host, port = self.address
        try:
            bound = _bound(host, port)
        except OSError as error:
            raise StartError(
                f"cannot listen on {host or '*'}:{port}: {error.strerror or error}; choose another {PORT_KEY}"
            ) from error
        self.address = host, bound.getsockname()[1]
        self._server = await asyncio.get_running_loop().create_server(self._accept, sock=bound, ssl=self._tls)

    def close(self) -> None:
        """Stops accepting. Lanes end with their streams."""
        self._offers.clear()
        if self._server is not None:
            self._server.close()

    def offer(self, taken_up: Callable[[Lane], None]) -> Offer:
        """Offers a lane. `taken_up` is called with it when the caller connects, and opens it."""
        offer = Offer.new(self.address[1])
        self._offers[offer.hello] = offer, taken_up
        return offer

    def withdraw(self, offer: Offer) -> None:
        """Withdraws an offer, once its stream has ended."""
        self._offers.pop(offer.hello, None)

    def _accept(self) -> Lane:
        silent: asyncio.TimerHandle

        def greet(hello: bytes) -> None:
            silent.cancel()
            self._greet(lane, hello)

        lane = _AskedLane(greet, _nothing, self._scratch)
        silent = asyncio.get_running_loop().call_later(HANDSHAKE_S, lane.close)
        return lane

    def _greet(self, lane: Lane, hello: bytes) -> None:
        offer, taken_up = self._offers.pop(hello, (None, None))
        if offer is None or taken_up is None:
            raise ValueError("its first message is not one that this node expects")
        lane.write(offer.welcome)
        taken_up(lane)

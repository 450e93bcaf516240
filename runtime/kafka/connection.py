"""One connection of a client: frames in, answers out in the order of the requests.

Owns back-pressure (what is not read is not held) and the end of a connection that sends what is no request.
What answers a request is a handler of `services`.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from metaquorum.runtime.kafka.answers import AnswerQueue, Chunks
from metaquorum.runtime.kafka.framing import FrameBuffer, FrameError
from metaquorum.runtime.kafka.limits import ConnectionLimits
from metaquorum.runtime.kafka.services import Client, EndConnection, Services
from metaquorum.wire import codec
from metaquorum.wire.apis import API_VERSIONS
from metaquorum.wire.errors import DecodeError, EncodeError

REQUESTS_MAX = 64
"""Requests of one connection that are under way; it is not read on before one is answered."""

_LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """What a listener's connections keep to: one without a request for `max_idle_s` seconds is closed."""

    listener: str
    request_max_bytes: int
    max_idle_s: float


class ClientConnection(asyncio.BufferedProtocol):
    """See the module. `gone` is called once, when the connection has ended."""

    def __init__(
        self,
        config: ConnectionConfig,
        services: Services,
        limits: ConnectionLimits,
        begun: Callable[[ClientConnection], None],
        gone: Callable[[ClientConnection], None],
    ) -> None:
        self._config = config
        self._services = services
        self._limits = limits
        self._begun = begun
        self._gone = gone
        self._buffer = FrameBuffer(config.request_max_bytes)
        self._answers = AnswerQueue(max_requests=REQUESTS_MAX, max_bytes=config.request_max_bytes)
        self._frames: deque[bytes | bytearray] = deque()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._client = Client(listener=config.listener, address="")
        self._peer = "a client"
        self._counted = self._ended = self._write_blocked = self._read_paused = False
        self._loop = asyncio.get_running_loop()
        self._used_s = self._loop.time()
        self._idle: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def __len__(self) -> int:
        """Requests that are under way."""
        return len(self._answers)

    # ---- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self._client = Client(listener=self._config.listener, address=str(peer[0]))
        self._peer = f"{peer[0]}:{peer[1]}"
        refusal = self._limits.refusal(self._client.address)
        if refusal is not None:
            self.end(refusal)
            return
        self._counted = True
        self._begun(self)
        self._look_for_idleness()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._used_s = self._loop.time()
        if self._ended:
            return
        try:
            self._frames.extend(self._buffer.received(nbytes))
        except FrameError as error:
            self.end(str(error))
            return
        self._work()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._write_blocked = True

    def resume_writing(self) -> None:
        self._write_blocked = False
        self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._frames.clear()
        if self._idle is not None:
            self._idle.cancel()
        for future in list(self._waiting):
            future.cancel()
        if self._counted:
            self._limits.closed(self._client.address)
            self._gone(self)

    def end(self, reason: str | None = None) -> None:
        """Closes the connection after what was written; a `reason` is logged."""
        if reason is not None and not self._ended:
            _log.warning(
                "closed the connection of %s to listener %s: %s", self._peer, self._config.listener, reason
            )
        self._ended = True
        self._transport.close()

    def _look_for_idleness(self) -> None:
        now_s = self._loop.time()
        if self._answers:
            self._used_s = now_s
        left_s = self._used_s + self._config.max_idle_s - now_s
        if left_s <= 0:
            _log.debug("closed the idle connection of %s to listener %s", self._peer, self._config.listener)
            self.end()
            return
        self._idle = self._loop.call_later(left_s, self._look_for_idleness)

    # ---- requests and answers

    def _work(self) -> None:
        """Begins what there is room for, and reads on only when nothing waits."""
        while self._frames and self._answers.has_room and not self._write_blocked and not self._ended:
            self._begin(self._frames.popleft())
        if self._ended:
            return
        pause = bool(self._frames) or self._write_blocked or not self._answers.has_room
        if pause != self._read_paused:
            self._read_paused = pause
            (self._transport.pause_reading if pause else self._transport.resume_reading)()

    def _begin(self, frame: bytes | bytearray) -> None:
        if len(frame) < _HEAD.size:
            self.end(f"a frame of {len(frame)} bytes ends inside the header of its request")
            return
        api_key, version, correlation_id = _HEAD.unpack_from(frame)
        handler = self._services.find(api_key, version)
        if handler is None:
            self._refuse(api_key, version, correlation_id, len(frame))
            return
        try:
            request = codec.decode_request(frame)
        except DecodeError as error:
            self.end(str(error))
            return
        place = self._answers.begin(len(frame))
        try:
            answer = handler(request, self._client)
        except Exception:
            self._failed(request)
            return
        if not isinstance(answer, Awaitable):
            self._answer(place, request, answer)
            return
        future = asyncio.ensure_future(answer)
        self._waiting.add(future)
        future.add_done_callback(lambda done: self._answered(place, request, done))

    def _refuse(self, api_key: int, version: int, correlation_id: int, size: int) -> None:
        """What is not offered ends the connection, as in Kafka; only ApiVersions is answered all the same."""
        if api_key != API_VERSIONS:
            self.end(f"API {api_key} version {version} is not offered; see what ApiVersions answers")
            return
        body = self._services.unsupported_version()
        place = self._answers.begin(size)
        self._send(place, codec.encode_response(API_VERSIONS, 0, correlation_id, body))

    def _answered(self, place: int, request: codec.Request, future: asyncio.Future[Any]) -> None:
        self._waiting.discard(future)
        if self._ended or future.cancelled():
            return
        error = future.exception()
        if isinstance(error, EndConnection):
            self.end(str(error))
            return
        if error is not None:
            self._failed(request, error)
            return
        self._answer(place, request, future.result())
        self._work()

    def _answer(self, place: int, request: codec.Request, body: Any) -> None:
        header = request.header
        if body is None:
            self._send(place, [])
            return
        try:
            chunks = codec.encode_response(header.api_key, header.version, header.correlation_id, body)
        except EncodeError as error:
            self._failed(request, error)
            return
        self._send(place, chunks)

    def _send(self, place: int, chunks: Chunks) -> None:
        size = sum(map(len, chunks))
        ready = self._answers.finish(place, [_LENGTH.pack(size), *chunks] if chunks else [])
        if ready:
            self._transport.writelines(ready)

    def _failed(self, request: codec.Request, error: BaseException | None = None) -> None:
        """A bug; the client sees the end of its connection and asks again."""
        header = request.header
        _log.error("API %d version %d failed", header.api_key, header.version, exc_info=error or True)
        self.end("its request failed here")

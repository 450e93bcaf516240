"""One connection of a client: frames in, responses out in the order of the requests.

Owns back-pressure (what is not read is not held), the client's identity, and closing a connection that sends
malformed requests. Does not know an API: handlers in `services` do.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, cast

from msgspec.structs import replace

from metaquorum.runtime.config.access.certificates import CertificateError
from metaquorum.runtime.kafka.answers import AnswerQueue, Chunks
from metaquorum.runtime.kafka.auth.login import Login
from metaquorum.runtime.kafka.bounds.limits import ConnectionLimits
from metaquorum.runtime.kafka.bounds.memory import Share
from metaquorum.runtime.kafka.bounds.unsent import UnsentShare
from metaquorum.runtime.kafka.connection_config import ConnectionConfig
from metaquorum.runtime.kafka.outgoing import Outgoing, StepResponses
from metaquorum.runtime.kafka.pending_requests import RequestsInProgress
from metaquorum.runtime.kafka.quotas import Quotas
from metaquorum.runtime.kafka.services import Client, EndConnection, Handler, Services
from metaquorum.runtime.kafka.throttling import FETCH, Asked, Spent, bounded, charge, is_of_a_broker
from metaquorum.runtime.sockets.framing import REQUEST_MAX_BYTES, FrameBuffer, FrameError
from metaquorum.wire import codec
from metaquorum.wire.apis import API_VERSIONS
from metaquorum.wire.errors import DecodeError, EncodeError

REQUESTS_MAX = 64
"""The most requests in progress on one connection; at this number it is not read until a response leaves."""
LINGER_S = 5.0
"""How long responses may take to leave after the connection has ended."""
TOO_SLOW = "its request arrived too slowly while others waited for memory"
TAKES_NOTHING = "it did not read its answers while others waited for memory"

_LENGTH, _HEAD = struct.Struct(">i"), struct.Struct(">hhi")
_log = logging.getLogger(__name__)


class ClientConnection(asyncio.BufferedProtocol):
    """See the module. `gone` is called once, after the connection has closed."""

    def __init__(
        self,
        config: ConnectionConfig,
        services: Services,
        limits: ConnectionLimits,
        begun: Callable[[ClientConnection], None],
        gone: Callable[[ClientConnection], None],
    ) -> None:
        self._config, self._services, self._limits = config, services, limits
        self._begun, self._gone = begun, gone
        self._login: Login | None = None
        self._share = Share(config.memory, self._has_memory, partial(self.cut_off, TOO_SLOW))
        self._unsent = UnsentShare(config.unsent, self._work, partial(self.cut_off, TAKES_NOTHING))
        most, key = config.request_max_bytes, REQUEST_MAX_BYTES
        self._answers = AnswerQueue(max_requests=REQUESTS_MAX, max_bytes=most, left=self._share.answered)
        if config.rules is not None and config.rules.sasl is not None:
            self._login = Login(config.rules.sasl, partial(services.before_login, config.listener))
            most, key = config.login_max_bytes, "sasl.server.max.receive.size"
        self._buffer = FrameBuffer(most, key, config.scratch, self._share)
        self._frames: deque[bytes | bytearray] = deque()
        self._in_progress = RequestsInProgress(self)
        self._client, self._peer = Client(listener=config.listener, address=""), "a client"
        self._muted_until_s = 0.0
        self._counted = self._ended = self._lost = self._read_paused = self._fetches = False
        self._put_off: tuple[Handler, codec.Request, Spent] | None = None
        self._loop = asyncio.get_running_loop()
        self.used_s, self.listener = self._loop.time(), config.listener
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._transport: asyncio.Transport

    def __len__(self) -> int:
        """Number of requests in progress."""
        return len(self._answers)

    # ---- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._outgoing = Outgoing(self._transport, self._unsent.sent)
        self._step_responses = StepResponses(self._config.step_end, self._outgoing.write)
        peer = transport.get_extra_info("peername") or ("", 0)
        self._client = Client(listener=self._config.listener, address=str(peer[0]))
        self._peer = f"{peer[0]}:{peer[1]}"
        refusal = self._limits.refusal(self._config.listener, self._client.address)
        if refusal is not None:
            self.end(refusal)
            return
        self._counted = True
        self._begun(self)
        if self._is_too_fast():
            return
        if self._login is None:
            self._know_by_certificate()
        else:
            self._timers["login"] = self._loop.call_later(self._config.login_timeout_s, self._look_for_login)
        if self._config.max_idle_s < inf:
            self._look_for_idleness()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.used_s = self._loop.time()
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
        self._outgoing.pause()

    def resume_writing(self) -> None:
        self.used_s = self._loop.time()
        self._outgoing.resume()
        self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = self._lost = True
        self._let_go()
        self._step_responses.drop()
        self._outgoing.drop()
        self._unsent.close()
        del self._transport
        self._count_off()

    def _count_off(self) -> None:
        if self._counted:
            self._counted = False
            self._limits.closed(self._config.listener, self._client.address)
            self._gone(self)

    def end(self, reason: str | None = None) -> None:
        """Closes the connection once written responses have left; logs `reason`."""
        if self._lost:
            return
        if reason is not None and not self._ended:
            _log.warning(
                "closed the connection of %s to listener %s: %s", self._peer, self._config.listener, reason
            )
        self._ended = True
        self._let_go()
        self._step_responses.flush()
        self._outgoing.close()
        self._timers["linger"] = self._loop.call_later(LINGER_S, self._transport.abort)

    def _let_go(self) -> None:
        """Drops all references once the connection has ended: garbage in a cycle is collected late."""
        for timer in self._timers.values():
            timer.cancel()
        self._in_progress.cancel()
        self._timers.clear()
        self._put_off = None
        self._frames.clear()
        self._buffer.drop()
        self._answers.drop()
        self._share.close()

    def _look_for_idleness(self) -> None:
        now_s = self._loop.time()
        if self._answers:
            self.used_s = now_s
        left_s = self.used_s + self._config.max_idle_s - now_s
        if left_s <= 0:
            _log.debug("closed the idle connection of %s to listener %s", self._peer, self._config.listener)
            self.end()
            return
        self._timers["idle"] = self._loop.call_later(left_s, self._look_for_idleness)

    # ---- limits and quotas

    def _has_memory(self) -> None:
        """Called when there is room for the waiting frame."""
        self._buffer.go_on()
        self._work()

    def cut_off(self, reason: str) -> None:
        """Closes the connection at once and drops unsent responses."""
        self.end(reason)
        self._count_off()
        if not self._lost:
            self._transport.abort()

    @property
    def _quotas(self) -> Quotas | None:
        """None if there are no quotas."""
        quotas = self._config.quotas
        return quotas if quotas is not None and quotas.any else None

    def _is_too_fast(self) -> bool:
        """True if the address exceeds its connection rate: this connection is closed after a wait."""
        quotas, now_s = self._quotas, self._loop.time()
        wait_ms = 0 if quotas is None else quotas.connect(self._client.address, int(now_s * 1000))
        if wait_ms:
            self._ended = True
            self._transport.pause_reading()
            self._timers["refusal"] = self._loop.call_later(wait_ms / 1000, self._transport.close)
        return wait_ms > 0

    def _mute(self, wait_ms: int) -> None:
        """Starts no more requests of this client for `wait_ms` (KIP-219)."""
        self._muted_until_s = max(self._muted_until_s, self._loop.time() + wait_ms / 1000)
        if "mute" in self._timers:
            self._timers["mute"].cancel()
        self._timers["mute"] = self._loop.call_at(self._muted_until_s, self._unmute)

    def _unmute(self) -> None:
        self._muted_until_s = 0.0
        self._work()

    def _charged(self, request: codec.Request, spent: Spent, body: Any, chunks: Chunks) -> Chunks:
        """Charges the client's quotas; returns the response, and mutes the client if it must wait."""
        quotas = self._quotas
        if quotas is None:
            return chunks
        size, now_ms = sum(map(len, chunks)), int(self._loop.time() * 1000)
        wait_ms, answer = charge(quotas, self._client, request, spent, body, size, now_ms)
        if wait_ms:
            self._mute(wait_ms)
        return chunks if answer is body else self._services.prepared.encode(request.header, answer)

    # ---- authentication

    def _know_by_certificate(self) -> None:
        rules, tls = self._config.rules, self._transport.get_extra_info("ssl_object")
        try:
            user = None if rules is None else rules.user_of(tls)
        except CertificateError as error:
            self.end(str(error))
            return
        if user is not None:
            self._client = replace(self._client, principal=f"User:{user}")

    def _look_for_login(self) -> None:
        if self._login is not None and self._login.granted is None:
            self.end(f"it did not log in within {self._config.login_timeout_s:g} s")

    def _logs_in(self, login: Login, frame: bytes | bytearray) -> bool:
        """True if a frame belongs to a login or arrived after the session's end: it has then been handled."""
        now_ms = int(self._loop.time() * 1000)
        if not login.takes(frame, now_ms):
            if login.has_ended(now_ms):
                self.end("its session has ended without another login (connections.max.reauth.ms)")
                return True
            return False
        place = self._answers.begin(len(frame))
        reply = login.take(frame, now_ms, int(time.time() * 1000))
        if reply.end is not None:
            self._refuse_login(place, reply.chunks, reply.end)
            return True
        self._send(place, reply.chunks)
        granted = login.granted
        if granted is not None:
            self._client = replace(self._client, principal=f"User:{granted.user}", by_token=granted.by_token)
            self._buffer.allow(self._config.request_max_bytes)
        return True

    def _refuse_login(self, place: int, chunks: Chunks, reason: str) -> None:
        """Responds and closes after a delay, to slow down guessing."""
        _log.warning("refused %s at listener %s: %s", self._peer, self._config.listener, reason)
        self._ended = True
        self._transport.pause_reading()

        def finish() -> None:
            self._send(place, chunks)
            self.end()

        self._timers["refusal"] = self._loop.call_later(self._config.failed_login_delay_s, finish)

    # ---- requests and answers

    def _work(self) -> None:
        """Starts the requests that there is room for; resumes reading only if none waits."""
        frames, answers = self._frames, self._answers
        put_off = self._put_off
        if put_off is not None and not self._is_held:
            self._put_off = None
            self._start(*put_off)
        while frames and answers.has_room and not (self._is_held or self._put_off or self._ended):
            self._begin(frames.popleft())
        if self._ended:
            return
        held_back = bool(frames or self._put_off) or self._is_held or not answers.has_room
        self._share.is_held_back = held_back
        pause = held_back or self._buffer.waits
        if pause != self._read_paused:
            self._read_paused = pause
            (self._transport.pause_reading if pause else self._transport.resume_reading)()

    @property
    def _is_held(self) -> bool:
        """True if no request may start: written responses have not left, or the client must wait."""
        return self._outgoing.is_blocked or self._muted_until_s > 0

    def _begin(self, frame: bytes | bytearray) -> None:
        if self._login is not None and self._logs_in(self._login, frame):
            return
        size = len(frame)
        if size < _HEAD.size:
            self.end(f"a frame of {size} bytes ends inside the header of its request")
            return
        api_key, version, correlation_id = _HEAD.unpack_from(frame)
        handler = self._services.find(api_key, version)
        if handler is None:
            self._refuse(api_key, version, correlation_id, size)
            return
        begun_s = time.perf_counter()
        try:
            request = codec.decode_request(frame)
        except DecodeError as error:
            self.end(str(error))
            return
        self._start(handler, request, Spent(size, time.perf_counter() - begun_s))

    def _start(self, handler: Handler, request: codec.Request, spent: Spent) -> None:
        """Starts or defers a request: a fetch starts only if its response is the next to leave and, for a
        client's, there is memory for it."""
        if request.header.api_key == FETCH:
            if self._fetches or not (is_of_a_broker(request) or self._unsent.may_fetch()):
                self._put_off = handler, request, spent
                return
            self._fetches = True
            if self._quotas is not None:
                request = bounded(self._quotas, self._client, request, int(self._loop.time() * 1000))
        place = self._answers.begin(spent.size)
        try:
            with spent:
                answer = handler(request, self._client)
        except EndConnection as error:
            self.end(str(error))
            return
        except Exception:
            self.failed(request)
            return
        timed = self._quotas is not None
        self._in_progress.wait(Asked(place, request, spent), answer, timed=timed)

    def _refuse(self, api_key: int, version: int, correlation_id: int, size: int) -> None:
        """Closes the connection for an API that is not offered, as in Kafka; ApiVersions gets a response."""
        if api_key != API_VERSIONS:
            self.end(f"API {api_key} version {version} is not offered; see what ApiVersions answers")
            return
        body = self._services.unsupported_version()
        place = self._answers.begin(size)
        self._send(place, codec.encode_response(API_VERSIONS, 0, correlation_id, body))

    def went_on(self) -> None:
        """Called after a response: starts requests that waited for it."""
        if not self._ended and (self._frames or self._read_paused):
            self._work()

    def answer(self, asked: Asked, body: Any, begun_s: float) -> None:
        """Sends a response. `begun_s`: when the work on it began."""
        try:
            chunks = [] if body is None else self._services.prepared.encode(asked.request.header, body)
            asked.spent.seconds += time.perf_counter() - begun_s
            chunks = self._charged(asked.request, asked.spent, body, chunks)
        except EncodeError as error:
            self.failed(asked.request, error)
            return
        if asked.request.header.api_key == FETCH:
            self._fetches = False
        self._send(asked.place, chunks)

    def _send(self, place: int, chunks: Chunks) -> None:
        if chunks:
            size = sum(map(len, chunks))
            self._unsent.add(_LENGTH.size + size)
            chunks = [_LENGTH.pack(size), *chunks]
        ready = self._answers.finish(place, chunks)
        if ready:
            self._step_responses.put(ready)

    def failed(self, request: codec.Request, error: BaseException | None = None) -> None:
        """Closes the connection because of a bug in a handler; the client reconnects and retries."""
        header = request.header
        _log.error("API %d version %d failed", header.api_key, header.version, exc_info=error or True)
        self.end("its request failed here")

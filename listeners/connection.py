"""One connection of a client: frames in, responses out in the order of the requests.

What is not read is not held: that is the back-pressure. A connection that sends malformed requests is
closed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, cast

from msgspec.structs import replace

from metaquorum.clock import Clock, SystemClock
from metaquorum.config.principals import CertificateError
from metaquorum.listeners.answers import AnswerFrame, AnswerQueue, Chunks, group_of, opened
from metaquorum.listeners.login import Login
from metaquorum.listeners.login_rules import ListenerRules
from metaquorum.listeners.long_work import LongAnswer, LongRequests, LongTurn
from metaquorum.listeners.pending_requests import (
    FETCH,
    Asked,
    RequestsInProgress,
    Spent,
    bounded,
    charge,
    is_of_a_broker,
)
from metaquorum.listeners.quotas import Quotas
from metaquorum.listeners.request_memory import RequestMemory, Share
from metaquorum.listeners.response_memory import Unsent, UnsentShare
from metaquorum.listeners.services import Client, EndConnection, Handler, Services
from metaquorum.metadata.text.addresses import address_text, plain_host
from metaquorum.network.framing import REQUEST_MAX_BYTES, SCRATCH_BYTES, FrameBuffer, FrameError
from metaquorum.network.limits import ConnectionSlot
from metaquorum.network.refused_callers import RefusedCallers, kind_of
from metaquorum.network.sending import write_all
from metaquorum.node.scheduler import StepEnd
from metaquorum.wire import codec
from metaquorum.wire.errors import DecodeError, EncodeError, TooManyValues
from metaquorum.wire.primitives import Buffer
from metaquorum.wire.table import API_VERSIONS

# What a connection sends: no more at a time than its transport takes, all responses of one step together.
#
# Each send is a system call, and often gives the processor to the receiver. A transport accepts any amount of
# data, and over TLS encrypts it at once; this module limits that, and counts bytes until they have left.

GATHERED_MAX_BYTES = 64 * 1024
"""A larger response leaves at once: its client can work on it meanwhile."""
WRITTEN_MAX_BYTES, PAUSES_AT_BYTES = 256 * 1024, 64 * 1024
"""The most bytes passed to a transport at a time, and the most that it may hold without pausing its
writer."""


class Outgoing:
    """The bytes that leave one connection, in order. `sent` is called with the number of bytes that have
    left."""

    def __init__(self, transport: asyncio.Transport, sent: Callable[[int], object]) -> None:
        transport.set_write_buffer_limits(high=PAUSES_AT_BYTES)
        self._transport, self._sent = transport, sent
        self._queue: deque[Buffer] = deque()
        self._is_paused = self._ends = False
        self._written_bytes = 0

    @property
    def is_blocked(self) -> bool:
        """True while the client has not taken what was sent to it."""
        return self._is_paused or bool(self._queue)

    def write(self, chunks: Chunks) -> None:
        size = sum(map(len, chunks))
        if size <= WRITTEN_MAX_BYTES and not (self._is_paused or self._queue):
            self._put(chunks, size)
            return
        self._queue.extend(chunks)
        self._pump()

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._left()
        self._pump()

    def close(self) -> None:
        """Closes the transport once everything has left."""
        self._ends = True
        self._pump()

    def drop(self) -> None:
        """The connection has closed: drops references, because a TLS transport keeps its protocol forever."""
        self._queue.clear()
        self._sent = _nowhere
        del self._transport

    def _pump(self) -> None:
        queue = self._queue
        while queue and not self._is_paused:
            chunks: Chunks = []
            size = 0
            while queue and size < WRITTEN_MAX_BYTES:
                chunk = queue.popleft()
                room = WRITTEN_MAX_BYTES - size
                if len(chunk) > room:
                    whole = memoryview(chunk)
                    chunk = whole[:room]
                    queue.appendleft(whole[room:])
                chunks.append(chunk)
                size += len(chunk)
            self._put(chunks, size)
        if self._ends and not queue:
            self._transport.close()

    def _put(self, chunks: Chunks, size: int) -> None:
        self._written_bytes += size
        write_all(self._transport, chunks)
        if not self._is_paused:
            self._left()

    def _left(self) -> None:
        size, self._written_bytes = self._written_bytes, 0
        self._sent(size)


class StepResponses:
    """Collects the responses of one connection during a step, and passes them to `send` in order."""

    __slots__ = ("_chunks", "_send", "_step_end")

    def __init__(self, step_end: StepEnd, send: Callable[[Chunks], object]) -> None:
        self._step_end = step_end
        self._send = send
        self._chunks: Chunks = []

    def put(self, chunks: Chunks) -> None:
        step_end = self._step_end
        if step_end.gathers and sum(map(len, chunks)) <= GATHERED_MAX_BYTES:
            if not self._chunks:
                step_end.add(self)
            self._chunks += chunks
        elif self._chunks:
            self._chunks += chunks
            self.flush()
        else:
            self._send(chunks)

    def flush(self) -> None:
        """Sends what was collected."""
        chunks, self._chunks = self._chunks, []
        if chunks:
            self._send(chunks)

    def drop(self) -> None:
        """The connection has closed: sends nothing more."""
        self._chunks = []
        self._send = _nowhere


def _nowhere(anything: object) -> None:
    return


REQUESTS_MAX = 64
"""The most requests in progress on one connection; at this number it is not read until a response leaves."""
CLIENT_ID_SHOWN = 100
"""The most bytes of a client id in a line of the log."""
LINGER_S = 5.0
"""How long responses may take to leave after the connection has ended."""
TOO_SLOW = "its request arrived too slowly while others waited for memory"
TAKES_NOTHING = "it did not read its answers while others waited for memory"

_LENGTH, _HEAD = struct.Struct(">i"), struct.Struct(">hhi")
_numbers = itertools.count(1)
_log = logging.getLogger(__name__)


class ClientConnection(asyncio.BufferedProtocol):
    """See the module. `gone` is called once, after the connection has closed."""

    def __init__(
        self,
        config: ConnectionConfig,
        services: Services,
        slot: ConnectionSlot,
        begun: Callable[[ClientConnection], None],
        gone: Callable[[ClientConnection], None],
    ) -> None:
        self._config, self._services, self._slot = config, services, slot
        self._begun, self._gone = begun, gone
        self._login: Login | None = None
        has_login = config.rules is not None and config.rules.sasl is not None
        memory = config.login_memory if has_login else config.memory
        self._share = Share(memory, self._has_memory, partial(self.cut_off, TOO_SLOW))
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
        self._ended = self._lost = self._read_paused = False
        self._counted_off = self._is_known = False
        self._put_off: tuple[Handler, codec.Request, Spent] | None = None
        self._group: object | None = None  # of the requests in progress
        self._long: LongTurn | None = None
        self._apart: set[asyncio.Future[Any]] = set()  # what a thread does, or will do, for this connection
        self._loop = asyncio.get_running_loop()
        self.used_s, self.listener = self._loop.time(), config.listener
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._transport: asyncio.Transport

    def __len__(self) -> int:
        """Number of requests in progress."""
        return len(self._answers)

    @property
    def client(self) -> Client:
        """Who is at its other end, as far as it is known."""
        return self._client

    # ---- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._outgoing = Outgoing(self._transport, self._unsent.sent)
        self._step_responses = StepResponses(self._config.step_end, self._outgoing.write)
        peer = transport.get_extra_info("peername") or ("", 0)
        address = plain_host(peer[0])
        self._client = Client(listener=self._config.listener, address=address, connection=next(_numbers))
        self._peer = address_text(address, peer[1])
        self._slot.end = self.cut_off
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
        self._release()
        self._step_responses.drop()
        self._outgoing.drop()
        self._unsent.close()
        del self._transport
        self._count_off()

    def _count_off(self) -> None:
        if not self._counted_off:
            self._counted_off = True
            self._slot.leave()
            self._gone(self)

    def end(self, reason: str | None = None) -> None:
        """Closes the connection once written responses have left; logs `reason`."""
        if self._lost:
            return
        if reason is not None and not self._ended:
            text = f"closed the connection of {{peer}} to listener {self._config.listener}: {reason}"
            self._config.refused.log(self._peer, text, kind_of(text))
        self._ended = True
        self._release()
        self._step_responses.flush()
        self._outgoing.close()
        self._timers["linger"] = self._loop.call_later(LINGER_S, self._transport.abort)

    def _release(self) -> None:
        """Drops all references once the connection has ended: garbage in a cycle is collected late."""
        for timer in self._timers.values():
            timer.cancel()
        self._in_progress.cancel()
        self._timers.clear()
        self._put_off = None
        for work in tuple(self._apart):
            work.cancel()
        self._long_ended()
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
        self._buffer.resume()
        self._work()

    def cut_off(self, reason: str | None) -> None:
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
        body = opened(body)
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
            self._know()

    def _know(self) -> None:
        """The client is known, or it speaks the protocol at a listener without logins: the
        connection no longer shares what strangers have."""
        self._is_known = True
        self._slot.known()
        self._share.move_to(self._config.memory)

    def _look_for_login(self) -> None:
        if self._login is not None and self._login.granted is None:
            self.end(f"it did not log in within {self._config.login_timeout_s:g} s")

    def _logs_in(self, login: Login, frame: bytes | bytearray) -> bool:
        """True if a frame belongs to a login or arrived after the session's end: it has then been handled."""
        clock = self._config.clock
        now_ms = clock.monotonic_ms()  # the loop's time may stop while the machine sleeps, and tokens expire
        if not login.takes(frame, now_ms):
            if login.has_ended(now_ms):
                self.end("its session has ended without another login (connections.max.reauth.ms)")
                return True
            return False
        number = self._answers.begin(len(frame))
        reply = login.take(frame, now_ms, clock.wall_ms())
        if reply.end is not None:
            self._refuse_login(number, reply.chunks, reply.end)
            return True
        self._send(number, reply.chunks)
        granted = login.granted
        if granted is not None:
            self._client = replace(self._client, principal=f"User:{granted.user}", by_token=granted.by_token)
            self._know()
            self._buffer.allow(self._config.request_max_bytes)
        return True

    def _refuse_login(self, number: int, chunks: Chunks, reason: str) -> None:
        """Responds and closes after a delay, to slow down guessing."""
        text = f"refused {{peer}} at listener {self._config.listener}: {reason}"
        self._config.refused.log(self._peer, text, kind_of(text))
        self._ended = True
        self._transport.pause_reading()

        def finish() -> None:
            self._send(number, chunks)
            self.end()

        self._timers["refusal"] = self._loop.call_later(self._config.failed_login_delay_s, finish)

    # ---- requests and answers

    def _work(self) -> None:
        """Starts the requests that there is room for; resumes reading only if none waits."""
        frames, answers = self._frames, self._answers
        put_off = self._put_off
        if put_off is not None and not (self._must_wait if put_off[2].is_long else self._is_held):
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
        """True if no request may start: written responses have not left, the client must wait, or a long
        request of its is in progress."""
        return self._long is not None or self._must_wait

    @property
    def _must_wait(self) -> bool:
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
            self._refuse(api_key, version, correlation_id, frame)
            return
        if not self._is_known:
            self._know()
        begun_s = time.perf_counter()
        try:
            request = codec.decode_request(frame, codec.FEW_VALUES)
        except TooManyValues:
            self._long = self._config.long.enter(partial(self._decode_long, frame, handler))
            return
        except DecodeError as error:
            self.end(str(error))
            return
        self._start(handler, request, Spent(size, time.perf_counter() - begun_s))

    def _decode_long(self, frame: bytes | bytearray, handler: Handler) -> None:
        """It is the turn of this request; no other of this connection starts until it is answered."""
        spent = Spent(len(frame), is_long=True)

        def decode() -> codec.Request:
            with spent:
                return codec.decode_request_apart(frame)

        def decoded(future: asyncio.Future[codec.Request]) -> None:
            try:
                request = future.result()
            except DecodeError as error:
                self.end(str(error))
                return
            self._start(handler, request, spent)

        self._do_apart(decode, decoded)

    def _do_apart(self, work: Callable[[], Any], done: Callable[[asyncio.Future[Any]], None]) -> None:
        """Does it in the thread, and calls `done` unless the connection has ended meanwhile."""
        future = self._config.long.work.do(self, work)
        self._apart.add(future)

        def ended(future: asyncio.Future[Any]) -> None:
            self._apart.discard(future)
            if future.cancelled() or (self._ended and future.exception() is not None):
                return
            if not self._ended:
                done(future)

        future.add_done_callback(ended)

    def _long_ended(self) -> None:
        turn, self._long = self._long, None
        if turn is not None:
            turn.leave()

    def _start(self, handler: Handler, request: codec.Request, spent: Spent) -> None:
        """Starts a request, or puts it off: until those before it are answered, unless they may overlap
        (`overlap`), and a client's fetch until there is memory for it."""
        group = group_of(request)
        if self._answers and (group is None or group != self._group):
            self._put_off = handler, request, spent
            return
        if request.header.api_key == FETCH:
            if not (is_of_a_broker(request) or self._unsent.may_fetch()):
                self._put_off = handler, request, spent
                return
            if self._quotas is not None:
                request = bounded(self._quotas, self._client, request, int(self._loop.time() * 1000))
        self._group = group
        number = self._answers.begin(spent.size)
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
        self._in_progress.wait(Asked(number, request, spent), answer, timed=timed)

    def _refuse(self, api_key: int, version: int, correlation_id: int, frame: bytes | bytearray) -> None:
        """Closes the connection for an API that is not offered, as in Kafka; ApiVersions gets a response."""
        if api_key != API_VERSIONS:
            text = f"API {api_key} version {version} of client {_client_id(frame)!r} is not offered"
            self.end(f"{text}; see what ApiVersions answers, and use a client of Kafka 0.11 or newer")
            return
        body = self._services.unsupported_version()
        number = self._answers.begin(len(frame))
        self._send(number, codec.encode_response(API_VERSIONS, 0, correlation_id, body))

    def start_waiting(self) -> None:
        """Called after a response: starts requests that waited for it."""
        if not self._ended and (self._frames or self._read_paused):
            self._work()

    def answer(self, asked: Asked, body: Any, begun_s: float) -> None:
        """Sends a response. `begun_s`: when the work on it began."""
        is_long = asked.spent.is_long
        if type(body) is LongAnswer:
            body, is_long = body.body, True
        if body is None:
            self._answer(asked, body, list)
            return
        encode: Callable[[], Chunks] = partial(self._services.prepared.encode, asked.request.header, body)
        if type(body) is AnswerFrame:
            encode = partial(list, (body.frame,))
        asked.spent.seconds += time.perf_counter() - begun_s
        if is_long:
            self._encode_long(asked, body, encode)
        else:
            self._answer(asked, body, encode)

    def _encode_long(self, asked: Asked, body: Any, encode: Callable[[], Chunks]) -> None:
        def work() -> Chunks:
            with asked.spent:
                return encode()

        def encoded(future: asyncio.Future[Chunks]) -> None:
            self._answer(asked, body, future.result)
            self.start_waiting()

        self._do_apart(work, encoded)

    def _answer(self, asked: Asked, body: Any, encode: Callable[[], Chunks]) -> None:
        if asked.spent.is_long:
            self._long_ended()
        begun_s = time.perf_counter()
        try:
            chunks = encode()
            asked.spent.seconds += time.perf_counter() - begun_s
            chunks = self._charged(asked.request, asked.spent, body, chunks)
        except EncodeError as error:
            self.failed(asked.request, error)
            return
        self._send(asked.number, chunks)

    def _send(self, number: int, chunks: Chunks) -> None:
        if chunks:
            size = sum(map(len, chunks))
            self._unsent.add(_LENGTH.size + size)
            chunks = [_LENGTH.pack(size), *chunks]
        ready = self._answers.finish(number, chunks)
        if ready:
            self._step_responses.put(ready)

    def failed(self, request: codec.Request, error: BaseException | None = None) -> None:
        """Closes the connection because of a bug in a handler; the client reconnects and retries."""
        header = request.header
        _log.error("API %d version %d failed", header.api_key, header.version, exc_info=error or True)
        self.end("its request failed here")


def _client_id(frame: bytes | bytearray) -> str:
    """The client id in the header of a request of any version."""
    size = int.from_bytes(frame[_HEAD.size : _HEAD.size + 2], "big", signed=True)
    start = _HEAD.size + 2
    return bytes(frame[start : start + max(0, min(size, CLIENT_ID_SHOWN))]).decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """Settings that the connections of one listener share."""

    listener: str
    request_max_bytes: int
    max_idle_s: float
    """A connection is closed after this time without a request."""
    rules: ListenerRules | None = None
    """None: clients do not authenticate."""
    quotas: Quotas | None = None
    """None: there are none."""
    clock: Clock = field(default_factory=SystemClock)
    login_max_bytes: int = 524_288
    login_timeout_s: float = 30
    """A connection is closed after this time without a login."""
    failed_login_delay_s: float = 0.1
    memory: RequestMemory = field(default_factory=RequestMemory, repr=False, compare=False)
    login_memory: RequestMemory = field(default_factory=RequestMemory, repr=False, compare=False)
    """For the frames of connections before their login."""
    refused: RefusedCallers = field(default_factory=RefusedCallers, repr=False, compare=False)
    unsent: Unsent = field(default_factory=Unsent, repr=False, compare=False)
    scratch: bytearray = field(default_factory=lambda: bytearray(SCRATCH_BYTES), repr=False, compare=False)
    """The buffer that receives the small frames of all connections (`FrameBuffer`)."""
    step_end: StepEnd = field(default_factory=StepEnd, repr=False, compare=False)
    long: LongRequests = field(default_factory=LongRequests, repr=False, compare=False)
    """The turns of long requests, shared by all listeners."""

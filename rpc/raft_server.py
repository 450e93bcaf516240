"""The answering side of the Raft transport: reads requests from the peers' streams, writes responses.

Which stream a request came from, and the order of responses: peers first, all others (brokers, of which
hundreds may wait for the same news) a few per turn of the loop, so that heartbeats and the quorum never wait
for them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Container
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from metaquorum.network.deferred import Deferred
from metaquorum.network.lane import LANE_KEY, Lane, LaneListener
from metaquorum.proto import raft_pb2 as pb
from metaquorum.raft.events import RaftRequestAbandoned, RaftRequestArrived
from metaquorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftRequest,
    RaftResponse,
)
from metaquorum.rpc import eager
from metaquorum.rpc.channels import END_OF_STREAM
from metaquorum.rpc.messages import raft as raft_codec
from metaquorum.rpc.raft_client import RaftCaller
from metaquorum.rpc.transport import EventSink

REQUESTS_PER_STREAM_MAX = 1024
"""The most requests of one caller without a written response; a caller that exceeds it, or sends without
reading, loses its stream."""

OTHERS_PER_TURN = 4
OTHERS_BYTES_PER_TURN = 1 << 18
"""The most bytes of responses to callers that are not peers, per turn of the loop. A turn must be short: gRPC
accepts one new call in every second turn, and heartbeats are calls. At most REQUESTS_PER_STREAM_MAX of one
caller wait."""

WRITE_ENDS_S = 1.0
"""How long a write to a caller that ended its stream may take to fail."""

OTHERS_PAUSE_S = 0.002
OTHERS_LATE = 4
OTHERS_PAUSE_MAX_S = 0.1
"""Two such turns are OTHERS_PAUSE_S plus OTHERS_LATE times the delay of the last one apart, and at most
OTHERS_PAUSE_MAX_S: a busy loop responds to others later, with more records per response."""

_log = logging.getLogger(__name__)


if TYPE_CHECKING:
    ServicerContext = grpc.aio.ServicerContext[pb.RaftEnvelope, bytes]


class _Caller:
    """One caller: the keys of its requests, and the way to it."""

    __slots__ = ("is_first", "keys", "loop", "open", "unwritten")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_first = True
        self.open = True
        self.keys: set[int] = set()
        self.unwritten = 0
        self.loop = loop

    def push(self, envelope: bytes, *, now: bool) -> None:
        """Sends a response. `now`: in this step, for records, which a commit waits for. Otherwise after the
        responses to clients of the same step: a client waits for those, but a follower does not wait for the
        high watermark."""
        raise NotImplementedError

    def close(self) -> None:
        """The caller has disconnected."""
        self.open = False


class _LaneCaller(_Caller):
    """A caller on a lane."""

    __slots__ = ("_lane",)

    def __init__(self, loop: asyncio.AbstractEventLoop, lane: Lane) -> None:
        super().__init__(loop)
        self._lane = lane

    def push(self, envelope: bytes, *, now: bool) -> None:
        self.unwritten -= 1
        if now:
            self._lane.write(envelope)
        else:
            self.loop.call_soon(lambda: self.loop.call_soon(self._lane.write, envelope))

    def close(self) -> None:
        super().close()
        self._lane.close()


class _Stream(_Caller):
    """A caller on its gRPC stream, with the queued responses."""

    __slots__ = ("_context", "_later", "_writer", "outbound")

    def __init__(self, loop: asyncio.AbstractEventLoop, context: ServicerContext) -> None:
        super().__init__(loop)
        self.outbound: deque[bytes] = deque()
        self._context = context
        self._writer: asyncio.Task[None] | None = None
        self._later: asyncio.Handle | None = None

    def push(self, envelope: bytes, *, now: bool) -> None:
        """Queues a response; with `now`, it leaves before this returns unless another write is in
        progress."""
        self.outbound.append(envelope)
        if self._writer is not None or not self.open:
            return
        if now:
            self._start()
        elif self._later is None:
            self._later = self.loop.call_soon(lambda: self.loop.call_soon(self._start))

    async def finish(self) -> None:
        """Stops writing; waits for a write in progress, because gRPC accepts no status during one."""
        self.open = False
        self.outbound.clear()
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=WRITE_ENDS_S)

    def close(self) -> None:
        super().close()
        if self._writer is not None:
            self._writer.cancel()

    def _start(self) -> None:
        self._later = None
        if self.outbound and self._writer is None and self.open:
            self._writer = eager.start(self._write(), self.loop)
            if self._writer is not None:
                self._writer.add_done_callback(self._written)

    def _written(self, writer: asyncio.Task[None]) -> None:
        self._writer = None
        self._start()  # queued after the last check

    async def _write(self) -> None:
        try:
            while self.outbound:
                await self._context.write(self.outbound.popleft())
                self.unwritten -= 1
        except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            self.open = False
            _log.debug("an answer could not be written, the stream has ended: %s", error)


class RaftService:
    """The gRPC service, which `add_raft_service` registers; the driver calls `respond`. `peers`: the ids that
    get responses first; None: all. `listener` offers lanes; None: no lanes."""

    def __init__(
        self, sink: EventSink, peers: Container[int] | None = None, listener: LaneListener | None = None
    ) -> None:
        self._lane_listener = listener
        self._sink = sink
        self._peers = peers
        self._others: deque[tuple[_Caller, int, RaftResponse]] = deque()
        self._others_due_s = 0.0
        self._keys = itertools.count(1)
        self._callers: dict[int, tuple[_Caller, int]] = {}
        self._asked: dict[int, Deferred[RaftResponse]] = {}

    def ask(self, request: RaftRequest) -> Deferred[RaftResponse] | None:
        """The response to a request that arrived elsewhere; cancelling it ends the wait. None: this node is
        stopping."""
        key = next(self._keys)
        waiting: Deferred[RaftResponse] = Deferred(lambda: self._let_go(key))
        if not self._sink(RaftRequestArrived(key=key, request=request)):
            return None
        self._asked[key] = waiting
        return waiting

    def _let_go(self, key: int) -> None:
        if self._asked.pop(key, None) is not None:
            self._sink(RaftRequestAbandoned(key=key))

    def respond(self, key: int, response: RaftResponse) -> None:
        """Responds to the request of `key`; does nothing if its caller has disconnected."""
        waiting = self._asked.pop(key, None)
        if waiting is not None:
            waiting.set_result(response)
            return
        caller = self._callers.pop(key, None)
        if caller is None:
            return
        stream, correlation_id = caller
        stream.keys.discard(key)
        if stream.is_first:
            stream.push(raft_codec.encode_response(correlation_id, response), now=_has_records(response))
            return
        self._others.append((stream, correlation_id, response))
        if len(self._others) == 1:
            self._others_due_s = stream.loop.time()
            stream.loop.call_soon(self._answer_others)

    def _answer_others(self) -> None:
        """Sends the next few responses to others, in order."""
        others = self._others
        size = count = 0
        while others and count < OTHERS_PER_TURN and size < OTHERS_BYTES_PER_TURN:
            stream, correlation_id, response = others.popleft()
            if stream.open:
                stream.push(raft_codec.encode_response(correlation_id, response), now=False)
                size += _payload_bytes(response)
                count += 1
        if others:
            loop = others[0][0].loop
            now_s = loop.time()
            late_s = max(0.0, now_s - self._others_due_s)
            pause_s = min(OTHERS_PAUSE_MAX_S, OTHERS_PAUSE_S + OTHERS_LATE * late_s)
            self._others_due_s = now_s + pause_s
            loop.call_later(pause_s, self._answer_others)

    def _is_first(self, request: RaftRequest) -> bool:
        if self._peers is None or not isinstance(request, FetchRequest | FetchSnapshotRequest):
            return True
        return request.replica_id in self._peers

    async def exchange(
        self,
        request_iterator: AsyncIterator[pb.RaftEnvelope],
        context: ServicerContext,
    ) -> None:
        """Serves one caller until it disconnects."""
        stream = _Stream(asyncio.get_running_loop(), context)
        lanes: list[_LaneCaller] = []
        listener = self._lane_listener
        offer = None if listener is None else listener.offer(lambda lane: lanes.append(self._on_lane(lane)))
        try:
            if offer is not None:
                await context.send_initial_metadata(((LANE_KEY, offer.text()),))
            await self._read(stream, context)
            await stream.finish()
        except raft_codec.EnvelopeError as error:
            await stream.finish()
            _log.warning("closed the stream of a peer that sent an invalid Raft request: %s", error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            if listener is not None and offer is not None:
                listener.withdraw(offer)
            for caller in (stream, *lanes):
                caller.close()
                self._forget(caller)

    def _on_lane(self, lane: Lane) -> _LaneCaller:
        """Serves the caller of a stream on its lane."""
        caller = _LaneCaller(asyncio.get_running_loop(), lane)
        lane.open(lambda message: self._take(caller, raft_codec.parse(message)), lambda: self._forget(caller))
        return caller

    async def _read(self, stream: _Stream, context: ServicerContext) -> None:
        while True:
            envelope = await context.read()
            if envelope is END_OF_STREAM:
                return
            self._take(stream, envelope)

    def _take(self, caller: _Caller, envelope: pb.RaftEnvelope) -> None:
        """Handles a request. Raises EnvelopeError if it is malformed or exceeds the caller's limit."""
        request = raft_codec.decode_request(envelope)
        if caller.unwritten >= REQUESTS_PER_STREAM_MAX:
            raise raft_codec.EnvelopeError(f"more than {REQUESTS_PER_STREAM_MAX} requests are unanswered")
        caller.is_first = self._is_first(request)
        key = next(self._keys)
        caller.keys.add(key)
        caller.unwritten += 1
        self._callers[key] = (caller, envelope.correlation_id)
        if not self._sink(RaftRequestArrived(key=key, request=request)):
            caller.keys.discard(key)
            caller.unwritten -= 1
            del self._callers[key]

    def _forget(self, caller: _Caller) -> None:
        """Drops a caller that has disconnected, with its requests."""
        caller.open = False
        for key in caller.keys:
            del self._callers[key]
            self._sink(RaftRequestAbandoned(key=key))
        caller.keys.clear()


def _has_records(response: RaftResponse) -> bool:
    return type(response) is FetchResponse and bool(response.records)


def _payload_bytes(response: RaftResponse) -> int:
    match response:
        case FetchResponse(records=records):
            return len(records)
        case FetchSnapshotResponse(data=data):
            return len(data)
        case _:
            return 0


def add_raft_service(service: RaftService, server: grpc.aio.Server) -> None:
    """Registers the service of proto/raft.proto, whose responses are already bytes."""
    name = pb.DESCRIPTOR.services_by_name["Raft"].full_name
    exchange = grpc.stream_stream_rpc_method_handler(
        service.exchange, request_deserializer=pb.RaftEnvelope.FromString, response_serializer=bytes
    )
    handler = grpc.method_handlers_generic_handler(name, {"Exchange": exchange})
    server.add_generic_rpc_handlers((handler,))


class GrpcRaftTransport:
    """Both sides as one `RaftTransport`. `client` sends requests, `service` (None on an observer)
    responses."""

    def __init__(self, client: RaftCaller, service: RaftService | None) -> None:
        self._client = client
        self._service = service
        self.send = client.send

    def respond(self, key: int, response: RaftResponse) -> None:
        if self._service is not None:
            self._service.respond(key, response)

    async def close(self) -> None:
        await self._client.close()

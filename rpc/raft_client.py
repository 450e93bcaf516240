"""The calling side of the Raft transport: one long-lived gRPC stream to each peer.

A stream is opened when there is something to send, and never waits out a backoff: a request fails at once
while the peer is known to be unreachable, and the caller decides when to retry. A voter uses the lane that
the stream's server offers; if it cannot, the stream carries everything.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Container, Iterator
from typing import Any, Protocol

import grpc.aio
import msgspec

from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.backoff import Backoff, BackoffPolicy
from metaquorum.network.lane import LANE_KEY, Lane, Offer, take_up
from metaquorum.network.tls import TlsMaterial
from metaquorum.proto import raft_pb2 as pb
from metaquorum.proto.raft_pb2_grpc import RaftStub
from metaquorum.raft.events import RaftRequestFailed, RaftResponseArrived
from metaquorum.raft.messages import RaftRequest
from metaquorum.rpc import eager
from metaquorum.rpc.channels import END_OF_STREAM, Route, direct, open_channel
from metaquorum.rpc.messages import raft as raft_codec
from metaquorum.rpc.reach import Reasons, failure_text
from metaquorum.rpc.transport import EventSink

IN_FLIGHT_MAX = 256
"""The most requests to one peer without a response; more fail at once (a core has a handful)."""

LANE_TIMEOUTS_MAX = 3
"""A lane ends after this many consecutive timeouts: a device may drop its packets but not the stream's."""

RECONNECT = BackoffPolicy(initial_ms=20, max_ms=200)
_log = logging.getLogger(__name__)


class PeerAddress(msgspec.Struct, frozen=True):
    """The address of a peer's listener for the quorum."""

    host: str
    port: int


class Addresses(Protocol):
    """Addresses of peers by id, and the ids in order; a dict is one. Both may change."""

    def get(self, node_id: int, /) -> PeerAddress | None: ...

    def __iter__(self) -> Iterator[int]: ...


class RaftCaller(Protocol):
    """The calling side of a transport."""

    def send(self, to: int, correlation_id: int, request: RaftRequest, timeout_ms: int) -> None: ...

    def retain(self, node_ids: Container[int]) -> None:
        """Closes the connections to all other nodes."""

    async def close(self) -> None: ...


class RaftClient:
    """The streams to the peers of one node; `lanes`: also uses lanes. Everything runs on the loop's thread.
    If a peer's address changes, the next request opens a new stream."""

    def __init__(
        self,
        addresses: Addresses,
        sink: EventSink,
        *,
        tls: TlsMaterial | None = None,
        rng: random.Random,
        lanes: bool = False,
        route: Route = direct,
    ) -> None:
        self._addresses = addresses
        self._lanes = lanes
        self._route = route
        self._peers: dict[int, _Peer] = {}
        self._retired: set[asyncio.Task[None]] = set()
        self._sink = sink
        self._tls = tls
        self._rng = rng

    def send(self, to: int, correlation_id: int, request: RaftRequest, timeout_ms: int) -> None:
        """Sends a request; exactly one RaftResponseArrived or RaftRequestFailed follows."""
        address = self._addresses.get(to)
        if address is None:
            failure = RaftRequestFailed(
                target=to, correlation_id=correlation_id, reason=f"node {to} has no known address"
            )
            asyncio.get_running_loop().call_soon(self._sink, failure)
            return
        peer = self._peers.get(to)
        if peer is None or peer.address != address:
            self._retire(to, f"node {to} moved to {address_text(address.host, address.port)}")
            peer = self._peers[to] = _Peer(
                to, address, self._sink, self._tls, self._rng, lanes=self._lanes, route=self._route
            )
        peer.send(correlation_id, request, timeout_ms)

    def retain(self, node_ids: Container[int]) -> None:
        """Closes the streams to all other nodes: removed voters, and bootstrap servers once the leader is
        known."""
        for node_id in [each for each in self._peers if each not in node_ids]:
            self._retire(node_id, f"node {node_id} is no longer a target")

    def has_lane(self, node_id: int) -> bool:
        """True if requests to this peer use a lane."""
        peer = self._peers.get(node_id)
        return peer is not None and peer.has_lane

    def _retire(self, node_id: int, reason: str) -> None:
        peer = self._peers.pop(node_id, None)
        if peer is not None:
            peer.fail_all(reason)
            task = asyncio.get_running_loop().create_task(peer.close())
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)

    async def close(self) -> None:
        """Closes all streams; drops requests in flight without an event."""
        await asyncio.gather(*(peer.close() for peer in self._peers.values()), *self._retired)


class _Peer:
    """The stream to one peer, and the requests that wait for responses."""

    def __init__(
        self,
        node_id: int,
        address: PeerAddress,
        sink: EventSink,
        tls: TlsMaterial | None,
        rng: random.Random,
        *,
        lanes: bool,
        route: Route,
    ) -> None:
        self.address = address
        self._lanes = lanes
        self._route = route
        self._lane: Lane | None = None
        self._lane_timeouts = 0
        self._node_id = node_id
        self._sink = sink
        self._tls = tls
        self._reasons = Reasons(tls)
        self._backoff = Backoff(RECONNECT, rng)
        self._last_failure, self._refusal = "", ""
        self._waiting: dict[int, asyncio.TimerHandle] = {}
        self._outbound: deque[pb.RaftEnvelope] = deque()
        self._task: asyncio.Task[None] | None = None
        self._call: Any = None
        """The stream, once it is open."""
        self._writer: asyncio.Task[None] | None = None

    def send(self, correlation_id: int, request: RaftRequest, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        if self._task is None:
            remaining_ms = self._backoff.remaining_ms(int(loop.time() * 1000))
            if remaining_ms > 0:
                reason = f"{self._last_failure}; next attempt in {remaining_ms} ms"
                loop.call_soon(self._report_failure, correlation_id, reason)
                return
            self._task = loop.create_task(self._run())
        if len(self._waiting) >= IN_FLIGHT_MAX:
            loop.call_soon(self._report_failure, correlation_id, f"{IN_FLIGHT_MAX} requests are unanswered")
            return
        self._waiting[correlation_id] = loop.call_later(
            timeout_ms / 1000, self._timed_out, correlation_id, timeout_ms
        )
        envelope = raft_codec.encode(correlation_id, request)
        if self._lane is not None:
            self._lane.write(envelope.SerializeToString())
            return
        self._outbound.append(envelope)
        self._start_writing()

    @property
    def has_lane(self) -> bool:
        return self._lane is not None

    def fail_all(self, reason: str) -> None:
        """Reports every request as failed, after the caller's step."""
        loop = asyncio.get_running_loop()
        waiting, self._waiting = self._waiting, {}
        for correlation_id, timer in waiting.items():
            timer.cancel()
            loop.call_soon(self._report_failure, correlation_id, reason)

    async def close(self) -> None:
        task, self._task = self._task, None
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _report_failure(self, correlation_id: int, reason: str) -> None:
        failure = RaftRequestFailed(
            target=self._node_id, correlation_id=correlation_id, reason=reason, refusal=self._refusal
        )
        self._sink(failure)

    def _timed_out(self, correlation_id: int, timeout_ms: int) -> None:
        if self._waiting.pop(correlation_id, None) is not None:
            # Drop a request that was not sent: it would only burden the peer once it is back.
            self._outbound = deque(e for e in self._outbound if e.correlation_id != correlation_id)
            self._report_failure(correlation_id, f"no answer within {timeout_ms} ms")
            self._lane_timeouts += self._lane is not None
            if self._lane_timeouts == LANE_TIMEOUTS_MAX:
                _log.info("closed the lane to node %d: no messages arrive on it", self._node_id)
                self._lost_lane()

    async def _run(self) -> None:
        """Runs one stream from the first request to its end, which fails all requests in flight."""
        loop = asyncio.get_running_loop()
        reason, refusal = "the peer ended the stream", ""
        channel = open_channel(*self._route(self.address.host, self.address.port), self._tls)
        try:
            exchange: Any = RaftStub(channel).Exchange
            call = exchange()
            self._call = call
            self._start_writing()
            lane = loop.create_task(self._take_up_lane(call)) if self._lanes else None
            try:
                await self._read(call)
            finally:
                await self._leave_lane(lane)
                self._call, writer = None, self._writer
                if writer is not None:
                    writer.cancel()
                    await asyncio.gather(writer, return_exceptions=True)
                call.cancel()
        except grpc.aio.AioRpcError as error:
            reason = failure_text(error)
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                refusal = error.details() or reason
            self._reasons.tell(f"node {self._node_id}", error, (self.address.host, self.address.port))
        except raft_codec.EnvelopeError as error:
            reason = f"it sent an invalid answer: {error}"
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            reason = failure_text(error)
        finally:
            # Closing the channel must not delay the failures below, so a task closes it.
            loop.create_task(channel.close(None))  # noqa: RUF006
            if self._task is asyncio.current_task():
                self._task = None
                self._refusal = refusal
                self._broken(reason)

    async def _take_up_lane(self, call: Any) -> None:
        """Opens the lane, which later requests use. If it ends, so does the stream."""
        try:
            offered = (await call.initial_metadata()).get(LANE_KEY)
            if offered is not None:
                offer = Offer.parse(offered)
                host, port = self._route(self.address.host, offer.port)
                offer = msgspec.structs.replace(offer, port=port)
                tls = None if self._tls is None else self._tls.client_context()
                self._lane = await take_up(offer, host, self._took_bytes, self._lost_lane, tls)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError):
            return  # the reader reports the reason
        except (OSError, ValueError, TimeoutError) as error:
            reason = str(error) or "no answer"
            _log.info(
                "Raft uses gRPC to node %d, because its lane cannot be reached: %s", self._node_id, reason
            )

    def _lost_lane(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _leave_lane(self, taking_up: asyncio.Task[None] | None) -> None:
        if taking_up is not None:
            taking_up.cancel()
            await asyncio.gather(taking_up, return_exceptions=True)
        lane, self._lane, self._lane_timeouts = self._lane, None, 0
        if lane is not None:
            lane.close()

    async def _read(self, call: Any) -> None:
        while True:
            envelope = await call.read()
            if envelope is END_OF_STREAM:
                return
            if envelope is None:  # gRPC returns None for what it cannot decode
                raise raft_codec.EnvelopeError("its bytes cannot be decoded")
            self._took(envelope)

    def _took_bytes(self, message: bytes) -> None:
        self._lane_timeouts = 0
        self._took(raft_codec.parse(message))

    def _took(self, envelope: pb.RaftEnvelope) -> None:
        """Handles a response. Raises EnvelopeError if it is malformed."""
        self._backoff.succeeded()
        self._refusal = ""
        timer = self._waiting.pop(envelope.correlation_id, None)
        if timer is None:
            return  # it arrived after its timeout
        timer.cancel()
        try:
            response = raft_codec.decode_response(envelope)
        except raft_codec.EnvelopeError as error:
            self._report_failure(envelope.correlation_id, str(error))
            raise
        self._sink(
            RaftResponseArrived(
                source=self._node_id, correlation_id=envelope.correlation_id, response=response
            )
        )

    def _start_writing(self) -> None:
        """Starts writing: a request leaves before this returns, unless there is no stream yet or another
        write is in progress."""
        if self._call is not None and self._writer is None:
            self._writer = eager.start(self._write(self._call), asyncio.get_running_loop())
            if self._writer is not None:
                self._writer.add_done_callback(self._written)

    def _written(self, writer: asyncio.Task[None]) -> None:
        self._writer = None
        if self._outbound:  # queued after the last check, or for a new stream
            self._start_writing()

    async def _write(self, call: Any) -> None:
        try:
            while self._outbound:
                await call.write(self._outbound.popleft())
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            self._call = None  # the reader reports the reason

    def _broken(self, reason: str) -> None:
        loop = asyncio.get_running_loop()
        where = address_text(self.address.host, self.address.port)
        self._last_failure = f"cannot reach node {self._node_id} at {where}"
        self._last_failure += f" ({reason})"
        self._backoff.failed(int(loop.time() * 1000))
        self._outbound.clear()
        waiting, self._waiting = self._waiting, {}
        for correlation_id, timer in waiting.items():
            timer.cancel()
            self._report_failure(correlation_id, self._last_failure)

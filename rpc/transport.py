"""The interface between a driver and a Raft transport, and the requests of other nodes until their answers.

Every implementation keeps these promises (tests/conformance/test_transport.py):

* `send` never blocks and never raises. It ends in exactly one `RaftResponseArrived` or
  `RaftRequestFailed`, and never calls back before it has returned;
* responses may arrive in any order;
* a broken connection fails all its requests in flight at once, a refused one the request that needed it;
* an incoming request is reported with a key that is unique within the process; `respond` answers it once,
  and does nothing if the caller has disconnected, which `RaftRequestAbandoned` has reported.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import Protocol

import msgspec

from metaquorum.network.backoff import BackoffPolicy
from metaquorum.network.deferred import Deferred
from metaquorum.raft.events import (
    RaftRequestAbandoned,
    RaftRequestArrived,
    RaftRequestFailed,
    RaftResponseArrived,
)
from metaquorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftRequest,
    RaftResponse,
)

IN_FLIGHT_MAX = 256
"""The most requests to one peer without a response; more fail at once (a core has a handful)."""
RECONNECT = BackoffPolicy(initial_ms=20, max_ms=200)

OTHERS_PER_TURN = 4
OTHERS_BYTES_PER_TURN = 1 << 18
"""The most bytes of responses to callers that are not peers, per turn of the loop. A turn must be short: gRPC
accepts one new call in every second turn, and heartbeats are calls."""
OTHERS_PAUSE_S = 0.002
OTHERS_LATE = 4
OTHERS_PAUSE_MAX_S = 0.1
"""Two such turns are OTHERS_PAUSE_S plus OTHERS_LATE times the delay of the last one apart, and at most
OTHERS_PAUSE_MAX_S: a busy loop responds to others later, with more records per response."""

TransportEvent = RaftRequestArrived | RaftRequestAbandoned | RaftResponseArrived | RaftRequestFailed
EventSink = Callable[[TransportEvent], bool]
"""Takes an event; returns False if its queue is full. A request that is not taken is left to its caller's
timeout."""


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


class RaftTransport(Protocol):
    """Both directions of one node's Raft traffic."""

    def send(self, to: int, correlation_id: int, request: RaftRequest, timeout_ms: int) -> None: ...

    def respond(self, key: int, response: RaftResponse) -> None: ...

    async def close(self) -> None: ...


class RaftService:
    """The answering side: a listener calls `ask`, the driver `respond`. `peers`: the ids that get responses
    first; None: all. Others (brokers, of which hundreds may wait for the same news) get a few per turn of the
    loop, so that heartbeats and the quorum never wait for them."""

    def __init__(self, sink: EventSink, peers: Container[int] | None = None) -> None:
        self._sink = sink
        self._peers = peers
        self._others: deque[tuple[Deferred[RaftResponse], RaftResponse]] = deque()
        self._others_due_s = 0.0
        self._keys = itertools.count(1)
        self._asked: dict[int, tuple[Deferred[RaftResponse], bool]] = {}

    def ask(self, request: RaftRequest) -> Deferred[RaftResponse] | None:
        """The response to a request that arrived; cancelling it ends the wait. None: this node is
        stopping."""
        key = next(self._keys)
        waiting: Deferred[RaftResponse] = Deferred(lambda: self._let_go(key))
        if not self._sink(RaftRequestArrived(key=key, request=request)):
            return None
        self._asked[key] = waiting, self._is_first(request)
        return waiting

    def _let_go(self, key: int) -> None:
        if self._asked.pop(key, None) is not None:
            self._sink(RaftRequestAbandoned(key=key))

    def respond(self, key: int, response: RaftResponse) -> None:
        """Responds to the request of `key`; does nothing if its caller has disconnected."""
        waiting, is_first = self._asked.pop(key, (None, True))
        if waiting is None:
            return
        if is_first:
            waiting.set_result(response)
            return
        self._others.append((waiting, response))
        if len(self._others) == 1:
            loop = asyncio.get_running_loop()
            self._others_due_s = loop.time()
            loop.call_soon(self._answer_others)

    def _answer_others(self) -> None:
        """Sends the next few responses to others, in order."""
        others = self._others
        size = count = 0
        while others and count < OTHERS_PER_TURN and size < OTHERS_BYTES_PER_TURN:
            waiting, response = others.popleft()
            if not waiting.done():
                waiting.set_result(response)
                size += _payload_bytes(response)
                count += 1
        if others:
            loop = asyncio.get_running_loop()
            now_s = loop.time()
            late_s = max(0.0, now_s - self._others_due_s)
            pause_s = min(OTHERS_PAUSE_MAX_S, OTHERS_PAUSE_S + OTHERS_LATE * late_s)
            self._others_due_s = now_s + pause_s
            loop.call_later(pause_s, self._answer_others)

    def _is_first(self, request: RaftRequest) -> bool:
        if self._peers is None or not isinstance(request, FetchRequest | FetchSnapshotRequest):
            return True
        return request.replica_id in self._peers


def _payload_bytes(response: RaftResponse) -> int:
    match response:
        case FetchResponse(records=records):
            return len(records)
        case FetchSnapshotResponse(data=data):
            return len(data)
        case _:
            return 0


class NodeTransport:
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

"""The interface between a driver and a Raft transport, which gRPC streams and lanes implement (ADR 18).

Every implementation keeps these promises (tests/conformance/test_transport.py):

* `send` never blocks and never raises. It ends in exactly one `RaftResponseArrived` or
  `RaftRequestFailed`, and never calls back before it has returned;
* responses may arrive in any order;
* a broken connection fails all its requests in flight at once, a refused one the request that needed it;
* an incoming request is reported with a key that is unique within the process; `respond` answers it once,
  and does nothing if the caller has disconnected, which `RaftRequestAbandoned` has reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from metaquorum.raft.events import (
    RaftRequestAbandoned,
    RaftRequestArrived,
    RaftRequestFailed,
    RaftResponseArrived,
)
from metaquorum.raft.messages import RaftRequest, RaftResponse

TransportEvent = RaftRequestArrived | RaftRequestAbandoned | RaftResponseArrived | RaftRequestFailed
EventSink = Callable[[TransportEvent], bool]
"""Takes an event; returns False if its queue is full. A request that is not taken is left to its caller's
timeout."""


class RaftTransport(Protocol):
    """Both directions of one node's Raft traffic."""

    def send(self, to: int, correlation_id: int, request: RaftRequest, timeout_ms: int) -> None: ...

    def respond(self, key: int, response: RaftResponse) -> None: ...

    async def close(self) -> None: ...

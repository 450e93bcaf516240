"""An in-memory Raft transport for tests: several nodes on one loop, with the promises of `RaftTransport`."""

from __future__ import annotations

import asyncio
import itertools

from metaquorum.raft.events import (
    RaftRequestAbandoned,
    RaftRequestArrived,
    RaftRequestFailed,
    RaftResponseArrived,
)
from metaquorum.raft.messages import RaftRequest, RaftResponse
from metaquorum.rpc.transport import EventSink


class MemoryNetwork:
    """Who is reachable. `transport` joins a node; a node that is down refuses at once."""

    def __init__(self) -> None:
        self.nodes: dict[int, MemoryTransport] = {}

    def transport(self, node_id: int, sink: EventSink) -> MemoryTransport:
        return MemoryTransport(self, node_id, sink)

    def start(self, transport: MemoryTransport) -> None:
        self.nodes[transport.node_id] = transport

    def stop(self, node_id: int) -> None:
        """The node's process dies: everything outstanding at it fails."""
        node = self.nodes.pop(node_id)
        for caller, correlation_id in list(node.callers.values()):
            caller.fail(node_id, correlation_id, "the peer went away")
        node.callers.clear()


class MemoryTransport:
    """One node's end."""

    def __init__(self, network: MemoryNetwork, node_id: int, sink: EventSink) -> None:
        self.node_id = node_id
        self.callers: dict[int, tuple[MemoryTransport, int]] = {}
        self._network = network
        self._sink = sink
        self._keys = itertools.count(1)
        self._waiting: dict[tuple[int, int], asyncio.TimerHandle] = {}

    def send(self, to: int, correlation_id: int, request: RaftRequest, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[to, correlation_id] = loop.call_later(
            timeout_ms / 1000, self.fail, to, correlation_id, f"no answer within {timeout_ms} ms"
        )
        loop.call_soon(self._deliver, to, correlation_id, request)

    def _deliver(self, to: int, correlation_id: int, request: RaftRequest) -> None:
        peer = self._network.nodes.get(to)
        if peer is None:
            self.fail(to, correlation_id, f"cannot reach node {to}")
        elif (to, correlation_id) in self._waiting:
            key = next(peer._keys)
            peer.callers[key] = (self, correlation_id)
            if not peer._sink(RaftRequestArrived(key=key, request=request)):
                del peer.callers[key]

    def respond(self, key: int, response: RaftResponse) -> None:
        caller = self.callers.pop(key, None)
        if caller is not None:
            asyncio.get_running_loop().call_soon(caller[0]._answered, self.node_id, caller[1], response)

    def _answered(self, source: int, correlation_id: int, response: RaftResponse) -> None:
        timer = self._waiting.pop((source, correlation_id), None)
        if timer is not None:
            timer.cancel()
            self._sink(RaftResponseArrived(source=source, correlation_id=correlation_id, response=response))

    def fail(self, to: int, correlation_id: int, reason: str) -> None:
        timer = self._waiting.pop((to, correlation_id), None)
        if timer is not None:
            timer.cancel()
            self._sink(RaftRequestFailed(target=to, correlation_id=correlation_id, reason=reason))

    async def close(self) -> None:
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        for peer in self._network.nodes.values():
            for key, (caller, _) in list(peer.callers.items()):
                if caller is self:
                    del peer.callers[key]
                    peer._sink(RaftRequestAbandoned(key=key))

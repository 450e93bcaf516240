"""Requests to other brokers by Kafka's protocol, on the listener by which brokers follow each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from metaquorum.broker.server.data.peers import Peer, PeerConnector
from metaquorum.clients.kafka.connection import ConnectionFailed, NodeConnection
from metaquorum.metadata.image import MetadataImage
from metaquorum.network.deferred import Deferred
from metaquorum.wire.codec import Response

LOOK_S = 1.0
"""How often to look for requests without an answer in time."""


class OtherBrokers:
    """`image` is called at each request; `listener` is the name of the listener between brokers."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        connector: PeerConnector,
        *,
        listener: str,
        broker_id: int,
        timeout_s: float,
    ) -> None:
        self._image = image
        self._connector = connector
        self._listener = listener
        self._client_id = f"broker-{broker_id}-coordinator"
        self._timeout_s = timeout_s
        self._connections: dict[int, tuple[Peer, NodeConnection]] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._in_flight: dict[Deferred[Response], tuple[NodeConnection, float]] = {}
        """Requests without a task: the connection, and the deadline on the loop's clock."""
        self._look: asyncio.TimerHandle | None = None

    async def ask(self, broker_id: int, body: Any, *, version: int | None = None) -> Any:
        """The body of the answer. Raises ConnectionFailed or TimeoutError: whether the request was carried
        out is unknown."""
        peer = self._peer(broker_id)
        known = self._connections.get(broker_id)
        if known is not None and known[0] == peer and known[1].has_room and not known[1].login_is_due:
            answer = await self._send(known[1], body, version)
        else:
            connecting = asyncio.get_running_loop().create_task(
                self._connect_and_ask(broker_id, body, version)
            )
            answer = await connecting
        self._connector.reached(peer.host, peer.port)
        return answer

    async def _send(self, connection: NodeConnection, body: Any, version: int | None) -> Any:
        """Without a task, like most requests."""
        answer: Deferred[Response] = Deferred()
        if version is None:
            version = connection.version(type(body).__name__.removesuffix("Request"))
        connection.send(body, version=version, to=answer)
        loop = asyncio.get_running_loop()
        self._in_flight[answer] = connection, loop.time() + self._timeout_s
        if self._look is None:
            self._look = loop.call_later(LOOK_S, self._look_for_late_ones)
        try:
            return (await answer).body
        finally:
            del self._in_flight[answer]

    def _look_for_late_ones(self) -> None:
        """One timer for all: each takes a fraction of its time, as a rule."""
        self._look, loop = None, asyncio.get_running_loop()
        now_s = loop.time()
        for connection, due_s in list(self._in_flight.values()):
            if now_s >= due_s:
                connection.close(f"no answer within {self._timeout_s:g} s")
        if self._in_flight:
            self._look = loop.call_later(LOOK_S, self._look_for_late_ones)

    async def _connect_and_ask(self, broker_id: int, body: Any, version: int | None) -> Any:
        async with self._locks.setdefault(broker_id, asyncio.Lock()):
            connection = await self._connection(broker_id)
        return (await connection.ask(body, version=version, timeout_s=self._timeout_s)).body

    def _peer(self, broker_id: int) -> Peer:
        broker = self._image().brokers.get(broker_id)
        at = None if broker is None else broker.endpoint(self._listener)
        if at is None:
            raise ConnectionFailed(f"broker {broker_id} has no listener {self._listener}")
        return Peer(broker_id, at.host, at.port, at.security_protocol)

    async def _connection(self, broker_id: int) -> NodeConnection:
        """A connection whose login stays valid for a while."""
        peer = self._peer(broker_id)
        open_connection = self._connections.get(broker_id)
        if open_connection is not None:
            if open_connection[0] == peer and open_connection[1].is_open:
                if open_connection[1].login_is_due:
                    await self._connector.log_in_again(peer, open_connection[1], timeout_s=self._timeout_s)
                return open_connection[1]
            open_connection[1].close()
        connection = await self._connector.open(peer, client_id=self._client_id, timeout_s=self._timeout_s)
        self._connections[broker_id] = peer, connection
        return connection

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
        for _, connection in self._connections.values():
            connection.close()
        self._connections.clear()

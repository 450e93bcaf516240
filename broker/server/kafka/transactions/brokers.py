"""Requests to other brokers by Kafka's protocol, on the listener by which brokers follow each other.

Owns one connection to each broker; what is asked, and what an answer means, is its user's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from metaquorum.broker.server.peers import Peer, PeerConnector
from metaquorum.metadata.image import MetadataImage
from metaquorum.runtime.kafka.client.connection import NodeConnection
from metaquorum.runtime.kafka.client.errors import ConnectionFailed


class OtherBrokers:
    """`image` is asked for at each request; `listener` is the name of the brokers' own."""

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

    async def ask(self, broker_id: int, body: Any, *, version: int | None = None) -> Any:
        """The body of the answer. Raises ConnectionFailed or TimeoutError: whether the request was carried
        out is unknown."""
        async with self._locks.setdefault(broker_id, asyncio.Lock()):
            peer, connection = await self._connection(broker_id)
        answer = (await connection.ask(body, version=version, timeout_s=self._timeout_s)).body
        self._connector.reached(peer.host, peer.port)
        return answer

    async def _connection(self, broker_id: int) -> tuple[Peer, NodeConnection]:
        """Logged in for a while still."""
        broker = self._image().brokers.get(broker_id)
        at = None if broker is None else broker.endpoint(self._listener)
        if at is None:
            raise ConnectionFailed(f"broker {broker_id} has no listener {self._listener}")
        peer = Peer(broker_id, at.host, at.port, at.security_protocol)
        known = self._connections.get(broker_id)
        if known is not None:
            if known[0] == peer and known[1].is_open:
                if known[1].login_is_due:
                    await self._connector.log_in_again(peer, known[1], timeout_s=self._timeout_s)
                return known
            known[1].close()
        connection = await self._connector.open(peer, client_id=self._client_id, timeout_s=self._timeout_s)
        self._connections[broker_id] = found = peer, connection
        return found

    def close(self) -> None:
        for _, connection in self._connections.values():
            connection.close()
        self._connections.clear()

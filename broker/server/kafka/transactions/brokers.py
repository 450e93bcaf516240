"""Requests to other brokers by Kafka's protocol, on the listener by which brokers follow each other.

Owns one connection to each broker; what is asked, and what an answer means, is its user's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from metaquorum.metadata.image import MetadataImage
from metaquorum.runtime.config.addresses import PROTOCOL_IDS
from metaquorum.runtime.kafka.client.connection import NodeConnection, connect
from metaquorum.runtime.kafka.client.errors import ConnectionFailed
from metaquorum.runtime.tls.material import TlsMaterial


class OtherBrokers:
    """`image` is asked for at each request; `listener` is the name of the brokers' own."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        tls: TlsMaterial | None,
        *,
        listener: str,
        broker_id: int,
        answer_max_bytes: int,
        timeout_s: float,
    ) -> None:
        self._image = image
        self._tls = tls
        self._listener = listener
        self._client_id = f"broker-{broker_id}-coordinator"
        self._answer_max_bytes = answer_max_bytes
        self._timeout_s = timeout_s
        self._connections: dict[int, tuple[tuple[str, int], NodeConnection]] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    async def ask(self, broker_id: int, body: Any, *, version: int | None = None) -> Any:
        """The body of the answer. Raises ConnectionFailed or TimeoutError: whether the request was carried
        out is unknown."""
        async with self._locks.setdefault(broker_id, asyncio.Lock()):
            connection = await self._connection(broker_id)
        return (await connection.ask(body, version=version, timeout_s=self._timeout_s)).body

    async def _connection(self, broker_id: int) -> NodeConnection:
        broker = self._image().brokers.get(broker_id)
        at = None if broker is None else broker.endpoint(self._listener)
        if at is None:
            raise ConnectionFailed(f"broker {broker_id} has no listener {self._listener}")
        address = at.host, at.port
        known = self._connections.get(broker_id)
        if known is not None:
            if known[0] == address and known[1].is_open:
                return known[1]
            known[1].close()
        needs_tls = at.security_protocol == PROTOCOL_IDS["SSL"] and self._tls is not None
        connection = await connect(
            at.host,
            at.port,
            client_id=self._client_id,
            tls=self._tls.client_context() if needs_tls and self._tls is not None else None,
            answer_max_bytes=self._answer_max_bytes,
            timeout_s=self._timeout_s,
        )
        self._connections[broker_id] = address, connection
        return connection

    def close(self) -> None:
        for _, connection in self._connections.values():
            connection.close()
        self._connections.clear()

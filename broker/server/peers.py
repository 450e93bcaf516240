"""Connections to other brokers, through the listener by which brokers follow each other.

A login that was refused is retried after growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from metaquorum.clients.kafka.connection import LoginRefused, NodeConnection, TlsFailed, connect
from metaquorum.clients.kafka.login import log_in
from metaquorum.config.addresses import PROTOCOL_IDS
from metaquorum.config.security import Credentials
from metaquorum.network.tls import TlsMaterial
from metaquorum.rpc.channels import Route, direct

FIRST_WAIT_S, LAST_WAIT_S = 1.0, 16.0
"""The waits after a refused login; doubled from one to the next."""

_TLS = frozenset({PROTOCOL_IDS["SSL"], PROTOCOL_IDS["SASL_SSL"]})
_SASL = frozenset({PROTOCOL_IDS["SASL_PLAINTEXT"], PROTOCOL_IDS["SASL_SSL"]})
_NO_LOGIN = (
    "its listener has SASL, but this broker's does not: give both the same "
    "inter.broker.listener.name and listener.security.protocol.map"
)

_log = logging.getLogger(__name__)

Address = tuple[str, int]


class Peer(NamedTuple):
    """The endpoint at which a broker is followed; `protocol` is one of `PROTOCOL_IDS`."""

    broker_id: int
    host: str
    port: int
    protocol: int


class _Refusal(NamedTuple):
    reason: str
    wait_s: float
    until_s: float


class PeerConnector:
    """`login`: how this broker logs in, None if its own listener has no SASL."""

    def __init__(
        self,
        tls: TlsMaterial | None,
        login: Credentials | None,
        *,
        answer_max_bytes: int,
        route: Route = direct,
    ) -> None:
        self._route = route
        self._tls = tls
        self._login = login
        self._answer_max_bytes = answer_max_bytes
        self._logged: dict[Address, str] = {}
        self._refusals: dict[Peer, _Refusal] = {}

    async def open(self, peer: Peer, *, client_id: str, timeout_s: float) -> NodeConnection:
        """A connection that is ready for any request. Raises ConnectionFailed or TimeoutError."""
        with self._looked_at(peer):
            needs_tls = peer.protocol in _TLS and self._tls is not None
            connection = await connect(
                *self._route(peer.host, peer.port),
                client_id=client_id,
                tls=self._tls.client_context() if needs_tls and self._tls is not None else None,
                answer_max_bytes=self._answer_max_bytes,
                timeout_s=timeout_s,
            )
            await self._log_in(peer, connection, timeout_s)
        return connection

    async def log_in_again(self, peer: Peer, connection: NodeConnection, *, timeout_s: float) -> None:
        """Before the session of a connection ends. Raises ConnectionFailed or TimeoutError; the connection is
        then closed."""
        with self._looked_at(peer):
            await self._log_in(peer, connection, timeout_s)

    async def _log_in(self, peer: Peer, connection: NodeConnection, timeout_s: float) -> None:
        if peer.protocol not in _SASL:
            return
        if self._login is None:
            connection.close()
            raise LoginRefused(_NO_LOGIN)
        await log_in(connection, self._login, timeout_s=timeout_s)

    @contextmanager
    def _looked_at(self, peer: Peer) -> Iterator[None]:
        """Notes the outcome of an attempt. Raises the former refusal while it is too early for another."""
        now_s = asyncio.get_running_loop().time
        before = self._refusals.get(peer)
        if before is not None and now_s() < before.until_s:
            raise LoginRefused(before.reason)
        try:
            yield
        except LoginRefused as error:
            wait_s = FIRST_WAIT_S if before is None else min(2 * before.wait_s, LAST_WAIT_S)
            self._refusals[peer] = _Refusal(str(error), wait_s, now_s() + wait_s)
            self.log_refusal(peer, str(error))
            raise
        except TlsFailed as error:
            self.log_refusal(peer, str(error))
            raise
        self._refusals.pop(peer, None)

    def reached(self, host: str, port: int) -> None:
        """A broker there answers requests."""
        self._logged.pop((host, port), None)

    def log_refusal(self, peer: Peer, reason: str) -> None:
        """Logs each problem that only an operator can fix once, until the broker is `reached`."""
        if self._logged.get((peer.host, peer.port)) != reason:
            self._logged[peer.host, peer.port] = reason
            _log.warning(
                "broker %d at %s:%d cannot be reached: %s", peer.broker_id, peer.host, peer.port, reason
            )

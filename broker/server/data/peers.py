"""Fetches from other brokers: each is sent once and reported once.

The replica manager decides where a request goes, and what an answer means. A leader answers the requests of a
connection in order, so a fetch has a connection to itself while it runs: a parked fetch must not hold up
another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from msgspec.structs import replace

from metaquorum.broker.replica.events import (
    DataEvent,
    PeerFetched,
    PeerFetchFailed,
    SendFetch,
)
from metaquorum.broker.server.calls import Calls
from metaquorum.broker.server.data import fetch_messages
from metaquorum.clients.kafka.connection import (
    ConnectionFailed,
    LoginRefused,
    NodeConnection,
    TlsFailed,
    UnsupportedVersion,
    connect,
)
from metaquorum.clients.kafka.login import log_in
from metaquorum.config.addresses import PROTOCOL_IDS
from metaquorum.config.security import Credentials
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as core
from metaquorum.network.tls import TlsMaterial
from metaquorum.rpc.channels import Route, direct
from metaquorum.wire.codec import Response
from metaquorum.wire.errors import EncodeError

# Connections to other brokers, through the listener by which brokers follow each other.
#
# A login that was refused is retried after growing pauses.

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


IDLE_CONNECTIONS_MAX = 16
"""Connections to one broker that are kept for the next fetch; as many run at once as there are fetch
loops."""

LOOK_S = 1.0
"""How often to look for fetches without an answer in time."""

Report = Callable[[DataEvent], None]


class PeerFetches:
    """`send` ends in exactly one report, and never calls back before it has returned. `topic_name`: for an
    id, None if it is unknown. `peer_of`: the broker that a fetch goes to."""

    def __init__(
        self,
        report: Report,
        connector: PeerConnector,
        peer_of: Callable[[SendFetch], Peer],
        topic_name: Callable[[bytes], str | None],
        *,
        broker_id: int,
    ) -> None:
        self._report = report
        self._connector = connector
        self._peer_of = peer_of
        self._topic_name = topic_name
        self._client_id = f"broker-{broker_id}-fetcher-0"
        self._idle: dict[Address, list[NodeConnection]] = {}
        self._calls = Calls()
        self._busy: dict[NodeConnection, tuple[SendFetch, float]] = {}
        """The fetch on each connection, and its deadline on the loop's clock."""
        self._look: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def send(self, effect: SendFetch) -> None:
        idle = self._idle.setdefault((effect.host, effect.port), [])
        while idle and not idle[-1].is_open:
            idle.pop()
        connection = idle.pop() if idle else None
        if connection is None or connection.login_is_due:
            self._calls.spawn(self._log_in_and_begin(effect, connection))
        else:
            self._begin(effect, connection)

    async def close(self) -> None:
        self._closed = True
        if self._look is not None:
            self._look.cancel()
        await self._calls.end()
        for connection in [*self._busy, *(each for idle in self._idle.values() for each in idle)]:
            connection.close()
        self._idle.clear()

    # ---- one fetch: without a task or a future, which would cost something for each

    def _begin(self, effect: SendFetch, connection: NodeConnection) -> None:
        """On a connection that only this fetch uses."""
        try:
            version = connection.version("Fetch", fetch_messages.FIRST_VERSION, fetch_messages.LAST_VERSION)
            request = fetch_messages.fetch_request(effect.request, version)
            connection.send(request, version=version, to=_Fetch(self, effect, connection))
        except (ConnectionFailed, EncodeError) as error:
            self._loop.call_soon(self._failed, effect, connection, error)
            return
        self._busy[connection] = effect, self._loop.time() + effect.timeout_ms / 1000
        if self._look is None:
            self._look = self._loop.call_later(LOOK_S, self._look_for_late_ones)

    def _look_for_late_ones(self) -> None:
        """One timer for all fetches: each takes a fraction of its time, as a rule."""
        self._look = None
        now_s = self._loop.time()
        for connection, (effect, due_s) in list(self._busy.items()):
            if now_s >= due_s:
                connection.close(_late(effect))
        if self._busy:
            self._look = self._loop.call_later(LOOK_S, self._look_for_late_ones)

    def answered(self, effect: SendFetch, connection: NodeConnection, answer: Response) -> None:
        """For `_Fetch`."""
        del self._busy[connection]
        response = fetch_messages.fetch_answer(answer.body)
        lost = self._without_start(effect, response)
        if lost and isinstance(response, core.FetchResponse):
            self._calls.spawn(self._ask_for_starts(effect, connection, response, lost))
        else:
            self._done(effect, connection, response)

    def ended(self, effect: SendFetch, connection: NodeConnection, error: ConnectionFailed) -> None:
        """For `_Fetch`."""
        del self._busy[connection]
        self._failed(effect, connection, error)

    def _done(
        self, effect: SendFetch, connection: NodeConnection, response: core.FetchResponse | ApiError
    ) -> None:
        address = effect.host, effect.port
        self._connector.reached(*address)
        idle = self._idle.setdefault(address, [])
        if self._closed or len(idle) >= IDLE_CONNECTIONS_MAX:
            connection.close()
        else:
            idle.append(connection)
        if not self._closed:
            self._report(
                PeerFetched(target=effect.target, correlation_id=effect.correlation_id, response=response)
            )

    def _failed(self, effect: SendFetch, connection: NodeConnection | None, error: BaseException) -> None:
        """A late answer would be taken for that of another fetch, so the connection is closed."""
        if connection is not None:
            connection.close()
        if self._closed:
            return
        reason = str(error) or _late(effect)
        if isinstance(error, UnsupportedVersion):
            self._connector.log_refusal(self._peer_of(effect), reason)
        self._report(
            PeerFetchFailed(target=effect.target, correlation_id=effect.correlation_id, reason=reason)
        )

    # ---- fetches that need more than one step

    async def _log_in_and_begin(self, effect: SendFetch, connection: NodeConnection | None) -> None:
        """On a new connection, or on one whose session ends soon."""
        peer, timeout_s = self._peer_of(effect), effect.timeout_ms / 1000
        try:
            if connection is None:
                connection = await self._connector.open(peer, client_id=self._client_id, timeout_s=timeout_s)
            else:
                await self._connector.log_in_again(peer, connection, timeout_s=timeout_s)
        except (ConnectionFailed, TimeoutError) as error:
            self._failed(effect, connection, error)
        else:
            self._begin(effect, connection)

    def _without_start(
        self, effect: SendFetch, response: core.FetchResponse | ApiError
    ) -> list[tuple[str, core.FetchPartition]]:
        """Kafka's leaders do not report their log's start when a fetch is out of range: these need a request
        for it."""
        if isinstance(response, ApiError):
            return []
        lost = [
            part.key
            for part in response.partitions
            if part.error is ErrorCode.OFFSET_OUT_OF_RANGE and part.log_start_offset < 0
        ]
        if not lost:
            return []
        asked = [part for part in effect.request.partitions if part.key in lost]
        return [(name, part) for part in asked if (name := self._topic_name(part.key[0])) is not None]

    async def _ask_for_starts(
        self,
        effect: SendFetch,
        connection: NodeConnection,
        response: core.FetchResponse,
        named: list[tuple[str, core.FetchPartition]],
    ) -> None:
        request = fetch_messages.log_start_request(effect.request.replica_id, named)
        try:
            version = connection.version("ListOffsets", *fetch_messages.LIST_OFFSETS_VERSIONS)
            answer = await connection.ask(request, version=version, timeout_s=effect.timeout_ms / 1000)
        except (ConnectionFailed, TimeoutError, EncodeError) as error:
            self._failed(effect, connection, error)
            return
        starts = fetch_messages.log_starts(answer.body, named)
        parts = [
            replace(part, log_start_offset=starts.get(part.key, part.log_start_offset))
            for part in response.partitions
        ]
        self._done(effect, connection, replace(response, partitions=tuple(parts)))


class _Fetch:
    """A fetch in flight (`clients.kafka.connection.WaitsForAnswer`)."""

    __slots__ = ("_connection", "_effect", "_fetches")

    def __init__(self, fetches: PeerFetches, effect: SendFetch, connection: NodeConnection) -> None:
        self._fetches = fetches
        self._effect = effect
        self._connection = connection

    def done(self) -> bool:
        return False

    def set_result(self, response: Response, /) -> None:
        self._fetches.answered(self._effect, self._connection, response)

    def set_exception(self, error: ConnectionFailed, /) -> None:
        self._fetches.ended(self._effect, self._connection, error)


def _late(effect: SendFetch) -> str:
    return f"no answer within {effect.timeout_ms} ms"

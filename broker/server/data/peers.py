"""Fetches from other brokers: each is sent once and reported once.

The replica manager decides where a request goes, and what an answer means. A leader answers the requests of a
connection in order, so a fetch has a connection to itself while it runs: a parked fetch must not hold up
another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from metaquorum.broker.replica.events import (
    DataEvent,
    PeerFetched,
    PeerFetchFailed,
    SendFetch,
)
from metaquorum.broker.server.calls import Calls
from metaquorum.broker.server.data import fetch_messages
from metaquorum.broker.server.peers import Address, Peer, PeerConnector
from metaquorum.clients.kafka.connection import ConnectionFailed, NodeConnection, UnsupportedVersion
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as core
from metaquorum.wire.codec import Response
from metaquorum.wire.errors import EncodeError

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

"""Fetches from other brokers and questions to the active controller: each is sent once and reported once.

Owns the connections. Whom to ask, and what an answer means, is the replica manager's business. A leader
answers the requests of a connection in order, so a fetch has a connection to itself while it runs: one that
is held must not stand in the way of another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from metaquorum.broker.replica.events import (
    AskController,
    ControllerAnswered,
    DataEvent,
    PeerFetched,
    PeerFetchFailed,
    SendFetch,
)
from metaquorum.broker.server.calls import Calls
from metaquorum.broker.server.controllers import FAILURES
from metaquorum.broker.server.data import fetch_messages
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as core
from metaquorum.metadata.requests.partitions import AlterPartitionRequest, AssignReplicasToDirsRequest
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest
from metaquorum.runtime.client.admin import AdminClient, ClientError
from metaquorum.runtime.client.partitions import alter_partition, assign_replicas
from metaquorum.runtime.client.settings import SettingsClient
from metaquorum.runtime.kafka.client.connection import NodeConnection, connect
from metaquorum.runtime.kafka.client.errors import ConnectionFailed, TlsFailed, UnsupportedVersion
from metaquorum.runtime.rpc.channels import TlsMaterial
from metaquorum.wire.errors import EncodeError

IDLE_CONNECTIONS_MAX = 16
"""Connections to one broker that are kept for the next fetch; as many run at once as there are fetch
loops."""

_log = logging.getLogger(__name__)

Report = Callable[[DataEvent], None]
Address = tuple[str, int]
TlsFor = Callable[[SendFetch], TlsMaterial | None]


class PeerFetches:
    """`send` ends in exactly one report, and never calls back before it returned. `topic_name`: of an id,
    None for one that is not known."""

    def __init__(
        self,
        report: Report,
        tls_for: TlsFor,
        topic_name: Callable[[bytes], str | None],
        *,
        broker_id: int,
        answer_max_bytes: int,
    ) -> None:
        self._report = report
        self._tls_for = tls_for
        self._topic_name = topic_name
        self._client_id = f"broker-{broker_id}-fetcher-0"
        self._answer_max_bytes = answer_max_bytes
        self._idle: dict[Address, list[NodeConnection]] = {}
        self._told: dict[Address, str] = {}
        self._calls = Calls()

    def send(self, effect: SendFetch) -> None:
        self._calls.spawn(self._fetch(effect))

    async def close(self) -> None:
        await self._calls.end()
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()

    async def _fetch(self, effect: SendFetch) -> None:
        address = effect.host, effect.port
        try:
            async with asyncio.timeout(effect.timeout_ms / 1000):
                response = await self._answer(effect, address)
        except (ConnectionFailed, TimeoutError, EncodeError) as error:
            reason = str(error) or f"no answer within {effect.timeout_ms} ms"
            if isinstance(error, TlsFailed | UnsupportedVersion):
                self._tell(effect.target, address, reason)
            self._report(
                PeerFetchFailed(target=effect.target, correlation_id=effect.correlation_id, reason=reason)
            )
        else:
            self._told.pop(address, None)
            self._report(
                PeerFetched(target=effect.target, correlation_id=effect.correlation_id, response=response)
            )

    async def _answer(self, effect: SendFetch, address: Address) -> core.FetchResponse | ApiError:
        idle = self._idle.setdefault(address, [])
        while idle and not idle[-1].is_open:
            idle.pop()
        timeout_s = effect.timeout_ms / 1000
        connection = idle.pop() if idle else await self._connect(effect, timeout_s)
        try:
            version = connection.version("Fetch", fetch_messages.FIRST_VERSION, fetch_messages.LAST_VERSION)
            asked = fetch_messages.fetch_request(effect.request, version)
            answer = (await connection.ask(asked, version=version, timeout_s=timeout_s)).body
            response = fetch_messages.fetch_answer(answer)
            if isinstance(response, core.FetchResponse):
                response = await self._with_log_starts(connection, effect, response)
        except BaseException:
            # A late answer would count for another fetch.
            connection.close()
            raise
        if len(idle) < IDLE_CONNECTIONS_MAX:
            idle.append(connection)
        else:
            connection.close()
        return response

    async def _connect(self, effect: SendFetch, timeout_s: float) -> NodeConnection:
        tls = self._tls_for(effect)
        return await connect(
            effect.host,
            effect.port,
            client_id=self._client_id,
            tls=None if tls is None else tls.client_context(),
            answer_max_bytes=self._answer_max_bytes,
            timeout_s=timeout_s,
        )

    async def _with_log_starts(
        self, connection: NodeConnection, effect: SendFetch, response: core.FetchResponse
    ) -> core.FetchResponse:
        """Kafka's leaders do not say where their log begins when a fetch is out of range: they are asked."""
        asked = {part.key: part for part in effect.request.partitions}
        lost = [
            asked[part.key]
            for part in response.partitions
            if part.error is ErrorCode.OFFSET_OUT_OF_RANGE and part.log_start_offset < 0 and part.key in asked
        ]
        named = [(name, part) for part in lost if (name := self._topic_name(part.key[0])) is not None]
        if not named:
            return response
        version = connection.version("ListOffsets", *fetch_messages.LIST_OFFSETS_VERSIONS)
        request = fetch_messages.log_start_request(effect.request.replica_id, named)
        answer = (await connection.ask(request, version=version, timeout_s=effect.timeout_ms / 1000)).body
        starts = fetch_messages.log_starts(answer, named)
        return replace(
            response,
            partitions=tuple(
                replace(part, log_start_offset=starts.get(part.key, part.log_start_offset))
                for part in response.partitions
            ),
        )

    def _tell(self, target: int, address: Address, reason: str) -> None:
        """Once for each problem that only a person can mend."""
        if self._told.get(address) != reason:
            self._told[address] = reason
            _log.warning("broker %d at %s:%d cannot be reached: %s", target, *address, reason)


class ControllerQuestions:
    """What replicas ask of the active controller. One client finds it, and follows it when it moves."""

    def __init__(self, client: AdminClient, report: Report) -> None:
        self._client = client
        self._settings = SettingsClient(client)
        self._report = report
        self._calls = Calls()

    def ask(self, effect: AskController) -> None:
        self._calls.spawn(self._ask(effect))

    async def close(self) -> None:
        await self._calls.end()
        await self._client.close()

    async def _ask(self, effect: AskController) -> None:
        response: Any
        try:
            async with asyncio.timeout(effect.timeout_ms / 1000):
                response = await self._sent(effect)
        except ApiError as error:
            response = error
        except (ClientError, TimeoutError, *FAILURES) as error:
            text = str(error) or f"no controller answered within {effect.timeout_ms} ms"
            response = ApiError(ErrorCode.NETWORK_EXCEPTION, text)
        self._report(ControllerAnswered(correlation_id=effect.correlation_id, response=response))

    async def _sent(self, effect: AskController) -> Any:
        match effect.request:
            case AlterPartitionRequest() as request:
                return await alter_partition(self._client, request)
            case AssignReplicasToDirsRequest() as request:
                return await assign_replicas(self._client, request)
            case AllocateProducerIdsRequest() as request:
                return await self._settings.allocate_producer_ids(request.broker_id, request.broker_epoch)

"""Fetches from other brokers and questions to the active controller: each is sent once and reported once.

Owns the channels. Whom to ask, and what an answer means, is the replica manager's business. A fetch that is
held by its leader must not stand in the way of another one: each has a channel to itself while it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc.aio

from broker.replica.events import (
    AskController,
    ControllerAnswered,
    DataEvent,
    PeerFetched,
    PeerFetchFailed,
    SendFetch,
)
from broker.server.controllers import FAILURES
from metadata.errors import ApiError, ErrorCode
from metadata.requests_partitions import AlterPartitionRequest, AssignReplicasToDirsRequest
from metadata.requests_settings import AllocateProducerIdsRequest
from proto.data_pb2_grpc import DataStub
from runtime import data_codec
from runtime.channels import TlsMaterial, open_channel
from runtime.client import AdminClient, ClientError
from runtime.partitions_client import alter_partition, assign_replicas
from runtime.settings_client import SettingsClient

IDLE_CHANNELS_MAX = 16
"""Channels to one broker that are kept for the next fetch; as many run at once as there are fetch loops."""

Report = Callable[[DataEvent], None]
Address = tuple[str, int]
TlsFor = Callable[[SendFetch], TlsMaterial | None]


class Calls:
    """Tasks that end with their owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class PeerFetches:
    """`send` ends in exactly one report, and never calls back before it returned."""

    def __init__(self, report: Report, tls_for: TlsFor, *, message_max_bytes: int) -> None:
        self._report = report
        self._tls_for = tls_for
        self._message_max_bytes = message_max_bytes
        self._idle: dict[Address, list[tuple[grpc.aio.Channel, Any]]] = {}
        self._calls = Calls()

    def send(self, effect: SendFetch) -> None:
        self._calls.spawn(self._fetch(effect))

    async def close(self) -> None:
        await self._calls.end()
        idle, self._idle = self._idle, {}
        await asyncio.gather(*(channel.close(None) for each in idle.values() for channel, _ in each))

    async def _fetch(self, effect: SendFetch) -> None:
        address = effect.host, effect.port
        idle = self._idle.setdefault(address, [])
        channel, method = idle.pop() if idle else self._open(effect)
        good = False
        try:
            request = data_codec.fetch_to_pb(effect.request)
            answer = await method(request, timeout=effect.timeout_ms / 1000)
            good = True
        except FAILURES as error:
            reason = str(error)
            if isinstance(error, grpc.aio.AioRpcError):
                reason = f"{error.code().name}: {error.details()}"
            self._report(
                PeerFetchFailed(
                    target=effect.target, correlation_id=effect.correlation_id, reason=reason or "no answer"
                )
            )
        else:
            response = data_codec.fetched_from_pb(answer)
            self._report(
                PeerFetched(target=effect.target, correlation_id=effect.correlation_id, response=response)
            )
        finally:
            # A connection on which a call failed may hang on to a dead peer: the next fetch gets a new one.
            if good and len(idle) < IDLE_CHANNELS_MAX:
                idle.append((channel, method))
            else:
                await channel.close(None)

    def _open(self, effect: SendFetch) -> tuple[grpc.aio.Channel, Any]:
        channel = open_channel(
            effect.host, effect.port, self._tls_for(effect), message_max_bytes=self._message_max_bytes
        )
        stub: Any = DataStub(channel)
        return channel, stub.Fetch


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

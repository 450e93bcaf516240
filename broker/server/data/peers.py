"""Fetches from other brokers and questions to the active controller: each is sent once and reported once.

Owns the channels. Whom to ask, and what an answer means, is the replica manager's business. A fetch that is
held by its leader must not stand in the way of another one: each has a stream, on a channel of its own, to
itself while it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import grpc.aio

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
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.partitions import AlterPartitionRequest, AssignReplicasToDirsRequest
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest
from metaquorum.proto import data_pb2 as pb
from metaquorum.proto.data_pb2_grpc import DataStub
from metaquorum.runtime.api import data as data_codec
from metaquorum.runtime.client.admin import AdminClient, ClientError
from metaquorum.runtime.client.partitions import alter_partition, assign_replicas
from metaquorum.runtime.client.settings import SettingsClient
from metaquorum.runtime.rpc.channels import END_OF_STREAM, TlsMaterial, open_channel
from metaquorum.runtime.rpc.reach import UNREADABLE, Reasons

IDLE_STREAMS_MAX = 16
"""Streams to one broker that are kept for the next fetch; as many run at once as there are fetch loops."""

Report = Callable[[DataEvent], None]
Address = tuple[str, int]
TlsFor = Callable[[SendFetch], TlsMaterial | None]


class PeerFetches:
    """`send` ends in exactly one report, and never calls back before it returned."""

    def __init__(self, report: Report, tls_for: TlsFor, *, message_max_bytes: int) -> None:
        self._report = report
        self._tls_for = tls_for
        self._message_max_bytes = message_max_bytes
        self._idle: dict[Address, list[_Stream]] = {}
        self._reasons: dict[Address, Reasons] = {}
        self._calls = Calls()

    def send(self, effect: SendFetch) -> None:
        self._calls.spawn(self._fetch(effect))

    async def close(self) -> None:
        await self._calls.end()
        idle, self._idle = self._idle, {}
        await asyncio.gather(*(stream.close() for each in idle.values() for stream in each))

    async def _fetch(self, effect: SendFetch) -> None:
        address = effect.host, effect.port
        idle = self._idle.setdefault(address, [])
        stream = idle.pop() if idle else self._open(effect)
        good = False
        try:
            async with asyncio.timeout(effect.timeout_ms / 1000):
                answer = await stream.ask(data_codec.FETCH.to_pb(effect.request))
            good = True
        except FAILURES as error:
            reason = str(error)
            if isinstance(error, grpc.aio.AioRpcError):
                reason = f"{error.code().name}: {error.details()}"
                if address not in self._reasons:
                    self._reasons[address] = Reasons(self._tls_for(effect))
                self._reasons[address].tell(f"broker {effect.target}", error, address)
            elif isinstance(error, TimeoutError):
                reason = f"no answer within {effect.timeout_ms} ms"
            self._report(
                PeerFetchFailed(
                    target=effect.target, correlation_id=effect.correlation_id, reason=reason or "no answer"
                )
            )
        else:
            response = data_codec.FETCHED.answer_from_pb(answer)
            self._report(
                PeerFetched(target=effect.target, correlation_id=effect.correlation_id, response=response)
            )
        finally:
            # A stream on which a fetch failed is never used again: a late answer would count for another one,
            # and its connection may hang on to a dead peer.
            if good and len(idle) < IDLE_STREAMS_MAX:
                idle.append(stream)
            else:
                await stream.close()

    def _open(self, effect: SendFetch) -> _Stream:
        channel = open_channel(
            effect.host, effect.port, self._tls_for(effect), message_max_bytes=self._message_max_bytes
        )
        return _Stream(channel)


class _Stream:
    """A channel with one stream of fetches on it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        stub: Any = DataStub(channel)
        self._call = stub.FetchStream()

    async def ask(self, request: pb.FetchRequest) -> pb.FetchResponse:
        """Raises one of FAILURES."""
        await self._call.write(request)
        answer = await self._call.read()
        if answer is END_OF_STREAM:
            raise ConnectionError(await self._why())
        if answer is None:  # so gRPC hands on what it cannot decode
            raise ConnectionError(UNREADABLE)
        return cast("pb.FetchResponse", answer)

    async def _why(self) -> str:
        code, details = await self._call.code(), await self._call.details()
        return f"{code.name}: {details or 'the broker ended the stream'}"

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close(None)


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

"""Sends a broker's requests to controllers: each once, to the controller that it names, with one report.

Where a request goes, and whether it is sent again, is decided by `broker.channel`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import grpc.aio

from metaquorum.broker.channel import (
    ChannelResponse,
    ControllerReported,
    Farewell,
    NoAnswer,
    SendToController,
)
from metaquorum.broker.server.calls import Calls
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest, RegisterBrokerRequest
from metaquorum.metadata.requests.partitions import AlterPartitionRequest, AssignReplicasToDirsRequest
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest
from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.tls import TlsMaterial
from metaquorum.proto.broker_pb2_grpc import BrokerLifecycleStub
from metaquorum.proto.partitions_pb2_grpc import PartitionsStub
from metaquorum.rpc.channels import END_OF_STREAM, Route, direct, open_channel
from metaquorum.rpc.messages import tables
from metaquorum.rpc.messages.codec import MessageCodec
from metaquorum.rpc.reach import UNREADABLE, Reasons, failure_text
from metaquorum.rpc.rights import Authorizers
from metaquorum.rpc.transport import Addresses, PeerAddress

FAILURES = (
    grpc.aio.AioRpcError,
    grpc.aio.UsageError,
    asyncio.InvalidStateError,
    TimeoutError,
    ConnectionError,
)
"""Errors that end a call or a stream when the controller, or the connection to it, is gone."""

_UNARY: dict[type, tuple[Callable[[Any], Any], MessageCodec[Any, Any], MessageCodec[Any, Any]]] = {
    RegisterBrokerRequest: (
        lambda channel: BrokerLifecycleStub(channel).Register,
        tables.REGISTER,
        tables.REGISTERED,
    ),
    AlterPartitionRequest: (
        lambda channel: PartitionsStub(channel).AlterPartition,
        tables.ALTER,
        tables.ALTERED,
    ),
    AssignReplicasToDirsRequest: (
        lambda channel: PartitionsStub(channel).AssignReplicasToDirs,
        tables.ASSIGN,
        tables.ASSIGNED,
    ),
    AllocateProducerIdsRequest: (
        lambda channel: BrokerLifecycleStub(channel).AllocateProducerIds,
        tables.ALLOCATE_PRODUCER_IDS,
        tables.ALLOCATED_PRODUCER_IDS,
    ),
}
"""The method of each request, and how it and its answer are encoded. Heartbeats have a stream."""

_log = logging.getLogger(__name__)

Report = Callable[[ControllerReported], None]


class _Connection:
    """A connection to one controller, and the stream of heartbeats on it, unless one is in progress. `calls`:
    those in progress; a connection that failed closes when the last of them has ended."""

    def __init__(self, address: PeerAddress, tls: TlsMaterial | None, route: Route) -> None:
        self.address = address
        self.channel = open_channel(*route(address.host, address.port), tls)
        self.heartbeats: Any = None
        self.calls = 0


class ControllerCalls(ABC):
    """`send` ends in exactly one report, and never calls back before it returned."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._calls = Calls()

    def send(self, effect: SendToController) -> None:
        self._calls.spawn(self._call(effect))

    async def farewell(self, farewell: Farewell, clock_ms: Callable[[], int]) -> bool:
        """Sends what the farewell says until it is over. Returns True if a controller accepted it. Requests
        in progress are dropped first: none of them may arrive later."""
        await self._calls.end()
        while (step := farewell.step(clock_ms())) is not None:
            if isinstance(step, int):
                await asyncio.sleep(step / 1000)
            else:
                farewell.reported(clock_ms(), await self._reported(step))
        if farewell.refusal is not None:
            _log.warning("the shutdown notice was refused: %s", farewell.refusal)
        return farewell.accepted

    async def close(self) -> None:
        """Ends requests in progress without a report, and closes the connections."""
        await self._calls.end()

    async def _call(self, effect: SendToController) -> None:
        self._report(await self._reported(effect))

    async def _reported(self, effect: SendToController) -> ControllerReported:
        outcome = await self._outcome(effect)
        return ControllerReported(target=effect.target, correlation_id=effect.correlation_id, outcome=outcome)

    @abstractmethod
    async def _outcome(self, effect: SendToController) -> ChannelResponse | ApiError | NoAnswer:
        """What comes of the request."""


def no_answer_in_time(effect: SendToController) -> str:
    return f"no answer within {effect.timeout_ms} ms"


class GrpcControllerCalls(ControllerCalls):
    """Over gRPC. `authorizers`: compared with each controller's at a registration."""

    def __init__(
        self,
        controllers: Addresses,
        report: Report,
        tls: TlsMaterial | None,
        authorizers: Authorizers,
        route: Route = direct,
    ) -> None:
        super().__init__(report)
        self._route = route
        self._authorizers = authorizers
        self._controllers = controllers
        self._tls = tls
        self._reasons = Reasons(tls)
        self._connections: dict[int, _Connection] = {}

    async def close(self) -> None:
        await super().close()
        await asyncio.gather(*(each.channel.close(None) for each in self._connections.values()))

    async def _outcome(self, effect: SendToController) -> ChannelResponse | ApiError | NoAnswer:
        try:
            return await self._asked(effect)
        except FAILURES as error:
            return NoAnswer(self._reason(effect, error))

    def _reason(self, effect: SendToController, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return no_answer_in_time(effect)
        address = self._controllers.get(effect.target)
        if isinstance(error, grpc.aio.AioRpcError) and address is not None:
            self._reasons.log(f"controller {effect.target}", error, (address.host, address.port))
        return failure_text(error)

    async def _asked(self, effect: SendToController) -> ChannelResponse | ApiError:
        connection = await self._connection(effect.target)
        connection.calls += 1
        try:
            return await self._ask(connection, effect)
        except FAILURES:
            # It may be stuck in the backoff of a dead peer: the next request gets a new one. No late answer
            # on its stream is taken for that of another heartbeat.
            if self._connections.get(effect.target) is connection:
                del self._connections[effect.target]
            raise
        finally:
            connection.calls -= 1
            if not connection.calls and self._connections.get(effect.target) is not connection:
                await connection.channel.close(None)

    async def _ask(self, connection: _Connection, effect: SendToController) -> ChannelResponse | ApiError:
        timeout_s = effect.timeout_ms / 1000
        if isinstance(effect.request, BrokerHeartbeatRequest):
            request = tables.HEARTBEAT.to_pb(effect.request)
            async with asyncio.timeout(timeout_s):
                answer = await self._beat(connection, effect.target, request)
            return tables.HEARTBEAT_ANSWER.answer_from_pb(answer)
        method, codec, answer_codec = _UNARY[type(effect.request)]
        registers = isinstance(effect.request, RegisterBrokerRequest)
        metadata = self._authorizers.metadata if registers else None
        call = method(connection.channel)(codec.to_pb(effect.request), timeout=timeout_s, metadata=metadata)
        answer = await call
        if answer is None:
            raise ConnectionError(f"controller {effect.target}: {UNREADABLE}")
        if registers:
            where = address_text(connection.address.host, connection.address.port)
            self._authorizers.compare(await call.initial_metadata(), f"controller {effect.target}", where)
        return answer_codec.answer_from_pb(answer)

    async def _beat(self, connection: _Connection, target: int, request: Any) -> Any:
        """One heartbeat on the connection's stream."""
        stub: Any = BrokerLifecycleStub(connection.channel)
        call, connection.heartbeats = connection.heartbeats or stub.Heartbeats(), None
        await call.write(request)
        answer = await call.read()
        if answer is END_OF_STREAM:
            raise ConnectionError(f"controller {target} ended the stream of heartbeats")
        if answer is None:
            raise ConnectionError(f"controller {target}: {UNREADABLE}")
        connection.heartbeats = call
        return answer

    async def _connection(self, target: int) -> _Connection:
        address = self._controllers.get(target)
        if address is None:
            raise ConnectionError(f"controller {target} has no known address")
        connection = self._connections.get(target)
        if connection is None or connection.address != address:
            moved, connection = connection, _Connection(address, self._tls, self._route)
            self._connections[target] = connection
            if moved is not None and not moved.calls:
                await moved.channel.close(None)
        return connection

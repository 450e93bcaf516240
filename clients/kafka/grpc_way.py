"""The way to a controller's metadata log over gRPC: a stream carries a connection of Kafka's protocol."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Self

import grpc.aio
import msgspec

from metaquorum.clients.kafka.connection import (
    ConnectionFailed,
    LoginRefused,
    NodeConnection,
    WrongProtocol,
    carried,
)
from metaquorum.clients.kafka.raft_client import ANSWER_MAX_BYTES, CONNECT_S
from metaquorum.network.tls import TlsMaterial
from metaquorum.proto import forwarding_pb2 as pb
from metaquorum.proto.forwarding_pb2_grpc import ForwardingStub
from metaquorum.rpc.channels import END_OF_STREAM, Route, direct, open_channel
from metaquorum.rpc.reach import UNREADABLE, Reasons, failure_text, lasts
from metaquorum.rpc.stream_transport import StreamTransport
from metaquorum.rpc.transport import PeerAddress

_ending: set[asyncio.Task[None]] = set()
"""A loop keeps no reference to its tasks."""


class GrpcWay(msgspec.Struct, frozen=True, kw_only=True):
    """As `KafkaWay`, without a login: nodes that speak gRPC identify themselves with certificates."""

    client_id: str
    tls: TlsMaterial | None
    reasons: Reasons
    route: Route
    login: None = None

    @classmethod
    def of(cls, client_id: str, tls: TlsMaterial | None, route: Route = direct) -> Self:
        return cls(client_id=client_id, tls=tls, reasons=Reasons(tls), route=route)

    async def open(
        self, address: PeerAddress, *, timeout_s: float = CONNECT_S, looks_for_tls: bool = True
    ) -> NodeConnection:
        """A connection that is ready for requests. Raises ConnectionFailed or TimeoutError."""
        channel = open_channel(*self.route(address.host, address.port), self.tls)
        stub: Any = ForwardingStub(channel)
        call = stub.Follow()

        def carry(protocol: asyncio.BufferedProtocol) -> None:
            stream = _Stream(call, (address.host, address.port), self.reasons)
            ending = asyncio.get_running_loop().create_task(
                _end_with(StreamTransport(stream, protocol), call, channel)
            )
            _ending.add(ending)
            ending.add_done_callback(_ending.discard)

        return await carried(
            carry, client_id=self.client_id, answer_max_bytes=ANSWER_MAX_BYTES, timeout_s=timeout_s
        )


async def _end_with(transport: StreamTransport, call: Any, channel: grpc.aio.Channel) -> None:
    with contextlib.suppress(ConnectionFailed):  # the connection has it
        await transport.finished()
    call.cancel()
    await channel.close(None)


class _Stream:
    """A call whose failures are those of a connection."""

    def __init__(self, call: Any, address: tuple[str, int], reasons: Reasons) -> None:
        self._call, self._address, self._reasons = call, address, reasons

    async def read(self) -> pb.Bytes:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise await self._failure(error) from error
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            raise ConnectionFailed(failure_text(error)) from error
        if message is END_OF_STREAM:
            raise ConnectionFailed("it ended the stream")
        if message is None:  # gRPC returns None for what it cannot decode
            raise ConnectionFailed(UNREADABLE)
        received: pb.Bytes = message
        return received

    async def write(self, message: pb.Bytes, /) -> None:
        await self._call.write(message)

    async def _failure(self, error: grpc.aio.AioRpcError) -> ConnectionFailed:
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            return LoginRefused(error.details() or "it refuses this node")
        text = await self._reasons.of(error, self._address)
        return WrongProtocol(text) if lasts(text) else ConnectionFailed(text)

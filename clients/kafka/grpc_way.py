"""The way to a controller's metadata log over gRPC: a stream carries a connection of Kafka's protocol."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol, Self

import grpc.aio
import msgspec

from metaquorum.clients.kafka.cluster import CLIENT_ID, KafkaClient, Target
from metaquorum.clients.kafka.connection import (
    ConnectionFailed,
    LoginRefused,
    NodeConnection,
    PendingRequests,
    UnsupportedVersion,
    WrongProtocol,
    carried,
)
from metaquorum.clients.kafka.raft_client import ANSWER_MAX_BYTES, CONNECT_S
from metaquorum.clients.quorum.admin import AdminClient, ForwardedAnswer
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import NO_BROKER
from metaquorum.network.tls import TlsMaterial
from metaquorum.proto import forwarding_pb2 as pb
from metaquorum.proto.forwarding_pb2_grpc import ForwardingStub
from metaquorum.rpc.channels import END_OF_STREAM, Route, direct, open_channel
from metaquorum.rpc.reach import UNREADABLE, Reasons, failure_text, lasts
from metaquorum.rpc.stream_transport import StreamTransport
from metaquorum.rpc.transport import PeerAddress
from metaquorum.wire import codec
from metaquorum.wire.codec import RequestHeader
from metaquorum.wire.table import API_BY_NAME

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


# A client of the active controller in Kafka's protocol, over gRPC: it works while no broker runs.


class ForwardsRequests(Protocol):
    """Finds the active controller and passes a frame of Kafka's protocol to it: over gRPC (`AdminClient`), or
    in Kafka's protocol."""

    async def forward(
        self,
        frame: bytes,
        *,
        broker_id: int,
        principal: str,
        client_address: str,
        by_token: bool,
        timeout_ms: int,
    ) -> ForwardedAnswer: ...

    async def close(self) -> None: ...


class ControllersClient(KafkaClient):
    """A KafkaClient for controllers, through `controllers`, which it closes. Requests that only brokers
    answer raise ApiError. The principal is that of the client's certificate."""

    def __init__(self, controllers: AdminClient, *, timeout_ms: int) -> None:
        super().__init__((controllers.address,), timeout_ms=timeout_ms, asks_brokers=False)
        self._controllers = controllers
        self._versions: PendingRequests | None = None

    async def close(self) -> None:
        await self._controllers.close()

    async def version(self, api: str) -> int | None:
        try:
            return (await self._known()).version(api)
        except UnsupportedVersion:
            return None

    async def ask(
        self, body: Any, *, target: Target = None, lowest: int = 0, highest: int = 2**15 - 1
    ) -> Any:
        name = type(body).__name__.removesuffix("Request")
        known = await self._known()
        try:
            version = known.version(name, lowest, highest)
        except UnsupportedVersion as error:
            text = f"controllers do not support this request ({error}): use brokers, with --bootstrap"
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text) from error
        return await self._send(body, version)

    async def _known(self) -> PendingRequests:
        """The versions of the active controller, from the first response."""
        if self._versions is None:
            versions = PendingRequests(CLIENT_ID)
            asked = versions.api_versions(_OLDEST)
            versions.settle_versions(await self._send(asked, _OLDEST))
            self._versions = versions
        return self._versions

    async def _send(self, body: Any, version: int) -> Any:
        return await ask_controllers(self._controllers, body, version, timeout_ms=self.timeout_ms)


async def ask_controllers(client: ForwardsRequests, body: Any, version: int, *, timeout_ms: int) -> Any:
    """The active controller's answer to a request of Kafka's protocol that this process sends by itself.
    Raises ApiError and ClientError."""
    name = type(body).__name__.removesuffix("Request")
    header = RequestHeader(API_BY_NAME[name].key, version, 1, CLIENT_ID)
    answer = await client.forward(
        b"".join(codec.encode_request(header, body)),
        broker_id=NO_BROKER,
        principal="",
        client_address="",
        by_token=False,
        timeout_ms=timeout_ms,
    )
    return codec.decode_response(header.api_key, version, answer.frame).body


_OLDEST = 3
"""A version of ApiVersions that every controller has that answers Kafka's protocol over gRPC."""

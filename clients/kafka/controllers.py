"""A client of the active controller in Kafka's protocol, over gRPC: it works while no broker runs."""

from __future__ import annotations

from typing import Any, Protocol

from metaquorum.clients.kafka.cluster import CLIENT_ID, KafkaClient, Target
from metaquorum.clients.kafka.connection import PendingRequests, UnsupportedVersion
from metaquorum.clients.quorum.admin import AdminClient, ForwardedAnswer
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import NO_BROKER
from metaquorum.wire import codec
from metaquorum.wire.codec import RequestHeader
from metaquorum.wire.table import API_BY_NAME


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

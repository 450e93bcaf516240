"""A client of the active controller in Kafka's protocol, without a broker, for administration while no broker
runs.

Owns the way of a request: over gRPC to the controller that leads. Does not know which APIs controllers
answer: `forwarded.direct` does.
"""

from __future__ import annotations

from typing import Any

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.runtime.client.admin import AdminClient
from metaquorum.runtime.client.forwarding import NO_BROKER, forward
from metaquorum.runtime.kafka.client.cluster import CLIENT_ID, Coordinator, KafkaClient
from metaquorum.runtime.kafka.client.errors import UnsupportedVersion
from metaquorum.runtime.kafka.client.exchange import PendingRequests
from metaquorum.runtime.tls.material import TlsMaterial
from metaquorum.wire import codec
from metaquorum.wire.apis import API_BY_NAME
from metaquorum.wire.codec import RequestHeader


class ControllersClient(KafkaClient):
    """A KafkaClient for controllers. `bootstrap` has their addresses. Requests that only brokers answer raise
    ApiError. The principal is that of the certificate in `tls`."""

    asks_brokers = False

    def __init__(self, bootstrap: str, *, timeout_ms: int, tls: TlsMaterial | None = None) -> None:
        super().__init__(bootstrap, timeout_ms=timeout_ms)
        self._controllers = AdminClient(bootstrap, timeout_ms=timeout_ms, tls=tls)
        self._correlation_id = 0
        self._versions: PendingRequests | None = None

    async def close(self) -> None:
        await self._controllers.close()

    async def version(self, api: str) -> int | None:
        try:
            return (await self._known()).version(api)
        except UnsupportedVersion:
            return None

    async def ask(
        self, body: Any, *, at: int | Coordinator | None = None, lowest: int = 0, highest: int = 2**15 - 1
    ) -> Any:
        name = type(body).__name__.removesuffix("Request")
        known = await self._known()
        try:
            version = known.version(name, lowest, highest)
        except UnsupportedVersion as error:
            text = f"controllers do not support this request ({error}): use brokers, with --bootstrap"
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text) from error
        return await self._send(name, body, version)

    async def _known(self) -> PendingRequests:
        """The versions of the active controller, from the first response."""
        if self._versions is None:
            versions = PendingRequests(CLIENT_ID)
            asked = versions.api_versions(_OLDEST)
            versions.settle_versions(await self._send("ApiVersions", asked, _OLDEST))
            self._versions = versions
        return self._versions

    async def _send(self, name: str, body: Any, version: int) -> Any:
        self._correlation_id += 1
        header = RequestHeader(API_BY_NAME[name].key, version, self._correlation_id, CLIENT_ID)
        answer = await forward(
            self._controllers,
            b"".join(codec.encode_request(header, body)),
            broker_id=NO_BROKER,
            principal="",
            client_address="",
            by_token=False,
            timeout_ms=self.timeout_ms,
        )
        return codec.decode_response(header.api_key, version, answer.frame).body


_OLDEST = 3
"""A version of ApiVersions that every controller has that answers Kafka's protocol over gRPC."""

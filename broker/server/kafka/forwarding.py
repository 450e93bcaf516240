"""The requests that a broker forwards to the active controller, and its answer if there is none in time.

Owns the wait for the controller's answer, and for this broker's own image to have the change. Does not know
what a request means: `runtime.kafka.forwarded` does.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from metaquorum.broker.server.calls import Calls
from metaquorum.broker.server.published import Published
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import ControllerRequest
from metaquorum.runtime.client.admin import AdminClient, ClientError
from metaquorum.runtime.client.forwarding import forward
from metaquorum.runtime.kafka.forwarded.call import Call
from metaquorum.runtime.kafka.forwarded.table import FORWARDED, FORWARDED_BY_KEY, timeout_ms
from metaquorum.runtime.kafka.services import Client, Offered
from metaquorum.wire import codec
from metaquorum.wire.codec import Request

OWN_IMAGE_WAIT_S = 0.5
"""How long an answer waits until this broker's image includes the controller's change, so that a client that
creates a topic finds it here."""


class Forwarder:
    """`controllers` finds the active controller."""

    def __init__(self, controllers: AdminClient, *, node_id: int, published: Published) -> None:
        self.controllers = controllers
        self._node_id = node_id
        self._published = published
        self._calls = Calls()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that no caller waits for; it ends with this object."""
        self._calls.spawn(work)

    async def close(self) -> None:
        await self._calls.end()
        await self.controllers.close()

    def offered(self) -> Mapping[str, Offered]:
        return {
            name: Offered(api.min_version, api.max_version, self.handle) for name, api in FORWARDED.items()
        }

    async def handle(self, request: Request, client: Client) -> Any:
        """The body of the answer: the controller's, or a refusal that says what to do."""
        header = request.header
        try:
            answer = await forward(
                self.controllers,
                b"".join(codec.encode_request(header, request.body)),
                broker_id=self._node_id,
                principal=client.principal,
                client_address=client.address,
                by_token=client.by_token,
                timeout_ms=timeout_ms(request.body),
            )
        except (ApiError, ClientError) as error:
            return await self._refusal(request, client, error)
        await self._published.reach(answer.offset, OWN_IMAGE_WAIT_S)
        return codec.decode_response(header.api_key, header.version, answer.frame).body

    async def _refusal(self, request: Request, client: Client, error: ApiError | ClientError) -> Any:
        if isinstance(error, ApiError) and error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
            refusal = error
        else:
            text = f"the active controller did not answer in time ({error}): try again"
            refusal = ApiError(ErrorCode.REQUEST_TIMED_OUT, text)

        async def refuse(_: ControllerRequest) -> ApiError:
            return refusal

        call = Call(
            version=request.header.version,
            ask=refuse,
            node_id=self._node_id,
            wall_ms=0,  # only successes have a time
            image=self._published.image,
            principal=client.principal,
            address=client.address,
            by_token=client.by_token,
        )
        return await FORWARDED_BY_KEY[request.header.api_key].handle(request.body, call)

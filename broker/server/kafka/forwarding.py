"""The requests that a broker forwards to the active controller, and its answer if there is none in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from metaquorum.broker.server.calls import Calls
from metaquorum.clients.kafka.grpc_way import ForwardsRequests
from metaquorum.clients.search import ClientError
from metaquorum.listeners.answers import AnswerFrame, opened
from metaquorum.listeners.forwarded.api import Call, timeout_ms
from metaquorum.listeners.forwarded.table import FORWARDED, FORWARDED_BY_KEY
from metaquorum.listeners.forwarded.too_many import TOO_MANY, names_too_many, refused_in_slices
from metaquorum.listeners.services import Client, Offered
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.common import ControllerRequest
from metaquorum.metadata.settings.topic_names import INTERNAL_TOPICS
from metaquorum.wire import codec
from metaquorum.wire.codec import Request, RequestHeader
from metaquorum.wire.messages import CreateTopicsRequest, CreateTopicsResponse
from metaquorum.wire.table import API_BY_NAME

OWN_IMAGE_WAIT_S = 5.0
"""How long an answer waits until this broker's image includes the controller's change, so that a client that
creates a topic finds it here: many ask for it at once, and give up if it is not. Never longer than the client
waits."""

_PASSED_ON = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNSUPPORTED_VERSION})
"""Refusals that no retry would change; clients repeat others."""


class Forwarder:
    """`controllers` finds the active controller."""

    def __init__(self, controllers: ForwardsRequests, *, node_id: int, published: Published) -> None:
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
        """The controller's answer as it has encoded it, or a refusal that says what to do. The controller
        gets the client's bytes, unless a check has changed the request."""
        header, frame = request.header, request.frame
        api = FORWARDED_BY_KEY[header.api_key]
        if names_too_many(api, request.body):
            return await refused_in_slices(
                api, request, lambda body: self._refused(request, client, body, TOO_MANY)
            )
        if frame is None:
            frame = b"".join(codec.encode_request(header, request.body))
        waits_ms = timeout_ms(request.body)
        try:
            answer = await self.controllers.forward(
                bytes(frame),
                broker_id=self._node_id,
                principal=client.principal,
                client_address=client.address,
                by_token=client.by_token,
                timeout_ms=waits_ms,
            )
        except (ApiError, ClientError) as error:
            return await self._refusal(request, client, error)
        await self._published.reach(answer.offset, min(OWN_IMAGE_WAIT_S, waits_ms / 1000))
        return AnswerFrame(header.api_key, header.version, answer.frame)

    async def _refusal(self, request: Request, client: Client, error: ApiError | ClientError) -> Any:
        if isinstance(error, ApiError) and error.code in _PASSED_ON:
            refusal = error
        else:
            text = f"the active controller did not answer in time ({error}): try again"
            refusal = ApiError(ErrorCode.REQUEST_TIMED_OUT, text)
        return await self._refused(request, client, request.body, refusal)

    async def _refused(self, request: Request, client: Client, body: Any, refusal: ApiError) -> Any:
        async def refuse(_: ControllerRequest) -> ApiError:
            return refusal

        call = Call(
            version=request.header.version,
            ask=refuse,
            wall_ms=0,  # only successes have a time
            image=self._published.image,
            principal=client.principal,
            by_token=client.by_token,
        )
        return await FORWARDED_BY_KEY[request.header.api_key].handle(body, call)


# The newest image that a broker has published, and callers that wait for one that has their own changes.
# Image and the wait.


class Published:
    """`image` is read at each request; `publish` wakes waiting callers."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._began = asyncio.Event()

    def publish(self, image: MetadataImage) -> None:
        self.image = image
        self._began.set()
        reached = image.provenance.offset
        for future, offset in list(self._waiting.items()):
            if offset <= reached and not future.done():
                future.set_result(None)

    async def first(self) -> None:
        """Returns once an image was published."""
        await self._began.wait()

    async def reach(self, offset: int, timeout_s: float) -> bool:
        """Whether everything below `offset` is in the image, or arrives within the time."""
        if offset <= self.image.provenance.offset:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = offset
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            del self._waiting[future]
        return True


# Topics that are created because a client requested them (auto.create.topics.enable).
# The set being created: many clients request a new topic at once, and one request is sent.

CREATING_MAX = 1000
"""Topics that are being created at once; clients retry for more."""

TIMEOUT_MS = 30_000
_CREATE_TOPICS = API_BY_NAME["CreateTopics"]
BY_DEFAULT = -1
"""The number in the controllers' configuration."""

_log = logging.getLogger(__name__)


class AutoTopics:
    """Call `want` for missing topics that clients requested. The controllers' defaults give the size of a
    topic unless this broker's `partitions` and `replication_factor` do."""

    def __init__(
        self,
        forwarder: Forwarder,
        *,
        enabled: bool,
        partitions: int = BY_DEFAULT,
        replication_factor: int = BY_DEFAULT,
    ) -> None:
        self._forwarder = forwarder
        self._enabled = enabled
        self._size = partitions, replication_factor
        self._creating: set[str] = set()

    def want(self, names: Iterable[str], client: Client, client_id: str | None) -> None:
        """Starts to create the topics; the client retries until they exist, as with Kafka. Internal topics
        are created by their coordinators."""
        if not self._enabled:
            return
        new = [name for name in names if name not in self._creating and name not in INTERNAL_TOPICS]
        new = new[: CREATING_MAX - len(self._creating)]
        if new:
            self._creating.update(new)
            self._forwarder.spawn(self._create(new, client, client_id))

    async def _create(self, names: list[str], client: Client, client_id: str | None) -> None:
        topic, (partitions, replicas) = CreateTopicsRequest.CreatableTopic, self._size
        body = CreateTopicsRequest(
            topics=tuple(
                topic(name=name, num_partitions=partitions, replication_factor=replicas) for name in names
            ),
            timeout_ms=TIMEOUT_MS,
        )
        header = RequestHeader(_CREATE_TOPICS.key, _CREATE_TOPICS.max_version, 0, client_id)
        try:
            answer: CreateTopicsResponse = opened(
                await self._forwarder.handle(Request(header, body, 0), client)
            )
            for each in answer.topics:
                if each.error_code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
                    _log.warning("topic %s was not created automatically: %s", each.name, each.error_message)
        finally:
            self._creating.difference_update(names)

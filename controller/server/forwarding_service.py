"""The gRPC service for Kafka's protocol: requests that brokers forward to the active controller, and
connections on which they fetch the metadata log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from metaquorum.clients.quorum.admin import NOT_LOOKED_AT
from metaquorum.controller.server.voter_changes import VoterChanges
from metaquorum.controller.settings.access import TokenSecret
from metaquorum.listeners.forwarded.api import Call, Forwarded
from metaquorum.listeners.forwarded.direct import DIRECT_BY_KEY, NotTheLeader
from metaquorum.listeners.forwarded.shown_configs import NewTopics
from metaquorum.listeners.forwarded.table import FORWARDED_BY_KEY
from metaquorum.listeners.forwarded.too_many import TOO_MANY, names_too_many, refused_in_slices
from metaquorum.listeners.long_work import LongWork
from metaquorum.metadata.authorizer import ANONYMOUS
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import KRAFT_VERSION
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.requests.common import (
    NO_BROKER,
    AddRaftVoterRequest,
    ControllerRequest,
    ControllerResponse,
    Mutator,
    RemoveRaftVoterRequest,
)
from metaquorum.metadata.requests.settings import UpdateFeaturesRequest
from metaquorum.proto import forwarding_pb2 as pb
from metaquorum.proto.forwarding_pb2_grpc import ForwardingServicer
from metaquorum.rpc.messages.errors import Hints, error_to_pb
from metaquorum.rpc.requests import CALLER, WaitingRequests
from metaquorum.rpc.rights import address_of
from metaquorum.rpc.stream_transport import StreamTransport
from metaquorum.wire import codec
from metaquorum.wire.codec import RequestHeader
from metaquorum.wire.errors import DecodeError, EncodeError, TooManyValues
from metaquorum.wire.table import APIS

_log = logging.getLogger(__name__)


class _NotLookedAt(Exception):
    """This node does not answer such requests now: the broker asks again."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error)
        self.error = error


class KafkaCalls:
    """Calls of APIs that the active controller answers, however they arrive. `image` returns this node's
    committed image. `static`: the broker keys in its file. `token_key`: the secret of delegation tokens;
    `wall_ms`: the node's clock."""

    def __init__(
        self,
        requests: WaitingRequests,
        voter_changes: VoterChanges,
        *,
        image: Callable[[], MetadataImage],
        static: Mapping[str, str],
        token_key: str | None,
        wall_ms: Callable[[], int],
    ) -> None:
        self._requests = requests
        self._voter_changes = voter_changes
        self.image = image
        self._wall_ms = wall_ms
        self._new_topics = NewTopics(static)
        self._token_hmac = None if token_key is None else TokenSecret(key=token_key).hmac_of

    async def answer(
        self,
        api: Forwarded,
        asked: codec.Request,
        caller: ForwardedCaller,
        ask: Callable[[Mutator, ControllerRequest], Awaitable[ControllerResponse | ApiError]] | None = None,
    ) -> Any:
        """The body of the response. `ask` replaces the way to the controller's decisions."""
        header = asked.header
        way = partial(ask or self.ask, _mutator(header, caller.principal, api.strict_from))
        cause = BatchCause(
            request=APIS[header.api_key].name,
            principal=caller.principal,
            client_id=header.client_id,
            address=caller.address,
            broker_id=None if caller.node_id == NO_BROKER else caller.node_id,
        )

        def asking(request: ControllerRequest) -> Awaitable[ControllerResponse | ApiError]:
            CALLER.set(cause)  # each time: what has no task goes on in the context of what it waited for
            return way(request)

        call = Call(
            version=header.version,
            ask=asking,
            wall_ms=self._wall_ms(),
            image=self.image(),
            principal=caller.principal,
            by_token=caller.by_token,
            new_topics=self._new_topics,
            token_hmac=self._token_hmac,
        )
        if names_too_many(api, asked.body):

            async def refuse(_: ControllerRequest) -> ApiError:
                return TOO_MANY

            refusing = msgspec.structs.replace(call, ask=refuse)
            return await refused_in_slices(api, asked, lambda body: api.handle(body, refusing))
        return await api.handle(asked.body, call)

    async def ask(self, mutator: Mutator, request: ControllerRequest) -> ControllerResponse | ApiError:
        """The controller's response, or its refusal."""
        if isinstance(request, UpdateFeaturesRequest) and [each.name for each in request.updates] == [
            KRAFT_VERSION
        ]:
            return await self._voter_changes.upgrade(request)
        if isinstance(request, AddRaftVoterRequest | RemoveRaftVoterRequest):
            return await self._voter_changes.change(request)
        return await self._requests.ask(request, mutator)


class ForwardedCaller(msgspec.Struct, frozen=True, kw_only=True):
    """Whose call it is. `node_id`: the broker that forwards it, or NO_BROKER."""

    principal: str
    address: str
    by_token: bool = False
    node_id: int = NO_BROKER


class ForwardingService(ForwardingServicer):
    """Requests that brokers forward, and those of clients that ask over gRPC. `connected` makes the end of a
    connection that a client, named by its address, has opened."""

    def __init__(
        self, calls: KafkaCalls, hints: Hints, connected: Callable[[str], asyncio.BufferedProtocol]
    ) -> None:
        self._calls = calls
        self._hints = hints
        self._connected = connected
        self._work = LongWork()

    async def _decoded(self, frame: bytes, owner: object) -> codec.Request:
        """The request; one with many values is decoded beside the loop. Raises DecodeError."""
        try:
            return codec.decode_request(frame, codec.FEW_VALUES)
        except TooManyValues:
            found: codec.Request = await self._work.do(owner, partial(codec.decode_request_apart, frame))
            return found

    async def Forward(self, request: pb.ForwardRequest, context: Any) -> pb.ForwardResponse:
        try:
            asked = await self._decoded(request.frame, context)
        except DecodeError as error:
            return self._refused(ApiError(ErrorCode.INVALID_REQUEST, f"the frame cannot be read: {error}"))
        header = asked.header
        directly = request.broker_id == NO_BROKER
        api = (DIRECT_BY_KEY if directly else FORWARDED_BY_KEY).get(header.api_key)
        if api is None or not api.min_version <= header.version <= api.max_version:
            way = "answered here" if directly else "forwarded"
            text = f"API {header.api_key} version {header.version} is not {way}: use a newer controller"
            return self._refused(ApiError(ErrorCode.UNSUPPORTED_VERSION, text))
        principal, address = request.principal, request.client_address
        if directly:  # the caller is the client itself
            caller = CALLER.get() or BatchCause(principal=ANONYMOUS)
            principal, address = caller.principal or ANONYMOUS, caller.address or ""
        by = ForwardedCaller(
            principal=principal, address=address, by_token=request.by_token, node_id=request.broker_id
        )
        try:
            body = await self._calls.answer(api, asked, by, self._ask)
        except (_NotLookedAt, NotTheLeader) as refusal:
            return self._refused(refusal.error)
        encode = partial(codec.encode_response, header.api_key, header.version, header.correlation_id, body)
        try:
            is_long = asked.end > codec.FEW_VALUES
            chunks = await self._work.do(context, encode) if is_long else encode()
        except EncodeError as error:
            # A retry would not help, and the request may have been carried out.
            text = f"the answer to {APIS[header.api_key].name} {header.version} cannot be encoded: {error}"
            _log.error("%s; report this as a bug", text)
            return self._refused(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, text))
        return pb.ForwardResponse(frame=b"".join(chunks), offset=self._calls.image().provenance.offset)

    async def Follow(  # type: ignore[override]
        self, requests: Any, context: Any
    ) -> None:
        address = address_of(context)
        await StreamTransport(context, self._connected(address), (address, 0)).finished()

    async def _ask(self, mutator: Mutator, request: ControllerRequest) -> ControllerResponse | ApiError:
        answer = await self._calls.ask(mutator, request)
        if isinstance(answer, ApiError) and answer.code in NOT_LOOKED_AT:
            raise _NotLookedAt(answer)
        return answer

    def _refused(self, error: ApiError) -> pb.ForwardResponse:
        return pb.ForwardResponse(error=error_to_pb(error, self._hints))


def _mutator(header: RequestHeader, principal: str, strict_from: int) -> Mutator:
    return Mutator(
        user=principal.partition(":")[2],
        client_id=header.client_id or "",
        strict=header.version >= strict_from,
    )

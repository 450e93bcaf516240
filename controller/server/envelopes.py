"""Requests in Kafka's protocol to the active controller: a node asks for itself, or a broker in an Envelope
for a client (KIP-590).

What is in an Envelope needs the rights of its own principal. Like a call over gRPC, one that this controller
does not look at is refused as a whole, so that the broker finds the active one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from metaquorum.clients.kafka.node_messages import Tags, is_marked, offset_tags
from metaquorum.clients.quorum.admin import NOT_LOOKED_AT
from metaquorum.controller.server.forwarding_service import ForwardedCaller, KafkaCalls
from metaquorum.listeners.access.guard import Rights, guarded
from metaquorum.listeners.forwarded.api import Forwarded
from metaquorum.listeners.forwarded.direct import NotTheLeader
from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.listeners.long_work import LongWork
from metaquorum.listeners.services import Client, Offered, at_once
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import ControllerRequest, ControllerResponse, Mutator
from metaquorum.wire import codec
from metaquorum.wire.errors import DecodeError, EncodeError, TooManyValues
from metaquorum.wire.messages import EnvelopeRequest, EnvelopeResponse
from metaquorum.wire.principal import decode_principal
from metaquorum.wire.table import API_BY_NAME, APIS

Ask = Callable[[Mutator, ControllerRequest], Awaitable[ControllerResponse | ApiError]]

_ELSEWHERE = frozenset({ErrorCode.NOT_CONTROLLER})
_WHOLE: ContextVar[frozenset[ErrorCode]] = ContextVar("whole", default=_ELSEWHERE)
"""Refusals of the inner request that are the envelope's."""

_log = logging.getLogger(__name__)


def asked(api: Forwarded, calls: KafkaCalls, ask: Ask | None = None) -> Offered:
    """An API of a listener that the active controller answers; `ask` as in `KafkaCalls.answer`. Without a
    task, unless it asks other nodes, too."""

    async def answer(request: codec.Request, client: Client) -> Any:
        caller = ForwardedCaller(principal=client.principal, address=client.address, by_token=client.by_token)
        return await calls.answer(api, request, caller, ask)

    def in_a_task(request: codec.Request, client: Client) -> asyncio.Future[Any]:
        return asyncio.ensure_future(answer(request, client))

    return Offered(api.min_version, api.max_version, in_a_task if api.asks_others else at_once(answer))


class Envelopes:
    """The handler of Envelope. `rights`: what the clients' principals may do."""

    def __init__(self, calls: KafkaCalls, rights: Rights) -> None:
        self._calls = calls
        self._work = LongWork()
        inside = {name: asked(api, calls, self._ask) for name, api in FORWARDED.items()}
        self._inside = {API_BY_NAME[name].key: offered for name, offered in guarded(inside, rights).items()}

    async def _ask(self, mutator: Mutator, request: ControllerRequest) -> ControllerResponse | ApiError:
        whole = _WHOLE.get()
        answer = await self._calls.ask(mutator, request)
        if isinstance(answer, ApiError) and answer.code in whole:
            raise NotTheLeader(answer)
        return answer

    async def answer(self, request: codec.Request, client: Client) -> EnvelopeResponse:
        """The response with the inner response, or with the code of what is wrong with the envelope; the
        checks are in Kafka's order."""
        body: EnvelopeRequest = request.body
        sender = decode_principal(body.request_principal)
        if sender is None:
            return EnvelopeResponse(error_code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
        address = _address(body.client_host_address)
        if address is None:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        try:
            inner = await self._decoded(bytes(body.request_data), client)
        except DecodeError:
            return EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        offered = self._inside.get(inner.header.api_key)
        if offered is None:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        if not offered.min_version <= inner.header.version <= offered.max_version:
            return EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        forwarded_by = Client(
            listener=client.listener,
            address=address,
            principal=sender.principal,
            by_token=sender.by_token,
            connection=client.connection,
        )
        # A broker of ours waits and asks again if it was not answered, as over gRPC; Kafka's passes that on.
        _WHOLE.set(NOT_LOOKED_AT if is_marked(body) else _ELSEWHERE)
        try:
            answer = offered.handle(inner, forwarded_by)
            if isinstance(answer, Awaitable):
                answer = await answer
        except NotTheLeader as refusal:
            return EnvelopeResponse(error_code=refusal.error.code)
        # Decided and committed: a broker of ours waits until its own image has it.
        tags = offset_tags(body, self._calls.image().provenance.offset)
        seal = partial(_sealed, inner.header, answer, tags)
        return await self._work.do(client.connection, seal) if inner.end > codec.FEW_VALUES else seal()

    async def _decoded(self, frame: bytes, client: Client) -> codec.Request:
        """The inner request; one with many values is decoded beside the loop. Raises DecodeError."""
        try:
            return codec.decode_request(frame, codec.FEW_VALUES)
        except TooManyValues:
            work = partial(codec.decode_request_apart, frame)
            found: codec.Request = await self._work.do(client.connection, work)
            return found


def _sealed(header: codec.RequestHeader, answer: Any, tags: Tags) -> EnvelopeResponse:
    try:
        chunks = codec.encode_response(header.api_key, header.version, header.correlation_id, answer)
    except EncodeError as error:
        text = f"the answer to {APIS[header.api_key].name} {header.version} cannot be encoded: {error}"
        _log.error("%s; report this as a bug", text)
        return EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    return EnvelopeResponse(response_data=b"".join(chunks), unknown_tags=tags)


def _address(packed: Any) -> str | None:
    """The text of an IP address as a client's connection has it; None if the bytes are none."""
    try:
        address = ipaddress.ip_address(bytes(packed))
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(address if mapped is None else mapped)

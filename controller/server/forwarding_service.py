"""The gRPC service for clients' requests in Kafka's protocol that brokers forward to the active controller.

Owns the path of a frame into the node's inbox and of its answer back. Does not know what a frame means:
`runtime.kafka` does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from metaquorum.controller.server.voter_changes import VoterChanges
from metaquorum.controller.settings.tokens import TokenSecret
from metaquorum.metadata.access.authorizer import ANONYMOUS
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import KRAFT_VERSION
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.requests.arrival import Mutator
from metaquorum.metadata.requests.common import ControllerRequest, ControllerResponse
from metaquorum.metadata.requests.settings import UpdateFeaturesRequest
from metaquorum.proto import forwarding_pb2 as pb
from metaquorum.proto.forwarding_pb2_grpc import ForwardingServicer
from metaquorum.runtime.api.errors import Hints, error_to_pb
from metaquorum.runtime.client.forwarding import NO_BROKER, NOT_LOOKED_AT
from metaquorum.runtime.kafka.forwarded.call import Call
from metaquorum.runtime.kafka.forwarded.direct import DIRECT_BY_KEY, NotTheLeader
from metaquorum.runtime.kafka.forwarded.table import FORWARDED_BY_KEY
from metaquorum.runtime.requests import CALLER, WaitingRequests
from metaquorum.wire import codec
from metaquorum.wire.apis import APIS
from metaquorum.wire.codec import RequestHeader
from metaquorum.wire.errors import DecodeError, EncodeError

_log = logging.getLogger(__name__)


class _NotLookedAt(Exception):
    """This node does not answer such requests now; nothing was done."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error)
        self.error = error


class ForwardingService(ForwardingServicer):
    """`image` returns this node's committed image. `static`: the broker keys in its file. `token_key`: the
    secret of delegation tokens."""

    def __init__(
        self,
        requests: WaitingRequests,
        hints: Hints,
        voter_changes: VoterChanges,
        *,
        image: Callable[[], MetadataImage],
        static: Mapping[str, str],
        token_key: str | None,
    ) -> None:
        self._requests = requests
        self._hints = hints
        self._voter_changes = voter_changes
        self._image = image
        self._static = static
        self._token_hmac = None if token_key is None else TokenSecret(key=token_key).hmac_of

    async def Forward(self, request: pb.ForwardRequest, context: Any) -> pb.ForwardResponse:
        try:
            asked = codec.decode_request(request.frame)
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
        call = Call(
            version=header.version,
            ask=partial(self._ask, _mutator(header, principal, api.strict_from)),
            node_id=request.broker_id,
            wall_ms=time.time_ns() // 1_000_000,
            image=self._image(),
            principal=principal,
            address=address,
            by_token=request.by_token,
            static=self._static,
            token_hmac=self._token_hmac,
        )
        CALLER.set(
            BatchCause(
                request=APIS[header.api_key].name,
                principal=principal,
                client_id=header.client_id,
                address=address,
                broker_id=None if directly else request.broker_id,
            )
        )
        try:
            body = await api.handle(asked.body, call)
        except (_NotLookedAt, NotTheLeader) as refusal:
            return self._refused(refusal.error)
        try:
            chunks = codec.encode_response(header.api_key, header.version, header.correlation_id, body)
        except EncodeError as error:
            # A retry would not help, and the request may have been carried out.
            text = f"the answer to {APIS[header.api_key].name} {header.version} cannot be encoded: {error}"
            _log.error("%s; report this as a bug", text)
            return self._refused(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, text))
        return pb.ForwardResponse(frame=b"".join(chunks), offset=self._image().provenance.offset)

    async def _ask(self, mutator: Mutator, request: ControllerRequest) -> ControllerResponse | ApiError:
        if isinstance(request, UpdateFeaturesRequest) and [each.name for each in request.updates] == [
            KRAFT_VERSION
        ]:
            answer: ControllerResponse | ApiError = await self._voter_changes.upgrade(request)
        else:
            answer = await self._requests.ask(request, mutator)
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

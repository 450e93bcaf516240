"""The gRPC service for broker ids: new brokers request one, operators and tools read and write bindings.

Owns the path of a request into the node's inbox and of its answer back, as `services` does for the others.
Does not decide which id a broker gets: `controller.brokers.broker_ids` does.
"""

from __future__ import annotations

from typing import Any

from metaquorum.controller.brokers.broker_ids import garbage_bindings, missing_ids
from metaquorum.controller.server.services import ControllerImages, ask
from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.broker_ids import AllocateBrokerIdResponse
from metaquorum.metadata.requests.common import Done
from metaquorum.proto import broker_ids_pb2 as pb
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto.broker_ids_pb2_grpc import BrokerIdsServicer
from metaquorum.runtime.api import broker_ids as codec
from metaquorum.runtime.api.errors import Hints, error_to_pb
from metaquorum.runtime.requests import WaitingRequests


class BrokerIdsService(BrokerIdsServicer):
    """See the module."""

    def __init__(self, requests: WaitingRequests, hints: Hints, node_id: int) -> None:
        self._requests = requests
        self._images = ControllerImages(requests)
        self._hints = hints
        self._node_id = node_id

    async def Allocate(
        self, request: pb.AllocateBrokerIdRequest, context: Any
    ) -> pb.AllocateBrokerIdResponse:
        response = await ask(self._requests, codec.ALLOCATE.from_pb(request), AllocateBrokerIdResponse)
        return codec.ALLOCATED.answer_to_pb(response, self._hints)

    async def Bind(self, request: pb.BindBrokerIdRequest, context: Any) -> pb.BindBrokerIdResponse:
        response = await ask(self._requests, codec.BIND.from_pb(request), Done)
        return pb.BindBrokerIdResponse(error=self._error(response))

    async def Unbind(self, request: pb.UnbindBrokerIdRequest, context: Any) -> pb.UnbindBrokerIdResponse:
        response = await ask(self._requests, codec.UNBIND.from_pb(request), Done)
        return pb.UnbindBrokerIdResponse(error=self._error(response))

    async def List(self, request: pb.ListBrokerIdsRequest, context: Any) -> pb.ListBrokerIdsResponse:
        read = await self._images.read(common.CONSISTENCY_DEFAULT)
        if isinstance(read, ApiError):
            return pb.ListBrokerIdsResponse(error=error_to_pb(read, self._hints))
        answer = codec.LISTING.to_pb(_listing_of(read.image, read.offset))
        answer.read.CopyFrom(read.info(self._node_id))
        return answer

    def _error(self, response: Done | ApiError) -> common.Error | None:
        return error_to_pb(response, self._hints) if isinstance(response, ApiError) else None


def _listing_of(image: MetadataImage, offset: int) -> codec.BrokerIdListing:
    """The ids in an image."""
    entries = ids.remembered(image)
    garbage = {binding.key for binding in garbage_bindings(image)}
    current = ids.current_keys(entries)
    return codec.BrokerIdListing(
        offset=offset,
        bindings=tuple(
            [
                codec.BindingView(
                    key=each.key,
                    broker_id=each.broker_id,
                    version=each.version,
                    state=_state(image, each.broker_id),
                    current=each.broker_id is not None and current.get(each.broker_id) == each.key,
                    garbage=each.key in garbage,
                )
                for each in ids.bindings(entries)
            ]
        ),
        missing_ids=tuple(missing_ids(image)),
        claims=tuple([each for _, each in sorted(ids.claims(entries).items())]),
        next_id=ids.next_id(entries),
    )


def _state(image: MetadataImage, broker_id: int | None) -> str:
    known = None if broker_id is None else image.brokers.get(broker_id)
    return "absent" if known is None else "fenced" if known.fenced else "running"

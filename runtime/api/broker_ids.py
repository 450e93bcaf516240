"""Requests about broker ids and their answers, between values and protobuf; and what a listing shows.

Owns the mapping and the view of an image that operators get. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.broker_ids import IdSource
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.broker_ids import AllocateBrokerIdRequest, AllocateBrokerIdResponse
from metaquorum.proto import broker_ids_pb2 as pb

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingView:
    """A binding and what is true of its id: `state` is `running`, `fenced` or `absent`."""

    key: str
    broker_id: int | None
    version: int | None
    state: str
    current: bool
    garbage: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdListing:
    """Everything that the cluster remembers of ids, as of `offset`."""

    offset: int
    bindings: tuple[BindingView, ...]
    missing_ids: tuple[int, ...]
    claims: tuple[ids.Claim, ...]
    next_id: int


def allocate_to_pb(request: AllocateBrokerIdRequest) -> pb.AllocateBrokerIdRequest:
    return pb.AllocateBrokerIdRequest(
        request_id=request.request_id,
        cluster_id=request.cluster_id,
        binding_key=request.binding_key,
        reuse_missing=request.reuse_missing,
    )


def allocate_from_pb(request: pb.AllocateBrokerIdRequest) -> AllocateBrokerIdRequest:
    return AllocateBrokerIdRequest(
        request_id=request.request_id,
        cluster_id=request.cluster_id if request.HasField("cluster_id") else None,
        binding_key=request.binding_key if request.HasField("binding_key") else None,
        reuse_missing=request.reuse_missing,
    )


def allocated_to_pb(response: AllocateBrokerIdResponse) -> pb.AllocateBrokerIdResponse:
    return pb.AllocateBrokerIdResponse(
        cluster_id=response.cluster_id,
        broker_id=response.broker_id,
        source="" if response.source is None else response.source.value,
        retry_after_ms=response.retry_after_ms,
        waiting_for=response.waiting_for,
    )


def allocated_from_pb(response: pb.AllocateBrokerIdResponse) -> AllocateBrokerIdResponse:
    """Raises ApiError for a source from the future: then the ids may mean something else too."""
    try:
        source = IdSource(response.source) if response.source else None
    except ValueError:
        text = f"the id comes from {response.source!r}, which this release does not know: upgrade the broker"
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text) from None
    return AllocateBrokerIdResponse(
        cluster_id=response.cluster_id,
        broker_id=response.broker_id if response.HasField("broker_id") else None,
        source=source,
        retry_after_ms=response.retry_after_ms,
        waiting_for=response.waiting_for,
    )


def listing_to_pb(image: MetadataImage) -> pb.ListBrokerIdsResponse:
    """What an image says of ids, without `read`. Only nodes do: they have loaded the controller's rules."""
    from metaquorum.controller.brokers.broker_ids import garbage_bindings, missing_ids

    entries = ids.remembered(image)
    garbage = {binding.key for binding in garbage_bindings(image)}
    current = ids.current_keys(entries)
    bindings = [
        pb.BrokerIdBinding(
            key=each.key,
            broker_id=each.broker_id,
            version=each.version,
            state=_state(image, each.broker_id),
            current=each.broker_id is not None and current.get(each.broker_id) == each.key,
            garbage=each.key in garbage,
        )
        for each in ids.bindings(entries)
    ]
    claims = [
        pb.BrokerIdClaim(broker_id=each.broker_id, request_id=each.request_id, source=each.source.value)
        for _, each in sorted(ids.claims(entries).items())
    ]
    return pb.ListBrokerIdsResponse(
        bindings=bindings, missing_ids=missing_ids(image), claims=claims, next_id=ids.next_id(entries)
    )


def _state(image: MetadataImage, broker_id: int | None) -> str:
    known = None if broker_id is None else image.brokers.get(broker_id)
    return "absent" if known is None else "fenced" if known.fenced else "running"


def listing_from_pb(response: pb.ListBrokerIdsResponse) -> BrokerIdListing:
    return BrokerIdListing(
        offset=response.read.offset,
        bindings=tuple(
            BindingView(
                key=each.key,
                broker_id=each.broker_id if each.HasField("broker_id") else None,
                version=each.version if each.HasField("version") else None,
                state=each.state,
                current=each.current,
                garbage=each.garbage,
            )
            for each in response.bindings
        ),
        missing_ids=tuple(response.missing_ids),
        claims=tuple(
            ids.Claim(broker_id=each.broker_id, request_id=each.request_id, source=IdSource(each.source))
            for each in response.claims
        ),
        next_id=response.next_id,
    )

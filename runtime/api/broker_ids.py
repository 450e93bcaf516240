"""Requests about broker ids and their answers, between values and protobuf; and what a listing shows.

Owns the mapping and the view of an image that operators get. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.broker_ids import IdSource
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import broker_ids as api
from metaquorum.proto import broker_ids_pb2 as pb
from metaquorum.runtime.api.codec import MessageCodec
from metaquorum.runtime.api.shapes import FieldRule

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


def _source(response: pb.AllocateBrokerIdResponse) -> IdSource | None:
    """Raises ApiError for a source from the future: then the ids may mean something else too."""
    try:
        return IdSource(response.source) if response.source else None
    except ValueError:
        text = f"the id comes from {response.source!r}, which this release does not know: upgrade the broker"
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text) from None


ALLOCATE = MessageCodec(api.AllocateBrokerIdRequest, pb.AllocateBrokerIdRequest)
ALLOCATED = MessageCodec(
    api.AllocateBrokerIdResponse, pb.AllocateBrokerIdResponse, source=FieldRule(decode=_source)
)
BIND = MessageCodec(api.BindBrokerIdRequest, pb.BindBrokerIdRequest)
UNBIND = MessageCodec(api.UnbindBrokerIdRequest, pb.UnbindBrokerIdRequest)
LISTING = MessageCodec(BrokerIdListing, pb.ListBrokerIdsResponse, offset="read.offset")


def listing_of(image: MetadataImage, offset: int) -> BrokerIdListing:
    """What an image says of ids. Only nodes do: they have loaded the controller's rules."""
    from metaquorum.controller.brokers.broker_ids import garbage_bindings, missing_ids

    entries = ids.remembered(image)
    garbage = {binding.key for binding in garbage_bindings(image)}
    current = ids.current_keys(entries)
    return BrokerIdListing(
        offset=offset,
        bindings=tuple(
            [
                BindingView(
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

"""Requests about broker ids and their responses, between values and protobuf, and what a listing contains."""

from __future__ import annotations

import msgspec

from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.broker_ids import IdSource
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import common as api
from metaquorum.proto import broker_ids_pb2 as pb
from metaquorum.rpc.messages.codec import MessageCodec
from metaquorum.rpc.messages.shapes import FieldRule


class BindingView(msgspec.Struct, frozen=True, kw_only=True):
    """A binding and the state of its id: `state` is `running`, `fenced` or `absent`."""

    key: str
    broker_id: int | None
    version: int | None
    state: str
    current: bool
    garbage: bool


class BrokerIdListing(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the cluster records about broker ids, as of `offset`."""

    offset: int
    bindings: tuple[BindingView, ...]
    missing_ids: tuple[int, ...]
    claims: tuple[ids.Claim, ...]
    next_id: int


def _source(response: pb.AllocateBrokerIdResponse) -> IdSource | None:
    """Raises ApiError for a source that this release does not know: the ids may then have another meaning
    too."""
    try:
        return IdSource(response.source) if response.source else None
    except ValueError:
        text = (
            f"the id comes from {response.source!r}, which this release does not support: upgrade the broker"
        )
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text) from None


ALLOCATE = MessageCodec(api.AllocateBrokerIdRequest, pb.AllocateBrokerIdRequest)
ALLOCATED = MessageCodec(
    api.AllocateBrokerIdResponse, pb.AllocateBrokerIdResponse, source=FieldRule(decode=_source)
)
BIND = MessageCodec(api.BindBrokerIdRequest, pb.BindBrokerIdRequest)
UNBIND = MessageCodec(api.UnbindBrokerIdRequest, pb.UnbindBrokerIdRequest)
LISTING = MessageCodec(BrokerIdListing, pb.ListBrokerIdsResponse, offset="read.offset")

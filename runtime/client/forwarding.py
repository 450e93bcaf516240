"""Forwards frames of Kafka's protocol to the active controller, through an `AdminClient`.

Owns the call. Does not know what a frame holds (`runtime.kafka` does), nor addresses and retries (`admin`).
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.errors import ErrorCode
from metaquorum.proto import forwarding_pb2 as pb
from metaquorum.proto.forwarding_pb2_grpc import ForwardingStub
from metaquorum.runtime.client.admin import AdminClient

NO_BROKER = -1
"""Broker id of a request that a client sent to the controller directly."""

NOT_LOOKED_AT = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED})
"""Refusals that mean that nothing was done: the request goes to another controller, or to the same one
again."""


class ForwardedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The response's frame; everything below `offset` was committed when the controller encoded it."""

    frame: bytes
    offset: int


async def forward(
    client: AdminClient,
    frame: bytes,
    *,
    broker_id: int,
    principal: str,
    client_address: str,
    by_token: bool,
    timeout_ms: int,
) -> ForwardedAnswer:
    """Forwards a frame. Raises ApiError if the controllers refuse it until the time is over, and ClientError
    if none responds: whether the request was carried out is unknown."""
    request = pb.ForwardRequest(
        frame=frame,
        broker_id=broker_id,
        principal=principal,
        client_address=client_address,
        by_token=by_token,
    )
    answer = await client.ask(
        lambda channel: ForwardingStub(channel).Forward,
        request,
        ask_again=NOT_LOOKED_AT,
        timeout_ms=timeout_ms,
    )
    return ForwardedAnswer(frame=bytes(answer.frame), offset=answer.offset)

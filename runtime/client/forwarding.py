"""Frames of Kafka's protocol on their way to the active controller, through an `AdminClient`.

Owns the call. Who is asked, and how often, is the client's; what a frame says is `runtime.kafka`'s.
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.errors import ErrorCode
from metaquorum.proto import forwarding_pb2 as pb
from metaquorum.proto.forwarding_pb2_grpc import ForwardingStub
from metaquorum.runtime.client.admin import AdminClient

NO_BROKER = -1
"""Instead of the broker that the client asked: the caller is the client."""

NOT_LOOKED_AT = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED})
"""Refusals after which nothing was done: another controller is asked, or the same one again."""


class ForwardedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The response's frame; everything below `offset` was committed when it was made."""

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
    """Raises ApiError when the controllers refuse to look at it within the time, ClientError when no one
    answers: whether it was carried out is unknown then."""
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

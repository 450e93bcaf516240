"""Calls of `AdminClient` about producer ids.

Owns the call. Does not keep a block: the broker's coordinator assigns the ids. Responses are values, never
protobuf.
"""

from __future__ import annotations

from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from metaquorum.proto.broker_pb2_grpc import BrokerLifecycleStub
from metaquorum.runtime.api import brokers as codec
from metaquorum.runtime.client.admin import AdminClient


async def allocate_producer_ids(
    client: AdminClient, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """Allocates the next block. Repeating it is safe: a block that did not arrive is never used."""
    message = codec.ALLOCATE_PRODUCER_IDS.to_pb(request)
    answer = await client.ask(lambda channel: BrokerLifecycleStub(channel).AllocateProducerIds, message)
    return codec.ALLOCATED_PRODUCER_IDS.from_pb(answer)

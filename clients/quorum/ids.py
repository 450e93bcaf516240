"""Calls of `AdminClient` about broker ids and producer ids.

Responses are values, never protobuf.
"""

from __future__ import annotations

from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.metadata.requests.common import (
    AllocateBrokerIdRequest,
    AllocateBrokerIdResponse,
    BindBrokerIdRequest,
    UnbindBrokerIdRequest,
)
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from metaquorum.proto import broker_ids_pb2 as pb
from metaquorum.proto.broker_ids_pb2_grpc import BrokerIdsStub
from metaquorum.proto.broker_pb2_grpc import BrokerLifecycleStub
from metaquorum.rpc.messages import broker_ids as codec
from metaquorum.rpc.messages import brokers
from metaquorum.rpc.messages.broker_ids import BrokerIdListing


async def list_broker_ids(client: AdminClient) -> BrokerIdListing:
    """Bindings, missing ids and allocated ids, from a linearizable read."""
    answer = await client.ask(lambda channel: BrokerIdsStub(channel).List, pb.ListBrokerIdsRequest())
    return codec.LISTING.from_pb(answer)


async def bind_broker_id(client: AdminClient, key: str, broker_id: int) -> None:
    """Binds a key to an id, and unbinds other keys of that id."""
    request = BindBrokerIdRequest(key=key, broker_id=broker_id)
    await client.ask(lambda channel: BrokerIdsStub(channel).Bind, codec.BIND.to_pb(request))


async def unbind_broker_id(client: AdminClient, key: str) -> None:
    request = UnbindBrokerIdRequest(key=key)
    await client.ask(lambda channel: BrokerIdsStub(channel).Unbind, codec.UNBIND.to_pb(request))


async def allocate_broker_id(
    client: AdminClient, request: AllocateBrokerIdRequest
) -> AllocateBrokerIdResponse:
    """One response, which may request a retry later. Repeating the call is safe: the request carries an
    id."""
    answer = await client.ask(lambda channel: BrokerIdsStub(channel).Allocate, codec.ALLOCATE.to_pb(request))
    return codec.ALLOCATED.from_pb(answer)


async def allocate_producer_ids(
    client: AdminClient, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """Allocates the next block. Repeating it is safe: a block that did not arrive is never used."""
    message = brokers.ALLOCATE_PRODUCER_IDS.to_pb(request)
    answer = await client.ask(lambda channel: BrokerLifecycleStub(channel).AllocateProducerIds, message)
    return brokers.ALLOCATED_PRODUCER_IDS.from_pb(answer)

"""Calls that brokers make to the active controller, sent through the client that people's commands have."""

from __future__ import annotations

from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.metadata.requests import partitions as api
from metaquorum.proto.partitions_pb2_grpc import PartitionsStub
from metaquorum.rpc.messages import tables as codec


async def alter_partition(
    client: AdminClient, request: api.AlterPartitionRequest
) -> api.AlterPartitionResponse:
    answer = await client.ask(
        lambda channel: PartitionsStub(channel).AlterPartition, codec.ALTER.to_pb(request)
    )
    return codec.ALTERED.from_pb(answer)


async def assign_replicas(
    client: AdminClient, request: api.AssignReplicasToDirsRequest
) -> api.AssignReplicasToDirsResponse:
    answer = await client.ask(
        lambda channel: PartitionsStub(channel).AssignReplicasToDirs, codec.ASSIGN.to_pb(request)
    )
    return codec.ASSIGNED.from_pb(answer)

"""Calls of `AdminClient` that brokers make about partitions.

Owns one function per call. Knows no addresses and no retries: `admin` does. Responses are values, never
protobuf.
"""

from __future__ import annotations

from metaquorum.metadata.requests import partitions as api
from metaquorum.proto.partitions_pb2_grpc import PartitionsStub
from metaquorum.runtime.api import partitions as codec
from metaquorum.runtime.client.admin import AdminClient


async def alter_partition(
    client: AdminClient, request: api.AlterPartitionRequest
) -> api.AlterPartitionResponse:
    """Requests a leader's changes of ISRs. Repeating it is safe: epochs identify a repetition."""
    answer = await client.ask(
        lambda channel: PartitionsStub(channel).AlterPartition, codec.ALTER.to_pb(request)
    )
    return codec.ALTERED.from_pb(answer)


async def assign_replicas(
    client: AdminClient, request: api.AssignReplicasToDirsRequest
) -> api.AssignReplicasToDirsResponse:
    """Reports the directories of a broker's replicas. Repeating it changes nothing."""
    answer = await client.ask(
        lambda channel: PartitionsStub(channel).AssignReplicasToDirs, codec.ASSIGN.to_pb(request)
    )
    return codec.ASSIGNED.from_pb(answer)

"""What `AdminClient` asks about partitions. Answers are values, never protobuf."""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.metadata.requests import partitions as api
from metaquorum.metadata.requests.common import TopicsResponse
from metaquorum.proto.partitions_pb2_grpc import PartitionsStub
from metaquorum.runtime.api import partitions as codec
from metaquorum.runtime.api.admin import TOPICS
from metaquorum.runtime.client.admin import AdminClient
from metaquorum.runtime.client.reassignments import PARTITIONS_PER_REQUEST


async def create_partitions(
    client: AdminClient, topics: Sequence[api.TopicGrowth], *, validate_only: bool = False
) -> TopicsResponse:
    """More partitions for topics that exist; each result says for itself whether it was refused."""
    request = api.CreatePartitionsRequest(topics=tuple(topics), validate_only=validate_only)
    answer = await client.ask(
        lambda channel: PartitionsStub(channel).CreatePartitions, codec.CREATE.to_pb(request)
    )
    return TOPICS.from_pb(answer)


async def elect_leaders(
    client: AdminClient, *, unclean: bool, partitions: Sequence[tuple[str, int]] | None
) -> tuple[api.ElectionResult, ...]:
    """A result for each (topic, partition), asked for in parts; `partitions` None: for all that are not led
    as wanted, asked again until everything is done. Of a partition that was told twice, the last counts."""
    parts: list[tuple[tuple[str, int], ...] | None] = [None]
    if partitions is not None:
        firsts = range(0, len(partitions), PARTITIONS_PER_REQUEST)
        parts = [tuple(partitions[first : first + PARTITIONS_PER_REQUEST]) for first in firsts]
    found: dict[tuple[str, int], api.ElectionResult] = {}
    for part in parts:
        message = codec.ELECT.to_pb(api.ElectLeadersRequest(unclean=unclean, partitions=part))
        more = True
        while more:
            answer = await client.ask(lambda channel: PartitionsStub(channel).ElectLeaders, message)
            response = codec.ELECTED.from_pb(answer)
            found.update({(each.topic, each.partition): each for each in response.results})
            more = response.more
    return tuple(found.values())


async def alter_partition(
    client: AdminClient, request: api.AlterPartitionRequest
) -> api.AlterPartitionResponse:
    """What a leader tells of its partitions' ISRs. Repeating it is safe: epochs tell a repetition apart."""
    answer = await client.ask(
        lambda channel: PartitionsStub(channel).AlterPartition, codec.ALTER.to_pb(request)
    )
    return codec.ALTERED.from_pb(answer)


async def assign_replicas(
    client: AdminClient, request: api.AssignReplicasToDirsRequest
) -> api.AssignReplicasToDirsResponse:
    """Where a broker's replicas lie. Repeating it changes nothing."""
    answer = await client.ask(
        lambda channel: PartitionsStub(channel).AssignReplicasToDirs, codec.ASSIGN.to_pb(request)
    )
    return codec.ASSIGNED.from_pb(answer)

"""The quorum and its voters by Kafka's protocol, as `kafka-metadata-quorum` asks for them (KIP-853): also
while a controller of Apache Kafka leads.

Kafka's messages do not say who is alive, nor that a change is open; the leader then refuses another one.
"""

from __future__ import annotations

from msgspec.structs import replace

from metaquorum.clients.admin.cluster import describe_quorum
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.requests import common as api
from metaquorum.wire import messages as wire

SILENT_MS = 6_000
"""For commands: a replica that the leader has not heard from for this long is not alive. Kafka's voters fetch
every 500 ms."""
LAG_MAX = 100
"""An observer that lags by more records is waited for; the leader decides by its own rule."""


async def describe_voters(client: KafkaClient, silent_ms: int = SILENT_MS) -> api.DescribeQuorumResponse:
    """The quorum, with who is alive and where observing controllers have registered. Raises ApiError."""
    quorum = await describe_quorum(client)
    cluster = await client.ask(wire.DescribeClusterRequest(endpoint_type=api.CONTROLLERS), lowest=1)
    client.refuse(cluster.error_code, cluster.error_message)
    registered = {each.broker_id: (each.host, each.port) for each in cluster.brokers}
    name = listener_name(quorum)
    # The leader's last fetch is the time by its own clock.
    now_ms = max((each.last_fetch_ms or 0 for each in quorum.voters), default=0)

    def completed(replica: api.ReplicaStatus) -> api.ReplicaStatus:
        leads = replica.node_id == quorum.leader_id
        endpoints, at = replica.endpoints, registered.get(replica.node_id)
        if not endpoints and at is not None and name:
            endpoints = (VoterEndpoint(name, *at),)
        heard_ms = replica.last_fetch_ms
        alive = leads or (heard_ms is not None and heard_ms > now_ms - silent_ms)
        return replace(
            replica,
            is_alive=alive,
            endpoints=endpoints,
            last_fetch_ms=None if leads else heard_ms,
            max_kraft_version=quorum.kraft_version,
        )

    return replace(
        quorum,
        voters=tuple(map(completed, quorum.voters)),
        observers=tuple(map(completed, quorum.observers)),
        new_voter_lag_max=LAG_MAX,
    )


def listener_name(quorum: api.DescribeQuorumResponse) -> str:
    """The name of the listener that voters have; empty: none is known."""
    return next((at.name for each in quorum.voters for at in each.endpoints), "")


async def add_voter(client: KafkaClient, request: api.AddRaftVoterRequest) -> None:
    """Returns once the change is committed; nothing is asked for `validate_only`. Raises ApiError."""
    if request.validate_only:
        return
    voter = request.voter
    listener = wire.AddRaftVoterRequest.Listener
    answer = await client.ask(
        wire.AddRaftVoterRequest(
            cluster_id=request.cluster_id,
            timeout_ms=request.timeout_ms,
            voter_id=voter.voter_id,
            voter_directory_id=voter.voter_directory_id,
            listeners=tuple(listener(name=at.name, host=at.host, port=at.port) for at in voter.endpoints),
        )
    )
    client.refuse(answer.error_code, answer.error_message)


async def remove_voter(client: KafkaClient, request: api.RemoveRaftVoterRequest) -> None:
    """Returns once the change is committed. Raises ApiError."""
    answer = await client.ask(
        wire.RemoveRaftVoterRequest(
            cluster_id=request.cluster_id,
            voter_id=request.voter_id,
            voter_directory_id=request.voter_directory_id,
        )
    )
    client.refuse(answer.error_code, answer.error_message)

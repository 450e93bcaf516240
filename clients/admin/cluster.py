"""Calls about the cluster as a whole: its brokers, its quorum, feature levels, and leader elections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.clients.admin.replicas import PARTITIONS_PER_REQUEST
from metaquorum.clients.admin.topics import look_up_topics
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import (
    KRAFT_VERSION,
    LEVEL_DYNAMIC_VOTERS,
    METADATA_VERSION,
    FeatureDescription,
)
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.requests import common as api
from metaquorum.metadata.requests.common import BROKERS, CONTROLLERS, DescribeQuorumResponse, ReplicaStatus
from metaquorum.metadata.requests.partitions import ElectionResult
from metaquorum.metadata.requests.settings import FeatureUpdate, SettingResult
from metaquorum.metadata.settings.topic_names import METADATA_TOPIC
from metaquorum.wire import messages as wire
from metaquorum.wire.messages import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    DescribeQuorumRequest,
    ElectLeadersRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)

_PREFERRED, _UNCLEAN = 0, 1


class ClusterBroker(msgspec.Struct, frozen=True, kw_only=True):
    """A broker as clients see it. `is_known` False: the broker that answered has fenced itself, and this is
    what it knew last."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool
    is_known: bool = True


async def list_brokers(client: KafkaClient) -> tuple[ClusterBroker, ...]:
    """The brokers by id, including fenced ones if the cluster reports them (KIP-1073). Raises ApiError."""
    answer: Any = await client.ask(DescribeClusterRequest(include_fenced_brokers=True))
    client.refuse(answer.error_code, answer.error_message)
    # A broker answers its own id as the controller's.
    stale = any(each.is_fenced and each.broker_id == answer.controller_id for each in answer.brokers)
    return tuple(
        ClusterBroker(
            broker_id=broker.broker_id,
            host=broker.host,
            port=broker.port,
            rack=broker.rack,
            fenced=broker.is_fenced,
            is_known=not stale,
        )
        for broker in sorted(answer.brokers, key=lambda one: one.broker_id)
    )


async def unregister_broker(client: KafkaClient, broker_id: int) -> None:
    """Raises ApiError."""
    answer = await client.ask(UnregisterBrokerRequest(broker_id=broker_id))
    client.refuse(answer.error_code, answer.error_message)


# --- the quorum


async def describe_quorum(client: KafkaClient) -> DescribeQuorumResponse:
    """The quorum, as far as Kafka's protocol describes it. Raises ApiError."""
    asked = DescribeQuorumRequest.TopicData(
        topic_name=METADATA_TOPIC, partitions=(DescribeQuorumRequest.PartitionData(partition_index=0),)
    )
    answer = await client.ask(DescribeQuorumRequest(topics=(asked,)))
    client.refuse(answer.error_code, answer.error_message)
    part = answer.topics[0].partitions[0]
    client.refuse(part.error_code, part.error_message)
    kind = BROKERS if client.asks_brokers else CONTROLLERS
    cluster = await client.ask(DescribeClusterRequest(endpoint_type=kind))
    client.refuse(cluster.error_code, cluster.error_message)
    features = {each.name: each for each in (await describe_features(client))[1]}
    listeners = {each.node_id: each.listeners for each in answer.nodes}
    end = next((one.log_end_offset for one in part.current_voters if one.replica_id == part.leader_id), 0)

    def statuses(replicas: Sequence[Any], title: str) -> tuple[ReplicaStatus, ...]:
        return tuple(
            ReplicaStatus(
                node_id=replica.replica_id,
                directory_id=replica.replica_directory_id if any(replica.replica_directory_id) else b"",
                log_end_offset=replica.log_end_offset,
                lag=max(0, end - replica.log_end_offset),
                last_fetch_ms=_time(replica.last_fetch_timestamp),
                last_caught_up_ms=_time(replica.last_caught_up_timestamp),
                status=title,
                endpoints=tuple(
                    VoterEndpoint(name=at.name, host=at.host, port=at.port)
                    for at in listeners.get(replica.replica_id, ())
                ),
            )
            for replica in replicas
        )

    return DescribeQuorumResponse(
        cluster_id=cluster.cluster_id,
        leader_id=part.leader_id,
        leader_epoch=part.leader_epoch,
        high_watermark=part.high_watermark,
        voters=statuses(part.current_voters, "Follower"),
        observers=statuses(part.observers, "Observer"),
        kraft_version=_kraft_version(features, part.current_voters),
    )


def _kraft_version(features: Mapping[str, FeatureDescription], voters: Sequence[Any]) -> int:
    """The level in force: from 1 on, the leader knows the voters' directories. Controllers of Kafka 3.9 leave
    it out of their features; its brokers, and every node before 4.1, name one that was recorded without
    effect."""
    known = features.get(KRAFT_VERSION)
    if known is not None and known.finalized_level:
        return known.finalized_level if any(any(each.replica_directory_id) for each in voters) else 0
    newest = features.get(METADATA_VERSION)
    is_39 = newest is not None and newest.max_level == LEVEL_DYNAMIC_VOTERS
    return int(is_39 and any(any(each.replica_directory_id) for each in voters))


def _time(timestamp_ms: int) -> int | None:
    return None if timestamp_ms < 0 else timestamp_ms


# --- feature levels


async def describe_features(client: KafkaClient) -> tuple[int, tuple[FeatureDescription, ...]]:
    """Returns (offset of the newest level, features by name)."""
    asked = ApiVersionsRequest(client_software_name="metaquorum", client_software_version="1")
    answer = await client.ask(asked, lowest=3)
    client.refuse(answer.error_code)
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
    return answer.finalized_features_epoch, tuple(
        FeatureDescription(
            name=name,
            min_level=supported.get(name, (0, 0))[0],
            max_level=supported.get(name, (0, 0))[1],
            finalized_level=finalized.get(name, 0),
        )
        for name in sorted(finalized.keys() | supported.keys())
    )


async def update_features(
    client: KafkaClient, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
) -> tuple[SettingResult, ...]:
    """Changes feature levels; one result per feature."""
    Key = UpdateFeaturesRequest.FeatureUpdateKey
    body = UpdateFeaturesRequest(
        timeout_ms=client.timeout_ms,
        feature_updates=tuple(
            Key(feature=each.name, max_version_level=each.level, upgrade_type=each.change.value)
            for each in updates
        ),
        validate_only=validate_only,
    )
    # From version 2 on, the response has one code for all features.
    answer = await client.ask(body, lowest=1, highest=1)
    client.refuse(answer.error_code, answer.error_message)
    results = [
        SettingResult(
            subject=result.feature,
            error=ErrorCode.of(result.error_code),
            message=result.error_message if result.error_code else None,
        )
        for result in answer.results
    ]
    if not validate_only and any(each.subject == KRAFT_VERSION and not each.error for each in results):
        voters = (await describe_quorum(client)).voters
        if not any(each.directory_id for each in voters):  # a leader at 1 knows their directories
            results = [_WITHOUT_EFFECT if each.subject == KRAFT_VERSION else each for each in results]
    return tuple(results)


_WITHOUT_EFFECT = SettingResult(
    subject=KRAFT_VERSION,
    error=ErrorCode.FEATURE_UPDATE_FAILED,
    message="the leader has recorded the level, but the quorum is not at it, as with Apache Kafka before 4.1:"
    " change it while a newer controller leads",
)


# --- elections


async def elect_leaders(
    client: KafkaClient, *, unclean: bool, partitions: Sequence[tuple[str, int]] | None
) -> tuple[ElectionResult, ...]:
    """Elects leaders, in several requests; one result per (topic, partition). `partitions` None: all that
    need the election. Raises ApiError."""
    parts: list[Sequence[tuple[str, int]] | None] = [None]
    if partitions is not None:
        firsts = range(0, len(partitions), PARTITIONS_PER_REQUEST)
        parts = [partitions[first : first + PARTITIONS_PER_REQUEST] for first in firsts]
    results: list[ElectionResult] = []
    for part in parts:
        results += await _elected(client, _UNCLEAN if unclean else _PREFERRED, part)
    # The response to ElectLeaders does not name the leader.
    names = sorted({each.topic for each in results if not each.error})
    leaders = {
        (topic.name, each.index): each.leader
        for topic in (await look_up_topics(client, names) if names else ())
        for each in topic.partitions
    }
    return tuple(
        result
        if result.error
        else ElectionResult(
            topic=result.topic,
            partition=result.partition,
            error=result.error,
            leader=leaders.get((result.topic, result.partition)),
        )
        for result in results
    )


async def _elected(
    client: KafkaClient, kind: int, partitions: Sequence[tuple[str, int]] | None
) -> list[ElectionResult]:
    named: dict[str, list[int]] = {}
    for topic, index in partitions or ():
        named.setdefault(topic, []).append(index)
    Part = ElectLeadersRequest.TopicPartitions
    body = ElectLeadersRequest(
        election_type=kind,
        topic_partitions=None
        if partitions is None
        else tuple(Part(topic=topic, partitions=tuple(indexes)) for topic, indexes in named.items()),
        timeout_ms=client.timeout_ms,
    )
    answer = await client.ask(body, lowest=1)
    client.refuse(answer.error_code)
    return [
        ElectionResult(
            topic=topic.topic,
            partition=part.partition_id,
            error=ErrorCode.of(part.error_code),
            message=part.error_message,
        )
        for topic in answer.replica_election_results
        for part in topic.partition_result
    ]


# The quorum and its voters by Kafka's protocol, as `kafka-metadata-quorum` asks for them (KIP-853): also
# while a controller of Apache Kafka leads.
#
# Kafka's messages do not say who is alive, nor that a change is open; the leader then refuses another one.

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

"""The metadata log over Kafka's protocol, as an observer reads it: who the controllers are, fetches, and
their answers as values of Raft.

Without sockets: `quorum_at` yields requests and is sent their responses.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from metaquorum.clients.kafka.observer import NothingHeard, QuorumNodes
from metaquorum.clients.search import Address
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.internal_topics import METADATA_TOPIC
from metaquorum.metadata.requests.common import CONTROLLERS
from metaquorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftError,
)
from metaquorum.raft.voters import Endpoint
from metaquorum.storage.types import LogPosition
from metaquorum.wire import messages as wire

METADATA_TOPIC_ID = bytes(15) + b"\1"
FETCH_LOWEST, FETCH_HIGHEST = 12, 18
"""From version 12 on, a fetch carries the epoch of the last record (KIP-595)."""

_VOTERS, _SERVERS = "controller.quorum.voters", "controller.quorum.bootstrap.servers"
_NOT_NAMED = (
    "it is a broker, and does not name its controllers: give the address of a controller (in"
    " controller.quorum.voters or controller.quorum.bootstrap.servers of its configuration)"
)
_NO_RIGHT = (
    "it does not let this client read the metadata log: allow its principal ClusterAction on the cluster"
    " (kafka-acls --add --allow-principal User:NAME --operation ClusterAction --cluster)"
)
NO_LOGIN = (
    "it closed the connection at the first request: it may require a login (--command-config with"
    " security.protocol and sasl.*)"
)

Offers = Callable[[str, int], bool]
"""Whether the node has an API in a version."""


def quorum_at(address: Address, offers: Offers) -> Generator[Any, Any, QuorumNodes | NothingHeard]:
    """What the node at `address` says of its quorum. Yields bodies of requests; is sent those of the
    responses. Brokers name the controllers from 3.9 on (DescribeQuorum 2), before by their configuration."""
    if offers("FetchSnapshot", 0):
        if not offers("DescribeCluster", 1):
            return QuorumNodes(controllers={}, is_controller=True)
        cluster = yield wire.DescribeClusterRequest(endpoint_type=CONTROLLERS)
        return QuorumNodes(
            controllers={each.broker_id: (each.host, each.port) for each in cluster.brokers},
            is_controller=True,
            cluster_id=cluster.cluster_id or None,
        )
    cluster = (
        yield wire.DescribeClusterRequest()
        if offers("DescribeCluster", 0)
        else wire.MetadataRequest(topics=())
    )
    controllers: dict[int, Address] = {}
    hint = _NOT_NAMED
    if offers("DescribeQuorum", 2):
        quorum = yield describe_quorum()
        controllers = {each.node_id: (at.host, at.port) for each in quorum.nodes for at in each.listeners[:1]}
        if quorum.error_code:
            hint = f"{_NOT_NAMED} (DescribeQuorum: {ErrorCode.of(quorum.error_code).name})"
    if not controllers and offers("DescribeConfigs", 1):
        brokers = {(each.host, each.port): each.broker_id for each in _brokers(cluster)}
        own = brokers.get(address, next(iter(brokers.values())) if len(brokers) == 1 else None)
        if own is not None:
            controllers = _configured((yield _describe_configs(own)))
    return QuorumNodes(
        controllers=controllers, is_controller=False, cluster_id=cluster.cluster_id or None, hint=hint
    )


def describe_quorum() -> wire.DescribeQuorumRequest:
    """Asks for the metadata quorum."""
    topic = wire.DescribeQuorumRequest.TopicData
    partition = wire.DescribeQuorumRequest.PartitionData(partition_index=0)
    return wire.DescribeQuorumRequest(topics=(topic(topic_name=METADATA_TOPIC, partitions=(partition,)),))


def _brokers(cluster: Any) -> Iterable[Any]:
    if isinstance(cluster, wire.DescribeClusterResponse):
        return cluster.brokers
    named = wire.DescribeClusterResponse.DescribeClusterBroker
    return tuple(named(broker_id=each.node_id, host=each.host, port=each.port) for each in cluster.brokers)


def _describe_configs(broker_id: int) -> wire.DescribeConfigsRequest:
    resource = wire.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=4, resource_name=str(broker_id), configuration_keys=(_VOTERS, _SERVERS)
    )
    return wire.DescribeConfigsRequest(resources=(resource,))


def _configured(answer: wire.DescribeConfigsResponse) -> dict[int, Address]:
    """Controllers by a broker's configuration; those without an id get negative ones."""
    values = {each.name: each.value or "" for result in answer.results for each in result.configs}
    found: dict[int, Address] = {}
    for text in filter(None, (*values.get(_VOTERS, "").split(","), *values.get(_SERVERS, "").split(","))):
        node, _, place = text.strip().rpartition("@")
        host, _, port = place.rpartition(":")
        if host and port.isdigit():
            found[int(node) if node.isdigit() else -1 - len(found)] = (host.strip("[]"), int(port))
    return found


def request_of(request: FetchRequest | FetchSnapshotRequest) -> Any:
    """The body of a request."""
    if isinstance(request, FetchSnapshotRequest):
        return _snapshot_request(request)
    partition = wire.FetchRequest.FetchPartition(
        partition=0,
        current_leader_epoch=request.epoch,
        fetch_offset=request.fetch_offset,
        last_fetched_epoch=request.last_fetched_epoch,
        partition_max_bytes=request.max_bytes,
        replica_directory_id=request.replica_directory_id,
        high_watermark=request.high_watermark,
    )
    topic = wire.FetchRequest.FetchTopic(
        topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=(partition,)
    )
    return wire.FetchRequest(
        cluster_id=request.cluster_id or None,
        replica_id=request.replica_id,
        replica_state=wire.FetchRequest.ReplicaState(replica_id=request.replica_id),
        max_wait_ms=request.max_wait_ms,
        min_bytes=0,
        max_bytes=request.max_bytes,
        topics=(topic,),
    )


def _snapshot_request(request: FetchSnapshotRequest) -> wire.FetchSnapshotRequest:
    partition = wire.FetchSnapshotRequest.PartitionSnapshot(
        partition=0,
        current_leader_epoch=request.epoch,
        snapshot_id=wire.FetchSnapshotRequest.SnapshotId(
            end_offset=request.snapshot.offset, epoch=request.snapshot.epoch
        ),
        position=request.position,
        replica_directory_id=request.replica_directory_id,
    )
    return wire.FetchSnapshotRequest(
        cluster_id=request.cluster_id or None,
        replica_id=request.replica_id,
        max_bytes=request.max_bytes,
        topics=(wire.FetchSnapshotRequest.TopicSnapshot(name=METADATA_TOPIC, partitions=(partition,)),),
    )


def answer_of(body: Any) -> FetchResponse | FetchSnapshotResponse | NothingHeard:
    """The meaning of a response. Kafka's refusal of a snapshot may say nothing but UNKNOWN_SERVER_ERROR."""
    if body.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return NothingHeard(text=_NO_RIGHT, is_refusal=True)
    parts = body.topics if isinstance(body, wire.FetchSnapshotResponse) else body.responses
    partition: Any = next((each for topic in parts for each in topic.partitions), None)
    code = body.error_code or (0 if partition is None else partition.error_code)
    if isinstance(body, wire.FetchSnapshotResponse):
        if code == ErrorCode.UNKNOWN_SERVER_ERROR:
            return FetchSnapshotResponse(error=RaftError.SNAPSHOT_NOT_FOUND, epoch=0, leader_id=None)
    elif partition is None and not code:
        return NothingHeard(text="its answer to Fetch names no partition", lasts=True)
    try:
        error = RaftError(code)
    except ValueError:
        name = ErrorCode.of(code).name
        return NothingHeard(text=f"it refuses {type(body).__name__.removesuffix('Response')}: {name}")
    leader = _leader(body, partition)
    if isinstance(body, wire.FetchSnapshotResponse):
        return _snapshot_answer(error, partition, leader)
    if partition is None:
        return FetchResponse(error=error, **leader)
    return FetchResponse(
        error=error,
        high_watermark=partition.high_watermark,
        log_start_offset=max(0, partition.log_start_offset),
        diverging=_position(partition.diverging_epoch),
        snapshot=_position(partition.snapshot_id),
        records=bytes(partition.records or b""),
        **leader,
    )


def _snapshot_answer(error: RaftError, partition: Any, leader: Mapping[str, Any]) -> FetchSnapshotResponse:
    if partition is None:
        return FetchSnapshotResponse(error=error, **leader)
    return FetchSnapshotResponse(
        error=error,
        snapshot=_position(partition.snapshot_id),
        size_bytes=partition.size,
        position=partition.position,
        data=bytes(partition.unaligned_records),
        **leader,
    )


def _leader(body: Any, partition: Any) -> dict[str, Any]:
    """The leader by a response: epoch, id and endpoints."""
    known = None if partition is None else partition.current_leader
    leader_id = None if known is None or known.leader_id < 0 else known.leader_id
    endpoints = tuple(
        Endpoint(name="", host=each.host, port=each.port)
        for each in body.node_endpoints
        if each.node_id == leader_id
    )
    return {
        "epoch": 0 if known is None else max(0, known.leader_epoch),
        "leader_id": leader_id,
        "leader_endpoints": endpoints,
    }


def _position(named: Any) -> LogPosition | None:
    return None if named.end_offset < 0 else LogPosition(named.epoch, named.end_offset)

"""The metadata log over Kafka's protocol, as an observer reads it: who the controllers are, fetches, and
their answers as values of Raft.

Without sockets: `quorum_at` yields requests and is sent their responses.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

from metaquorum.clients.kafka.observer import NothingHeard, QuorumNodes
from metaquorum.clients.kafka.raft_messages import Misshapen, NotOfRaft, response_of
from metaquorum.clients.search import Address
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.internal_topics import METADATA_TOPIC
from metaquorum.metadata.requests.common import CONTROLLERS
from metaquorum.raft.messages import FetchResponse, FetchSnapshotResponse
from metaquorum.wire import messages as wire

OFFERED = {"Fetch": (12, 18), "FetchSnapshot": (0, 1)}
"""Lowest and highest versions of fetches of the metadata log: from 12 on, one carries the epoch of the last
record (KIP-595)."""

_VOTERS, _SERVERS = "controller.quorum.voters", "controller.quorum.bootstrap.servers"
_GIVE_A_CONTROLLER = (
    "give the address of a controller (in controller.quorum.voters or controller.quorum.bootstrap.servers of"
    " its configuration)"
)
_NOT_NAMED = f"it is a broker, and does not name its controllers: {_GIVE_A_CONTROLLER}"


def allow(*operations: str) -> str:
    """How to give a client rights on the cluster."""
    options = " ".join(f"--operation {each}" for each in operations)
    return (
        f"allow its principal {' and '.join(operations)} on the cluster (kafka-acls --add --allow-principal"
        f" User:NAME {options} --cluster)"
    )


_NO_RIGHT = f"it does not let this client read the metadata log: {allow('ClusterAction')}"
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
        if quorum.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            hint = _keeps_from("Describe")
        elif quorum.error_code:
            hint = f"{_NOT_NAMED} (DescribeQuorum: {ErrorCode.of(quorum.error_code).name})"
    if not controllers and offers("DescribeConfigs", 1):
        brokers = {(each.host, each.port): each.broker_id for each in _brokers(cluster)}
        own = brokers.get(address, next(iter(brokers.values())) if len(brokers) == 1 else None)
        if own is not None:
            configs = yield _describe_configs(own)
            controllers = _configured(configs)
            is_refused = any(
                each.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED for each in configs.results
            )
            if is_refused and hint == _NOT_NAMED:
                hint = _keeps_from("DescribeConfigs")
    return QuorumNodes(
        controllers=controllers, is_controller=False, cluster_id=cluster.cluster_id or None, hint=hint
    )


def _keeps_from(operation: str) -> str:
    return (
        "it is a broker, and does not let this client know its controllers:"
        f" {allow(operation, 'ClusterAction')}, or {_GIVE_A_CONTROLLER}"
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
    addresses: dict[int, Address] = {}
    for text in filter(None, (*values.get(_VOTERS, "").split(","), *values.get(_SERVERS, "").split(","))):
        node, _, place = text.strip().rpartition("@")
        host, _, port = place.rpartition(":")
        if host and port.isdigit():
            addresses[int(node) if node.isdigit() else -1 - len(addresses)] = (host.strip("[]"), int(port))
    return addresses


def answer_of(body: Any, version: int) -> FetchResponse | FetchSnapshotResponse | NothingHeard:
    """The meaning of a response to a fetch."""
    if body.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return NothingHeard(text=_NO_RIGHT, is_refusal=True)
    try:
        answer: FetchResponse | FetchSnapshotResponse = response_of(body, version)
    except NotOfRaft as refused:
        name = type(body).__name__.removesuffix("Response")
        return NothingHeard(text=f"it refuses {name}: {refused}")
    except Misshapen as problem:
        return NothingHeard(text=str(problem), lasts=True)
    return answer

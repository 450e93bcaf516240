"""The metadata log over Kafka's protocol, as an observer reads it: who the controllers are, fetches, and
their answers as values of Raft.

Without sockets: `quorum_at` yields requests and is sent their responses.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from metaquorum.clients.kafka.observer import READER_ID, LiveLog, NothingHeard, QuorumNodes
from metaquorum.clients.kafka.raft_messages import Misshapen, NotOfRaft, response_of
from metaquorum.clients.search import Address
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.common import CONTROLLERS
from metaquorum.metadata.settings.topic_names import METADATA_TOPIC
from metaquorum.metadata.text.addresses import address_text
from metaquorum.raft.messages import FetchRequest, FetchResponse, FetchSnapshotResponse, RaftError
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


# What can be learned of each voter of a running quorum, beside the leader's log.
#
# A controller hands its log out only while it leads, Apache Kafka's as ours (KIP-595); otherwise it names the
# leader. So where a voter's log ends is the leader's word, and whether it holds the same records only its
# files show.


class VoterEnd(msgspec.Struct, frozen=True):
    """Where the leader knows a voter's log to end (-1: it does not know), and when the voter last fetched
    from it, as Unix ms."""

    node_id: int
    end_offset: int
    last_fetch_ms: int | None = None


class VoterReport(msgspec.Struct, frozen=True, kw_only=True):
    """One voter. `node_id` is None for a given address, if the leader does not let this client know who the
    voters are. `was_read`: it is the leader, whose log was read. `is_in_order`: it answers, and names the
    same leader. `end_offset` is -1 and `behind`, in offsets, None if the leader does not know, or say, where
    its log ends. `silent_since_ms`: of a voter that does not answer, when the leader last heard from it, as
    Unix ms; None for others, and if it never did. `said` is the part of `text` about what it answered."""

    node_id: int | None
    address: Address | None
    was_read: bool
    is_in_order: bool
    end_offset: int
    behind: int | None
    silent_since_ms: int | None
    said: str
    text: str

    @property
    def line(self) -> str:
        where = "" if self.address is None else f" at {address_text(*self.address)}"
        name = "the controller" if self.node_id is None else f"controller {self.node_id}"
        return f"{name}{where} {self.text}"


def voter_ends(body: wire.DescribeQuorumResponse) -> Sequence[VoterEnd] | NothingHeard:
    """The voters in an answer to DescribeQuorum."""
    partition: Any = next((each for topic in body.topics for each in topic.partitions), None)
    code = body.error_code or (0 if partition is None else partition.error_code)
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return NothingHeard(text=f"it refuses DescribeQuorum: {allow('Describe')}", is_refusal=True)
    if code or partition is None:
        name = ErrorCode.of(code).name if code else "it names no partition"
        return NothingHeard(text=f"it refuses DescribeQuorum: {name}", is_silent=False)
    return [
        VoterEnd(
            voter.replica_id,
            voter.log_end_offset,
            voter.last_fetch_timestamp if voter.last_fetch_timestamp > 0 else None,
        )
        for voter in partition.current_voters
    ]


def look(log: LiveLog) -> FetchRequest:
    """Asks a voter that does not lead for records: it says which leader it knows, and remembers nothing."""
    return FetchRequest(
        cluster_id=log.cluster_id or "",
        replica_id=READER_ID,
        replica_directory_id=bytes(16),
        epoch=log.epoch,
        fetch_offset=log.end_offset,
        last_fetched_epoch=min(log.last_epoch, log.epoch),
        high_watermark=log.end_offset,
        max_wait_ms=0,
        max_bytes=1,
    )


def voter_reports(
    log: LiveLog,
    ends: Sequence[VoterEnd],
    addresses: Mapping[int, Address],
    answers: Mapping[int, FetchResponse | NothingHeard],
) -> Iterable[VoterReport]:
    """One report per voter, from what the leader knows of their logs and what each of them said."""
    whole = max((each.end_offset for each in ends if each.node_id == log.leader_id), default=log.end_offset)
    for end in sorted(ends, key=lambda voter: voter.node_id):
        is_leader = end.node_id == log.leader_id
        is_in_order, said = True, f"leads epoch {log.epoch}"
        text = f"{said}: its log was read"
        behind = None if end.end_offset < 0 else max(0, whole - end.end_offset)
        if not is_leader:
            is_in_order, said = _said(log, answers.get(end.node_id))
            text = f"{said}; {_end(end, behind)}; its records were not read"
        yield VoterReport(
            node_id=end.node_id,
            address=addresses.get(end.node_id),
            was_read=is_leader,
            is_in_order=is_in_order,
            end_offset=end.end_offset,
            behind=behind,
            silent_since_ms=end.last_fetch_ms if isinstance(answers.get(end.node_id), NothingHeard) else None,
            said=said,
            text=text,
        )


def given_reports(
    log: LiveLog, ids: Mapping[Address, int], answers: Mapping[Address, FetchResponse | NothingHeard]
) -> Iterable[VoterReport]:
    """One report for the leader, and one for every other controller, by its address, where the leader does
    not let this client know who the voters are. `ids`: as far as something names them."""
    yield from voter_reports(log, [VoterEnd(log.leader_id, log.end_offset)], {log.leader_id: log.address}, {})
    for address, answer in answers.items():
        if isinstance(answer, FetchResponse) and (answer.error, answer.epoch) == (RaftError.NONE, log.epoch):
            continue  # the leader, by another name of its host
        is_in_order, said = _said(log, answer)
        yield VoterReport(
            node_id=ids.get(address),
            address=address,
            was_read=False,
            is_in_order=is_in_order,
            end_offset=-1,
            behind=None,
            silent_since_ms=None,
            said=said,
            text=f"{said}; where its log ends, the leader does not say: {allow('Describe')}; its records were"
            " not read",
        )


def _end(voter: VoterEnd, behind: int | None) -> str:
    if behind is None:
        return "the leader has not heard where its log ends"
    lag = f"{behind} behind" if behind else "as the leader's"
    return f"by the leader, its log ends at offset {voter.end_offset}, {lag}"


def _said(log: LiveLog, answer: FetchResponse | NothingHeard | None) -> tuple[bool, str]:
    """Whether a voter agrees with the leader, and what it said."""
    match answer:
        case None:
            return False, "was not asked (no answer names its address)"
        case NothingHeard():
            return False, f"does not answer as a voter: {answer.text}"
        case FetchResponse(error=RaftError.NONE):
            return False, f"leads epoch {answer.epoch}: the leader changed meanwhile"
    leader = "no leader" if answer.leader_id is None else f"controller {answer.leader_id}"
    agrees = (answer.epoch, answer.leader_id) == (log.epoch, log.leader_id)
    if answer.error in (RaftError.NOT_LEADER_OR_FOLLOWER, RaftError.FENCED_LEADER_EPOCH) or answer.epoch:
        return agrees, f"{'follows' if agrees else 'knows'} {leader} in epoch {answer.epoch}"
    return False, f"answers {answer.error.name}"

"""A controller asks a leader that speaks Kafka's protocol alone, as Apache Kafka's, to make it a voter."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.clients.kafka.raft_client import KafkaWay
from metaquorum.clients.search import ClientError
from metaquorum.controller.server import joining as module
from metaquorum.controller.server.joining import Joining
from metaquorum.controller.server.kafka_quorum import KafkaProbe, LeaderClient
from metaquorum.controller.voters import not_yet
from metaquorum.listeners.services import Features
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.settings.topic_names import METADATA_TOPIC
from metaquorum.network.backoff import BackoffPolicy
from metaquorum.raft.config import Identity
from metaquorum.raft.voters import Endpoint, VersionRange, VoterNode, VoterSet
from metaquorum.rpc.transport import PeerAddress
from metaquorum.wire import messages as wire
from tests.unit.kafka.kafka_node import FakeNode, running
from tests.unit.server.nodes import free_port

LEADER, ME, HOST = 1, 3, "127.0.0.1"
OWN, LOST, EPOCH = b"o" * 16, b"l" * 16, 5
FEATURES = Features(supported={"kraft.version": (0, 1)}, finalized={"kraft.version": 1}, epoch=1)
REFUSALS = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.DUPLICATE_VOTER,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.VOTER_NOT_FOUND,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_REQUEST,
)


class Leader:
    """A leader with voters of its own. It answers additions with one of `codes` after the other, and makes
    the next one. `heard_ms`: when it last heard the other voters; its own time is 100,000."""

    def __init__(self, *codes: ErrorCode, voters: tuple[VoterNode, ...] = (), heard_ms: int = -1) -> None:
        self.codes = list(codes)
        self.heard_ms = heard_ms
        first = VoterNode(node_id=LEADER, directory_id=b"1" * 16, versions=VersionRange(0, 1))
        self.voters = VoterSet((first, *voters))
        self.changes: list[Any] = []
        self.node = FakeNode(
            {
                "AddRaftVoter": self.add,
                "RemoveRaftVoter": self.remove,
                "DescribeQuorum": self.describe,
                "DescribeCluster": lambda _: wire.DescribeClusterResponse(cluster_id="c", endpoint_type=2),
            }
        )
        self.node.features = FEATURES

    def add(self, body: wire.AddRaftVoterRequest) -> wire.AddRaftVoterResponse:
        self.changes.append(body)
        if self.codes:
            return wire.AddRaftVoterResponse(error_code=self.codes.pop(0))
        added = VoterNode(node_id=body.voter_id, directory_id=body.voter_directory_id)
        self.voters = self.voters.with_voter(added)
        return wire.AddRaftVoterResponse()

    def remove(self, body: wire.RemoveRaftVoterRequest) -> wire.RemoveRaftVoterResponse:
        self.changes.append(body)
        self.voters = self.voters.without(body.voter_id)
        return wire.RemoveRaftVoterResponse()

    def describe(self, body: wire.DescribeQuorumRequest) -> wire.DescribeQuorumResponse:
        Topic, State = wire.DescribeQuorumResponse.TopicData, wire.DescribeQuorumResponse.ReplicaState
        part = wire.DescribeQuorumResponse.PartitionData(
            leader_id=LEADER,
            leader_epoch=EPOCH,
            high_watermark=7,
            current_voters=tuple(
                State(
                    replica_id=each.node_id,
                    replica_directory_id=each.directory_id or bytes(16),
                    log_end_offset=7,
                    last_fetch_timestamp=100_000 if each.node_id == LEADER else self.heard_ms,
                )
                for each in self.voters.nodes
            ),
        )
        return wire.DescribeQuorumResponse(topics=(Topic(topic_name=METADATA_TOPIC, partitions=(part,)),))


class Joins:
    """An observer of `leader`, which has the voters that the leader has."""

    def __init__(self, leader: Leader) -> None:
        identity = Identity(
            cluster_id="c", node_id=ME, directory_id=OWN, endpoints=(Endpoint("CONTROLLER", "h3", 9093),)
        )
        timing = SimpleNamespace(check_quorum_ms=25)
        self._leader = leader
        self.raft: Any = SimpleNamespace(
            node_id=ME,
            kraft_version=1,
            leader_id=LEADER,
            epoch=EPOCH,
            high_watermark=7,
            log_end_offset=7,
            state=SimpleNamespace(identity=identity, config=timing, log=SimpleNamespace(end_position=None)),
        )
        self.addresses: dict[int, PeerAddress] = {}

    def client(self) -> LeaderClient:
        controllers: Any = self.addresses
        return LeaderClient(self.raft, controllers, KafkaWay(client_id="raft-client-3"))

    async def until_voter(self) -> None:
        self.addresses[LEADER] = PeerAddress(HOST, self._leader.node.port)
        probe = KafkaProbe("c", self.raft, KafkaWay(client_id="raft-client-3"))
        joining = Joining(self.raft, self.client(), probe, "CONTROLLER", random.Random(1), enabled=True)
        async with asyncio.timeout(60):
            while not self._leader.voters.is_voter(ME, OWN):
                self.raft.voters, self.raft.is_observer = self._leader.voters, True
                joining.poke()
                await asyncio.sleep(0.005)
        await joining.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY", BackoffPolicy(initial_ms=2, max_ms=5))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.name == module.__name__]


async def test_it_asks_until_the_leader_adds_it(caplog: pytest.LogCaptureFixture) -> None:
    """Any refusal is one line, and is asked about again; a repeated one is not said again."""
    caplog.set_level("INFO")
    leader = Leader(*(code for code in REFUSALS for _ in range(2)))
    async with running(leader.node):
        await Joins(leader).until_voter()
    assert len(leader.changes) == 2 * len(REFUSALS) + 1
    assert said(caplog) == [
        *(not_yet(ME, ApiError(code, "refused")) for code in REFUSALS),
        "controller 3 is a voter",
    ]
    asked = leader.changes[-1]
    assert (asked.cluster_id, asked.voter_id, asked.voter_directory_id) == ("c", ME, OWN)
    assert [(each.name, each.host, each.port) for each in asked.listeners] == [("CONTROLLER", "h3", 9093)]


async def test_its_lost_directory_is_removed_first(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    nowhere = Endpoint("CONTROLLER", HOST, free_port())
    lost = VoterNode(node_id=ME, directory_id=LOST, endpoints=(nowhere,), versions=VersionRange(0, 1))
    leader = Leader(voters=(lost,), heard_ms=99_999)
    describe = leader.node.handlers["DescribeQuorum"]

    def falls_silent(body: wire.DescribeQuorumRequest) -> wire.DescribeQuorumResponse:
        if "a voter with the same id runs" in "".join(said(caplog)):
            leader.heard_ms = 99_000
        answer: wire.DescribeQuorumResponse = describe(body)
        return answer

    leader.node.handlers["DescribeQuorum"] = falls_silent
    async with running(leader.node):
        await Joins(leader).until_voter()
    removal, addition = leader.changes
    assert isinstance(removal, wire.RemoveRaftVoterRequest)
    assert (removal.cluster_id, removal.voter_id, removal.voter_directory_id) == ("c", ME, LOST)
    assert isinstance(addition, wire.AddRaftVoterRequest) and addition.voter_directory_id == OWN
    assert said(caplog)[-2:] == [
        "controller 3: its entry with a directory that it lost was removed",
        "controller 3 is a voter",
    ]


async def test_a_leader_that_cannot_change_voters_or_is_not_known_is_a_line() -> None:
    leader = Leader()
    leader.node = FakeNode({})
    joins = Joins(leader)
    request = wire.AddRaftVoterRequest(voter_id=ME)
    with pytest.raises(ClientError, match="the leader's address is not known"):
        await joins.client().ask(request)
    joins.addresses[LEADER] = PeerAddress(HOST, free_port())
    with pytest.raises(ClientError, match=r"^node 1: "):
        await joins.client().ask(request)
    async with running(leader.node):
        joins.addresses[LEADER] = PeerAddress(HOST, leader.node.port)
        with pytest.raises(ApiError, match=r"^UNSUPPORTED_VERSION: node 1: ") as refused:
            await joins.client().ask(request)
    assert "\n" not in not_yet(ME, refused.value)

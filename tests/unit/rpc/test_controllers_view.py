"""Where a node looks for controllers: the log or a leader, then configuration, then bootstrap servers."""

from __future__ import annotations

from collections.abc import Container
from types import SimpleNamespace
from typing import cast

import pytest

from metaquorum.config.node import NodeConfig
from metaquorum.raft.config import Voter
from metaquorum.raft.core import RaftCore
from metaquorum.raft.voters import Endpoint, VoterNode, VoterSet
from metaquorum.rpc.controllers import Controllers, address_of
from metaquorum.rpc.transport import PeerAddress, RaftCaller

SERVERS = (("b1", 1), ("b2", 2))


class Quorum:
    """What `Controllers` reads of Raft."""

    def __init__(self, *voters: VoterNode) -> None:
        self.voters = VoterSet(voters)
        self.leader_id: int | None = None
        self.told: dict[int, tuple[Endpoint, ...]] = {}

    def endpoints_of(self, node_id: int) -> tuple[Endpoint, ...]:
        voter = self.voters.get(node_id)
        return self.told.get(node_id) or (() if voter is None else voter.endpoints)


class Client:
    """Remembers which streams are kept."""

    def __init__(self) -> None:
        self.kept: list[set[int]] = []

    def retain(self, node_ids: Container[int]) -> None:
        self.kept.append({one for one in range(-5, 10) if one in node_ids})


def view(
    quorum: Quorum, voters: tuple[Voter, ...] = (), *, servers: bool = True, by_kafka: bool = True
) -> Controllers:
    config = SimpleNamespace(
        controller_listener="Controller",
        quorum_speaks_kafka=by_kafka,
        voters=voters,
        raft=SimpleNamespace(bootstrap_ids=(-2, -3) if servers else ()),
        bootstrap_servers=SERVERS if servers else (),
    )
    return Controllers(cast(NodeConfig, config), cast(RaftCore, quorum))


def voter(node_id: int, *endpoints: Endpoint) -> VoterNode:
    return VoterNode(node_id=node_id, directory_id=bytes([node_id]) * 16, endpoints=endpoints)


def test_without_a_voter_bootstrap_servers_are_asked() -> None:
    found = view(Quorum())
    assert list(found) == [-3, -2]
    assert found.get(-2) == PeerAddress("b1", 1) and found.get(3) is None
    assert -3 in found and 3 not in found and "3" not in found
    assert found.addresses() == SERVERS


def test_what_a_leader_says_of_itself_makes_it_known() -> None:
    quorum = Quorum()
    found = view(quorum)
    quorum.told[3] = (Endpoint("", "h3", 9),)
    assert found.get(3) == PeerAddress("h3", 9)
    assert 3 in found and list(found) == [-3, -2]


def test_the_log_goes_before_the_configuration() -> None:
    configured = (Voter(node_id=1, host="old", port=1), Voter(node_id=2, host="h2", port=2))
    quorum = Quorum(voter(1, Endpoint("CONTROLLER", "new", 9)), voter(2))
    found = view(quorum, configured)
    assert (found.get(1), found.get(2)) == (PeerAddress("new", 9), PeerAddress("h2", 2))
    assert list(found) == [1, 2]
    assert found.addresses() == (("new", 9), ("h2", 2), *SERVERS)
    assert view(Quorum(), configured, servers=False).get(2) == PeerAddress("h2", 2)


@pytest.mark.parametrize(
    ("names", "chosen"), [(("PLAIN", "CONTROLLER"), 1), (("controller", "PLAIN"), 0), (("PLAIN", "X"), 0)]
)
def test_the_controllers_listener_is_known_in_any_case(names: tuple[str, ...], chosen: int) -> None:
    endpoints = [Endpoint(name, f"h{at}", at) for at, name in enumerate(names)]
    assert address_of(endpoints, "Controller") == PeerAddress(f"h{chosen}", chosen)


def test_who_asks_over_grpc_takes_the_listener_of_grpc_whatever_name_its_file_has() -> None:
    """A file with controller.quorum.protocol=grpc and the name of the controllers' Kafka listener."""
    quorum = Quorum(voter(1, Endpoint("CONTROLLER", "kafka", 1), Endpoint("GRPC_CONTROLLER", "grpc", 2)))
    assert view(quorum).get(1) == PeerAddress("kafka", 1)
    assert view(quorum, by_kafka=False).get(1) == PeerAddress("grpc", 2)


def test_a_record_that_does_not_name_the_listener_leaves_what_the_file_says() -> None:
    """A controller that was formatted with the address of voters alone."""
    quorum = Quorum(
        voter(1, Endpoint("CONTROLLER", "kafka", 1)), voter(2, Endpoint("CONTROLLER", "kafka", 2))
    )
    found = view(quorum, (Voter(node_id=1, host="grpc", port=3),), by_kafka=False)
    assert (found.get(1), found.get(2)) == (PeerAddress("grpc", 3), None)
    assert found.addresses() == (("grpc", 3), *SERVERS)
    quorum.told[2] = (Endpoint("", "grpc", 4),)
    assert found.get(2) == PeerAddress("grpc", 4)


def test_streams_are_kept_to_voters_the_leader_and_while_there_is_none_to_bootstrap_servers() -> None:
    quorum, client = Quorum(), Client()
    found = view(quorum)

    def let_go() -> list[set[int]]:
        client.kept.clear()
        found.let_go(cast(RaftCaller, client))
        return list(client.kept)

    assert let_go() == [{-2, -3}]
    assert let_go() == [], "nothing changed"
    quorum.leader_id = 7
    assert let_go() == [{7}]
    quorum.voters = VoterSet((voter(1), voter(2)))
    assert let_go() == [{1, 2, 7}]
    quorum.leader_id = 0
    assert let_go() == [{0, 1, 2}]
    quorum.leader_id = None
    assert let_go() == [{-2, -3, 1, 2}]
    quorum.voters = VoterSet((voter(2),))
    assert let_go() == [{-2, -3, 2}]


@pytest.mark.parametrize(
    ("listener", "names", "port"),
    [
        ("GRPC", ("CONTROLLER", "GRPC_CONTROLLER"), 2),
        ("KAFKA", ("GRPC", "CONTROLLER"), 2),
        ("GRPC_CONTROLLER", ("CONTROLLER", "GRPC_CONTROLLER"), 2),
    ],
)
def test_an_address_of_the_listeners_protocol_is_taken(
    listener: str, names: tuple[str, str], port: int
) -> None:
    """A broker's file may not know what controllers call theirs: the name says what it speaks."""
    endpoints = [Endpoint(name, "a", at + 1) for at, name in enumerate(names)]
    assert address_of(endpoints, listener) == PeerAddress("a", port)

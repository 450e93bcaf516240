"""A controller among voters of another cluster: one at a wrong address is a warning, a majority ends it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from metaquorum.controller.events import RaftResponseArrived
from metaquorum.controller.node import ForeignVoters
from metaquorum.raft.config import RaftConfig
from metaquorum.raft.core import RaftCore
from metaquorum.raft.messages import RaftError, VoteResponse
from metaquorum.raft.voters import VoterSet
from tests.unit.controller.node_quorum import CLUSTER, Machine, Quorum


def say(machine: Machine, source: int, error: RaftError) -> None:
    """An answer of `source` reaches the node."""
    response = VoteResponse(error=error, epoch=0, leader_id=None, vote_granted=False, pre_vote=True)
    machine.inbox.append(RaftResponseArrived(source=source, correlation_id=10**9, response=response))
    machine.step()


def others(quorum: Quorum, machine: Machine) -> list[int]:
    return [node_id for node_id in quorum.machines if node_id != machine.node_id]


def test_one_voter_of_another_cluster_does_not_stop_a_node() -> None:
    quorum = Quorum()
    machine = next(iter(quorum.machines.values()))
    first, _ = others(quorum, machine)
    for _ in range(3):
        say(machine, first, RaftError.INCONSISTENT_CLUSTER_ID)
    assert machine.stopped is None


def test_a_majority_of_another_cluster_stops_it_with_both_named() -> None:
    quorum = Quorum()
    machine = next(iter(quorum.machines.values()))
    first, second = others(quorum, machine)
    say(machine, first, RaftError.INCONSISTENT_CLUSTER_ID)
    say(machine, second, RaftError.INCONSISTENT_CLUSTER_ID)
    assert machine.stopped is not None and machine.stopped.failed
    assert CLUSTER in machine.stopped.reason and f"({first}, {second})" in machine.stopped.reason


def test_a_voter_that_was_put_right_counts_no_more() -> None:
    quorum = Quorum()
    machine = next(iter(quorum.machines.values()))
    first, second = others(quorum, machine)
    say(machine, first, RaftError.INCONSISTENT_CLUSTER_ID)
    say(machine, first, RaftError.NONE)
    say(machine, second, RaftError.INCONSISTENT_CLUSTER_ID)
    assert machine.stopped is None


def test_bootstrap_servers_of_another_cluster_are_named_as_such() -> None:
    """A node that knows no voter yet has asked nobody else; one wrong address of two does not stop it."""
    core = SimpleNamespace(
        voters=VoterSet(), state=SimpleNamespace(config=RaftConfig(bootstrap_ids=(-2, -3)))
    )
    for answers, stops in (((-2,), False), ((-2, -3), True), ((-3, -2), True)):
        foreign = ForeignVoters(CLUSTER, cast(RaftCore, core))
        reasons = [foreign.heard(source, RaftError.INCONSISTENT_CLUSTER_ID) for source in answers]
        if not stops:
            assert reasons == [None]
            continue
        line = reasons[-1] or ""
        assert "but its bootstrap servers to another one" in line and "-2" not in line
        assert line.endswith("or correct controller.quorum.bootstrap.servers")

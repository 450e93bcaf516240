"""What a controller that observes asks for, and when it must not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from metaquorum.controller.events import RaftResponseArrived
from metaquorum.controller.node import ForeignVoters
from metaquorum.controller.voters import Joiner, how_to_join, may_join, not_yet, observes
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter, VoterEndpoint
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    ReplicaStatus,
)
from metaquorum.raft.config import Identity, RaftConfig
from metaquorum.raft.core import RaftCore
from metaquorum.raft.messages import RaftError, VoteResponse
from metaquorum.raft.voters import Endpoint, VersionRange, VoterNode, VoterSet
from tests.unit.controller.node_quorum import CLUSTER, Machine, Quorum

SILENT_MS = 3_000
OWN, LOST = b"o" * 16, b"l" * 16
IDENTITY = Identity(
    cluster_id="c", node_id=3, directory_id=OWN, endpoints=(Endpoint("CONTROLLER", "h3", 9093),)
)
ADDITION = AddRaftVoterRequest(
    voter=Voter(3, OWN, (VoterEndpoint("CONTROLLER", "h3", 9093),), KRaftVersionFeature(0, 1)),
    cluster_id="c",
    timeout_ms=4_000,
)
REMOVAL = RemoveRaftVoterRequest(voter_id=3, voter_directory_id=LOST, cluster_id="c", timeout_ms=4_000)


def raft(*others: VoterNode, **state: object) -> RaftCore:
    """An observer as Raft shows it: node 3 of a quorum with voter 1 and `others`."""
    first = VoterNode(node_id=1, directory_id=b"1" * 16, versions=VersionRange(0, 1))
    known: dict[str, object] = {
        "node_id": 3,
        "voters": VoterSet((first, *others)),
        "kraft_version": 1,
        "is_observer": True,
        "leader_id": 1,
        "high_watermark": 7,
        "log_end_offset": 7,
        "state": SimpleNamespace(identity=IDENTITY),
        **state,
    }
    return cast(RaftCore, SimpleNamespace(**known))


ENTRY = VoterNode(node_id=3, directory_id=LOST, versions=VersionRange(0, 1))


def joiner(*others: VoterNode) -> Joiner:
    return Joiner(raft(*others), silent_ms=SILENT_MS, timeout_ms=4_000)


def quorum(*, alive: bool = False, epoch: int = 5, directory: bytes = LOST) -> DescribeQuorumResponse:
    entry = ReplicaStatus(
        node_id=3,
        directory_id=directory,
        log_end_offset=0,
        lag=0,
        last_fetch_ms=None,
        last_caught_up_ms=None,
        status="Follower",
        is_alive=alive,
    )
    return DescribeQuorumResponse(
        cluster_id="c",
        leader_id=1,
        leader_epoch=epoch,
        high_watermark=7,
        voters=(replace(entry, node_id=1, is_alive=True), entry),
        observers=(),
    )


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, (True, True)),
        ({"kraft_version": 0}, (True, False)),
        ({"is_observer": False}, (False, False)),
        ({"leader_id": None}, (False, False)),
        ({"high_watermark": -1}, (False, False)),
        ({"high_watermark": 0, "log_end_offset": 0}, (True, True)),
        ({"log_end_offset": 6}, (False, False)),
    ],
)
def test_it_asks_when_it_follows_and_has_what_is_committed(
    state: dict[str, object], expected: tuple[bool, bool]
) -> None:
    assert (observes(raft(**state)), may_join(raft(**state))) == expected


def test_the_way_to_a_vote_depends_on_who_says_who_votes() -> None:
    assert "metaquorum quorum add-voter 3" in how_to_join(raft())
    assert "upgrade kraft.version" not in how_to_join(raft())
    assert "upgrade kraft.version to 1, then metaquorum quorum add-voter 3" in how_to_join(
        raft(kraft_version=0)
    )


def test_a_node_without_an_entry_asks_to_be_added_and_nothing_else() -> None:
    assert joiner().entry is None
    assert joiner().wanted(0, None, answers=False) == ADDITION


def test_an_entry_goes_first_when_its_directory_has_been_silent_under_one_leader() -> None:
    asks = joiner(ENTRY)
    assert asks.entry == ENTRY
    for now_ms, epoch in ((0, 5), (SILENT_MS - 1, 5), (SILENT_MS, 6), (2 * SILENT_MS - 1, 6)):
        waits = asks.wanted(now_ms, quorum(epoch=epoch), answers=False)
        assert isinstance(waits, str) and "has been silent for 3000 ms" in waits, now_ms
    assert asks.wanted(2 * SILENT_MS, quorum(epoch=6), answers=False) == REMOVAL


def test_a_directory_that_was_heard_in_between_is_silent_from_then_on() -> None:
    asks = joiner(ENTRY)
    asks.wanted(0, quorum(), answers=False)
    asks.wanted(SILENT_MS - 1, quorum(alive=True), answers=False)
    assert isinstance(asks.wanted(SILENT_MS, quorum(), answers=False), str)
    assert asks.wanted(2 * SILENT_MS, quorum(), answers=False) == REMOVAL


@pytest.mark.parametrize(
    ("answers", "alive"), [(False, True), (True, False)], ids=["the leader hears it", "it answers"]
)
def test_a_voter_that_lives_keeps_its_entry(answers: bool, alive: bool) -> None:
    asks = joiner(ENTRY)
    asks.wanted(0, quorum(), answers=False)
    stays = asks.wanted(10 * SILENT_MS, quorum(alive=alive), answers=answers)
    assert isinstance(stays, str)
    assert "a voter with the same id runs" in stays and "give this one another node.id" in stays
    assert "\n" not in stays


@pytest.mark.parametrize("code", list(ErrorCode))
def test_a_refusal_is_one_line_and_says_what_it_means_to_a_node_that_asks_again(code: ErrorCode) -> None:
    line = not_yet(3, ApiError(code, "refused"))
    assert line.startswith(f"controller 3 is not a voter yet: {code.name}: refused") and "\n" not in line
    meant = {
        ErrorCode.NOT_LEADER_OR_FOLLOWER: "the leader has just changed",
        ErrorCode.DUPLICATE_VOTER: "a voter with this id",
        ErrorCode.VOTER_NOT_FOUND: "the voters have just changed",
        ErrorCode.REQUEST_TIMED_OUT: "has not caught up, or another change is not committed",
        ErrorCode.UNSUPPORTED_VERSION: "features upgrade kraft.version=1",
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Alter and Describe on the cluster",
        ErrorCode.INVALID_REQUEST: "its listeners or its release",
    }
    assert meant.get(code, "") in line


def test_an_entry_that_the_leader_does_not_have_is_looked_at_again() -> None:
    asks = joiner(ENTRY)
    asks.wanted(0, quorum(), answers=False)
    for other in (None, quorum(directory=b"n" * 16)):
        changed = asks.wanted(SILENT_MS, other, answers=False)
        assert isinstance(changed, str) and "the voters have just changed" in changed
    assert isinstance(asks.wanted(2 * SILENT_MS, quorum(), answers=False), str), "silence counts from here"


# A controller among voters of another cluster: one at a wrong address is a warning, a majority ends it.


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

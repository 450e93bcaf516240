"""Changes of voters through controller nodes: their place among a node's own batches, and their answers."""

from __future__ import annotations

import pytest

from metaquorum.controller.voter_changes import CHANGE_TIMEOUT_MAX_MS, raft_request
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter, VoterEndpoint
from metaquorum.metadata.requests.common import CreateTopicsRequest, Done, NewTopic, TopicsResponse
from metaquorum.metadata.requests.voters import (
    AddRaftVoterRequest,
    RemoveRaftVoterRequest,
    UpgradeKRaftVersionRequest,
)
from metaquorum.raft.messages import AddVoterRequest, RemoveVoterRequest
from tests.unit.controller.node_quorum import Quorum, directory


def voter(node_id: int) -> Voter:
    endpoint = VoterEndpoint("CONTROLLER", "h", 9000 + node_id)
    return Voter(node_id, directory(node_id), (endpoint,), KRaftVersionFeature(0, 1))


def upgraded() -> Quorum:
    quorum = Quorum()
    quorum.elect()
    voters = tuple(voter(node_id) for node_id in quorum.machines)
    key = quorum.request(UpgradeKRaftVersionRequest(kraft_version=1, voters=voters))
    leader = quorum.leader
    quorum.advance(50)
    assert leader.answers[key] == Done()
    return quorum


def removal(node_id: int, **more: object) -> RemoveRaftVoterRequest:
    return RemoveRaftVoterRequest(voter_id=node_id, voter_directory_id=directory(node_id), **more)  # type: ignore[arg-type]


def test_a_change_is_one_pending_batch_among_the_node_s_own() -> None:
    quorum = upgraded()
    quorum.start_broker(11)
    leader = quorum.leader
    other = next(node_id for node_id in quorum.machines if node_id != leader.node_id)
    topics = [CreateTopicsRequest(topics=(NewTopic(name=n, assignments=((11,),)),)) for n in "ab"]
    before = quorum.request(topics[0])
    change = quorum.request(removal(other))
    after = quorum.request(topics[1])
    leader.sync = False
    quorum.settle()
    assert not {before, change, after} & leader.answers.keys(), "nothing is committed yet"
    leader.resume_sync()
    quorum.advance(50)
    assert leader.answers[change] == Done()
    for key in (before, after):
        answer = leader.answers[key]
        assert isinstance(answer, TopicsResponse) and answer.results[0].error is ErrorCode.NONE
    assert set(leader.node.raft.voters) == set(quorum.machines) - {other}
    assert quorum.leader is leader, "the change costs no leadership"


def test_a_removed_voter_is_added_again_and_a_leader_that_removes_itself_resigns() -> None:
    quorum = upgraded()
    first = quorum.leader
    other = next(node_id for node_id in quorum.machines if node_id != first.node_id)
    assert quorum.call(removal(other)) == Done()
    quorum.advance(1_000)  # now it observes
    assert quorum.call(AddRaftVoterRequest(voter=voter(other))) == Done()
    assert quorum.call(removal(first.node_id)) == Done()
    quorum.advance(3_000)
    assert quorum.elect() is not first
    assert first.node.raft.is_observer
    assert set(quorum.leader.node.raft.voters) == set(quorum.machines) - {first.node_id}


def test_refusals_have_kafka_s_code_the_leader_and_a_line() -> None:
    quorum = upgraded()
    leader, follower = quorum.leader, quorum.followers[0]
    answers = {
        "unknown": quorum.call(removal(9)),
        "twice": quorum.call(AddRaftVoterRequest(voter=voter(follower.node_id))),
        "cluster": quorum.call(removal(follower.node_id, cluster_id="another")),
        "follower": quorum.call(removal(follower.node_id), follower),
        "level": quorum.call(UpgradeKRaftVersionRequest(kraft_version=0, voters=())),
    }
    codes = {name: answer.code for name, answer in answers.items() if isinstance(answer, ApiError)}
    assert codes == {
        "unknown": ErrorCode.VOTER_NOT_FOUND,
        "twice": ErrorCode.DUPLICATE_VOTER,
        "cluster": ErrorCode.INCONSISTENT_CLUSTER_ID,
        "follower": ErrorCode.NOT_CONTROLLER,
        "level": ErrorCode.INVALID_UPDATE_VERSION,
    }
    refused = answers["follower"]
    assert isinstance(refused, ApiError) and refused.leader_hint == leader.node_id
    assert str(leader.node_id) in refused.message


def test_a_change_that_is_not_committed_in_time_is_answered() -> None:
    quorum = upgraded()
    leader = quorum.leader
    for each in quorum.followers:
        quorum.disconnect(each.node_id)
    key = quorum.request(removal(quorum.followers[0].node_id, timeout_ms=100))
    quorum.advance(200)
    answer = leader.answers[key]
    assert isinstance(answer, ApiError) and answer.code is ErrorCode.REQUEST_TIMED_OUT
    again = leader.node.ledger.pending
    assert again, "the change may still be committed"


@pytest.mark.parametrize(("asked_ms", "waits_ms"), [(-5, 0), (7_000, 7_000), (10**9, CHANGE_TIMEOUT_MAX_MS)])
def test_a_caller_waits_no_longer_than_the_bound(asked_ms: int, waits_ms: int) -> None:
    config = upgraded().leader.node.config
    requests = (AddRaftVoterRequest(voter=voter(9), timeout_ms=asked_ms), removal(9, timeout_ms=asked_ms))
    for request in requests:
        translated = raft_request(request, config)
        assert isinstance(translated, AddVoterRequest | RemoveVoterRequest)
        assert (translated.timeout_ms, translated.cluster_id) == (waits_ms, config.cluster_id)

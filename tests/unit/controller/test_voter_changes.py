"""Changes of voters through controller nodes: their place among a node's own batches, and their answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from metaquorum.controller.voters import CHANGE_TIMEOUT_MAX_MS, raft_request, upgrade_request
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter, VoterEndpoint
from metaquorum.metadata.records.types import (
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    ControllerRecord,
    FeatureLevelRecord,
    Record,
)
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
    CreateTopicsRequest,
    Done,
    NewTopic,
    RegisterBrokerResponse,
    RemoveRaftVoterRequest,
    TopicsResponse,
    UpgradeKRaftVersionRequest,
)
from metaquorum.raft.core import RaftCore
from metaquorum.raft.messages import AddVoterRequest, RemoveVoterRequest
from metaquorum.raft.roles import ReplicaState
from tests.unit.controller.node_quorum import Quorum, directory

LEVELS = (BrokerFeature("metadata.version", 1, 25), BrokerFeature("kraft.version", 0, 1))


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


def test_a_broker_of_a_release_without_kraft_version_is_not_let_in_any_more() -> None:
    """Kafka's controller refuses one of 3.7, too."""
    quorum = upgraded()
    refused = quorum.register(11)
    assert isinstance(refused, ApiError) and refused.code is ErrorCode.UNSUPPORTED_VERSION
    assert "the cluster is at kraft.version level 1, but this broker does not support" in refused.message
    assert isinstance(quorum.register(11, features=LEVELS), RegisterBrokerResponse)


def test_a_change_is_one_pending_batch_among_the_node_s_own() -> None:
    quorum = upgraded()
    quorum.start_broker(11, features=LEVELS)
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


KRAFT = ControllerFeature("kraft.version", 0, 1)


def registered(node_id: int, host: str = "h", features: tuple[ControllerFeature, ...] = (KRAFT,)) -> Record:
    """As a controller registers: its listener in the words of its own configuration."""
    endpoint = ControllerEndpoint("Controller", host, 9000 + node_id, 0)
    return ControllerRecord(controller_id=node_id, end_points=(endpoint,), features=features)


def image_of(*records: Record, metadata_version: int = 21) -> MetadataImage:
    first = FeatureLevelRecord(name="metadata.version", feature_level=metadata_version)
    records = (first, *records)
    return replay_records(ReplayState(), base_offset=0, epoch=1, timestamp_ms=0, records=records).image


def leading(*silent: int, **state: object) -> RaftCore:
    """The leader, node 1, of voters 1 to 3 and an observer; it has not heard the `silent` ones."""
    known = [
        ReplicaState(
            node_id=node_id,
            directory_id=b"" if node_id in silent else directory(node_id),
            is_voter=node_id < 4,
            log_end_offset=0,
            last_fetch_wall_ms=None,
            last_caught_up_wall_ms=None,
        )
        for node_id in (1, 2, 3, 4)
    ]
    seen = {"is_leader": True, "node_id": 1, "leader_id": 1, "kraft_version": 0, "voters": (1, 2, 3), **state}
    return cast(RaftCore, SimpleNamespace(describe=lambda now_ms: known, **seen))


ALL = tuple(registered(node_id) for node_id in (1, 2, 3))


def test_the_first_voters_are_the_configured_ones_as_they_registered() -> None:
    expected = tuple(voter(node_id) for node_id in (1, 2, 3))
    found = upgrade_request(1, image_of(*ALL), leading())
    assert found == UpgradeKRaftVersionRequest(kraft_version=1, voters=expected)


@pytest.mark.parametrize("level", [0, 1])
def test_a_level_that_is_not_higher_needs_no_voters(level: int) -> None:
    found = upgrade_request(level, image_of(metadata_version=1), leading(kraft_version=1))
    assert found == UpgradeKRaftVersionRequest(kraft_version=level, voters=())


def test_only_the_leader_upgrades() -> None:
    refused = upgrade_request(1, image_of(*ALL), leading(is_leader=False, leader_id=2))
    assert isinstance(refused, ApiError)
    assert (refused.code, refused.leader_hint) == (ErrorCode.NOT_CONTROLLER, 2)


@pytest.mark.parametrize(
    ("level", "image", "raft", "words"),
    [
        (1, image_of(*ALL, metadata_version=19), leading(), "it needs metadata.version 3.9-IV0"),
        (2, image_of(*ALL), leading(), "this controller (1) supports 0 to 1"),
        (1, image_of(*ALL[:2]), leading(), "controller 3 has not registered"),
        (1, image_of(*ALL[1:]), leading(), "controller 1 has not registered"),
        (
            1,
            image_of(*ALL[:2], registered(3, features=())),
            leading(),
            "controller 3 does not support kraft.version",
        ),
        (1, image_of(*ALL), leading(2), "controller 2 has not fetched from this leader yet"),
        (1, image_of(*ALL), leading(2, 3), "controller 2 has not fetched from this leader yet"),
        (1, image_of(ALL[0], registered(2, "0.0.0.0"), ALL[2]), leading(), "controller 2 listens on every"),
        (1, image_of(*ALL[:2], registered(3, "::")), leading(), "controller 3 listens on every interface"),
    ],
)
def test_what_is_in_the_way_of_an_upgrade_is_said_in_one_line(
    level: int, image: MetadataImage, raft: RaftCore, words: str
) -> None:
    refused = upgrade_request(level, image, raft)
    assert isinstance(refused, ApiError) and refused.code is ErrorCode.INVALID_UPDATE_VERSION
    assert words in refused.message and "\n" not in refused.message

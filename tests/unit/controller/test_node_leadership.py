"""Three nodes: who leads, what a new leader writes, and what becomes of what an old one had pending."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from metaquorum.controller.active.steps import PENDING_APPENDS_MAX
from metaquorum.controller.events import Answer, LogRead, LogSynced, RequestArrived
from metaquorum.controller.ledger import Ledger
from metaquorum.controller.node import GATHERED_MAX_BYTES
from metaquorum.controller.server.main import node_status
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import DEFAULT_METADATA_VERSION
from metaquorum.metadata.image import BrokersImage, MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    Record,
    TopicRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from metaquorum.metadata.replay import ReplayState
from metaquorum.metadata.requests.common import (
    ControllerRequest,
    CreateTopicsRequest,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Done,
    NewTopic,
    ReadImageRequest,
    TopicsResponse,
    TransferLeadershipRequest,
    UnregisterBrokerRequest,
)
from metaquorum.raft import effects as raft
from metaquorum.raft.effects import AppendLog
from metaquorum.storage.batches.batch import NO_BATCHES, Batches
from metaquorum.storage.batches.encode import encode_batch
from metaquorum.storage.files.known_committed import NOTHING
from tests.unit.controller.node_quorum import CLUSTER, Machine, Quorum, registration


def create(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=(NewTopic(name=name, assignments=((1,),)),))


def assert_same_images(quorum: Quorum) -> None:
    images = [machine.node.ledger.committed.image for machine in quorum.machines.values() if machine.alive]
    assert all(image == images[0] for image in images)


# ---- the first leader


def test_the_first_records_are_one_transaction_as_kafka_writes_it() -> None:
    scram = UserScramCredentialRecord(
        name="u", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
    )
    level = FeatureLevelRecord(name="metadata.version", feature_level=19)
    quorum = Quorum(config=ControllerConfig(cluster_id=CLUSTER, node_id=0, bootstrap=(level, scram)))
    quorum.elect()
    quorum.advance(1_000)
    assert quorum.batches()[0] == [
        BeginTransactionRecord(name="Bootstrap records"),
        level,
        scram,
        ZkMigrationStateRecord(zk_migration_state=0),
        EndTransactionRecord(),
    ]
    assert quorum.leader.log[1][:2] == (1, 6)  # right behind the LeaderChange record at offset 0
    assert_same_images(quorum)


def test_below_3_6_the_first_records_are_a_plain_batch() -> None:
    level = FeatureLevelRecord(name="metadata.version", feature_level=7)
    quorum = Quorum(config=ControllerConfig(cluster_id=CLUSTER, node_id=0, bootstrap=(level,)))
    quorum.elect()
    assert quorum.batches()[0] == [level]


def test_without_a_formatted_level_the_default_is_finalized() -> None:
    quorum = Quorum()
    quorum.elect()
    assert quorum.image().features.finalized == {"metadata.version": 19}


def test_a_restarted_quorum_does_not_begin_anew() -> None:
    quorum = Quorum()
    quorum.elect()
    quorum.start_broker(1)
    quorum.create("kept", (1,))
    for machine in quorum.machines.values():
        machine.kill()
    quorum.advance(100)
    for machine in quorum.machines.values():
        machine.boot()
    quorum.elect()
    assert quorum.image().topics.topic_named("kept") is not None
    levels = [record for record in quorum.records() if isinstance(record, FeatureLevelRecord)]
    assert len(levels) == 1


def test_a_leader_that_wrote_its_first_records_and_vanished_leaves_the_next_one_to_write_them() -> None:
    quorum = Quorum()
    for machine in quorum.machines.values():
        machine.boot()
    leader = quorum.elect()
    # As if the first batch had never left the leader.
    leader.kill()
    for machine in quorum.machines.values():
        machine.log = [batch for batch in machine.log if batch[0] == 0]
        machine.known = NOTHING
        machine.boot()
    leader.kill()
    quorum.elect()
    assert quorum.image().features.finalized == {"metadata.version": 19}
    assert isinstance(quorum.batches()[0][0], BeginTransactionRecord)


def test_nothing_is_decided_before_everything_earlier_is_applied() -> None:
    quorum = Quorum()
    quorum.elect()
    quorum.start_broker(1)
    old = quorum.leader
    quorum.disconnect(old.node_id)
    followers = [machine for machine in quorum.machines.values() if machine is not old]
    for _ in range(200):
        quorum.advance(20)
        if any(machine.node.raft.is_leader for machine in followers):
            break
    new = next(machine for machine in followers if machine.node.raft.is_leader)
    start = new.node.raft.epoch_start_offset
    assert start is not None
    activation = next(n for n, effect in enumerate(new.effects) if isinstance(effect, AppendLog))
    assert new.node.active is not None
    assert new.node.ledger.committed_offset > start
    assert activation >= 0


def test_requests_to_a_leader_that_is_not_active_yet_wait_and_are_bounded() -> None:
    quorum = Quorum(config=ControllerConfig(cluster_id=CLUSTER, node_id=0, waiting_requests_max=2))
    machine = quorum.machines[1]
    for other in (2, 3):
        quorum.machines[other].sync = False  # they vote, and acknowledge nothing
    for _ in range(200):
        quorum.advance(20)
        leaders = [m for m in quorum.machines.values() if m.node.raft.is_leader]
        if leaders:
            break
    machine = leaders[0]
    for other in quorum.machines.values():
        other.sync = other is machine
    assert machine.node.active is None
    keys = [quorum.request(registration(n), machine) for n in (1, 2, 3)]
    quorum.settle()
    refused = machine.answers.get(keys[2])
    assert isinstance(refused, ApiError) and refused.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert refused.retriable
    assert keys[0] not in machine.answers


# ---- who is asked


def test_other_nodes_name_the_leader() -> None:
    quorum = Quorum()
    leader = quorum.elect()
    quorum.advance(500)
    for machine in quorum.followers:
        for request in (
            create("a"),
            ReadImageRequest(),
            DescribeQuorumRequest(),
            TransferLeadershipRequest(),
        ):
            answer = quorum.call(request, machine)
            assert isinstance(answer, ApiError)
            assert answer.code is ErrorCode.NOT_CONTROLLER
            assert answer.leader_hint == leader.node_id
            assert answer.retriable


def test_without_a_leader_there_is_no_hint() -> None:
    quorum = Quorum()
    answer = quorum.call(create("a"), quorum.machines[1])
    assert isinstance(answer, ApiError)
    assert (answer.code, answer.leader_hint) == (ErrorCode.NOT_CONTROLLER, None)


def test_describe_quorum_tells_every_replica() -> None:
    quorum = Quorum()
    leader = quorum.elect()
    quorum.advance(2_000)
    answer = quorum.call(DescribeQuorumRequest())
    assert isinstance(answer, DescribeQuorumResponse)
    assert (answer.leader_id, answer.cluster_id, answer.observers) == (leader.node_id, CLUSTER, ())
    assert {replica.node_id for replica in answer.voters} == {1, 2, 3}
    assert [replica.status for replica in answer.voters] == ["Leader", "Follower", "Follower"]
    assert all(replica.lag == 0 for replica in answer.voters)
    assert answer.voters[1].last_caught_up_ms is not None


# ---- answers and commits


def test_no_answer_before_the_commit() -> None:
    quorum = Quorum()
    leader = quorum.elect()
    quorum.start_broker(1)
    for machine in quorum.machines.values():
        machine.sync = False
    key = quorum.request(create("a"))
    duplicate = quorum.request(create("a"))
    quorum.settle()
    assert node_status(leader.node).pending_batches == 1
    assert key not in leader.answers
    # The refusal was read from an uncommitted image: it must not be known before that is committed.
    assert duplicate not in leader.answers
    assert leader.node.ledger.newest.topics.topic_named("a") is not None
    assert leader.node.ledger.committed.image.topics.topic_named("a") is None
    # A heartbeat depends on nothing of it.
    assert quorum.heartbeat(1) is not None
    follow_up = quorum.request(create("b"))
    quorum.settle()
    assert key not in leader.answers
    for machine in quorum.machines.values():
        machine.resume_sync()
    quorum.settle()
    order = [effect.key for effect in leader.effects if isinstance(effect, Answer) and effect.key >= key]
    assert [k for k in order if k in (key, duplicate, follow_up)] == [key, duplicate, follow_up]
    second = leader.answers[duplicate]
    assert isinstance(second, TopicsResponse)
    assert second.results[0].error is ErrorCode.TOPIC_ALREADY_EXISTS


def test_writes_wait_in_a_bounded_number() -> None:
    quorum = Quorum(config=ControllerConfig(cluster_id=CLUSTER, node_id=0, answers_max=3))
    leader = quorum.elect()
    quorum.start_broker(1)
    for machine in quorum.machines.values():
        machine.sync = False
    keys = [quorum.request(create(f"t{n}")) for n in range(5)]
    quorum.settle()
    refused = [leader.answers.get(key) for key in keys[3:]]
    assert all(isinstance(r, ApiError) and r.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED for r in refused)
    assert not any(key in leader.answers for key in keys[:3])
    assert leader.node.counters.refused_busy == 2


# ---- failover


def test_pending_writes_are_dropped_with_leadership_and_their_clients_told() -> None:
    quorum = Quorum()
    old = quorum.elect()
    quorum.start_broker(1)
    quorum.disconnect(old.node_id)
    lost = quorum.request(create("lost"), old)
    waiting = quorum.request(create("lost"), old)
    read = quorum.request(ReadImageRequest(), old)
    quorum.settle()
    assert old.node.ledger.pending
    quorum.advance(5_000)
    assert old.node.active is None and not old.node.ledger.pending
    assert old.node.counters.leaderships_lost == 1 and quorum.leader.node.counters.leaderships_lost == 0
    for key in (lost, waiting, read):
        answer = old.answers[key]
        assert isinstance(answer, ApiError) and answer.code is ErrorCode.NOT_CONTROLLER and answer.retriable
    assert quorum.leader is not old
    quorum.create("kept", (1,))
    quorum.reconnect(old.node_id)
    quorum.advance(3_000)
    assert_same_images(quorum)
    topics = old.node.ledger.committed.image.topics
    assert topics.topic_named("lost") is None and topics.topic_named("kept") is not None


def test_a_write_that_reached_a_majority_survives_the_leader_that_could_not_say_so() -> None:
    quorum = Quorum()
    old = quorum.elect()
    quorum.start_broker(1)
    old.sync = False  # its own disk is slow; the others acknowledge
    key = quorum.request(create("survives"))
    for _ in range(3):
        for machine in quorum.machines.values():
            machine.step()
    quorum.settle()
    old.kill()
    quorum.elect()
    assert quorum.image().topics.topic_named("survives") is not None
    assert key not in old.answers or isinstance(old.answers[key], TopicsResponse)


def test_a_transaction_that_nobody_ended_is_aborted_by_the_next_leader() -> None:
    quorum = Quorum()
    old = quorum.elect()
    quorum.start_broker(1)
    begun = [BeginTransactionRecord(name="half"), TopicRecord(name="inside", topic_id=b"i" * 16)]
    old.write(*begun)
    quorum.advance(300)
    shown = old.node.ledger.committed
    assert shown.transaction is not None and shown.image.topics.topic_named("inside") is None
    old.kill()
    new = quorum.elect()
    quorum.advance(500)
    ended = [record for record in quorum.records() if isinstance(record, AbortTransactionRecord)]
    assert len(ended) == 1 and "half" in (ended[0].reason or "")
    assert new.node.ledger.committed.transaction is None
    assert quorum.image().topics.topic_named("inside") is None
    assert quorum.create("after", (1,))
    assert_same_images(quorum)


@pytest.mark.parametrize("ended", [(), (AbortTransactionRecord(reason="failover"),)], ids=["open", "aborted"])
def test_first_records_that_never_took_effect_are_written_again(ended: tuple[Record, ...]) -> None:
    """As in Kafka, whose nodes may have begun the log: without a metadata.version nothing works."""
    begun = (
        BeginTransactionRecord(name="Bootstrap records"),
        FeatureLevelRecord(name="metadata.version", feature_level=19),
    )
    values = [encode(each, 0) for each in (*begun, *ended)]
    batch = encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=0, values=values)
    quorum = Quorum()
    for machine in quorum.machines.values():
        machine.kill()
        machine.log = [(0, len(values), batch)]
        machine.boot()
    leader = quorum.elect()
    quorum.advance(500)
    assert leader.node.ledger.committed.transaction is None
    assert quorum.image().features.metadata_version == DEFAULT_METADATA_VERSION
    assert sum(isinstance(each, AbortTransactionRecord) for each in quorum.records()) == 1
    quorum.start_broker(1)
    assert quorum.create("after", (1,))
    assert_same_images(quorum)


# ---- handing over and stopping


def test_leadership_goes_where_it_is_told() -> None:
    quorum = Quorum()
    old = quorum.elect()
    quorum.advance(500)
    target = next(machine for machine in quorum.followers)
    assert isinstance(quorum.call(TransferLeadershipRequest(target_id=target.node_id)), Done)
    quorum.advance(300)
    assert quorum.leader is target
    assert old.node.active is None
    bad = quorum.call(TransferLeadershipRequest(target_id=99))
    assert isinstance(bad, ApiError) and bad.code is ErrorCode.INVALID_REQUEST
    own = quorum.call(TransferLeadershipRequest(target_id=target.node_id))
    assert isinstance(own, ApiError) and own.code is ErrorCode.INVALID_REQUEST


def test_a_transfer_to_nobody_in_particular_picks_a_voter() -> None:
    quorum = Quorum()
    old = quorum.elect()
    quorum.advance(500)
    assert isinstance(quorum.call(TransferLeadershipRequest()), Done)
    quorum.advance(300)
    assert quorum.leader is not old


def test_a_leader_that_is_told_to_stop_hands_over_first() -> None:
    quorum = Quorum()
    old = quorum.elect()
    quorum.advance(500)
    quorum.shut_down(old)
    quorum.advance(300)
    assert old.stopped is not None and not old.stopped.failed
    assert quorum.leader is not old
    assert (
        old.node.handle(RequestArrived(key=1, arrived_ms=0, request=create("x")), now_ms=1, wall_ms=1) == []
    )


def test_a_leader_whose_successors_are_gone_stops_when_its_grace_is_over() -> None:
    quorum = Quorum()
    old = quorum.elect()
    for machine in quorum.followers:
        machine.kill()
    quorum.shut_down(old)
    quorum.settle()
    assert old.stopped is None
    quorum.advance(1_000)
    assert old.stopped is not None and not old.stopped.failed


def test_a_follower_stops_at_once() -> None:
    quorum = Quorum()
    quorum.elect()
    follower = quorum.followers[0]
    quorum.shut_down(follower)
    quorum.settle()
    assert follower.stopped is not None and not follower.stopped.failed


# ---- bugs and damage end the process


def test_committed_data_that_does_not_replay_stops_the_node_and_says_where() -> None:
    quorum = Quorum()
    quorum.elect()
    quorum.start_broker(1)
    follower = quorum.followers[0]
    quorum.disconnect(follower.node_id)
    assert isinstance(quorum.call(UnregisterBrokerRequest(broker_id=1)), Done)
    offset = follower.node.ledger.committed_offset
    leader = quorum.leader
    data = leader.read(offset, leader.end_offset, 1 << 20)
    # A node that lost its image, not its place: every change of an unknown broker or topic is impossible.
    image = MetadataImage().with_provenance(follower.node.ledger.committed.image.provenance)
    follower.node.replica.state = ReplayState(image)
    follower.node.replica._reading_from = offset
    follower.inbox.append(LogRead(from_offset=offset, batches=Batches.parse(data)))
    while follower.step():
        pass
    assert follower.stopped is not None and follower.stopped.failed
    assert "offset" in follower.stopped.reason and "UnregisterBrokerRecord" in follower.stopped.reason


def test_a_log_that_holds_nothing_where_it_is_committed_stops_the_node_and_says_where() -> None:
    quorum = Quorum()
    quorum.elect()
    follower = quorum.followers[0]
    quorum.disconnect(follower.node_id)
    offset = follower.node.ledger.committed_offset
    follower.node.replica._reading_from = offset
    follower.inbox.append(LogRead(from_offset=offset, batches=NO_BATCHES))
    while follower.step():
        pass
    assert follower.stopped is not None and follower.stopped.failed
    assert f"offset {offset}" in follower.stopped.reason and "docs/operations.md" in follower.stopped.reason


def test_a_decision_that_does_not_replay_stops_the_node_before_it_is_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quorum = Quorum()
    leader = quorum.elect()
    quorum.start_broker(1)
    end = leader.end_offset
    image = leader.node.ledger.newest
    # Decide on an image that has a broker which the log has not.
    nine = msgspec.structs.replace(image.brokers[1], broker_id=9)
    other = replace(image, brokers=BrokersImage({9: nine}, {9: 1}))
    monkeypatch.setattr(Ledger, "newest", property(lambda _: other))
    quorum.call(UnregisterBrokerRequest(broker_id=9))
    assert leader.stopped is not None and leader.stopped.failed and "bug" in leader.stopped.reason
    assert leader.end_offset == end


# What a step decides reaches Raft together, and not too late.


KEY = 1_000_000
"""Above the keys that the quorum gives."""


def arrived(key: int, request: ControllerRequest) -> RequestArrived:
    return RequestArrived(key=KEY + key, arrived_ms=0, request=request)


def topic(name: str, partitions: int = 1) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=(NewTopic(name=name, partitions=partitions, replication_factor=1),))


def topics(count: int, first: int = 0) -> list[RequestArrived]:
    return [arrived(at, topic(f"t{at}")) for at in range(first, first + count)]


def serving(config: ControllerConfig | None = None) -> tuple[Quorum, Machine]:
    """A quorum with a broker, and its leader, without effects so far."""
    quorum = Quorum(config=config)
    quorum.elect()
    quorum.start_broker(1)
    quorum.advance(500)
    quorum.leader.effects.clear()
    return quorum, quorum.leader


def appends(machine: Machine) -> list[int]:
    """The number of batches in each append."""
    return [len(each.batches.headers) for each in machine.effects if isinstance(each, raft.AppendLog)]


def test_the_requests_of_a_step_become_one_append_that_voters_fetch_as_a_whole() -> None:
    quorum, leader = serving()
    leader.hear(*topics(5))
    assert appends(leader) == [5]
    end = leader.node.raft.log_end_offset
    sent = [each for each in leader.effects if isinstance(each, raft.RespondWithRecords)]
    assert [each.read_to for each in sent] == [end] * len(quorum.followers)
    quorum.settle()
    answers = [leader.answers[KEY + at] for at in range(5)]
    assert all(isinstance(each, TopicsResponse) and each.results[0].topic_id for each in answers)


def test_raft_takes_no_input_before_it_has_what_was_decided() -> None:
    quorum, leader = serving()
    times = {"now_ms": quorum.now_ms, "wall_ms": quorum.wall_ms}
    leader.execute(leader.node.handle(arrived(0, topic("a")), **times))
    assert appends(leader) == []
    leader.execute(leader.node.handle(LogSynced(end_offset=leader.node.raft.synced_offset), **times))
    assert appends(leader) == [1]
    leader.execute(leader.node.handle(arrived(1, topic("b")), **times))
    leader.execute(leader.node.tick(drained=True, **times))
    assert appends(leader) == [1, 1]


def test_large_batches_do_not_wait_for_the_end_of_a_step() -> None:
    quorum, leader = serving()
    times = {"now_ms": quorum.now_ms, "wall_ms": quorum.wall_ms}
    leader.execute(leader.node.handle(arrived(0, topic("a", GATHERED_MAX_BYTES // 60)), **times))
    assert appends(leader) == [1]


def test_a_round_of_many_requests_does_not_hold_up_work_in_slices() -> None:
    """The slices of a broker's removal go on while requests keep more batches uncommitted than slices may."""
    quorum, leader = serving(ControllerConfig(cluster_id=CLUSTER, node_id=0, records_per_slice_max=1))
    quorum.start_broker(2)
    quorum.create("wide", *[(1, 2)] * 5)
    for machine in quorum.followers:
        machine.sync = False
    leader.hear(*topics(PENDING_APPENDS_MAX + 1))
    leader.hear(arrived(99, quorum.heartbeat_request(1, want_fence=True)))
    before = leader.node.raft.log_end_offset
    leader.tick()
    assert leader.node.raft.log_end_offset > before


def test_what_was_decided_and_not_appended_ends_with_the_leadership() -> None:
    quorum, leader = serving()
    quorum.disconnect(leader.node_id)
    times = {"wall_ms": quorum.wall_ms}
    leader.execute(leader.node.handle(arrived(0, topic("a")), now_ms=quorum.now_ms, **times))
    quorum.advance(5_000)
    answer = leader.answers[KEY]
    assert isinstance(answer, ApiError) and answer.code is ErrorCode.NOT_CONTROLLER

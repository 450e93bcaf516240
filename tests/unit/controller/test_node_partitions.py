"""Partitions at a quorum: dead directories, elections and growth by request, the balancer, failovers."""

from __future__ import annotations

import pytest

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import ConfigResource
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import (
    BrokerRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
)
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatResponse,
    RegisterBrokerResponse,
    TopicsResponse,
)
from metaquorum.metadata.requests.partitions import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    CreatePartitionsRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IsrMember,
    PartitionAlteration,
    ReplicaAssignment,
    TopicGrowth,
)
from metaquorum.metadata.requests.settings import AlterConfigsRequest, ConfigChange, ConfigOp, OpKind
from tests.images import offline_replicas
from tests.unit.controller.node_quorum import CLUSTER, Quorum, registration

A, B, C = (b"dir-" + name + bytes(10) + name for name in (b"a", b"b", b"c"))


def quorum_of(
    slice_max: int = 1_000, interval_ms: int = 0, *, rebalance: bool = True, unclean: bool = False
) -> Quorum:
    config = ControllerConfig(
        cluster_id=CLUSTER,
        node_id=0,
        records_per_slice_max=slice_max,
        leader_imbalance_check_interval_ms=interval_ms,
        auto_leader_rebalance_enable=rebalance,
        unclean_leader_election_enable=unclean,
    )
    quorum = Quorum(config=config)
    quorum.elect()
    return quorum


def two_directories(quorum: Quorum, partitions: int = 4) -> tuple[int, bytes]:
    """Broker 1 with directories A and B and every other partition in each; broker 2 beside it."""
    quorum.register(1, directories=(A, B))
    beat = quorum.heartbeat(1)
    assert isinstance(beat, BrokerHeartbeatResponse) and not beat.is_fenced
    epoch = quorum.image().brokers[1].epoch
    quorum.start_broker(2)
    topic = quorum.create("t", *[(1, 2)] * partitions)
    assigned = quorum.call(
        AssignReplicasToDirsRequest(
            broker_id=1,
            broker_epoch=epoch,
            assignments=tuple(
                ReplicaAssignment(directory_id=B if n % 2 else A, topic_id=topic, partition=n)
                for n in range(partitions)
            ),
        )
    )
    assert isinstance(assigned, AssignReplicasToDirsResponse)
    assert {each.error for each in assigned.results} == {ErrorCode.NONE}
    return epoch, topic


def test_a_dead_directory_moves_its_leaders_and_nothing_else_once() -> None:
    quorum = quorum_of()
    epoch, topic = two_directories(quorum)
    start = quorum.leader.end_offset
    beat = quorum.heartbeat(1, offline_directories=(B,))
    assert isinstance(beat, BrokerHeartbeatResponse) and not beat.is_fenced
    assert quorum.batches(start) == [
        [
            PartitionChangeRecord(partition_id=1, topic_id=topic, isr=(2,), leader=2),
            PartitionChangeRecord(partition_id=3, topic_id=topic, isr=(2,), leader=2),
            BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=epoch, log_dirs=(A,)),
        ]
    ]
    image = quorum.image()
    assert [quorum.partition(topic, n).leader for n in range(4)] == [1, 2, 1, 2]
    assert [offline_replicas(image.brokers, quorum.partition(topic, n)) for n in range(4)] == [
        (), (1,), (), (1,),
    ]  # fmt: skip
    end = quorum.leader.end_offset
    quorum.heartbeat(1, offline_directories=(B,))
    assert quorum.batches(end) == []


def test_an_unclean_election_takes_no_replica_in_the_directory_that_dies() -> None:
    quorum = quorum_of()
    quorum.register(1, directories=(A, B))
    quorum.heartbeat(1)
    topic = quorum.create("t", (1,))
    wanted = ReplicaAssignment(directory_id=B, topic_id=topic, partition=0)
    epoch = quorum.image().brokers[1].epoch
    quorum.call(AssignReplicasToDirsRequest(broker_id=1, broker_epoch=epoch, assignments=(wanted,)))
    op = ConfigOp(kind=OpKind.SET, name="unclean.leader.election.enable", value="true")
    quorum.call(AlterConfigsRequest(changes=(ConfigChange(resource=ConfigResource(2, "t"), ops=(op,)),)))
    quorum.heartbeat(1, offline_directories=(B,))
    assert quorum.partition(topic).leader == -1


def test_a_dead_directory_goes_in_slices_and_counts_as_dead_from_the_first() -> None:
    quorum = quorum_of(slice_max=2)
    epoch, topic = two_directories(quorum, partitions=10)
    leader = quorum.leader
    start = leader.end_offset
    leader.node.next_deadline_ms()
    quorum.request(quorum.heartbeat_request(1, offline_directories=(B,)))
    leader.step()
    assert leader.node.sessions.failing == {1: frozenset({B})}
    # Partition 9's turn has not come: its leader in the dead directory may change nothing any more.
    late = PartitionAlteration(
        topic_id=topic, partition=9, leader_epoch=0, partition_epoch=1,
        isr=(IsrMember(broker_id=1), IsrMember(broker_id=2)),
    )  # fmt: skip
    key = quorum.request(AlterPartitionRequest(broker_id=1, broker_epoch=epoch, partitions=(late,)))
    quorum.settle()
    quorum.advance(100)
    answer = leader.answers[key]
    assert isinstance(answer, AlterPartitionResponse)
    assert answer.results[0].error is ErrorCode.INELIGIBLE_REPLICA
    assert [len(batch) for batch in quorum.batches(start)] == [2, 2, 2]
    assert [quorum.partition(topic, n).leader for n in (1, 3, 5, 7, 9)] == [2] * 5
    assert leader.node.sessions.failing == {}


def test_a_second_directory_that_dies_meanwhile_is_looked_through_from_the_beginning() -> None:
    quorum = quorum_of(slice_max=2)
    quorum.register(1, directories=(A, B, C))
    quorum.heartbeat(1)
    epoch = quorum.image().brokers[1].epoch
    quorum.start_broker(2)
    topic = quorum.create("t", *[(1, 2)] * 9)
    assigned = tuple(
        ReplicaAssignment(directory_id=(A, B, C)[n % 3], topic_id=topic, partition=n) for n in range(9)
    )
    quorum.call(AssignReplicasToDirsRequest(broker_id=1, broker_epoch=epoch, assignments=assigned))
    leader = quorum.leader
    leader.node.next_deadline_ms()
    quorum.request(quorum.heartbeat_request(1, offline_directories=(B,)))
    leader.step()
    quorum.heartbeat(1, offline_directories=(B, C))
    quorum.advance(100)
    assert quorum.image().brokers[1].directories == (A,) and not quorum.image().brokers[1].fenced
    assert [quorum.partition(topic, n).leader for n in range(9)] == [1, 2, 2] * 3


def test_directories_that_die_one_after_the_other_fence_the_broker_with_the_last() -> None:
    quorum = quorum_of(slice_max=2)
    _, topic = two_directories(quorum, partitions=10)
    leader = quorum.leader
    leader.node.next_deadline_ms()
    quorum.request(quorum.heartbeat_request(1, offline_directories=(B,)))
    leader.step()
    assert quorum.image().brokers[1].directories == (A, B)
    quorum.heartbeat(1, offline_directories=(A,))
    quorum.advance(100)
    assert quorum.image().brokers[1].fenced
    assert [quorum.partition(topic, n).leader for n in range(10)] == [2] * 10


def test_a_broker_that_registers_again_without_a_directory_leads_nothing_in_it() -> None:
    """The same incarnation lost its lease by its own clock and a directory meanwhile: no image on the way has
    a leader in a directory that is not registered."""
    quorum = quorum_of(slice_max=1)
    epoch, topic = two_directories(quorum)
    start = quorum.leader.end_offset
    key = quorum.request(registration(1, directories=(A,)))
    quorum.settle()
    quorum.advance(100)
    again = quorum.leader.answers[key]
    assert isinstance(again, RegisterBrokerResponse) and again.broker_epoch == epoch
    batches = quorum.batches(start)
    assert [type(batch[-1]) for batch in batches][-2:] == [FenceBrokerRecord, BrokerRecord]
    assert quorum.image().brokers[1].directories == (A,) and quorum.image().brokers[1].fenced
    assert [quorum.partition(topic, n).leader for n in range(4)] == [2] * 4
    beat = quorum.heartbeat(1)
    assert isinstance(beat, BrokerHeartbeatResponse) and not beat.is_fenced
    assert offline_replicas(quorum.image().brokers, quorum.partition(topic, 1)) == (1,)


def test_a_failover_between_the_batches_of_a_dead_directory_starts_it_again() -> None:
    quorum = quorum_of(slice_max=2)
    _, topic = two_directories(quorum, partitions=10)
    old = quorum.leader
    old.node.next_deadline_ms()
    quorum.request(quorum.heartbeat_request(1, offline_directories=(B,)))
    old.step()
    old.kill()
    quorum.elect()
    assert quorum.image().brokers[1].directories == (A, B)
    quorum.heartbeat(1, offline_directories=(B,))
    quorum.advance(100)
    assert quorum.image().brokers[1].directories == (A,)
    assert [quorum.partition(topic, n).leader for n in (1, 3, 5, 7, 9)] == [2] * 5


def test_a_broker_without_a_good_directory_is_fenced_and_stays_so() -> None:
    quorum = quorum_of()
    _, topic = two_directories(quorum)
    for _ in range(3):
        beat = quorum.heartbeat(1, offline_directories=(A, B))
        assert isinstance(beat, BrokerHeartbeatResponse) and beat.is_fenced
    assert quorum.image().brokers[1].fenced
    assert [quorum.partition(topic, n).leader for n in range(4)] == [2] * 4


def test_a_dead_directory_with_the_last_copy_keeps_the_isr_and_leads_again_with_the_disk() -> None:
    quorum = quorum_of()
    quorum.register(1, directories=(A, B))
    quorum.heartbeat(1)
    topic = quorum.create("t", (1,))
    epoch = quorum.image().brokers[1].epoch
    quorum.call(
        AssignReplicasToDirsRequest(
            broker_id=1,
            broker_epoch=epoch,
            assignments=(ReplicaAssignment(directory_id=B, topic_id=topic, partition=0),),
        )
    )
    quorum.heartbeat(1, offline_directories=(B,))
    found = quorum.partition(topic)
    assert (found.leader, found.isr) == (-1, (1,))
    quorum.advance(10_000)
    quorum.register(1, 2, directories=(A, B))
    quorum.heartbeat(1)
    assert quorum.partition(topic).leader == 1


@pytest.mark.parametrize("rebalance", [True, False])
def test_leaders_go_back_to_the_preferred_replica_on_request_and_by_the_clock(rebalance: bool) -> None:
    quorum = quorum_of(interval_ms=60_000, rebalance=rebalance)
    quorum.start_broker(1)
    quorum.start_broker(2)
    topic = quorum.create("t", (1, 2), (1, 2))
    for n in range(2):
        state = quorum.partition(topic, n)
        assert state.leader == 1
    quorum.beat_for(12_000, 2)
    assert [quorum.partition(topic, n).leader for n in range(2)] == [2, 2]
    quorum.heartbeat(1)
    for n in range(2):
        state = quorum.partition(topic, n)
        wanted = PartitionAlteration(
            topic_id=topic, partition=n, leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch, isr=(IsrMember(broker_id=2), IsrMember(broker_id=1)),
        )  # fmt: skip
        epoch = quorum.image().brokers[2].epoch
        quorum.call(AlterPartitionRequest(broker_id=2, broker_epoch=epoch, partitions=(wanted,)))
    answer = quorum.call(ElectLeadersRequest(unclean=False, partitions=(("t", 0),)))
    assert isinstance(answer, ElectLeadersResponse) and answer.results[0].leader == 1
    assert [quorum.partition(topic, n).leader for n in range(2)] == [1, 2]
    quorum.beat_for(61_000, 1, 2)
    assert [quorum.partition(topic, n).leader for n in range(2)] == [1, 1 if rebalance else 2]


def without_its_only_replica_in_sync(quorum: Quorum) -> bytes:
    """A topic whose only replica in sync is on broker 1, which died; broker 2 has one that is not in sync."""
    quorum.start_broker(1)
    topic = quorum.create("t", (1,))
    quorum.start_broker(2)
    (one,), (two,) = (quorum.image().brokers[n].directories for n in (1, 2))
    grown = PartitionChangeRecord(partition_id=0, topic_id=topic, replicas=(1, 2), directories=(one, two))
    quorum.leader.write(grown)
    quorum.settle()
    quorum.beat_for(12_000, 2)
    return topic


@pytest.mark.parametrize("allowed", [False, True])
def test_unclean_elections_may_be_allowed_by_the_controllers_files(allowed: bool) -> None:
    quorum = quorum_of(unclean=allowed)
    found = quorum.partition(without_its_only_replica_in_sync(quorum))
    assert (found.leader, found.isr) == ((2, (2,)) if allowed else (-1, (1,)))


def test_an_unclean_election_that_is_allowed_later_happens_with_the_next_look() -> None:
    quorum = quorum_of(interval_ms=30_000)
    topic = without_its_only_replica_in_sync(quorum)
    assert quorum.partition(topic).leader == -1
    allowed = ConfigRecord(
        resource_type=2, resource_name="t", name="unclean.leader.election.enable", value="true"
    )
    quorum.leader.write(allowed)
    quorum.beat_for(31_000, 2)
    found = quorum.partition(topic)
    assert (found.leader, found.isr, found.leader_recovery_state) == (2, (2,), 1)


def test_a_topic_grows_and_says_why_not() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    quorum.start_broker(2)
    topic = quorum.create("t", (1, 2))

    def grow(count: int, *lists: tuple[int, ...], name: str = "t", **options: bool) -> object:
        growth = TopicGrowth(name=name, count=count, assignments=lists or None)
        answer = quorum.call(CreatePartitionsRequest(topics=(growth,), **options))
        assert isinstance(answer, TopicsResponse)
        return answer.results[0]

    assert grow(3, validate_only=True).error is ErrorCode.NONE
    assert quorum.image().topics.partition_count_of(topic) == 1
    result = grow(3)
    assert (result.error, result.partitions, result.replication_factor) == (ErrorCode.NONE, 3, 2)
    assert quorum.image().topics.partition_count_of(topic) == 3
    assert grow(4, (2, 1)).error is ErrorCode.NONE
    assert quorum.partition(topic, 3).replicas == (2, 1)
    assert grow(4).error is ErrorCode.INVALID_PARTITIONS
    assert grow(2).error is ErrorCode.INVALID_PARTITIONS
    assert grow(9, name="u").error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert grow(6, (1, 2)).error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(5, (1,)).error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(5, (1, 9)).error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(60_000).error is ErrorCode.POLICY_VIOLATION


def test_a_stale_broker_is_refused_as_a_whole() -> None:
    quorum = quorum_of()
    epoch = quorum.start_broker(1)
    answer = quorum.call(AlterPartitionRequest(broker_id=1, broker_epoch=epoch - 1, partitions=()))
    assert isinstance(answer, ApiError) and answer.code is ErrorCode.STALE_BROKER_EPOCH


def test_the_only_replica_on_a_new_disk_waits_for_an_unclean_election_and_is_remembered_no_longer() -> None:
    quorum = quorum_of()
    quorum.register(1, 1, directories=(A,))
    quorum.heartbeat(1)
    topic = quorum.create("t", (1,))
    assert quorum.partition(topic).directories == (A,)
    quorum.heartbeat(1, want_fence=True, want_shutdown=True)
    registered = quorum.register(1, 2, directories=(B,))
    assert isinstance(registered, RegisterBrokerResponse)
    quorum.heartbeat(1)
    lies = AssignReplicasToDirsRequest(
        broker_id=1,
        broker_epoch=registered.broker_epoch,
        assignments=(ReplicaAssignment(directory_id=B, topic_id=topic, partition=0),),
    )

    def assigned() -> ErrorCode:
        answer = quorum.call(lies)
        assert isinstance(answer, AssignReplicasToDirsResponse)
        return answer.results[0].error

    known = quorum.leader.node.sessions.recreated
    assert assigned() is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert quorum.partition(topic).leader == -1 and known == {(topic, 0, 1): B}
    quorum.call(ElectLeadersRequest(unclean=True, partitions=(("t", 0),)))
    found = quorum.partition(topic)
    assert (found.leader, found.isr, found.directories, found.leader_recovery_state) == (1, (1,), (B,), 1)
    assert assigned() is ErrorCode.NONE and known == {}

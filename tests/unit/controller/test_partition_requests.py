"""Elections, ISR changes and directories by request: the exact records, and every refusal with its code."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from metaquorum.controller.partitions import elections
from metaquorum.controller.partitions.alter_partition import decide_alter_partition
from metaquorum.controller.partitions.elections import decide_elections
from metaquorum.controller.partitions.log_dirs import decide_assign_replicas
from metaquorum.controller.partitions.partition_change import Election, MayLead, Target, build_change
from metaquorum.controller.partitions.partitions import preferred_slice, removal_slice
from metaquorum.controller.partitions.placement import UsableBroker
from metaquorum.controller.partitions.rules import rules_of
from metaquorum.controller.partitions.topics import Allowance, decide_create_partitions
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import LOST, UNASSIGNED, MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import (
    BrokerRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.metadata.requests.common import TopicsResponse
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
from tests.images import offline_replicas
from tests.unit.controller.node_quorum import image_of
from tests.unit.controller.test_broker_decisions import TOPIC, broker, partition

UNCLEAN = ConfigRecord(
    resource_type=2, resource_name="t", name="unclean.leader.election.enable", value="true"
)
UNCLEAN_BY_DEFAULT = ConfigRecord(
    resource_type=4, resource_name="", name="unclean.leader.election.enable", value="true"
)
NOT_HERE = ConfigRecord(
    resource_type=2, resource_name="t", name="unclean.leader.election.enable", value="false"
)
ELR = FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1)


def cluster(*records: object, fenced: tuple[int, ...] = (), leaving: tuple[int, ...] = ()) -> MetadataImage:
    brokers = [broker(n, fenced=n in fenced, shutting_down=n in leaving) for n in (1, 2, 3)]
    return image_of(*brokers, TopicRecord(name="t", topic_id=TOPIC), *records)


def directory(broker_id: int) -> bytes:
    """The one directory that the broker has registered."""
    (only,) = broker(broker_id).log_dirs
    return only


def placed(record: PartitionRecord) -> PartitionRecord:
    """Every replica lies in a directory of its broker, says the log."""
    return replace_record(record, directories=tuple([directory(each) for each in record.replicas]))


def change(**fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(**{"partition_id": 0, "topic_id": TOPIC, **fields})


UNCHANGED = Target()


def build(image: MetadataImage, target: Target = UNCHANGED, election: Election | None = None) -> object:
    found = image.topics.partition(TOPIC, 0)
    assert found is not None
    return build_change(found, target, rules_of(image, image.brokers.is_active), election)


# ---- elections


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ((), None),
        ((UNCLEAN,), change(isr=(2,), leader=2, leader_recovery_state=1)),
        ((UNCLEAN_BY_DEFAULT,), change(isr=(2,), leader=2, leader_recovery_state=1)),
        ((UNCLEAN_BY_DEFAULT, NOT_HERE), None),
    ],
)
def test_an_unclean_election_only_where_the_configuration_allows_it(
    config: tuple[object, ...], expected: object
) -> None:
    image = cluster(placed(partition(0, (1, 2, 3), (1,), -1)), *config, fenced=(1,))
    assert build(image) == expected


def test_what_controllers_have_in_their_files_counts_where_the_log_says_nothing() -> None:
    static = {"unclean.leader.election.enable": "true"}
    for config, allowed in (((), True), ((NOT_HERE,), False), ((UNCLEAN,), True)):
        image = cluster(placed(partition(0, (1, 2, 3), (1,), -1)), *config, fenced=(1,))
        rules = rules_of(image, image.brokers.is_active, static=static)
        assert rules.unclean_allowed(TOPIC) is allowed
        assert rules_of(image, image.brokers.is_active).unclean_allowed(TOPIC) is (config == (UNCLEAN,))


def test_the_death_of_the_last_in_sync_replica_elects_uncleanly_in_one_record() -> None:
    image = cluster(placed(partition(0, (1, 2, 3), (1,), 1)), UNCLEAN)
    batch = removal_slice(image, 1, rules_of(image, image.brokers.is_active), 10)
    assert batch.records == (change(isr=(2,), leader=2, leader_recovery_state=1),)


def test_s3_6_a_replica_that_lies_nowhere_yet_is_not_elected_uncleanly_before_it_is_assigned() -> None:
    """It has nothing: whoever followed it would be cut to nothing."""
    lies = placed(partition(0, (1, 2, 3), (1,), 1))
    new = replace_record(lies, directories=(directory(1), UNASSIGNED, directory(3)))
    image = cluster(new, UNCLEAN, fenced=(1,))
    assert build(image) == change(isr=(3,), leader=3, leader_recovery_state=1)
    alone = cluster(new, UNCLEAN, fenced=(1, 3))
    assert build(alone) == change(leader=-1), "the last in-sync replica is waited for"
    last = removal_slice(alone, 1, rules_of(alone, alone.brokers.is_active), 10)
    assert last.records == (change(leader=-1),)
    leaderless = cluster(replace_record(new, leader=-1), UNCLEAN, fenced=(1, 3))
    request = AssignReplicasToDirsRequest(
        broker_id=2,
        broker_epoch=10,
        assignments=(ReplicaAssignment(directory_id=directory(2), topic_id=TOPIC, partition=0),),
    )
    rules = rules_of(leaderless, leaderless.brokers.is_active)
    (assigned,) = decide_assign_replicas(leaderless, request, rules, records_max=100).records
    assert assigned == change(
        isr=(2,), leader=2, leader_recovery_state=1, directories=(directory(1), directory(2), directory(3))
    )


def test_below_3_2_nothing_says_that_a_leader_recovers() -> None:
    image = image_of(
        broker(2), TopicRecord(name="t", topic_id=TOPIC), partition(0, (1, 2), (1,), -1), UNCLEAN, level=1
    )
    assert build(image) == change(isr=(2,), leader=2)


def test_a_reassignment_ends_with_the_isr_that_completes_it() -> None:
    moving = replace_record(partition(0, (3, 1, 2), (1, 2), 1), adding_replicas=(3,), removing_replicas=(1,))
    image = cluster(moving)
    assert build(image, Target(isr=(1, 2, 3))) == change(
        isr=(2, 3), leader=3, replicas=(3, 2), removing_replicas=(), adding_replicas=(),
        directories=(UNASSIGNED, UNASSIGNED),
    )  # fmt: skip
    assert build(image, Target(isr=(1, 2))) is None


def replace_record(record: PartitionRecord, **fields: object) -> PartitionRecord:
    import msgspec

    return msgspec.structs.replace(record, **fields)


def test_eligible_leader_replicas_lead_again_without_loss() -> None:
    config = ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas", value="2")
    brokers = (broker(1), broker(2), broker(3))
    topic = TopicRecord(name="t", topic_id=TOPIC)
    image = image_of(*brokers, topic, partition(0, (1, 2, 3), (1, 2), 1), config, ELR, level=23)
    batch = removal_slice(image, 1, rules_of(image, image.brokers.is_active), 10)
    first = change(isr=(2,), leader=2, eligible_leader_replicas=(1,))
    assert batch.records == (first,)
    later = image_of(*brokers, topic, partition(0, (1, 2, 3), (1, 2), 1), config, ELR, first, level=23)
    last = removal_slice(later, 2, rules_of(later, lambda n: n == 3), 10).records[0]
    assert last == change(isr=(), leader=-1, eligible_leader_replicas=(1, 2), last_known_elr=(2,))
    gone = image_of(*brokers, topic, partition(0, (1, 2, 3), (1, 2), 1), config, ELR, first, last, level=23)
    found = gone.topics.partition(TOPIC, 0)
    assert found is not None
    back = build_change(found, Target(), rules_of(gone, lambda n: n == 1))
    assert back == change(isr=(1,), leader=1, eligible_leader_replicas=(2,), last_known_elr=())


def elect(image: MetadataImage, *named: tuple[str, int], unclean: bool = False, records_max: int = 100):
    request = ElectLeadersRequest(unclean=unclean, partitions=named or None)
    rules = rules_of(image, image.brokers.is_active)
    result = decide_elections(image, request, rules, records_max=records_max)
    assert isinstance(result.response, ElectLeadersResponse)
    return result, result.response


def test_preferred_elections_by_name() -> None:
    image = cluster(
        partition(0, (1, 2), (1, 2), 2),
        partition(1, (1, 2), (1, 2), 1),
        partition(2, (1, 2), (2,), 2),
    )
    result, answer = elect(image, ("t", 0), ("t", 1), ("t", 2), ("t", 9), ("u", 0), ("t", 0))
    assert result.records == (change(leader=1),)
    assert [(each.partition, each.error, each.leader) for each in answer.results] == [
        (0, ErrorCode.NONE, 1),
        (1, ErrorCode.ELECTION_NOT_NEEDED, 1),
        (2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 2),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
    ]


def test_unclean_elections_are_the_operators_to_decide() -> None:
    places = (((1, 2), (1,), -1), ((1,), (1,), -1), ((2,), (2,), 2))
    image = cluster(*[placed(partition(n, *each)) for n, each in enumerate(places)], fenced=(1,))
    result, answer = elect(image, ("t", 0), ("t", 1), ("t", 2), unclean=True)
    assert result.records == (change(isr=(2,), leader=2, leader_recovery_state=1),)
    assert [each.error for each in answer.results] == [
        ErrorCode.NONE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
    ]


def test_all_is_what_needs_it_and_goes_on_where_it_stopped() -> None:
    image = cluster(*[partition(n, (1, 2), (1, 2), 2 if n % 2 else 1) for n in range(8)])
    result, answer = elect(image, records_max=3)
    assert [record.partition_id for record in result.records] == [1, 3, 5]
    assert answer.more
    whole, answer = elect(image)
    assert [each.partition for each in answer.results] == [1, 3, 5, 7] and not answer.more
    assert len(whole.records) == 4


@pytest.mark.parametrize("unclean", [False, True])
def test_of_many_refusals_only_the_first_are_told_and_what_can_be_done_is_done(
    monkeypatch: pytest.MonkeyPatch, unclean: bool
) -> None:
    monkeypatch.setattr(elections, "REFUSALS_REPORTED_MAX", 2)
    stuck = [partition(n, (3, 4), (3,), -1) for n in range(40)]
    image = cluster(*stuck, partition(40, (1, 3), (1,), -1), fenced=(3, 4))
    result, answer = elect(image, unclean=unclean)
    assert result.records == (change(partition_id=40, leader=1),)
    assert [each.partition for each in answer.results] == [0, 1, 40] and not answer.more


def test_the_balancer_moves_only_who_can_take_it_and_in_bounded_batches() -> None:
    image = cluster(
        *[partition(n, (1, 2), (1, 2), 2) for n in range(5)], partition(5, (1, 2), (2,), 2), fenced=(3,)
    )
    rules = rules_of(image, image.brokers.is_active)
    batch = preferred_slice(image, rules, 3)
    assert [record.partition_id for record in batch.records] == [0, 1, 2] and not batch.done
    assert len(preferred_slice(image, rules, 100).records) == 5


# ---- AlterPartition

GOOD = PartitionAlteration(
    topic_id=TOPIC, partition=0, leader_epoch=0, partition_epoch=0, isr=(IsrMember(broker_id=1),)
)


def members(*ids: int, epoch: int | None = None) -> tuple[IsrMember, ...]:
    return tuple(IsrMember(broker_id=each, broker_epoch=epoch) for each in ids)


def alter(
    image: MetadataImage,
    *wanted: PartitionAlteration,
    sender: int = 1,
    epoch: int = 10,
    may_lead: MayLead | None = None,
):
    request = AlterPartitionRequest(broker_id=sender, broker_epoch=epoch, partitions=wanted)
    return decide_alter_partition(image, request, rules_of(image, may_lead or image.brokers.is_active))


def test_an_isr_shrinks_and_grows_and_an_equal_one_writes_nothing() -> None:
    image = cluster(placed(partition(0, (1, 2, 3), (1, 2), 1)))
    shrunk = alter(image, replace(GOOD, isr=members(1)))
    assert shrunk.records == (change(isr=(1,)),)
    assert isinstance(shrunk.response, AlterPartitionResponse)
    answer = shrunk.response.results[0]
    assert (answer.error, answer.isr, answer.partition_epoch, answer.leader_epoch) == (
        ErrorCode.NONE, (1,), 1, 0,
    )  # fmt: skip
    assert alter(image, replace(GOOD, isr=members(1, 2, 3, epoch=10))).records == (change(isr=(1, 2, 3)),)
    equal = alter(image, replace(GOOD, isr=members(2, 1)))
    assert equal.records == ()
    assert isinstance(equal.response, AlterPartitionResponse)
    assert equal.response.results[0].error is ErrorCode.NONE
    assert equal.response.results[0].isr == (1, 2)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (replace(GOOD, topic_id=b"?" * 16), ErrorCode.UNKNOWN_TOPIC_ID),
        (replace(GOOD, partition=7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (replace(GOOD, leader_epoch=1), ErrorCode.NOT_CONTROLLER),
        (replace(GOOD, partition_epoch=4), ErrorCode.NOT_CONTROLLER),
        (replace(GOOD, leader_epoch=-1), ErrorCode.FENCED_LEADER_EPOCH),
        (replace(GOOD, partition_epoch=-1), ErrorCode.INVALID_UPDATE_VERSION),
        (replace(GOOD, isr=()), ErrorCode.INVALID_REQUEST),
        (replace(GOOD, isr=members(1, 1)), ErrorCode.INVALID_REQUEST),
        (replace(GOOD, isr=members(1, 9)), ErrorCode.INVALID_REQUEST),
        (replace(GOOD, isr=members(2)), ErrorCode.INVALID_REQUEST),
        (replace(GOOD, leader_recovery_state=1), ErrorCode.INVALID_REQUEST),
        (replace(GOOD, leader_recovery_state=2), ErrorCode.INVALID_REQUEST),
        (replace(GOOD, isr=members(1, 3)), ErrorCode.INELIGIBLE_REPLICA),
        (replace(GOOD, isr=members(1, 4)), ErrorCode.INELIGIBLE_REPLICA),
        (replace(GOOD, isr=members(1, 5)), ErrorCode.INELIGIBLE_REPLICA),
        (replace(GOOD, isr=members(1, 2, epoch=9)), ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_refused_alterations_change_nothing(wanted: PartitionAlteration, code: ErrorCode) -> None:
    image = cluster(partition(0, (1, 2, 3, 4, 5), (1, 2), 1), broker(4, shutting_down=True), fenced=(3,))
    result = alter(image, wanted)
    assert isinstance(result.response, AlterPartitionResponse)
    answer = result.response.results[0]
    assert (answer.error, result.records) == (code, ())
    assert answer.message


def test_a_partition_that_is_named_twice_is_changed_once() -> None:
    image = cluster(partition(0, (1, 2), (1, 2), 1))
    result = alter(image, GOOD, GOOD)
    assert result.records == (change(isr=(1,)),)
    assert isinstance(result.response, AlterPartitionResponse)
    assert [each.error for each in result.response.results] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def test_only_the_leader_and_only_its_present_incarnation_may_alter() -> None:
    image = cluster(partition(0, (1, 2), (1, 2), 1))
    result = alter(image, GOOD, sender=2)
    assert isinstance(result.response, AlterPartitionResponse)
    assert result.response.results[0].error is ErrorCode.INVALID_REQUEST
    stale = alter(image, GOOD, epoch=9)
    assert isinstance(stale.response, ApiError) and stale.response.code is ErrorCode.STALE_BROKER_EPOCH


def test_nobody_joins_while_the_leader_recovers_and_it_recovers_once() -> None:
    image = cluster(replace_record(placed(partition(0, (1, 2), (1,), 1)), leader_recovery_state=1))
    grows = alter(image, replace(GOOD, isr=members(1, 2), leader_recovery_state=1))
    assert isinstance(grows.response, AlterPartitionResponse)
    assert grows.response.results[0].error is ErrorCode.INVALID_REQUEST
    assert alter(image, GOOD).records == (change(leader_recovery_state=0),)
    both = alter(image, replace(GOOD, isr=members(1, 2)))
    assert both.records == (change(isr=(1, 2), leader_recovery_state=0),)


def test_a_replica_whose_directory_is_not_reported_joins_and_leaves() -> None:
    """Kafka's broker with several directories does not report where a replica lies that a reassignment
    adds (3.9.0), so the reassignment would never end."""
    lies = (directory(1), UNASSIGNED, directory(3))
    moving = replace_record(partition(0, (1, 2, 3), (1, 3), 1), directories=lies, adding_replicas=(2,))
    joined = alter(cluster(moving), replace(GOOD, isr=members(1, 2, 3)))
    assert joined.records == (change(isr=(1, 2, 3), adding_replicas=()),)
    member = cluster(replace_record(partition(0, (1, 2, 3), (1, 2, 3), 1), directories=lies))
    assert alter(member, replace(GOOD, isr=members(1, 2))).records == (change(isr=(1, 2)),)


def test_a_replica_in_a_dead_directory_does_not_join() -> None:
    dead = replace_record(partition(0, (1, 2), (1,), 1), directories=(UNASSIGNED, b"gone" * 4))
    result = alter(cluster(dead), replace(GOOD, isr=members(1, 2)))
    assert isinstance(result.response, AlterPartitionResponse)
    assert result.response.results[0].error is ErrorCode.INELIGIBLE_REPLICA
    assert "directory" in (result.response.results[0].message or "")


def test_a_broker_that_is_being_fenced_does_not_join() -> None:
    """Its record comes with the last of the batches that move its partitions."""
    image = cluster(replace_record(partition(0, (1, 2), (1,), 1), directories=()))
    result = alter(image, replace(GOOD, isr=members(1, 2)), may_lead=lambda broker_id: broker_id != 2)
    assert isinstance(result.response, AlterPartitionResponse)
    (refused,) = result.response.results
    assert (refused.error, result.records) == (ErrorCode.INELIGIBLE_REPLICA, ())
    assert refused.message == "broker 2 of the new ISR is fenced: leave it out"


def test_a_leader_that_ends_its_own_reassignment_is_told_of_its_successor() -> None:
    moving = replace_record(
        placed(partition(0, (3, 1), (1,), 1)), adding_replicas=(3,), removing_replicas=(1,)
    )
    result = alter(cluster(moving), replace(GOOD, isr=members(1, 3)))
    assert isinstance(result.response, AlterPartitionResponse)
    assert result.response.results[0].error is ErrorCode.NEW_LEADER_ELECTED
    assert len(result.records) == 1


# ---- directories

HOME = b"home" * 4
OTHER = b"othr" * 4


def with_directories(*directories: bytes) -> BrokerRecord:
    return replace_broker(broker(1), log_dirs=directories)


def replace_broker(record: BrokerRecord, **fields: object) -> BrokerRecord:
    import msgspec

    return msgspec.structs.replace(record, **fields)


def assign(
    image: MetadataImage,
    *wanted: tuple[bytes, int],
    epoch: int = 10,
    topic: bytes = TOPIC,
    failing: frozenset[bytes] = frozenset(),
):
    request = AssignReplicasToDirsRequest(
        broker_id=1,
        broker_epoch=epoch,
        assignments=tuple(ReplicaAssignment(directory_id=d, topic_id=topic, partition=p) for d, p in wanted),
    )
    rules = rules_of(image, image.brokers.is_active, failing)
    return decide_assign_replicas(image, request, rules, records_max=100)


def codes(result: object) -> list[ErrorCode]:
    response = result.response
    assert isinstance(response, AssignReplicasToDirsResponse)
    return [each.error for each in response.results]


def test_a_replica_says_where_it_lies_once() -> None:
    image = cluster(with_directories(HOME, OTHER), partition(0, (1, 2), (1, 2), 1))
    result = assign(image, (HOME, 0))
    assert result.records == (change(directories=(HOME, UNASSIGNED)),)
    again = cluster(with_directories(HOME, OTHER), partition(0, (1, 2), (1, 2), 1), *result.records)
    repeat = assign(again, (HOME, 0))
    assert (codes(repeat), repeat.records) == ([ErrorCode.NONE], ())


@pytest.mark.parametrize("directory", [LOST, b"dead" * 4])
def test_a_replica_in_a_dead_directory_leaves_leadership_and_isr_in_the_same_record(directory: bytes) -> None:
    image = cluster(with_directories(HOME, OTHER), partition(0, (1, 2), (1, 2), 1))
    result = assign(image, (directory, 0))
    assert result.records == (change(isr=(2,), leader=2, directories=(directory, UNASSIGNED)),)
    failing = assign(image, (HOME, 0), failing=frozenset([HOME]))
    assert failing.records == (change(isr=(2,), leader=2, directories=(HOME, UNASSIGNED)),)
    alone = cluster(with_directories(HOME, OTHER), partition(0, (1,), (1,), 1))
    assert assign(alone, (directory, 0)).records == (change(leader=-1, directories=(directory,)),)


def test_s3_6_a_replica_whose_first_directory_failed_before_it_held_anything_leads_from_the_next() -> None:
    after = image_of(
        with_directories(HOME), TopicRecord(name="t", topic_id=TOPIC), partition(0, (1,), (1,), 1),
        change(leader=-1, directories=(LOST,)),
    )  # fmt: skip
    assert assign(after, (HOME, 0)).records == (change(leader=1, directories=(HOME,)),)


GONE = b"gone" * 4


def recreated(*replicas: int, isr: tuple[int, ...], config: tuple[object, ...] = (), leader: int = -1):
    """Broker 1's replica lay in a directory that it does not have any more."""
    lies = tuple([GONE if each == 1 else directory(each) for each in replicas])
    record = replace_record(partition(0, replicas, isr, leader), directories=lies)
    return cluster(with_directories(HOME), record, *config, fenced=(2,) if 2 not in isr else ())


def test_the_last_replica_in_sync_does_not_lead_with_nothing_after_its_disk_was_replaced() -> None:
    for replicas in ((1,), (1, 2), (2, 1)):
        image = recreated(*replicas, isr=(1,))
        result = assign(image, (HOME, 0))
        assert (codes(result), result.records) == ([ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE], ())
        assert result.response.results[0].message.startswith("broker 1 was the last in-sync replica")
        assert build(image) is None, "nor does any other election take it"


def test_a_replica_that_begins_anew_leaves_the_isr_where_others_are_in_sync() -> None:
    image = recreated(1, 2, isr=(1, 2), leader=2)
    assert assign(image, (HOME, 0)).records == (change(isr=(2,), directories=(HOME, directory(2))),)
    outside = recreated(1, 2, isr=(2,), leader=2)
    assert assign(outside, (HOME, 0)).records == (change(directories=(HOME, directory(2))),)


def test_where_unclean_elections_are_allowed_a_replica_that_begins_anew_leads_only_if_no_other_can() -> None:
    recovers = {"leader_recovery_state": 1}
    alone = assign(recreated(1, 2, isr=(1,), config=(UNCLEAN,)), (HOME, 0))
    assert alone.records == (change(leader=1, directories=(HOME, directory(2)), **recovers),)
    image = recreated(1, 3, isr=(1,), config=(UNCLEAN,))
    assert assign(image, (HOME, 0)).records == (
        change(isr=(3,), leader=3, directories=(HOME, directory(3)), **recovers),
    )


def test_an_unclean_election_on_request_takes_what_others_have_first_and_else_begins_with_nothing() -> None:
    request = ElectLeadersRequest(unclean=True, partitions=(("t", 0),))
    known = {(TOPIC, 0, 1): HOME}
    for replicas, expected in (
        ((1, 2), change(leader=1, directories=(HOME, directory(2)), leader_recovery_state=1)),
        ((1, 3), change(isr=(3,), leader=3, leader_recovery_state=1)),
    ):
        image = recreated(*replicas, isr=(1,))
        told = rules_of(image, image.brokers.is_active, recreated=known)
        assert decide_elections(image, request, told, records_max=9).records == (expected,)
        failing = frozenset([HOME])
        for recreates, fails in (({}, frozenset()), (known, failing)):
            rules = rules_of(image, image.brokers.is_active, fails, recreated=recreates)
            records = decide_elections(image, request, rules, records_max=9).records
            assert records == (() if replicas == (1, 2) else (expected,))


def test_refused_assignments() -> None:
    image = cluster(with_directories(HOME), partition(0, (1, 2), (1, 2), 1), partition(1, (2, 3), (2, 3), 2))
    result = assign(image, (HOME, 1), (HOME, 9), (UNASSIGNED, 0), (HOME, 0), (HOME, 0))
    assert codes(result) == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert codes(assign(image, (HOME, 0), topic=b"?" * 16)) == [ErrorCode.UNKNOWN_TOPIC_ID]
    stale = assign(image, (HOME, 0), epoch=9).response
    assert isinstance(stale, ApiError) and stale.code is ErrorCode.STALE_BROKER_EPOCH
    old = image_of(broker(1), TopicRecord(name="t", topic_id=TOPIC), level=16)
    early = assign(old, (HOME, 0)).response
    assert isinstance(early, ApiError) and early.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(("most", "code"), [(1, ErrorCode.NONE), (0, ErrorCode.POLICY_VIOLATION)])
def test_a_request_reports_up_to_its_limit_of_replicas(most: int, code: ErrorCode) -> None:
    image = cluster(with_directories(HOME), partition(0, (1, 2), (1, 2), 1))
    wanted = ReplicaAssignment(directory_id=HOME, topic_id=TOPIC, partition=0)
    request = AssignReplicasToDirsRequest(broker_id=1, broker_epoch=10, assignments=(wanted,))
    rules = rules_of(image, image.brokers.is_active)
    answer = decide_assign_replicas(image, request, rules, records_max=most).response
    assert (answer.code if isinstance(answer, ApiError) else answer.results[0].error) is code


@pytest.mark.parametrize(("added", "code"), [(3, ErrorCode.NONE), (4, ErrorCode.POLICY_VIOLATION)])
def test_new_partitions_have_the_replicas_that_stay_and_at_most_so_many_are_written(
    added: int, code: ErrorCode
) -> None:
    image = cluster(replace_record(partition(0, (1, 2, 3), (1, 2), 1), adding_replicas=(3,)))
    result = decide_create_partitions(
        image,
        CreatePartitionsRequest(topics=(TopicGrowth(name="t", count=1 + added),)),
        ControllerConfig(cluster_id="c", node_id=0, records_per_request_max=3),
        candidates=[UsableBroker(broker_id, None, False) for broker_id in (1, 2, 3)],
        rng=Random(1),
        allowance=Allowance(),
    )
    assert isinstance(result.response, TopicsResponse)
    assert [each.error for each in result.response.results] == [code]
    factors = [len(each.replicas) for each in result.records if isinstance(each, PartitionRecord)]
    assert factors == ([2] * added if code is ErrorCode.NONE else [])


def test_offline_replicas_are_those_of_dead_brokers_and_of_dead_directories() -> None:
    record = replace_record(
        partition(0, (1, 2, 3, 9), (2,), 2), directories=(b"dead" * 4, UNASSIGNED, UNASSIGNED, UNASSIGNED)
    )
    image = cluster(record, fenced=(3,))
    found = image.topics.partition(TOPIC, 0)
    assert found is not None
    assert offline_replicas(image.brokers, found) == (1, 3, 9)

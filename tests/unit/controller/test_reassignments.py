"""Moving replicas: the exact records of starting, replacing and cancelling, and how a move ends (KIP-455)."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.controller.partitions.partition_change import Target, build_change
from metaquorum.controller.partitions.plans import PlanError, drain, plan_size, spread
from metaquorum.controller.partitions.reassignments import decide_reassignments
from metaquorum.controller.partitions.rules import rules_of
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage, PartitionInfo
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.types import (
    BrokerRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.metadata.replay import Replayer
from metaquorum.metadata.requests.partitions import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterReassignmentsRequest,
    AlterReassignmentsResponse,
    IsrMember,
    PartitionAlteration,
    WantedReplicas,
    ongoing_reassignments,
)
from metaquorum.storage.batches.batch import iter_batches
from tests.unit.controller.node_quorum import Quorum, image_of

TOPIC = b"t" * 16


def directory(broker_id: int) -> bytes:
    return b"dir" + broker_id.to_bytes(13, "big")


def directories(*brokers: int) -> tuple[bytes, ...]:
    return tuple([directory(one) for one in brokers])


def image_with(partition: PartitionRecord, *more: object, fenced: tuple[int, ...] = ()) -> MetadataImage:
    brokers = [
        BrokerRecord(one, bytes([one + 1]) * 16, 7, fenced=one in fenced, log_dirs=(directory(one),))
        for one in range(6)
    ]
    return image_of(*brokers, TopicRecord("t", TOPIC), partition, *more)


def plain(*replicas: int, **changes: object) -> PartitionRecord:
    fields: dict[str, object] = {
        "isr": replicas,
        "leader": replicas[0],
        "leader_epoch": 0,
        "partition_epoch": 0,
        "directories": directories(*replicas),
    }
    return PartitionRecord(0, TOPIC, replicas, **{**fields, **changes})  # type: ignore[arg-type]


def decide(
    image: MetadataImage, replicas: tuple[int, ...] | None, **changes: object
) -> tuple[list[object], ErrorCode, str]:
    request = AlterReassignmentsRequest(
        wanted=(WantedReplicas(topic="t", partition=0, replicas=replicas),),
        **changes,  # type: ignore[arg-type]
    )
    result = decide_reassignments(image, request, rules_of(image, image.brokers.is_active), records_max=100)
    assert isinstance(result.response, AlterReassignmentsResponse)
    (one,) = result.response.results
    return list(result.records), one.error, one.message or ""


def test_new_replicas_are_added_first_and_old_ones_stay_until_then() -> None:
    records, error, _ = decide(image_with(plain(1, 2, 3)), (4, 2, 5))
    assert error is ErrorCode.NONE
    assert records == [
        PartitionChangeRecord(
            0,
            TOPIC,
            replicas=(4, 2, 5, 1, 3),
            adding_replicas=(4, 5),
            removing_replicas=(1, 3),
            directories=directories(4, 2, 5, 1, 3),
        )
    ]


def test_another_order_is_there_at_once() -> None:
    records, _, _ = decide(image_with(plain(1, 2, 3)), (3, 2, 1))
    assert records == [PartitionChangeRecord(0, TOPIC, replicas=(3, 2, 1), directories=directories(3, 2, 1))]


def test_fewer_replicas_are_there_at_once_and_the_leader_moves_if_it_left() -> None:
    records, _, _ = decide(image_with(plain(1, 2, 3)), (3, 2))
    assert records == [
        PartitionChangeRecord(0, TOPIC, isr=(2, 3), leader=3, replicas=(3, 2), directories=directories(3, 2))
    ]


def test_what_is_already_so_changes_nothing() -> None:
    assert decide(image_with(plain(1, 2, 3)), (1, 2, 3)) == ([], ErrorCode.NONE, "")


def test_replacing_drops_what_the_earlier_move_was_adding() -> None:
    moving = plain(
        4,
        2,
        1,
        isr=(1, 2, 4),
        leader=1,
        adding_replicas=(4,),
        removing_replicas=(1,),
    )
    records, _, _ = decide(image_with(moving), (5, 2))
    assert records == [
        PartitionChangeRecord(
            0,
            TOPIC,
            isr=(1, 2),
            leader=1,
            replicas=(5, 2, 1),
            adding_replicas=(5,),
            directories=directories(5, 2, 1),
        )
    ]


def test_cancelling_returns_to_what_it_was() -> None:
    moving = plain(4, 2, 1, isr=(1, 2, 4), leader=4, adding_replicas=(4,), removing_replicas=(1,))
    records, _, _ = decide(image_with(moving), None)
    assert records == [
        PartitionChangeRecord(
            0,
            TOPIC,
            isr=(1, 2),
            leader=2,
            replicas=(2, 1),
            adding_replicas=(),
            removing_replicas=(),
            directories=directories(2, 1),
        )
    ]


def test_a_move_that_only_takes_replicas_away_can_be_cancelled() -> None:
    waiting = plain(1, 2, 3, isr=(1, 3), removing_replicas=(3,))
    records, error, _ = decide(image_with(waiting), None)
    assert error is ErrorCode.NONE
    assert records == [PartitionChangeRecord(0, TOPIC, removing_replicas=())]


def test_cancelling_loses_nothing_unless_that_is_allowed() -> None:
    moving = plain(4, 2, isr=(4,), leader=4, adding_replicas=(4,))
    records, error, text = decide(image_with(moving), None)
    assert (records, error) == ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    assert "unclean.leader.election.enable" in text
    allowed = ConfigRecord(2, "t", "unclean.leader.election.enable", "true")
    records, error, _ = decide(image_with(moving, allowed), None)
    assert error is ErrorCode.NONE
    assert records == [
        PartitionChangeRecord(
            0,
            TOPIC,
            isr=(2,),
            leader=2,
            replicas=(2,),
            adding_replicas=(),
            leader_recovery_state=1,
            directories=directories(2),
        )
    ]
    records, error, text = decide(image_with(moving, allowed, fenced=(2,)), None)
    assert (records, error) == ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT) and "start one of [2]" in text


@pytest.mark.parametrize(
    ("replicas", "error", "says"),
    [
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "is empty"),
        ((1, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9, which is not registered"),
        ((1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "twice"),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "nothing to cancel"),
    ],
)
def test_refusals(replicas: tuple[int, ...] | None, error: ErrorCode, says: str) -> None:
    records, found, text = decide(image_with(plain(1, 2, 3)), replicas)
    assert (records, found) == ([], error) and says in text


def test_the_factor_may_be_kept_and_a_dry_run_writes_nothing() -> None:
    image = image_with(plain(1, 2, 3))
    _, error, _ = decide(image, (1, 2), allow_replication_factor_change=False)
    assert error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert decide(image, (1, 2, 4), validate_only=True) == ([], ErrorCode.NONE, "")


def test_unknown_and_repeated_partitions_and_too_many() -> None:
    image = image_with(plain(1, 2, 3))
    names = [("t", 0), ("t", 0), ("t", 1), ("u", 0)]
    wanted = tuple([WantedReplicas(topic=topic, partition=at, replicas=(1,)) for topic, at in names])
    rules = rules_of(image, image.brokers.is_active)
    request = AlterReassignmentsRequest(wanted=wanted)
    result = decide_reassignments(image, request, rules, records_max=4)
    assert isinstance(result.response, AlterReassignmentsResponse) and len(result.records) == 1
    assert [one.error for one in result.response.results] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    refused = decide_reassignments(image, request, rules, records_max=3)
    assert isinstance(refused.response, AlterReassignmentsResponse) and not refused.records
    assert {one.error for one in refused.response.results} == {ErrorCode.POLICY_VIOLATION}


# ---- through a quorum: ends by events, survives deaths -------------------------------------------


def alter_isr(quorum: Quorum, topic: bytes, *isr: int) -> None:
    now = quorum.partition(topic)
    epochs = {one: quorum.image().brokers[one].epoch for one in (*isr, now.leader)}
    answer = quorum.call(
        AlterPartitionRequest(
            broker_id=now.leader,
            broker_epoch=epochs[now.leader],
            partitions=(
                PartitionAlteration(
                    topic_id=topic,
                    partition=0,
                    leader_epoch=now.leader_epoch,
                    partition_epoch=now.partition_epoch,
                    isr=tuple([IsrMember(broker_id=one, broker_epoch=epochs[one]) for one in isr]),
                ),
            ),
        )
    )
    assert isinstance(answer, AlterPartitionResponse), answer


def moving_quorum() -> tuple[Quorum, bytes]:
    """Partition t-0 moves from brokers 1, 2 to 3, 2."""
    quorum = Quorum()
    quorum.elect()
    for broker_id in (1, 2, 3):
        quorum.start_broker(broker_id)
    topic = quorum.create("t", (1, 2))
    wanted = (WantedReplicas(topic="t", partition=0, replicas=(3, 2)),)
    answer = quorum.call(AlterReassignmentsRequest(wanted=wanted))
    assert isinstance(answer, AlterReassignmentsResponse), answer
    assert answer.results[0].error is ErrorCode.NONE
    return quorum, topic


def test_it_ends_when_the_isr_holds_the_target_and_the_leader_moves() -> None:
    quorum, topic = moving_quorum()
    (under_way,) = ongoing_reassignments(quorum.image())
    assert (under_way.replicas, under_way.adding, under_way.removing) == ((3, 2, 1), (3,), (1,))
    assert under_way.waiting_for == (3,)
    alter_isr(quorum, topic, 1, 2, 3)
    now = quorum.partition(topic)
    assert (now.replicas, now.isr, now.adding, now.removing) == ((3, 2), (2, 3), (), ())
    assert now.leader == 3 and now.leader_epoch == 1
    assert now.directories == directories(3, 2)
    assert list(ongoing_reassignments(quorum.image())) == []


def test_the_death_of_the_leader_that_leaves_does_not_end_it() -> None:
    quorum, topic = moving_quorum()
    quorum.beat_for(12_000, 2, 3)
    now = quorum.partition(topic)
    assert (now.isr, now.leader, now.adding, now.removing) == ((2,), 2, (3,), (1,))
    alter_isr(quorum, topic, 2, 3)
    now = quorum.partition(topic)
    assert (now.replicas, now.isr, now.leader, now.adding, now.removing) == ((3, 2), (2, 3), 2, (), ())


def test_the_death_of_the_newcomer_leaves_it_open_until_it_is_cancelled() -> None:
    quorum, topic = moving_quorum()
    quorum.beat_for(12_000, 1, 2)
    assert [one.waiting_for for one in ongoing_reassignments(quorum.image())] == [(3,)]
    cancel = (WantedReplicas(topic="t", partition=0, replicas=None),)
    quorum.call(AlterReassignmentsRequest(wanted=cancel))
    now = quorum.partition(topic)
    assert (set(now.replicas), now.isr, now.leader, now.adding, now.removing) == ({1, 2}, (1, 2), 1, (), ())


# ---- plans ---------------------------------------------------------------------------------------


def test_draining_replaces_the_broker_in_its_place_by_the_least_loaded_one_of_a_free_rack() -> None:
    racks = {1: "a", 2: "b", 3: "c", 4: "c", 5: "a"}
    current = {("t", 0): (1, 2, 3), ("t", 1): (3, 1, 5), ("u", 0): (4, 2, 1)}
    planned = drain(current, racks, 3)
    assert planned == {("t", 0): (1, 2, 4), ("t", 1): (4, 1, 5)} or planned == {
        ("t", 0): (1, 2, 4),
        ("t", 1): (2, 1, 5),
    }
    assert all(3 not in replicas for replicas in planned.values())
    assert plan_size(current, planned).replicas == 2


def test_draining_without_a_broker_to_go_to_says_so() -> None:
    with pytest.raises(PlanError, match="no broker remains for t-0"):
        drain({("t", 0): (1, 2)}, {1: None, 2: None}, 1)


def test_spreading_looks_at_a_partition_a_few_times_however_many_there_are() -> None:
    looks = 0

    class Name(tuple[str, int]):
        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return super().__hash__()

    # Whatever moved to broker 3 is passed over whenever another partition is looked for.
    current = {Name(("t", n)): (n % 3, (n + 1) % 3, (n + 2) % 3) for n in range(1_000)}
    looks = 0
    planned = spread(current, dict.fromkeys(range(4)))
    assert len(planned) == 750
    assert looks < 20 * len(current)


def test_spreading_moves_as_little_as_it_takes_and_crowds_no_rack() -> None:
    racks = {1: "a", 2: "b", 3: "a", 4: "b"}
    current = {("t", at): (1, 2) for at in range(8)}
    planned = spread(current, racks)
    after = {**current, **planned}
    counts = [sum(one in replicas for replicas in after.values()) for one in racks]
    assert counts == [4, 4, 4, 4] and plan_size(current, planned).replicas == 8
    assert all(racks[a] != racks[b] for a, b in after.values())
    assert spread(after, racks) == {} and spread({}, racks) == {} and spread(current, {}) == {}


# Reassignments in a log of Apache Kafka 3.7: started, ended and cancelled with the same records.


LOG = "kafka-3.7/controller-3000/__cluster_metadata-0/00000000000000000000.log"


def said(change: PartitionChangeRecord) -> tuple[object, ...]:
    """A change without what Kafka's brokers and ours place differently: the directories of new replicas."""
    return (
        change.isr if change.isr is None else frozenset(change.isr),
        change.leader,
        change.replicas,
        change.adding_replicas,
        change.removing_replicas,
        change.leader_recovery_state,
    )


def is_cancellation(before: PartitionInfo, change: PartitionChangeRecord) -> bool:
    """Whether the replicas that were being added are gone after the change."""
    named = change.replicas is not None and bool(before.adding)
    return named and set(before.adding).isdisjoint(change.replicas or ())


def ours(image: MetadataImage, before: PartitionInfo, theirs: PartitionChangeRecord) -> object:
    """What this controller writes in the place of `theirs`."""
    rules = rules_of(image, image.brokers.is_active)
    cancels = is_cancellation(before, theirs)
    ends = not cancels and (theirs.adding_replicas == () or theirs.removing_replicas == ())
    if ends:
        # A leader said who is in sync, and with that the reassignment was over.
        leaving = set(before.removing) & set(before.isr)
        isr = (*(theirs.isr or before.isr), *leaving)
        return build_change(before, Target(isr=isr), rules)
    info = image.topics.topic(before.topic_id)
    assert info is not None and theirs.replicas is not None
    target = tuple([one for one in theirs.replicas if one not in (theirs.removing_replicas or ())])
    wanted = WantedReplicas(topic=info.name, partition=before.index, replicas=None if cancels else target)
    result = decide_reassignments(image, AlterReassignmentsRequest(wanted=(wanted,)), rules, records_max=10)
    (record,) = result.records
    return record


@pytest.mark.shared_data
def test_the_same_records_as_kafka(shared_data: Path) -> None:
    data = (shared_data / LOG).read_bytes()
    engine = Replayer()
    kinds: dict[str, int] = {"started": 0, "ended": 0, "cancelled": 0}
    for batch in iter_batches(data):
        image = engine.state().newest if not batch.header.is_control else None
        for decoded in decode_batch(batch) if image is not None else ():
            change = decoded.record
            if not isinstance(change, PartitionChangeRecord) or image is None:
                continue
            before = image.topics.partition(change.topic_id, change.partition_id)
            if (change.adding_replicas is None and change.removing_replicas is None) or before is None:
                continue
            mine = ours(image, before, change)
            assert isinstance(mine, PartitionChangeRecord), (decoded.offset, change, before)
            assert said(mine) == said(change), decoded.offset
            fresh = bool(change.adding_replicas or change.removing_replicas)
            cancelled = is_cancellation(before, change)
            kinds["started" if fresh else "cancelled" if cancelled else "ended"] += 1
        engine.apply_batch(batch)
    assert kinds["started"] > 2 and kinds["ended"] > 2 and kinds["cancelled"] == 2, kinds

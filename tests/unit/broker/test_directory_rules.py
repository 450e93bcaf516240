"""KIP-112's and KIP-858's rules about log directories, each by its own name, with the exact effects."""

from __future__ import annotations

from typing import get_args

import pytest

from metaquorum.broker.channel import SendToController
from metaquorum.broker.replica.disk_work import (
    AbandonDirectory,
    CheckpointHighWatermarks,
    CreateReplica,
    DirectoryMeasured,
    DiskWork,
    EnforceRetention,
    RemoveReplica,
)
from metaquorum.broker.replica.events import OfflineDirectoriesChanged
from metaquorum.broker.replica.partition.values import ReplicaRole
from metaquorum.broker.replica.placement.directories import Directories
from metaquorum.broker.replica.placement.reconcile import (
    Assign,
    Create,
    Damaged,
    Offline,
    Remove,
    Run,
    Wait,
    decide,
)
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import LOST, MIGRATING, NO_LEADER, UNASSIGNED, PartitionInfo
from metaquorum.metadata.image.directories import NOT_FOUND, damaged_in, given_up_in
from metaquorum.metadata.requests.data import (
    DescribeLogDirsRequest,
    MarkLogDirOfflineRequest,
    MarkLogDirOfflineResponse,
    ProducePartition,
    ProduceRequest,
)
from metaquorum.metadata.requests.partitions import AssignReplicasToDirsRequest, ReplicaAssignment
from metaquorum.raft.effects import Warn
from metaquorum.raft.events import Stop
from metaquorum.storage.batches.batch import Batches
from tests.controllers import reported, unanswered
from tests.unit.broker.manager_world import (
    ELSEWHERE,
    ME,
    A,
    B,
    C,
    Cluster,
    Host,
    answer_to,
    found,
    key_of,
    of_kind,
    only,
    topic_id,
)
from tests.unit.broker.replica_world import batch

GONE = b"g" * 16


def placed(place: bytes, replicas: tuple[int, ...] = (1, 2), leader: int = 2) -> PartitionInfo:
    return PartitionInfo(
        topic_id=topic_id("t"),
        index=0,
        replicas=replicas,
        isr=replicas,
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        leader_recovery_state=0,
        directories=tuple(place if each == ME else ELSEWHERE for each in replicas),
    )


DAMAGED, GIVEN_UP = damaged_in(A), given_up_in(A)
IN_A = {"damaged": [A]}
GOOD = (found(A), found(B))
ONE_BAD = (found(A), found(B, problem="EIO"))
UNREADABLE = (found(A), found(None, problem="no meta.properties"))


@pytest.mark.parametrize(
    ("place", "copies", "directories", "facts", "expected"),
    [
        (UNASSIGNED, [], GOOD, {}, Create(None)),
        (UNASSIGNED, [A], GOOD, {}, Assign(A)),
        (UNASSIGNED, [], ONE_BAD, {}, Create(None)),
        (UNASSIGNED, [], ONE_BAD, {"owes_lost": True}, Wait),
        (LOST, [], ONE_BAD, {}, Create(None)),
        (LOST, [B], GOOD, {}, Assign(B)),
        (A, [A], GOOD, {}, Run(A)),
        (A, [A, B], GOOD, {}, Run(A)),
        (A, [A], ONE_BAD, {}, Run(A)),
        (A, [], GOOD, {}, Create(A)),
        (A, [], ONE_BAD, {}, Offline),
        (A, [], ONE_BAD, {"is_new": True}, Create(A)),
        (A, [B], GOOD, {}, Assign(B)),
        (B, [], ONE_BAD, {}, Offline),
        (B, [A], ONE_BAD, {}, Offline),
        (B, [], ONE_BAD, {"is_new": True}, Offline),
        (GONE, [], GOOD, {}, Create(None, replaces=True)),
        (GONE, [], ONE_BAD, {}, Offline),
        (GONE, [], UNREADABLE, {}, Offline),
        (GONE, [A], UNREADABLE, {}, Offline),
        (GONE, [A], GOOD, {}, Assign(A)),
        (MIGRATING, [A], GOOD, {}, Assign(A)),
        (MIGRATING, [], GOOD, {}, Create(None)),
        (MIGRATING, [], ONE_BAD, {}, Offline),
        (NOT_FOUND, [], ONE_BAD, {}, Offline),
        (NOT_FOUND, [A], ONE_BAD, {}, Offline),
        (NOT_FOUND, [B], GOOD, {}, Assign(B)),
        (NOT_FOUND, [], GOOD, {}, Create(None, replaces=True)),
        (MIGRATING, [A], GOOD, {"can_assign": False}, Run(A)),
        (MIGRATING, [], GOOD, {"can_assign": False}, Create(None)),
        (MIGRATING, [], ONE_BAD, {"can_assign": False}, Offline),
        (MIGRATING, [], ONE_BAD, {"can_assign": False, "is_new": True}, Create(None)),
        (A, [], GOOD, IN_A, Damaged(A, DAMAGED)),
        (A, [], ONE_BAD, IN_A, Damaged(A, DAMAGED)),
        (A, [B], GOOD, IN_A, Damaged(A, DAMAGED)),
        (A, [], GOOD, {**IN_A, "is_new": True}, Damaged(A, DAMAGED)),
        (B, [B], GOOD, IN_A, Run(B)),
        (UNASSIGNED, [], GOOD, IN_A, Damaged(A, DAMAGED)),
        (MIGRATING, [], GOOD, IN_A, Damaged(A, DAMAGED)),
        (LOST, [], ONE_BAD, {**IN_A, "owes_lost": True}, Wait),
        (UNASSIGNED, [B], GOOD, IN_A, Assign(B)),
        (DAMAGED, [], GOOD, {**IN_A, "leader": 2}, Damaged(A, GIVEN_UP)),
        (DAMAGED, [B], GOOD, {**IN_A, "leader": 2}, Damaged(A, GIVEN_UP)),
        (DAMAGED, [], GOOD, {**IN_A, "leader": NO_LEADER}, Damaged(A, None)),
        (DAMAGED, [B], GOOD, {**IN_A, "leader": NO_LEADER}, Damaged(A, None)),
        (DAMAGED, [A], GOOD, {}, Assign(A)),
        (DAMAGED, [A], ONE_BAD, {"leader": NO_LEADER}, Assign(A)),
        (DAMAGED, [], GOOD, {"leader": NO_LEADER}, Damaged(A, GIVEN_UP)),
        (DAMAGED, [B], GOOD, {"leader": NO_LEADER}, Damaged(A, GIVEN_UP)),
        (DAMAGED, [], (found(A, problem="EIO"), found(B)), {}, Offline),
        (DAMAGED, [], (found(B),), {}, Create(None, replaces=True)),
        (GIVEN_UP, [], GOOD, {}, Create(A, replaces=True)),
        (GIVEN_UP, [], ONE_BAD, IN_A, Create(A, replaces=True)),
        (GIVEN_UP, [B, A], GOOD, {}, Assign(A)),
        (GIVEN_UP, [B], GOOD, {}, Assign(B)),
        (GIVEN_UP, [], (found(A, problem="EIO"), found(B)), {}, Offline),
        (GIVEN_UP, [], (found(B),), {}, Create(None, replaces=True)),
    ],
)
def test_what_becomes_of_a_replica(place, copies, directories, facts, expected) -> None:
    facts = dict(facts)
    info = placed(place, leader=facts.pop("leader", 2))
    decision = decide(info, broker_id=ME, copies=copies, directories=Directories(directories), **facts)
    if isinstance(expected, type):
        assert type(decision) is expected, decision
    else:
        assert decision == expected


def test_what_the_image_does_not_place_here_goes() -> None:
    directories = Directories(GOOD)
    gone = decide(None, broker_id=ME, copies=[A], directories=directories)
    moved = decide(placed(A, replicas=(2, 3)), broker_id=ME, copies=[A], directories=directories)
    assert isinstance(gone, Remove) and isinstance(moved, Remove)
    assert "[2, 3]" in moved.reason


# ---- creation and assignment ---------------------------------------------------------------------


def test_s3_7_a_new_replica_is_created_on_the_good_directory_with_the_fewest() -> None:
    cluster = Cluster()
    old = [("old", 0), ("old", 1)]
    host = Host(cluster, found(A, old), found(B, [("old", 2)]), found(C, problem="EIO"))
    cluster.topic("old", partitions=2, place=A)
    cluster.topic("more", place=UNASSIGNED)
    host.publish()
    key = cluster.topic("new", partitions=2)
    created = of_kind(host.publish(), CreateReplica)
    # "more" went to B beside the stray "old"-2, which is on its way out. B has one then, A two, and of two
    # directories with as many the first of the configuration is taken.
    assert [(each.directory_id, each.key) for each in created] == [(B, key), (A, (key[0], 1))]


def test_s3_6_it_neither_leads_nor_follows_before_its_directory_is_committed() -> None:
    cluster = Cluster()
    key = cluster.topic("t", leader=ME)
    host = Host(cluster)
    assert only(host.publish(), CreateReplica).directory_id == A
    asked = only(host.work(), SendToController)
    assert asked.request == AssignReplicasToDirsRequest(
        broker_id=ME,
        broker_epoch=101,
        assignments=(ReplicaAssignment(directory_id=A, topic_id=key[0], partition=0),),
    )
    assert host.manager.partitions == {}
    host.answer_controller([asked])
    assert host.manager.partitions == {}, "acknowledged is not committed as far as this broker has read"
    assert _produce_error(host, key) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.change(key, place=A)
    host.publish()
    assert host.manager.partitions[key].role is ReplicaRole.LEADER


def test_assignments_are_batched_and_one_request_is_in_flight() -> None:
    cluster = Cluster()
    cluster.topic("t", partitions=5)
    host = Host(cluster)
    host.publish()
    asked = of_kind(host.work(), SendToController)
    sizes = [len(each.request.assignments) for each in asked]  # type: ignore[union-attr]
    assert sizes == [1], "the first goes at once, the others wait for its answer"
    rest = only(host.answer_controller(asked), SendToController)
    assert [each.partition for each in rest.request.assignments] == [1, 2, 3, 4]  # type: ignore[union-attr]


@pytest.mark.parametrize(("epoch", "again"), [(101, False), (102, True), (250, True)])
def test_a_new_registration_is_told_again_what_the_one_before_was(epoch: int, again: bool) -> None:
    cluster = Cluster()
    cluster.topic("t")
    host = Host(cluster)
    host.publish()
    asked = only(host.work(), SendToController)
    host.answer_controller([asked])
    told = of_kind(host.publish(broker_epoch=epoch), SendToController)
    assert [each.request.broker_epoch for each in told] == ([epoch] if again else [])  # type: ignore[union-attr]


def test_an_assignment_that_failed_is_sent_again_after_a_while() -> None:
    cluster = Cluster()
    cluster.topic("t")
    host = Host(cluster)
    host.publish()
    first = only(host.work(), SendToController)
    assert host.do(unanswered(first)) == []
    due_ms = host.manager.next_deadline_ms()
    assert due_ms is not None and host.now_ms < due_ms <= host.now_ms + 50
    again = only(host.tick(50), SendToController)
    assert again.request == first.request and again.correlation_id != first.correlation_id


def test_a_request_that_nobody_reports_on_is_sent_again() -> None:
    cluster = Cluster()
    cluster.topic("t")
    host = Host(cluster)
    host.publish()
    first = only(host.work(), SendToController)
    assert of_kind(host.tick(999), SendToController) == []
    host.tick(1)
    again = only(host.tick(100), SendToController)
    assert again.request == first.request


def test_s3_8_a_missing_replica_is_created_in_its_directory_only_while_none_is_bad() -> None:
    cluster = Cluster()
    key = cluster.topic("t", place=A)
    assert only(Host(cluster).publish(), CreateReplica).directory_id == A
    host = Host(cluster, found(A), found(B, problem="EIO"))
    assert of_kind(host.publish(), CreateReplica) == []
    assert _produce_error(host, key) is ErrorCode.KAFKA_STORAGE_ERROR


def test_s3_5_what_the_log_begins_to_place_here_is_new_even_with_a_bad_directory() -> None:
    """The controller names the one directory that is left at once: no broker's guess is needed."""
    cluster = Cluster()
    host = Host(cluster, found(A), found(B, problem="EIO"))
    host.publish()
    key = cluster.topic("t", place=A)
    assert only(host.publish(), CreateReplica).directory_id == A
    host.work()
    assert host.manager.partitions[key].role is ReplicaRole.LEADER


def test_s3_16_at_the_start_with_a_bad_directory_the_others_serve() -> None:
    cluster = Cluster()
    here, there = cluster.topic("here", place=A), cluster.topic("there", place=B)
    host = Host(cluster, found(A, [("here", 0)]), found(B, problem="EIO"))
    assert [each.message for each in of_kind(host.start(), Warn)] == ["log directory /data/b is offline: EIO"]
    assert host.manager.offline_directories == (B,)
    assert of_kind(host.publish(), CreateReplica) == []
    assert set(host.manager.partitions) == {here}
    assert _produce_error(host, there) is ErrorCode.KAFKA_STORAGE_ERROR


def test_s3_3_without_a_good_directory_it_stops() -> None:
    host = Host(Cluster(), found(A, problem="EIO"), found(None, problem="unreadable"))
    stop = only(host.start(), Stop)
    assert stop.failed and "/data/a (EIO)" in stop.reason and "/data/x (unreadable)" in stop.reason


# ---- failures while it runs ----------------------------------------------------------------------


def test_step_17_of_the_data_of_kafka_3_7_a_failed_directory_is_not_made_up_for_in_another() -> None:
    """In step 17 of the recorded cluster (the README of the data, kafka-3.7) broker 0 lost a directory, and
    Kafka 3.7.0 made all 26 replicas anew in the remaining one within 1.2 s, while the log named the lost one.
    S3.6 forbids that: nothing is created, and nothing joins an ISR again."""
    cluster = Cluster()
    keys = [cluster.topic(f"t{n:02}", place=A, leader=ME if n % 2 else 2) for n in range(26)]
    host = Host(cluster, found(A, [(f"t{n:02}", 0) for n in range(26)]), found(B))
    host.publish()
    assert len(host.manager.partitions) == 26
    effects = host.fail(A)
    for key in keys:
        cluster.change(key, isr=(2, 3), leader=2)
    effects += host.publish() + host.work()
    for _ in range(10):
        effects += host.tick(1_000)
    assert of_kind(effects, CreateReplica) == []
    assert of_kind(effects, SendToController) == [], (
        "no replica is assigned elsewhere, and no ISR is asked for"
    )
    assert host.manager.partitions == {}
    assert host.manager.status().offline == 26
    assert {_produce_error(host, key) for key in keys} == {ErrorCode.KAFKA_STORAGE_ERROR}


def test_s3_1_s3_35_a_failure_touches_the_replicas_of_its_directory_only() -> None:
    cluster = Cluster()
    lost, kept = cluster.topic("lost", place=A), cluster.topic("kept", place=B)
    host = Host(cluster, found(A, [("lost", 0)]), found(B, [("kept", 0)]))
    host.publish()
    before = host.manager.partitions[kept]
    effects = host.fail(A, "disk on fire")
    assert effects[0] == AbandonDirectory(directory_id=A)
    assert only(effects, OfflineDirectoriesChanged).directories == (A,)
    assert "disk on fire" in only(effects, Warn).message
    assert host.manager.partitions == {kept: before} and before.role is ReplicaRole.LEADER
    assert _produce_error(host, lost) is ErrorCode.KAFKA_STORAGE_ERROR
    assert host.fail(A) == [], "it fails once"


def test_nothing_is_asked_of_a_directory_that_failed() -> None:
    """Its high watermarks had moved, its retention was due, its logs had something to store."""
    cluster = Cluster()
    lost, kept = cluster.topic("lost", place=A, replicas=(1,)), cluster.topic("kept", place=B, replicas=(1,))
    host = Host(cluster, found(A, [("lost", 0)]), found(B, [("kept", 0)]))
    host.publish()
    for key in (lost, kept):
        parts = (ProducePartition(key=key, batch=Batches.arrived(batch())),)
        host.ask(ProduceRequest(acks=-1, timeout_ms=1_000, partitions=parts), key)
    host.work()
    effects = host.fail(A)[1:]
    for _ in range(10):
        effects += host.tick(60_000)
    asked = [each for each in effects if isinstance(each, get_args(DiskWork))]
    assert {each.directory_id for each in asked} == {B}
    assert of_kind(asked, CheckpointHighWatermarks) and of_kind(asked, EnforceRetention)


def test_s3_4_new_replicas_go_to_good_directories_after_a_failure() -> None:
    cluster = Cluster()
    host = Host(cluster)
    host.publish()
    host.fail(A)
    cluster.topic("t", partitions=3)
    assert {each.directory_id for each in of_kind(host.publish(), CreateReplica)} == {B}


def test_s3_6_a_directory_that_fails_before_the_assignment_is_reported_lost_first() -> None:
    cluster = Cluster()
    key = cluster.topic("t")
    host = Host(cluster)
    host.publish()
    assigned = only(host.work(), SendToController)
    effects = host.fail(A)
    assert of_kind(effects, CreateReplica) == []
    refused = ApiError(ErrorCode.NETWORK_EXCEPTION, "the answer got lost")
    host.do(reported(assigned, refused))
    lost = only(host.tick(100), SendToController)
    assert lost.request.assignments == (  # type: ignore[union-attr]
        ReplicaAssignment(directory_id=LOST, topic_id=key[0], partition=0),
    ), "what it supersedes is not sent again"
    assert of_kind(host.publish(), CreateReplica) == [], "nothing is made anew before the acknowledgement"
    after = host.answer_controller([lost])
    assert only(after, CreateReplica).directory_id == B
    cluster.change(key, place=LOST)
    host.publish()
    again = only(host.work(), SendToController)
    assert again.request.assignments[0].directory_id == B  # type: ignore[union-attr]


def test_s3_6_losses_that_nobody_acknowledges_end_the_broker() -> None:
    cluster = Cluster()
    cluster.topic("t")
    host = Host(cluster, log_dir_assignment_timeout_ms=5_000)
    host.publish()
    host.work()
    host.fail(A)
    assert of_kind(host.tick(4_999), Stop) == []
    assert host.manager.next_deadline_ms() is not None
    stop = only(host.tick(1), Stop)
    assert stop.failed and "log.dir.failure.timeout.ms" in stop.reason


def test_an_assignment_that_was_committed_after_all_is_a_failed_directory_like_any_other() -> None:
    cluster = Cluster()
    key = cluster.topic("t")
    host = Host(cluster, log_dir_assignment_timeout_ms=5_000)
    host.publish()
    host.work()
    host.fail(A)
    cluster.change(key, place=A)
    effects = host.publish() + host.tick(6_000) + host.tick(6_000)
    assert of_kind(effects, CreateReplica) == [] and of_kind(effects, Stop) == []
    assert _produce_error(host, key) is ErrorCode.KAFKA_STORAGE_ERROR


def test_s3_3_the_last_directory_ends_the_broker() -> None:
    host = Host(Cluster())
    host.publish()
    assert of_kind(host.fail(A), Stop) == []
    stop = only(host.fail(B, "gone too"), Stop)
    assert stop.failed and "gone too" in stop.reason


def test_the_directory_of_the_metadata_log_ends_the_broker() -> None:
    host = Host(Cluster(), metadata_directory=B)
    host.publish()
    assert of_kind(host.fail(A), Stop) == []
    other = Host(Cluster(), metadata_directory=A)
    assert "metadata log" in only(other.fail(A), Stop).reason


def test_s3_39_an_operator_marks_a_directory_offline() -> None:
    cluster = Cluster()
    key = cluster.topic("t", place=A)
    host = Host(cluster, found(A, [("t", 0)]), found(B))
    host.publish()
    host.serving = False
    effects = host.ask(MarkLogDirOfflineRequest(path="/data/a/"))
    assert answer_to(effects) == MarkLogDirOfflineResponse(directory_id=A, was_offline=False)
    assert only(effects, OfflineDirectoriesChanged).directories == (A,)
    assert answer_to(host.ask(MarkLogDirOfflineRequest(directory_id=A))).was_offline is True
    unknown = answer_to(host.ask(MarkLogDirOfflineRequest(path="/nowhere")))
    assert unknown.code is ErrorCode.LOG_DIR_NOT_FOUND and "/data/b" in unknown.message
    host.serving = True
    assert _produce_error(host, key) is ErrorCode.KAFKA_STORAGE_ERROR


# ---- what is left over, gone or replaced ---------------------------------------------------------


def test_s2_4_strays_go_only_when_the_image_has_caught_up() -> None:
    host = Host(Cluster(), found(A, [("stray", 0)]), found(B))
    assert of_kind(host.start() + host.tick(60_000), RemoveReplica) == []
    removed = only(host.publish(), RemoveReplica)
    assert (removed.directory_id, removed.key) == (A, key_of("stray"))


def test_s3_21_a_deletion_is_finished_when_the_directory_returns() -> None:
    cluster = Cluster()
    key = cluster.topic("t", place=A)
    host = Host(cluster, found(A, [("t", 0)]), found(B))
    host.publish()
    host.fail(A)
    cluster.delete(key)
    assert of_kind(host.publish(), RemoveReplica) == []
    assert _produce_error(host, key) is ErrorCode.UNKNOWN_TOPIC_ID
    returned = Host(cluster, found(A, [("t", 0)]), found(B))
    assert only(returned.publish(), RemoveReplica).directory_id == A


def test_s3_17_a_repaired_directory_goes_on_with_what_it_holds() -> None:
    cluster = Cluster()
    key = cluster.topic("t", place=A, leader=2)
    host = Host(cluster, found(A, [("t", 0)], end=7), found(B))
    effects = host.publish()
    assert of_kind(effects, CreateReplica) == []
    assert host.manager.partitions[key].end_offset == 7


def test_s3_29_a_directory_taken_out_of_the_configuration_is_made_up_for() -> None:
    cluster = Cluster()
    key = cluster.topic("t", place=GONE, leader=2)
    host = Host(cluster)
    assert only(host.publish(), CreateReplica).directory_id == A
    asked = only(host.work(), SendToController)
    assert asked.request.assignments[0].directory_id == A  # type: ignore[union-attr]
    assert key not in host.manager.partitions
    cluster.change(key, place=A)
    host.publish()
    assert host.manager.partitions[key].role is ReplicaRole.FOLLOWER


def test_s3_29_nothing_is_made_up_for_without_room_until_there_is_some() -> None:
    """The usual replica here has 1000 bytes, and nine tenths of what is free may be promised: two fit."""
    cluster = Cluster()
    cluster.topic("t", place=A)
    cluster.topic("gone", partitions=3, place=GONE, leader=2)
    host = Host(cluster, found(A, [("t", 0)], size_bytes=1_000, usable_bytes=2_300))
    effects = host.publish()
    assert len(of_kind(effects, CreateReplica)) == 2
    assert "no log directory has room for" in only(effects, Warn).message
    assert host.manager.status().offline == 1
    host.work()
    measured = DirectoryMeasured(directory_id=A, total_bytes=100_000, usable_bytes=50_000)
    assert len(of_kind(host.do(measured), CreateReplica)) == 1
    (known,) = [each for each in host.manager._placement.directories.all if each.directory_id == A]
    assert (known.total_bytes, known.usable_bytes) == (100_000, 50_000)
    assert host.manager.status().offline == 0


def test_of_two_copies_the_one_that_the_log_names_stays() -> None:
    cluster = Cluster()
    key = cluster.topic("t", place=B)
    host = Host(cluster, found(A, [("t", 0)], end=9), found(B, [("t", 0)], end=5))
    removed = only(host.publish(), RemoveReplica)
    assert removed.directory_id == A
    assert host.manager.partitions[key].directory_id == B


def test_of_two_copies_none_is_removed_while_the_named_one_is_offline() -> None:
    cluster = Cluster()
    cluster.topic("t", place=B)
    host = Host(cluster, found(A, [("t", 0)], end=9), found(B, problem="EIO"))
    assert of_kind(host.publish() + host.tick(10_000), RemoveReplica) == []
    assert host.manager.partitions == {}


def test_a_topic_created_again_gets_its_directory_after_the_old_one_is_renamed() -> None:
    cluster = Cluster()
    old = cluster.topic("t", place=A, as_id=b"1" * 16)
    host = Host(cluster, found(A, [("t", 0)], as_id=b"1" * 16))
    host.publish()
    cluster.delete(old)
    new = cluster.topic("t", place=A, as_id=b"2" * 16)
    work = [each for each in host.publish() if isinstance(each, CreateReplica | RemoveReplica)]
    assert [(type(each), each.key) for each in work] == [(RemoveReplica, old), (CreateReplica, new)]


def test_a_replica_that_comes_back_waits_until_its_old_copy_is_gone() -> None:
    cluster = Cluster()
    key = cluster.topic("t", place=A, leader=2)
    host = Host(cluster, found(A, [("t", 0)]), found(B))
    host.publish()
    cluster.change(key, replicas=(2, 3), isr=(2, 3), directories=(ELSEWHERE, ELSEWHERE))
    assert len(of_kind(host.publish(), RemoveReplica)) == 1
    cluster.change(key, replicas=(2, 3, 1), directories=(ELSEWHERE, ELSEWHERE, UNASSIGNED))
    assert of_kind(host.publish(), CreateReplica) == []
    removal = host.queue.popleft()
    assert isinstance(removal, RemoveReplica)
    created = [each for event in host._carry_out(removal) for each in host.do(event)]
    assert only(created, CreateReplica).key == key


def test_a_replica_that_comes_back_while_a_directory_is_bad_is_new() -> None:
    cluster = Cluster()
    key = cluster.topic("t", place=A, leader=2)
    host = Host(cluster, found(A, [("t", 0)]), found(B, problem="EIO"))
    host.publish()
    cluster.change(key, replicas=(2, 3), isr=(2, 3), directories=(ELSEWHERE, ELSEWHERE))
    host.publish()
    cluster.change(key, replicas=(2, 3, 1), directories=(ELSEWHERE, ELSEWHERE, A))
    host.publish()
    removal = host.queue.popleft()
    created = [each for event in host._carry_out(removal) for each in host.do(event)]
    assert only(created, CreateReplica).directory_id == A


def test_before_directories_had_names_replicas_run_where_they_are() -> None:
    cluster = Cluster(level=10)
    key = cluster.topic("t", place=MIGRATING)
    host = Host(cluster, found(A, [("t", 0)]), found(B))
    assert of_kind(host.publish(), SendToController) == []
    assert host.manager.partitions[key].role is ReplicaRole.LEADER


def test_after_an_upgrade_they_go_on_serving_while_the_log_learns_where_they_are() -> None:
    cluster = Cluster()
    key = cluster.topic("t", place=MIGRATING)
    host = Host(cluster, found(A, [("t", 0)]), found(B))
    asked = only(host.publish(), SendToController)
    assert asked.request.assignments[0].directory_id == A  # type: ignore[union-attr]
    assert host.manager.partitions[key].role is ReplicaRole.LEADER


def test_describe_shows_good_and_bad_directories_and_what_lies_there() -> None:
    cluster = Cluster()
    cluster.topic("good", place=A)
    cluster.topic("bad", place=B)
    host = Host(cluster, found(A, [("good", 0)], size_bytes=12), found(B, problem="EIO"))
    host.publish()
    host.serving = False
    a, b = answer_to(host.ask(DescribeLogDirsRequest())).directories
    assert (a.path, a.error, [(each.topic, each.size_bytes) for each in a.replicas]) == (
        "/data/a",
        ErrorCode.NONE,
        [("good", 12)],
    )
    assert (b.error, b.message, [each.topic for each in b.replicas]) == (
        ErrorCode.KAFKA_STORAGE_ERROR,
        "EIO",
        ["bad"],
    )
    some = answer_to(host.ask(DescribeLogDirsRequest(topic_ids=(topic_id("bad"),)))).directories
    assert [len(each.replicas) for each in some] == [0, 1]


def _produce_error(host: Host, key: tuple[bytes, int]) -> ErrorCode:
    request = ProduceRequest(
        acks=1, timeout_ms=100, partitions=(ProducePartition(key=key, batch=Batches.arrived(batch(b"v"))),)
    )
    (result,) = answer_to(host.ask(request, key=("probe", key)), key=("probe", key)).results
    return result.error

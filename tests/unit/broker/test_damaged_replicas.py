"""A replica whose log is damaged: what its broker tells the controller, and what becomes of it."""

from __future__ import annotations

import pytest

from metaquorum.broker.channel import SendToController
from metaquorum.broker.replica.disk_work import AbandonDirectory, CreateReplica, FoundDirectory, RemoveReplica
from metaquorum.broker.replica.events import OfflineDirectoriesChanged
from metaquorum.broker.replica.partition.values import ReplicaRole
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import DEFAULT_METADATA_VERSION, LEVEL_DIRECTORIES
from metaquorum.metadata.image import NO_LEADER
from metaquorum.metadata.image.directories import damaged_in, given_up_in
from metaquorum.metadata.requests.data import PartitionKey, ProducePartition, ProduceRequest
from metaquorum.metadata.requests.partitions import AssignReplicasToDirsRequest
from metaquorum.raft.effects import Warn
from metaquorum.raft.events import Stop
from metaquorum.storage.batches.batch import Batches
from tests.unit.broker.manager_world import ME, A, B, Cluster, Host, answer_to, found, key_of, of_kind, only
from tests.unit.broker.replica_world import batch

HURT = key_of("hurt")
DAMAGED, GIVEN_UP = damaged_in(A), given_up_in(A)


def begun(*, leader: int = ME, usable_bytes: int = -1, level: int | None = None) -> tuple[Cluster, Host]:
    """A broker that starts with one damaged and one sound replica in A, both of which it led."""
    cluster = Cluster() if level is None else Cluster(level)
    cluster.topic("hurt", place=A, leader=leader, isr=(leader,))
    cluster.topic("sound", place=A)
    host = Host(cluster, found(A, [("sound", 0)], damaged=["hurt"], usable_bytes=usable_bytes), found(B))
    host.start()
    return cluster, host


def told(effects: list) -> dict[PartitionKey, bytes]:
    """What the controller is told about places."""
    requests = [each.request for each in of_kind(effects, SendToController)]
    return {
        (each.topic_id, each.partition): each.directory_id
        for request in requests
        if isinstance(request, AssignReplicasToDirsRequest)
        for each in request.assignments
    }


def produce_error(host: Host, key: PartitionKey) -> ErrorCode:
    request = ProduceRequest(
        acks=1, timeout_ms=100, partitions=(ProducePartition(key=key, batch=Batches.arrived(batch(b"v"))),)
    )
    effects = host.ask(request)
    return answer_to(effects + host.work()).results[0].error


def test_the_controller_is_told_and_the_rest_of_the_directory_serves() -> None:
    _, host = begun()
    effects = host.publish()
    assert told(effects) == {HURT: DAMAGED}
    assert of_kind(effects, AbandonDirectory) == of_kind(effects, OfflineDirectoriesChanged) == []
    assert of_kind(effects, CreateReplica) == of_kind(effects, RemoveReplica) == []
    assert only(effects, Warn).message == "/data/a/hurt-0 cannot be served: hurt.log is damaged"
    assert host.manager.partitions[key_of("sound")].role is ReplicaRole.LEADER
    assert produce_error(host, HURT) is ErrorCode.KAFKA_STORAGE_ERROR
    assert produce_error(host, key_of("sound")) is ErrorCode.NONE


def test_nobody_is_asked_twice() -> None:
    cluster, host = begun()
    asked = host.publish()
    host.answer_controller(asked)
    cluster.topic("other", place=B)
    assert HURT not in told(host.publish())
    cluster.change(HURT, isr=(ME, 2))
    assert of_kind(host.publish(), Warn) == []


def test_where_another_broker_leads_it_is_given_up_and_begins_anew_in_its_directory() -> None:
    cluster, host = begun()
    host.answer_controller(host.publish())
    cluster.change(HURT, place=DAMAGED, leader=2, isr=(2, 3))
    effects = host.publish()
    assert told(effects) == {HURT: GIVEN_UP}
    assert only(effects, Warn).message.startswith("/data/a/hurt-0 is set aside, and the replica is recreated")
    assert of_kind(effects, CreateReplica) == [], "what lies there counts until the log says otherwise"
    host.answer_controller(effects)
    cluster.change(HURT, place=GIVEN_UP)
    created = only(host.publish(), CreateReplica)
    assert (created.directory_id, created.key) == (A, HURT)
    effects = host.work()
    assert told(effects) == {HURT: A}
    host.answer_controller(effects)
    assert HURT not in host.manager.partitions
    cluster.change(HURT, place=A)
    host.publish()
    assert host.manager.partitions[HURT].role is ReplicaRole.FOLLOWER
    assert host.manager.partitions[HURT].end_offset == 0


def test_the_last_replica_in_sync_stays_offline_and_what_to_do_is_one_line() -> None:
    cluster, host = begun()
    host.answer_controller(host.publish())
    cluster.change(HURT, place=DAMAGED, leader=NO_LEADER)
    effects = host.publish()
    assert told(effects) == {} and of_kind(effects, CreateReplica) == []
    (line,) = [each.message for each in of_kind(effects, Warn)]
    assert line.startswith("/data/a/hurt-0 stays offline") and "hurt.log is damaged" in line
    assert "partitions elect --election unclean --topic hurt --partition 0" in line
    assert produce_error(host, HURT) is ErrorCode.KAFKA_STORAGE_ERROR
    assert host.manager.partitions.keys() == {key_of("sound")}


def test_a_leader_that_comes_later_frees_it() -> None:
    cluster, host = begun()
    host.answer_controller(host.publish())
    cluster.change(HURT, place=DAMAGED, leader=NO_LEADER)
    assert told(host.publish()) == {}
    cluster.change(HURT, leader=3, isr=(3,))
    assert told(host.publish()) == {HURT: GIVEN_UP}


def test_one_that_came_back_whole_is_what_it_was() -> None:
    cluster = Cluster()
    cluster.topic("hurt", place=DAMAGED, leader=NO_LEADER, isr=(ME,))
    host = Host(cluster, found(A, [("hurt", 0)], end=7), found(B))
    effects = host.publish()
    assert told(effects) == {HURT: A} and HURT not in host.manager.partitions
    cluster.change(HURT, place=A, leader=ME)
    host.publish()
    assert host.manager.partitions[HURT].role is ReplicaRole.LEADER
    assert host.manager.partitions[HURT].end_offset == 7


def test_one_that_was_moved_away_is_said_to_be_given_up_before_it_is_made() -> None:
    cluster = Cluster()
    cluster.topic("hurt", place=DAMAGED, leader=NO_LEADER, isr=(ME,))
    host = Host(cluster, found(A), found(B))
    effects = host.publish()
    assert told(effects) == {HURT: GIVEN_UP} and of_kind(effects, CreateReplica) == []
    cluster.change(HURT, place=GIVEN_UP)
    assert only(host.publish(), CreateReplica).directory_id == A


def test_it_begins_anew_only_where_there_is_room_for_both() -> None:
    cluster, host = begun(leader=2, usable_bytes=40)
    cluster.change(HURT, place=GIVEN_UP)
    effects = host.publish()
    assert of_kind(effects, CreateReplica) == []
    assert "no log directory has room for another 50 bytes" in only(effects, Warn).message


def test_a_deleted_topic_takes_a_damaged_replica_along() -> None:
    cluster, host = begun()
    host.publish()
    cluster.delete(HURT)
    removed = only(host.publish(), RemoveReplica)
    assert (removed.directory_id, removed.key) == (A, HURT)
    host.work()
    assert host.manager.offline_directories == () and HURT not in host.manager._placement.offline


def test_a_damaged_copy_beside_the_replica_is_left_over() -> None:
    cluster = Cluster()
    cluster.topic("hurt", place=B, leader=ME)
    host = Host(cluster, found(A, damaged=["hurt"]), found(B, [("hurt", 0)]))
    removed = only(host.publish(), RemoveReplica)
    assert (removed.directory_id, removed.key) == (A, HURT)
    assert host.manager.partitions[HURT].role is ReplicaRole.LEADER


def test_its_directory_may_fail_too() -> None:
    cluster, host = begun()
    host.publish()
    host.fail(A)
    assert produce_error(host, HURT) is ErrorCode.KAFKA_STORAGE_ERROR
    cluster.change(HURT, place=DAMAGED, leader=2)
    assert told(host.publish()) == {}, "what lies in a bad directory is not given up"


def test_where_the_log_cannot_say_it_the_broker_stops() -> None:
    _, host = begun(level=LEVEL_DIRECTORIES - 1)
    stop = only(host.publish(), Stop)
    assert stop.failed and "hurt.log is damaged" in stop.reason and "3.7-IV2" in stop.reason


@pytest.mark.parametrize("level", [4, LEVEL_DIRECTORIES - 1, LEVEL_DIRECTORIES, DEFAULT_METADATA_VERSION])
@pytest.mark.parametrize("when", ["while it serves", "at the start"])
def test_below_the_level_of_directories_a_failed_one_stops_the_broker(level: int, when: str) -> None:
    """Then the controller fences it, which takes its replicas out of their ISRs; above, the log has it."""
    cluster = Cluster(level)
    cluster.topic("sound", place=A if level >= LEVEL_DIRECTORIES else None)
    if when == "at the start":
        host = Host(cluster, FoundDirectory(path="/data/a", directory_id=A, problem="EIO"), found(B))
        host.start()
        effects = host.publish()
    else:
        host = Host(cluster, found(A, [("sound", 0)]), found(B))
        host.start()
        host.publish()
        effects = host.fail(A)
    stops = of_kind(effects, Stop)
    assert len(stops) == (level < LEVEL_DIRECTORIES)
    assert all("/data/a (EIO); before metadata.version 3.7-IV2" in stop.reason for stop in stops)

"""A broker node that holds data: what passes between its session, its image and its replicas."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from metaquorum.broker.channel import ControllerChannel
from metaquorum.broker.events import PublishImage, SendToController, ShutdownRequested, Stop
from metaquorum.broker.replica.disk_work import (
    CheckpointHighWatermarks,
    CreateReplica,
    DirectoryFailed,
    FoundDirectory,
    LogAppended,
    LogsSynced,
    RemoveReplica,
    ReplicaCreated,
)
from metaquorum.broker.replica.events import (
    DataRequestArrived,
    DataRequestCancelled,
    DataRespond,
    OfflineDirectoriesChanged,
)
from metaquorum.broker.replica.manager import ReplicaManager
from metaquorum.metadata.errors import ErrorCode, InvariantViolation
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.records.types import PartitionChangeRecord, PartitionRecord, TopicRecord
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest, RegisterBrokerRequest
from metaquorum.metadata.requests.data import FetchPartition, FetchRequest, ProducePartition, ProduceRequest
from metaquorum.metadata.requests.partitions import AssignReplicasToDirsRequest
from metaquorum.metadata.requests.status import BrokerState
from metaquorum.raft.events import Stop as RaftStop
from metaquorum.storage.batches.batch import Batches
from tests.unit.broker.manager_world import A, B, found, of_kind, only
from tests.unit.broker.replica_world import batch
from tests.unit.broker.world import BROKER, CONFIG, SESSION_MS, Controller, World

TOPIC = b"t" * 16
KEY = (TOPIC, 0)


Replicas = Callable[[ControllerChannel], ReplicaManager]


def replicas(*directories: FoundDirectory, **config: object) -> Replicas:
    return lambda channel: ReplicaManager(
        ReplicaConfig(broker_id=BROKER, **config),  # type: ignore[arg-type]
        directories or (found(A), found(B)),
        channel=channel,
        rng=random.Random(5),
        now_ms=100_000,
    )


def world(manager: Replicas, controller: Controller | None = None) -> World:
    made = World(
        controller=controller or Controller(),
        config=replace(CONFIG, directories=(A, B)),
        replicas=manager,
    )
    made.run(100)
    return made


def with_topic(directory: bytes = A) -> Controller:
    controller = Controller()
    controller.write(
        TopicRecord(name="t", topic_id=TOPIC),
        PartitionRecord(
            partition_id=0,
            topic_id=TOPIC,
            replicas=(BROKER,),
            isr=(BROKER,),
            leader=BROKER,
            leader_epoch=0,
            partition_epoch=0,
            directories=(directory,),
        ),
    )
    return controller


def produce() -> DataRequestArrived:
    part = ProducePartition(key=KEY, batch=Batches.arrived(batch(b"v")))
    return DataRequestArrived(key="k", request=ProduceRequest(acks=-1, timeout_ms=1_000, partitions=(part,)))


def heartbeats(made: World) -> list[BrokerHeartbeatRequest]:
    requests = [each.request for each in of_kind(made.done, SendToController)]
    return [each for each in requests if isinstance(each, BrokerHeartbeatRequest)]


def test_only_good_directories_are_registered_and_every_heartbeat_names_the_bad_ones() -> None:
    made = world(replicas(found(A), found(B, problem="EIO")))
    (registration,) = [
        each.request
        for each in of_kind(made.done, SendToController)
        if isinstance(each.request, RegisterBrokerRequest)
    ]
    assert registration.directories == (A,)
    made.run(5_000)
    assert len(heartbeats(made)) >= 3
    assert {each.offline_directories for each in heartbeats(made)} == {(B,)}


def test_s3_14_a_directory_that_fails_is_in_a_heartbeat_at_once_and_in_every_later_one() -> None:
    made = world(replicas())
    made.run(100)
    before = len(heartbeats(made))
    effects = made.give(DirectoryFailed(directory_id=A, reason="EIO"))
    (sent,) = [each.request for each in of_kind(effects, SendToController)]
    assert isinstance(sent, BrokerHeartbeatRequest) and sent.offline_directories == (A,)
    assert of_kind(effects, OfflineDirectoriesChanged) == [], "the node has taken it"
    made.run(6_000)
    later = heartbeats(made)[before:]
    assert len(later) >= 3 and {each.offline_directories for each in later} == {(A,)}


def test_a_directory_that_fails_while_a_heartbeat_is_under_way_is_told_right_after() -> None:
    made = world(replicas())
    made.linked = True
    while True:
        made.now_ms = made.node.next_deadline_ms() or made.now_ms
        effects = made.node.tick(now_ms=made.now_ms, wall_ms=made.now_ms)
        if of_kind(effects, SendToController):
            break
        made.execute(effects)
    held = of_kind(effects, SendToController)
    failed = made.give(DirectoryFailed(directory_id=A, reason="EIO"))
    assert of_kind(failed, SendToController) == [], "one request is in flight"
    before = made.now_ms
    made.execute(effects)
    made.settle()
    assert held[0].request.offline_directories == ()  # type: ignore[union-attr]
    assert heartbeats(made)[-1].offline_directories == (A,) and made.now_ms == before


def test_s1_13_nothing_is_removed_or_created_before_the_own_registration_is_applied() -> None:
    stray = found(A, [("stray", 0)])
    controller = with_topic()
    made = World(
        controller=controller, config=replace(CONFIG, directories=(A, B)), replicas=replicas(stray, found(B))
    )
    made.run(100)
    kinds = [type(each) for each in made.done]
    published = kinds.index(PublishImage)
    assert made.state is BrokerState.RUNNING
    assert kinds.index(RemoveReplica) > published and kinds.index(CreateReplica) > published
    assert made.publications[0].image.brokers[BROKER].incarnation_id == b"i" * 16


def test_a_produce_goes_through_the_node_and_is_refused_once_the_lease_is_over() -> None:
    made = world(replicas(), with_topic())
    create = only(made.done, CreateReplica)
    made.give(ReplicaCreated(directory_id=A, key=KEY, incarnation=create.incarnation))
    made.give(produce())
    where = {"directory_id": A, "key": KEY, "incarnation": create.incarnation}
    made.give(LogAppended(**where, end_offset=1, size_bytes=70))  # type: ignore[arg-type]
    effects = made.give(LogsSynced(directory_id=A, ends=((KEY, create.incarnation, 1, 100),)))
    assert only(effects, DataRespond).response.results[0].error is ErrorCode.NONE  # type: ignore[union-attr]
    made.now_ms += SESSION_MS + 1
    refused = only(made.give(produce()), DataRespond).response
    assert refused.code is ErrorCode.BROKER_NOT_AVAILABLE  # type: ignore[union-attr]


def test_the_last_directory_ends_the_process() -> None:
    made = world(replicas(found(A)))
    effects = made.give(DirectoryFailed(directory_id=A, reason="EIO"))
    stop = only(effects, RaftStop)
    assert stop.failed and "no log directory is online" in stop.reason
    assert effects[-1] is stop and made.state is BrokerState.SHUTTING_DOWN


def test_without_a_usable_directory_it_does_not_begin() -> None:
    manager = replicas(found(A, problem="EIO"))
    made = World(config=replace(CONFIG, directories=(A,)), replicas=manager)
    assert made.stop.failed and of_kind(made.done, SendToController) == []


def test_before_an_orderly_end_who_waits_is_answered_and_high_watermarks_are_written() -> None:
    made = world(replicas(), with_topic())
    create = only(made.done, CreateReplica)
    made.give(ReplicaCreated(directory_id=A, key=KEY, incarnation=create.incarnation))
    made.give(produce())
    where = {"directory_id": A, "key": KEY, "incarnation": create.incarnation}
    made.give(LogAppended(**where, end_offset=1, size_bytes=70))  # type: ignore[arg-type]
    made.give(LogsSynced(directory_id=A, ends=((KEY, create.incarnation, 1, 100),)))
    part = FetchPartition(key=KEY, fetch_offset=1, max_bytes=100)
    waits = FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=100, partitions=(part,))
    made.give(DataRequestArrived(key="waits", request=waits))
    at = len(made.done)
    made.give(ShutdownRequested())
    made.run(1_000)
    last = made.done[at:]
    assert isinstance(last[-1], Stop) and not last[-1].failed
    assert only(last, DataRespond).key == "waits"
    assert only(last, CheckpointHighWatermarks).high_watermarks == (("t", 0, 1),)


def test_a_change_of_leader_reaches_the_replica() -> None:
    controller = with_topic()
    made = world(replicas(found(A, [("t", 0)], as_id=TOPIC), found(B)), controller)
    assert set(made.node.replicas.partitions) == {KEY}  # type: ignore[union-attr]
    controller.write(PartitionChangeRecord(partition_id=0, topic_id=TOPIC, leader=-1))
    made.run(100)
    assert made.node.replicas.partitions[KEY].leader is None  # type: ignore[union-attr]
    asked = [each.request for each in of_kind(made.done, SendToController)]
    assert not any(isinstance(each, AssignReplicasToDirsRequest) for each in asked)


def test_a_broker_without_data_takes_no_data_events() -> None:
    with pytest.raises(InvariantViolation, match="holds no data"):
        World().give(DataRequestCancelled(key="k"))

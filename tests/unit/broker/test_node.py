"""The whole broker core against a real Raft leader and a scripted controller."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.broker.channel import SendToController
from metaquorum.broker.events import (
    RaftRequestFailed,
    ReadLog,
    ShutdownRequested,
    SnapshotRejected,
    Stop,
    TrimLog,
    WriteSnapshot,
)
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage, images_equal
from metaquorum.metadata.node_configs import OBSERVER_REPLICA, BrokerConfig
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRecord,
    BrokerRegistrationChangeRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    TopicRecord,
)
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest
from metaquorum.metadata.requests.status import BrokerState, ProcessState
from metaquorum.raft import effects as raft
from metaquorum.storage.batches.batch import NO_BATCHES
from metaquorum.storage.types import LogPosition
from tests.unit.broker.world import BROKER, CONFIG, LEADER, SESSION_MS, Controller, World


def topic(number: int) -> TopicRecord:
    return TopicRecord(name=f"t{number}", topic_id=number.to_bytes(16, "big"))


def following(**changes: int) -> BrokerConfig:
    return replace(CONFIG, metadata_replica=replace(OBSERVER_REPLICA, **changes))


def running(config: BrokerConfig = CONFIG, **changes: object) -> World:
    world = World(config=replace(config, **changes))  # type: ignore[arg-type]
    world.run(100)
    assert world.state is BrokerState.RUNNING
    return world


def names(image: MetadataImage) -> set[str]:
    return {info.name for info in image.topics.infos()} if hasattr(image.topics, "infos") else set()


def served(world: World) -> tuple[MetadataImage, int]:
    """The image while clients are served, and its offset."""
    assert world.node.serves(world.now_ms)
    return world.node._image, world.node.provenance.offset


# ---- joining -------------------------------------------------------------------------------------


def test_a_new_broker_joins_and_serves_what_the_controller_has() -> None:
    controller = Controller()
    for number in range(5):
        controller.write(topic(number))
    world = World(controller)
    world.run(100)
    assert world.path == [BrokerState.STARTING, BrokerState.RECOVERY, BrokerState.RUNNING]
    image, offset = served(world)
    assert offset == controller.raft.high_watermark
    assert images_equal(image, controller.image())
    assert not image.brokers[BROKER].fenced
    assert world.node.provenance == image.provenance and image.provenance.offset == offset


def test_nothing_is_published_before_the_own_registration_is_applied() -> None:
    controller = Controller()
    for number in range(5):
        controller.write(topic(number))
    world = World(controller)
    world.run(100)
    first = world.publications[0]
    assert first.offset == controller.epoch + 1
    assert images_equal(first.previous, MetadataImage())
    for before, after in zip(world.publications, world.publications[1:], strict=False):
        assert after.previous is before.image
        assert after.offset > before.offset


def test_a_heartbeat_reports_what_is_applied_not_what_is_fetched() -> None:
    world = running()
    world.hold_reads = True
    applied = world.node.status(now_ms=world.now_ms).applied_offset
    for number in range(3):
        world.controller.write(topic(number))
    world.run(3_000)
    status = world.node.status(now_ms=world.now_ms)
    assert status.log_end_offset == world.controller.raft.log_end_offset > applied
    assert world.controller.heartbeats[-1].applied_offset == applied
    assert len([effect for effect in world.done if isinstance(effect, ReadLog)]) >= 1


def test_one_bounded_read_at_a_time() -> None:
    controller = Controller()
    for number in range(200):
        controller.write(topic(number))
    world = World(controller, config=following(apply_slice_bytes=1_000))
    world.run(100)
    reads = [effect for effect in world.done if isinstance(effect, ReadLog)]
    assert len(reads) > 10
    assert all(read.max_bytes == 1_000 for read in reads)
    starts = [read.from_offset for read in reads]
    assert starts == sorted(set(starts))
    assert images_equal(served(world)[0], controller.image())


def test_status_tells_kafkas_number_and_the_fence() -> None:
    world = running()
    status = world.node.status(now_ms=world.now_ms)
    assert (status.state, status.process_state, status.fenced) == (
        BrokerState.RUNNING,
        ProcessState.RUNNING,
        False,
    )
    assert status.broker_epoch == world.controller.epoch
    assert status.leader_id == LEADER
    assert status.quorum_epoch == world.controller.raft.epoch
    assert status.applied_offset == status.high_watermark == world.controller.raft.high_watermark
    assert status.lease_left_ms is not None
    assert SESSION_MS - 200 < status.lease_left_ms <= SESSION_MS


# ---- fencing -------------------------------------------------------------------------------------


def test_a_fenced_broker_answers_no_client() -> None:
    controller = Controller()
    controller.refusals.extend([ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "alive")] * 5)
    world = World(controller)
    world.run(100)
    assert world.state is BrokerState.STARTING
    assert not world.node.serves(world.now_ms)
    assert world.publications == []


def test_a_process_that_slept_past_its_lease_does_not_answer_even_one_read() -> None:
    world = running()
    lease_ms = world.node.status(now_ms=world.now_ms).lease_left_ms
    assert lease_ms is not None
    assert world.node.serves(world.now_ms + lease_ms - 1)
    assert not world.node.serves(world.now_ms + lease_ms)
    assert world.state is BrokerState.RUNNING  # nobody has told it the time yet


def test_a_cut_off_broker_fences_itself_and_comes_back_with_its_epoch() -> None:
    world = running()
    epoch = world.controller.epoch
    world.linked = False
    world.run(SESSION_MS + 1)
    assert world.state is BrokerState.FENCED
    assert not world.node.serves(world.now_ms)
    world.controller.write(topic(1))
    world.linked = True
    world.run(5_000)
    assert world.state is BrokerState.RUNNING
    assert world.controller.registrations == 2
    assert world.node.status(now_ms=world.now_ms).broker_epoch == epoch
    assert images_equal(served(world)[0], world.controller.image())
    assert not [effect for effect in world.done if isinstance(effect, Stop)]


def test_a_fenced_broker_goes_on_following_the_log() -> None:
    world = running()
    world.controller.fenced = True
    world.controller.write(FenceBrokerRecord(id=BROKER, epoch=world.controller.epoch))
    before = len(world.publications)
    world.run(10)
    assert len(world.publications) == before + 1
    assert world.publications[-1].image.brokers[BROKER].fenced


def test_a_new_registration_after_unregistration_gets_a_higher_epoch() -> None:
    world = running()
    old = world.controller.epoch
    world.controller.incarnation, world.controller.epoch = None, 10_000  # the controller forgot this broker
    world.run(3_000)
    assert world.state is BrokerState.RUNNING
    assert world.controller.epoch > old
    assert world.node.status(now_ms=world.now_ms).broker_epoch == world.controller.epoch
    assert BrokerState.FENCED in world.path


# ---- snapshots -----------------------------------------------------------------------------------


def test_a_broker_far_behind_takes_a_snapshot_as_one_change() -> None:
    controller = Controller()
    for number in range(50):
        controller.write(topic(number))
    position, image = controller.snapshot()
    for number in range(50, 53):
        controller.write(topic(number))
    world = World(controller, snapshots={position: image})
    world.run(200)
    assert world.state is BrokerState.RUNNING
    assert [effect.position for effect in world.done if isinstance(effect, raft.ResetLog)] == [position]
    answered, offset = served(world)
    assert offset == controller.raft.high_watermark
    assert len(list(answered.topics.by_id.items_sorted())) == 53
    assert world.publications[0].previous.provenance.offset == 0


def test_a_read_that_a_snapshot_overtook_is_dropped() -> None:
    world = running()
    world.hold_reads = True
    world.controller.write(topic(1))
    world.run(10)
    (read,) = [effect for effect in world.done if isinstance(effect, ReadLog)][-1:]
    late = world.read(read)
    world.linked = False
    world.run(SESSION_MS)
    for number in range(2, 9):
        world.controller.write(topic(number))
    whole = world.controller.image()
    position, _ = world.controller.snapshot()
    world.snapshots[position] = whole
    world.hold_reads, world.linked = False, True
    world.run(5_000)
    assert world.node.status(now_ms=world.now_ms).applied_offset >= position.offset
    effects = world.give(late)
    assert not [effect for effect in effects if isinstance(effect, Stop)]
    assert len(list(served(world)[0].topics.by_id.items_sorted())) == 8


def test_a_damaged_snapshot_is_said_and_fetched_again() -> None:
    world = running()
    effects = world.give(SnapshotRejected(position=LogPosition(1, 5), reason="bad CRC in batch at 61"))
    warnings = [effect.message for effect in effects if isinstance(effect, raft.Warn)]
    assert any("bad CRC in batch at 61" in text for text in warnings)


def test_a_broker_writes_snapshots_by_bytes_and_trims_behind_them() -> None:
    world = running(following(metadata_log_max_record_bytes_between_snapshots=2_000))
    for number in range(60):
        world.controller.write(topic(number))
        world.run(5)
    writes = [effect for effect in world.done if isinstance(effect, WriteSnapshot)]
    trims = [effect.before_offset for effect in world.done if isinstance(effect, TrimLog)]
    assert len(writes) >= 2
    assert trims == [write.position.offset for write in writes]
    for write in writes:
        assert write.image.provenance.offset == write.position.offset
        assert write.position.epoch == world.controller.raft.epoch
        assert write.timestamp_ms == 1_000
    assert world.state is BrokerState.RUNNING


def test_one_snapshot_at_a_time() -> None:
    world = running(following(metadata_log_max_record_bytes_between_snapshots=500))
    world.hold_snapshot_writes = True
    for number in range(60):
        world.controller.write(topic(number))
        world.run(5)
    assert len(world.of(WriteSnapshot)) == 1
    assert world.of(TrimLog) == []


def test_a_broker_writes_a_snapshot_when_the_interval_is_over_and_something_is_new() -> None:
    world = running(following(metadata_log_max_snapshot_interval_ms=60_000))
    world.run(60_001)
    assert len(world.of(WriteSnapshot)) == 1
    world.run(180_000)
    assert len(world.of(WriteSnapshot)) == 1
    world.controller.write(topic(1))
    world.run(100)
    assert len(world.of(WriteSnapshot)) == 2


def test_an_interval_of_none_is_no_reason_for_a_snapshot() -> None:
    """0, which Kafka takes for never."""
    world = running(following(metadata_log_max_snapshot_interval_ms=0))
    world.controller.write(topic(1))
    world.run(180_000)
    assert world.of(WriteSnapshot) == []


def test_a_restart_from_a_snapshot_publishes_only_after_its_own_registration() -> None:
    first = running()
    first.controller.write(topic(1))
    first.run(100)
    image, offset = served(first)
    controller = first.controller
    controller.incarnation = None  # the next process has another incarnation, the old session is over
    second = World(controller, image=image, now_ms=first.now_ms)
    second.run(100)
    assert second.state is BrokerState.RUNNING
    assert second.publications[0].offset > controller.epoch >= offset
    assert images_equal(served(second)[0], controller.image())


# ---- transactions --------------------------------------------------------------------------------


def test_the_inside_of_a_metadata_transaction_is_never_shown() -> None:
    world = running(following(metadata_log_max_record_bytes_between_snapshots=1))
    begin = world.controller.write(BeginTransactionRecord(name="x"))
    world.controller.write(topic(1))
    world.controller.write(topic(2))
    snapshots = len(world.of(WriteSnapshot))
    world.run(100)
    image, offset = served(world)
    assert offset == begin
    assert len(list(image.topics.by_id.items_sorted())) == 0
    assert len(world.of(WriteSnapshot)) - snapshots <= 1
    world.controller.write(EndTransactionRecord())
    world.run(100)
    image, offset = served(world)
    assert offset == world.controller.raft.high_watermark
    assert len(list(image.topics.by_id.items_sorted())) == 2
    inside = range(begin + 1, begin + 3)
    assert not [write for write in world.of(WriteSnapshot) if write.position.offset in inside]  # type: ignore[union-attr]
    assert not [publication for publication in world.publications if publication.offset in inside]


def test_an_aborted_transaction_leaves_nothing() -> None:
    world = running()
    world.controller.write(BeginTransactionRecord(name="x"), topic(1))
    world.controller.write(AbortTransactionRecord(reason="no"))
    world.run(100)
    image, offset = served(world)
    assert offset == world.controller.raft.high_watermark
    assert len(list(image.topics.by_id.items_sorted())) == 0


def test_after_an_upgrade_a_broker_tells_its_directories_and_serves_on() -> None:
    """S1.22: it registered at a level whose log could not carry them."""
    controller = Controller()
    controller.carries_directories = False
    controller.write(FeatureLevelRecord(name="metadata.version", feature_level=16))
    world = World(controller)
    world.run(3_000)
    assert world.state is BrokerState.RUNNING and controller.registrations == 1
    epoch = controller.epoch
    assert served(world)[0].brokers[BROKER].directories == ()
    controller.carries_directories = True
    controller.write(FeatureLevelRecord(name="metadata.version", feature_level=17))
    world.run(300)
    assert controller.registrations == 2 and controller.epoch == epoch
    registration = served(world)[0].brokers[BROKER]
    assert registration.directories == CONFIG.directories and not registration.fenced
    world.run(10_000)
    assert controller.registrations == 2
    assert world.path[-1] is BrokerState.RUNNING and BrokerState.FENCED not in world.path


def test_an_amendment_that_is_refused_costs_nothing() -> None:
    controller = Controller()
    controller.carries_directories = False
    controller.write(FeatureLevelRecord(name="metadata.version", feature_level=16))
    world = World(controller)
    world.run(3_000)
    controller.refusals.append(ApiError(ErrorCode.INVALID_REGISTRATION, "not now"))
    controller.write(FeatureLevelRecord(name="metadata.version", feature_level=17))
    world.run(10_000)
    assert world.state is BrokerState.RUNNING
    controller.carries_directories = True
    world.run(40_000)  # it is tried again, ever more rarely, and nothing else has to happen for that
    assert served(world)[0].brokers[BROKER].directories == CONFIG.directories


# ---- what others say in its name -----------------------------------------------------------------


def test_a_broker_that_is_said_to_stop_registers_again_and_serves_on() -> None:
    world = running()
    controller, epoch = world.controller, world.controller.epoch
    controller.stop_broker()
    world.run(300)
    assert controller.registrations == 2 and controller.epoch == epoch
    assert served(world)[0].brokers[BROKER].is_active
    warnings = [str(warn) for warn in world.of(raft.Warn)]
    assert [line for line in warnings if "says that it is stopping, which it is not" in line]
    world.run(60_000)
    assert controller.registrations == 2 and BrokerState.FENCED not in world.path


def test_a_directory_that_is_said_to_be_offline_is_registered_again() -> None:
    world = running(directories=(b"a" * 16, b"b" * 16))
    controller = world.controller
    controller.write(FeatureLevelRecord(name="metadata.version", feature_level=17))
    controller.lose_directory(b"b" * 16)
    world.run(300)
    assert controller.registrations == 2
    assert set(served(world)[0].brokers[BROKER].directories) == {b"a" * 16, b"b" * 16}
    world.run(60_000)
    assert controller.registrations == 2


@pytest.mark.parametrize("refusals", [1, 3])
def test_a_registration_that_goes_unheard_is_sent_again(refusals: int) -> None:
    world = running()
    controller = world.controller
    controller.stop_broker()
    controller.refusals.extend([ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "busy")] * refusals)
    world.run(40_000)
    assert served(world)[0].brokers[BROKER].is_active


def test_what_the_log_says_of_another_process_of_its_id_is_not_its_own() -> None:
    world = running()
    controller = world.controller
    other = BrokerRecord(
        broker_id=BROKER,
        incarnation_id=b"o" * 16,
        broker_epoch=controller.raft.log_end_offset,
        fenced=False,
        in_controlled_shutdown=True,
    )
    controller.write(other)
    world.run(300)
    assert controller.registrations == 1
    assert not [warn for warn in world.of(raft.Warn) if "registers again" in str(warn)]


def test_a_broker_that_does_stop_does_not_register_again() -> None:
    world = running()
    world.controller.grants_shutdown = False
    world.give(ShutdownRequested())
    world.controller.stop_broker()
    world.run(5_000)
    assert world.controller.registrations == 1
    assert world.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN


# ---- endings -------------------------------------------------------------------------------------


def test_a_record_that_does_not_apply_stops_the_broker_and_names_its_offset() -> None:
    world = running()
    at = world.controller.write(FenceBrokerRecord(id=99, epoch=7))
    world.run(100)
    assert world.stop.failed
    assert f"offset {at}" in world.stop.reason
    assert "broker 4 cannot apply its metadata log" in world.stop.reason
    assert world.state is BrokerState.SHUTTING_DOWN
    assert not world.node.serves(world.now_ms)
    assert world.node.next_deadline_ms() is None
    assert world.give(ShutdownRequested()) == []


def test_another_clusters_controller_ends_the_start_with_a_line() -> None:
    world = World(Controller(cluster="cluster-b"))
    world.run(5_000)
    assert world.stop.failed
    assert "does not belong to cluster cluster-a" in world.stop.reason


def test_a_controller_that_refuses_for_lack_of_rights_is_what_the_broker_waits_for() -> None:
    world = World(Controller(), linked=False)
    world.give(
        RaftRequestFailed(target=1, correlation_id=999, reason="refused", refusal="add it to super.users")
    )
    assert world.node.status(now_ms=world.now_ms).last_problem == (
        "controller 1 cannot be followed: add it to super.users"
    )
    world.give(RaftRequestFailed(target=2, correlation_id=998, reason="not reachable"))
    assert "add it to super.users" in world.node.status(now_ms=world.now_ms).last_problem


def test_an_unreachable_quorum_ends_the_start_with_a_line() -> None:
    controller = Controller()
    world = World(
        controller, config=replace(CONFIG, initial_broker_registration_timeout_ms=7_000), linked=False
    )
    world.run(6_999)
    assert world.state is BrokerState.STARTING
    world.run(1)
    assert world.stop.failed
    assert "7000 ms (initial.broker.registration.timeout.ms)" in world.stop.reason


def test_controlled_shutdown_through_the_node() -> None:
    world = running()
    world.controller.grants_shutdown = False
    world.give(ShutdownRequested())
    world.run(2_500)
    assert world.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
    served(world)
    assert len([beat for beat in world.controller.heartbeats if beat.want_shutdown]) > 10
    world.controller.grants_shutdown = True
    world.run(200)
    assert world.stop == Stop(reason="stopped: controller 1 granted the shutdown", failed=False)
    assert isinstance(world.done[-1], Stop), "nothing may follow the last effect"


def test_a_broker_that_another_ones_shutdown_waits_for_says_at_once_what_it_has_applied() -> None:
    """K9: every active broker has to have seen the moves; not one heartbeat interval later than it can."""
    world = running()
    other = BrokerRecord(broker_id=77, incarnation_id=b"o" * 16, broker_epoch=3, fenced=False)
    leaves = BrokerRegistrationChangeRecord(broker_id=77, broker_epoch=3, in_controlled_shutdown=1)
    world.controller.write(other)
    world.run(150)
    before = len(world.controller.heartbeats)
    world.controller.write(topic(1))
    world.run(150)
    assert len(world.controller.heartbeats) == before  # nobody leaves: the interval is kept
    world.controller.write(leaves, topic(2))
    world.run(150)
    (beat,) = world.controller.heartbeats[before:]
    assert beat.applied_offset == world.controller.raft.high_watermark and not beat.want_shutdown
    for number in range(3, 30):
        world.controller.write(topic(number))
        world.run(10)
    world.run(CONFIG.controlled_shutdown_poll_ms)
    beats = world.controller.heartbeats[before + 1 :]
    assert 3 <= len(beats) <= 4  # paced, and the last one tells of everything
    assert beats[-1].applied_offset == world.controller.raft.high_watermark
    world.controller.write(NoOpRecord())
    world.run(150)
    assert len(world.controller.heartbeats) == before + 1 + len(beats)


def test_the_last_word_of_a_node_that_serves_goes_to_the_controller() -> None:
    world = World(linked=False)
    assert world.node.farewell(now_ms=0, timeout_ms=2_000) is None
    farewell = running().node.farewell(now_ms=0, timeout_ms=2_000)
    assert farewell is not None
    sent = farewell.step(0)
    assert isinstance(sent, SendToController) and sent.target == LEADER
    request = sent.request
    assert isinstance(request, BrokerHeartbeatRequest)
    assert request.want_fence and request.want_shutdown and request.broker_id == BROKER


def test_a_fenced_broker_stops_at_once() -> None:
    world = World(Controller(), linked=False)
    world.give(ShutdownRequested())
    assert not world.stop.failed
    assert world.path == [BrokerState.STARTING, BrokerState.SHUTTING_DOWN]


def test_a_log_with_a_hole_is_an_error_that_says_what_to_run() -> None:
    world = running()
    world.hold_reads = True
    world.controller.write(topic(1))
    world.run(10)
    (read,) = [effect for effect in world.done if isinstance(effect, ReadLog)][-1:]
    late = world.read(read)
    world.give(replace(late, batches=NO_BATCHES))
    assert world.stop.failed and f"nothing at offset {late.from_offset}" in world.stop.reason
    assert "docs/operations.md" in world.stop.reason


# ---- the end -------------------------------------------------------------------------------------


def test_a_broker_that_gives_up_says_why_and_does_nothing_more() -> None:
    world = running()
    asked = world.node.next_deadline_ms()
    assert asked is not None
    effects = world.node.give_up("the disk is gone", now_ms=world.now_ms, wall_ms=world.now_ms)
    world.execute(effects)
    assert (world.stop.failed, "the disk is gone" in (world.stop.reason or "")) == (True, True)
    assert world.node.stopped
    assert world.node.next_deadline_ms() is None
    for later_ms in (world.now_ms, asked, world.now_ms + 10 * SESSION_MS):
        times: Any = {"now_ms": later_ms, "wall_ms": later_ms}
        assert world.node.tick(**times) == []
        assert world.node.give_up("once more", **times) == []
        assert world.node.handle(ShutdownRequested(), **times) == []
        assert world.node.follow(10, fetches_snapshot=True, **times) == []


def test_the_step_that_ends_a_broker_asks_nobody_for_more() -> None:
    """Its start has taken too long, and a fetch of the metadata log is due in the same step."""
    world = World(linked=False)
    world.run(1_000)
    later_ms = world.now_ms + 10**7
    effects = world.node.tick(now_ms=later_ms, wall_ms=later_ms)
    assert any(isinstance(effect, Stop) for effect in effects)
    assert not any(isinstance(effect, raft.SendRequest) for effect in effects)
    world.execute(effects)

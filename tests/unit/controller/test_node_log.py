"""What a node does with the log: reads, snapshots, catching up, and keeping it moving."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from metaquorum.controller.events import ReadLog, SnapshotLoaded, SnapshotRejected, TrimLog, WriteSnapshot
from metaquorum.controller.server.main import node_status
from metaquorum.metadata.errors import ApiError, ErrorCode, InvariantViolation
from metaquorum.metadata.image import MetadataImage, Provenance
from metaquorum.metadata.node_configs import VOTER_REPLICA, ControllerConfig, MetadataReplicaConfig
from metaquorum.metadata.records.types import (
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    TopicRecord,
)
from metaquorum.metadata.requests.common import ReadImageRequest, ReadImageResponse, TransferLeadershipRequest
from metaquorum.storage.types import LogPosition
from tests.unit.controller.node_quorum import CLUSTER, Machine, Quorum

BASE = ControllerConfig(cluster_id=CLUSTER, node_id=0)


def quorum_of(following: MetadataReplicaConfig = VOTER_REPLICA, **changes: object) -> Quorum:
    quorum = Quorum(config=replace(BASE, metadata_replica=following, **changes))
    quorum.elect()
    return quorum


def following(**changes: int) -> MetadataReplicaConfig:
    return structs.replace(VOTER_REPLICA, **changes)


def snapshots_of(machine: Machine) -> list[WriteSnapshot[MetadataImage]]:
    return [effect for effect in machine.effects if isinstance(effect, WriteSnapshot)]


# ---- reads


def test_a_stale_read_is_answered_anywhere_at_once_with_its_offset() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    follower = quorum.followers[0]
    quorum.advance(300)
    quorum.disconnect(follower.node_id)
    end = follower.node.ledger.committed_offset
    quorum.create("unseen", (1,))
    answer = quorum.call(ReadImageRequest(linearizable=False), follower)
    assert isinstance(answer, ReadImageResponse)
    assert answer.offset == end == answer.image.provenance.offset
    assert answer.image.topics.topic_named("unseen") is None
    assert quorum.image().topics.topic_named("unseen") is not None


def test_a_linearizable_read_sees_every_write_that_was_answered_before() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    quorum.create("seen", (1,))
    answer = quorum.call(ReadImageRequest())
    assert isinstance(answer, ReadImageResponse)
    assert answer.image.topics.topic_named("seen") is not None
    assert answer.offset == quorum.leader.node.raft.high_watermark


def test_a_leader_that_is_cut_off_answers_no_linearizable_read() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    old = quorum.leader
    quorum.disconnect(old.node_id)
    key = quorum.request(ReadImageRequest(), old)
    quorum.settle()
    assert key not in old.answers
    quorum.advance(5_000)
    quorum.create("newer", (1,))
    answer = old.answers[key]
    assert isinstance(answer, ApiError) and answer.code is ErrorCode.NOT_CONTROLLER


def test_reads_wait_in_a_bounded_number() -> None:
    quorum = quorum_of(answers_max=2)
    old = quorum.leader
    quorum.disconnect(old.node_id)
    keys = [quorum.request(ReadImageRequest(), old) for _ in range(4)]
    quorum.settle()
    refused = [old.answers[key] for key in keys if key in old.answers]
    assert [answer.code for answer in refused if isinstance(answer, ApiError)] == [
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ]


# ---- NoOp


def test_an_idle_log_moves_and_a_busy_one_needs_no_noop() -> None:
    quorum = quorum_of(metadata_max_idle_interval_ms=500)
    end = quorum.leader.end_offset
    quorum.advance(2_010)
    assert quorum.leader.end_offset - end == 4
    quorum.start_broker(1)
    end = quorum.leader.end_offset
    for n in range(10):
        quorum.advance(400)
        quorum.create(f"t{n}", (1,))
    assert quorum.leader.end_offset - end == 30  # each batch: cause, topic, partition
    assert quorum.leader.node.ledger.committed_offset > end


def test_noop_records_can_be_switched_off_and_old_levels_have_none() -> None:
    quorum = quorum_of(metadata_max_idle_interval_ms=0)
    end = quorum.leader.end_offset
    quorum.advance(5_000)
    assert quorum.leader.end_offset == end
    old = quorum_of(bootstrap=(FeatureLevelRecord(name="metadata.version", feature_level=4),))
    end = old.leader.end_offset
    old.advance(5_000)
    assert old.leader.end_offset == end


# ---- snapshots


def test_a_snapshot_after_so_many_bytes_at_a_committed_batch_boundary() -> None:
    quorum = quorum_of(following(metadata_log_max_record_bytes_between_snapshots=1_000))
    quorum.start_broker(1)
    for n in range(20):
        quorum.create(f"t{n}", (1,))
    quorum.advance(1_000)
    for machine in quorum.machines.values():
        written = snapshots_of(machine)
        assert len(written) >= 3
        ends = {end for _, end, _ in machine.log}
        for effect in written:
            assert effect.position.offset in ends
            assert effect.position.offset == effect.image.provenance.offset
            assert effect.position.epoch == effect.image.provenance.epoch == 1
            assert effect.position.offset <= machine.node.raft.high_watermark
        assert [e.before_offset for e in machine.effects if isinstance(e, TrimLog)] == [
            effect.position.offset for effect in written
        ]


def test_one_snapshot_at_a_time() -> None:
    quorum = quorum_of(following(metadata_log_max_record_bytes_between_snapshots=900))
    for machine in quorum.machines.values():
        machine.hold_snapshots = True
    quorum.start_broker(1)
    for n in range(20):
        quorum.create(f"t{n}", (1,))
    assert len(snapshots_of(quorum.leader)) == 1
    assert quorum.leader.node.replica.snapshots.in_progress == snapshots_of(quorum.leader)[0].position


def test_a_snapshot_by_time_only_where_something_happened() -> None:
    every_10_s = following(metadata_log_max_snapshot_interval_ms=10_000)
    quorum = quorum_of(every_10_s, metadata_max_idle_interval_ms=0)
    quorum.advance(11_000)
    first = snapshots_of(quorum.leader)
    assert len(first) == 1
    quorum.advance(50_000)
    assert len(snapshots_of(quorum.leader)) == 1
    quorum.register(1)
    quorum.advance(11_000)
    assert len(snapshots_of(quorum.leader)) == 2


def test_no_snapshot_shows_the_inside_of_a_transaction() -> None:
    quorum = quorum_of(following(metadata_log_max_record_bytes_between_snapshots=400))
    leader = quorum.leader
    quorum.advance(2_000)
    written = len(snapshots_of(leader))
    leader.write(BeginTransactionRecord(name="long"))
    for n in range(10):
        leader.write(TopicRecord(name=f"t{n}", topic_id=bytes([n + 1]) * 16))
    quorum.settle()
    assert leader.node.ledger.committed.transaction is not None
    assert len(snapshots_of(leader)) == written
    leader.write(EndTransactionRecord())
    quorum.settle()
    assert len(snapshots_of(leader)) == written + 1
    assert snapshots_of(leader)[-1].position.offset == leader.end_offset
    assert len(snapshots_of(leader)[-1].image.topics) == 10


def test_a_node_far_behind_takes_the_snapshot_and_goes_on_from_its_end() -> None:
    quorum = quorum_of(following(metadata_log_max_record_bytes_between_snapshots=800))
    quorum.start_broker(1)
    for machine in quorum.machines.values():
        machine.trim = True
    far = quorum.followers[0]
    far.kill()
    for n in range(20):
        quorum.create(f"t{n}", (1,))
    quorum.advance(500)
    assert quorum.leader.log_start > far.end_offset
    far.boot()
    quorum.advance(2_000)
    assert far.node.counters.snapshots_loaded == 1
    assert far.log_start > 0
    quorum.create("after", (1,))
    quorum.advance(500)
    assert far.node.ledger.committed.image == quorum.image()
    # It can lead from there.
    quorum.call(TransferLeadershipRequest(target_id=far.node_id))
    quorum.advance(500)
    assert quorum.leader is far
    assert quorum.create("led", (1,))


def test_a_restarted_node_starts_from_its_snapshot_and_replays_the_rest() -> None:
    quorum = quorum_of(following(metadata_log_max_record_bytes_between_snapshots=800))
    quorum.start_broker(1)
    for n in range(10):
        quorum.create(f"t{n}", (1,))
    node = quorum.followers[0]
    node.kill()
    node.boot()
    assert node.node.ledger.committed_offset == max(position.offset for position in node.snapshots)
    quorum.advance(1_000)
    assert node.node.ledger.committed.image == quorum.image()


def test_a_snapshot_that_is_overtaken_changes_nothing() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    follower = quorum.followers[0]
    quorum.advance(500)
    before = follower.node.ledger.committed
    early = SnapshotLoaded(
        position=LogPosition(1, 1), image=MetadataImage().with_provenance(Provenance(1, 1, 0))
    )
    follower.inbox.append(early)
    quorum.settle()
    assert follower.node.ledger.committed is before
    follower.inbox.append(SnapshotRejected(position=LogPosition(1, 1), reason="its footer is missing"))
    quorum.settle()
    assert follower.stopped is None
    assert any("damaged" in warning for warning in follower.warnings)


def test_a_snapshot_that_is_due_inside_a_transaction_waits_without_a_busy_loop() -> None:
    every_5_s = following(metadata_log_max_snapshot_interval_ms=5_000)
    quorum = quorum_of(every_5_s, metadata_max_idle_interval_ms=0)
    leader = quorum.leader
    leader.write(BeginTransactionRecord(name="long"))
    quorum.settle()
    quorum.advance(7_000)
    assert snapshots_of(leader) == []
    due = leader.node.next_deadline_ms()
    assert due is not None and due > quorum.now_ms
    leader.write(EndTransactionRecord())
    quorum.advance(2_000)
    assert len(snapshots_of(leader)) == 1


# ---- following


def test_committed_batches_are_read_in_bounded_slices_one_at_a_time() -> None:
    quorum = quorum_of(following(apply_slice_bytes=600))
    quorum.start_broker(1)
    slow = quorum.followers[0]
    slow.kill()
    for n in range(12):
        quorum.create(f"t{n}", (1,))
    quorum.advance(100)
    slow.boot()
    slow.effects.clear()
    quorum.advance(1_000)
    reads = [effect for effect in slow.effects if isinstance(effect, ReadLog)]
    assert len(reads) > 4
    assert all(read.max_bytes == 600 for read in reads)
    assert [read.from_offset for read in reads] == sorted({read.from_offset for read in reads})
    assert slow.node.ledger.committed.image == quorum.image()


def test_every_node_reaches_the_same_image_and_log() -> None:
    quorum = quorum_of()
    for broker_id in (1, 2, 3):
        quorum.start_broker(broker_id)
    for n in range(5):
        quorum.create(f"t{n}", (1, 2, 3))
    quorum.beat_for(12_000, 2, 3)
    quorum.advance(500)
    logs = [[data for _, _, data in machine.log] for machine in quorum.machines.values()]
    assert logs[0] == logs[1] == logs[2]
    images = [machine.node.ledger.committed.image for machine in quorum.machines.values()]
    assert images[0] == images[1] == images[2]


def test_a_fetched_snapshot_whose_image_ends_elsewhere_is_refused() -> None:
    quorum = quorum_of()
    follower = quorum.followers[0]
    before = follower.node.ledger.committed
    elsewhere = MetadataImage().with_provenance(Provenance(999, 1, 0))
    follower.inbox.append(SnapshotLoaded(position=LogPosition(1, 1_000), image=elsewhere))
    with pytest.raises(InvariantViolation, match="ends at offset 999"):
        quorum.settle()
    assert follower.node.ledger.committed is before


def test_status_tells_what_people_look_for() -> None:
    quorum = quorum_of()
    quorum.start_broker(1)
    status = node_status(quorum.leader.node)
    assert (status.role, status.is_active, status.metadata_version) == ("leader", True, 19)
    assert status.high_watermark == status.committed_offset == status.log_end_offset
    (broker,) = status.brokers
    assert (broker.broker_id, broker.state.value, broker.lease_remaining_ms) == (1, "active", 9_000)
    follower = node_status(quorum.followers[0].node)
    assert (follower.role, follower.is_active, follower.brokers[0].lease_remaining_ms) == (
        "follower",
        False,
        None,
    )

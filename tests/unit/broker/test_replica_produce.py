"""A leader takes batches: acks, the high watermark, idempotence, deadlines, and the end of its office."""

from __future__ import annotations

import pytest

from metaquorum.broker.replica.disk_work import AppendPartition, ChangeLogSettings, LogSettings
from metaquorum.broker.replica.partition.leader import UNWRITTEN_LIMIT_BYTES
from metaquorum.broker.replica.partition.values import Changes, ReplicaRole
from metaquorum.broker.replica.topic_settings import TopicSettings
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import ACKS_LEADER, ACKS_NONE
from metaquorum.raft.effects import Warn
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.batches.format import parse_header
from tests.unit.broker.replica_world import DIRECTORY, KEY, Replica, Ticket, batch, info

LAZY = ReplicaConfig(broker_id=1, log_flush_before_ack=False)
TWO = TopicSettings(min_insync_replicas=2)
HOLDING = TopicSettings(min_insync_replicas=2, holds_back_high_watermark=True)


def leader(**options: object) -> Replica:
    replica = Replica(**options)  # type: ignore[arg-type]
    replica.lead(info())
    return replica


def all_hold(replica: Replica, offset: int) -> None:
    for broker_id in (2, 3):
        replica.fetch_as(broker_id, offset)


def test_an_append_is_one_piece_of_work_with_offsets_and_epoch() -> None:
    replica = leader()
    replica.take()
    sent = batch(b"a", b"b")
    replica.send(sent)
    (work,) = replica.take()
    assert isinstance(work, AppendPartition)
    assert (work.directory_id, work.key, work.incarnation, work.sync) == (DIRECTORY, KEY, 1, True)
    assert (parse_header(work.batches.data).base_offset, parse_header(work.batches.data).leader_epoch) == (
        0,
        1,
    )
    assert work.batches.data[16:] == sent[16:]
    replica.send(sent)
    (second,) = replica.take()
    assert isinstance(second, AppendPartition) and parse_header(second.batches.data).base_offset == 2
    assert replica.partition.end_offset == 4
    assert (replica.partition.written_end, replica.partition.synced_end) == (0, 0)
    assert replica.partition.epochs.entries == ((1, 0),)


@pytest.mark.parametrize("append_time", [False, True])
def test_what_was_appended_is_given_once_with_the_header_that_its_bytes_have(append_time: bool) -> None:
    """Readers near the end and coordinators take it from there: nothing parses the stored bytes again."""
    replica = leader(settings=TopicSettings(log_append_time=append_time))
    assert replica.partition.take_appended() is None
    sent = batch(b"a", b"b", producer=7, epoch=0, sequence=0)
    replica.send(sent)
    stored = replica.partition.take_appended()
    (work,) = [each for each in replica.take() if isinstance(each, AppendPartition)]
    assert stored is work.batches and stored == Batches.parse(stored.data)
    replica.send(sent)  # a duplicate
    replica.send(sent[:-1])
    assert replica.partition.take_appended() is None


def test_without_flush_before_ack_nothing_is_synced_for_an_append() -> None:
    replica = leader(config=LAZY)
    replica.send(batch())
    assert [each.sync for each in replica.take() if isinstance(each, AppendPartition)] == [False]


@pytest.mark.parametrize("flush", [True, False])
def test_acks_all_waits_for_every_replica_in_sync(flush: bool) -> None:
    replica = leader(config=ReplicaConfig(broker_id=1, log_flush_before_ack=flush))
    ticket = replica.send(batch(b"a", b"b"))
    replica.work()
    all_hold(replica, 2)
    assert bool(ticket.results) is not flush, "written is enough only without flush before ack"
    replica.sync()
    assert (ticket.result.error, ticket.result.base_offset) == (ErrorCode.NONE, 0)
    assert replica.partition.high_watermark == 2


def test_one_follower_that_lags_holds_the_high_watermark() -> None:
    replica = leader()
    first, second = replica.send(batch()), replica.send(batch())
    replica.settle()
    replica.fetch_as(2, 2)
    replica.fetch_as(3, 1)
    assert replica.partition.high_watermark == 1
    assert first.result.base_offset == 0 and not second.results
    replica.fetch_as(3, 2)
    assert second.result.base_offset == 1


def test_the_leaders_own_disk_counts_too() -> None:
    replica = leader()
    ticket = replica.send(batch())
    replica.work()
    all_hold(replica, 1)
    assert replica.partition.high_watermark == 0 and not ticket.results
    replica.sync()
    assert replica.partition.high_watermark == 1 and ticket.result.base_offset == 0


def test_acks_1_waits_for_the_leaders_write_alone() -> None:
    replica = leader()
    ticket = replica.send(batch(), ACKS_LEADER)
    assert not ticket.results
    replica.work()
    assert (ticket.result.error, ticket.result.base_offset) == (ErrorCode.NONE, 0)
    assert replica.partition.high_watermark == 0


def test_acks_0_of_a_sole_replica_is_over_when_readers_see_it() -> None:
    """The connection's next request begins then, and Kafka's finds the records."""
    replica = Replica()
    replica.lead(info(isr=[1], replicas=[1]))
    sent = replica.send(batch(), ACKS_NONE)
    replica.work()
    assert sent.results == []
    replica.settle()
    assert sent.result.base_offset == 0 and replica.partition.high_watermark == 1


def test_acks_0_waits_for_nothing() -> None:
    replica = leader()
    assert replica.send(batch(), ACKS_NONE).result.base_offset == 0
    assert replica.partition.end_offset == 1


@pytest.mark.parametrize("acks", [2, -2, 7])
def test_other_acks_mean_nothing(acks: int) -> None:
    replica = leader()
    replica.take()
    assert replica.send(batch(), acks).result.error is ErrorCode.INVALID_REQUIRED_ACKS
    assert replica.take() == []


# ---- min.insync.replicas --------------------------------------------------------------------


def test_too_few_in_sync_refuse_acks_all_before_the_append() -> None:
    replica = Replica(settings=TWO)
    replica.lead(info(isr=[1]))
    replica.take()
    result = replica.send(batch()).result
    assert result.error is ErrorCode.NOT_ENOUGH_REPLICAS and "min.insync.replicas is 2" in str(result.message)
    assert replica.take() == []
    replica.send(batch(), ACKS_LEADER)
    assert len(replica.take()) == 1, "other acks do not ask for more replicas"


def test_min_insync_replicas_is_at_most_the_number_of_replicas() -> None:
    replica = Replica(settings=TopicSettings(min_insync_replicas=3))
    replica.lead(info(replicas=[1], isr=[1]))
    ticket = replica.send(batch())
    replica.settle()
    assert ticket.result.error is ErrorCode.NONE


def test_too_few_in_sync_after_the_append_is_another_code() -> None:
    replica = Replica(settings=TWO)
    replica.lead(info(isr=[1, 2]))
    ticket = replica.send(batch(producer=7, sequence=0))
    replica.settle()
    replica.lead(info(isr=[1], partition_epoch=2))
    assert replica.partition.high_watermark == 1
    assert ticket.result.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert "from offset 0 on" in str(ticket.result.message)


def test_with_eligible_leader_replicas_the_high_watermark_waits_for_the_minimum() -> None:
    replica = Replica(settings=HOLDING)
    replica.lead(info(isr=[1, 2]))
    ticket = replica.send(batch())
    replica.settle()
    replica.lead(info(isr=[1], partition_epoch=2))
    assert replica.partition.high_watermark == 0 and not ticket.results
    replica.lead(info(isr=[1, 3], partition_epoch=3))
    replica.fetch_as(3, 1)
    assert replica.partition.high_watermark == 1 and ticket.result.error is ErrorCode.NONE


def test_a_lower_minimum_lets_the_high_watermark_go_on() -> None:
    replica = Replica(settings=HOLDING)
    replica.lead(info(isr=[1]))
    ticket = replica.send(batch(), ACKS_LEADER)
    replica.settle()
    assert replica.partition.high_watermark == 0 and ticket.results
    replica.partition.change_settings(
        TopicSettings(min_insync_replicas=1, holds_back_high_watermark=True), now_ms=0
    )
    assert replica.partition.high_watermark == 1
    assert not any(isinstance(each, ChangeLogSettings) for each in replica.take())


def test_settings_of_the_log_go_to_the_disk() -> None:
    replica = leader()
    replica.take()
    changed = LogSettings(segment_bytes=1_000)
    replica.partition.change_settings(TopicSettings(log=changed), now_ms=0)
    assert replica.take() == [
        ChangeLogSettings(directory_id=DIRECTORY, key=KEY, incarnation=1, settings=changed)
    ]


# ---- idempotence ----------------------------------------------------------------------------


def test_a_repeated_batch_is_stored_once_and_succeeds_with_its_first_offset() -> None:
    replica = leader()
    replica.send(batch(b"x"))
    repeated = batch(b"a", b"b", producer=7, sequence=0)
    first = replica.send(repeated)
    replica.settle()
    all_hold(replica, 3)
    assert first.result.base_offset == 1
    replica.take()
    again = replica.send(repeated)
    assert (again.result.error, again.result.base_offset) == (ErrorCode.NONE, 1)
    assert replica.take() == [] and replica.partition.end_offset == 3


def test_a_duplicate_of_what_is_not_committed_waits_like_the_first() -> None:
    replica = leader()
    repeated = batch(producer=7, sequence=0)
    first, again = replica.send(repeated), replica.send(repeated)
    weaker = replica.send(repeated, ACKS_LEADER)
    assert not first.results and not again.results and not weaker.results
    assert len(replica.take()) == 1
    replica.settle()
    assert weaker.result.base_offset == 0 and not again.results
    all_hold(replica, 1)
    assert (first.result.base_offset, again.result.base_offset) == (0, 0)
    assert replica.partition.end_offset == 1


@pytest.mark.parametrize(
    ("sequence", "epoch", "code", "text"),
    [
        (3, 4, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "1 is next"),
        (1, 3, ErrorCode.INVALID_PRODUCER_EPOCH, "current epoch is 4"),
        (5, 5, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "0 is next"),
    ],
)
def test_wrong_sequences_and_old_epochs_store_nothing(
    sequence: int, epoch: int, code: ErrorCode, text: str
) -> None:
    replica = leader()
    replica.send(batch(producer=7, epoch=4, sequence=0))
    replica.take()
    result = replica.send(batch(producer=7, epoch=epoch, sequence=sequence)).result
    assert result.error is code and text in str(result.message)
    assert replica.take() == [] and replica.partition.end_offset == 1


def test_a_sequence_wraps_at_its_limit() -> None:
    replica = leader()
    replica.send(batch(b"a", producer=7, sequence=2**31 - 1))
    replica.send(batch(b"b", producer=7, sequence=0))
    assert replica.partition.end_offset == 2


def test_expired_producers_are_forgotten() -> None:
    replica = leader(config=ReplicaConfig(broker_id=1, producer_id_expiration_ms=1_000))
    replica.send(batch(producer=7, sequence=0))
    replica.partition.expire_producers(replica.wall_ms + 1_000)
    assert 7 in [known for known in range(10) if replica.partition.producers.get(known)]
    replica.partition.expire_producers(replica.wall_ms + 1_001)
    assert len(replica.partition.producers) == 0
    replica.send(batch(producer=7, sequence=9))
    assert replica.partition.end_offset == 2, "who is not known may go on anywhere (KIP-360)"


def test_a_leader_knows_the_producers_of_the_leader_before() -> None:
    follower = Replica(broker_id=2)
    follower.follow(info(leader=1))
    asked = follower.partition.fetch_position()
    first = leader()
    first.send(batch(b"a", producer=7, sequence=0))
    first.settle()
    assert asked is not None
    follower.take_answer(first.answer(asked, 2), asked)
    follower.settle()
    follower.lead(info(leader=2, epoch=2, partition_epoch=2, isr=[2]))
    again = follower.send(batch(b"a", producer=7, sequence=0))
    assert (again.result.error, again.result.base_offset) == (ErrorCode.NONE, 0)
    assert follower.partition.end_offset == 1


# ---- time, and the end of office ------------------------------------------------------------


def test_a_request_that_waits_too_long_is_told_so_once() -> None:
    replica = leader()
    slow, patient = replica.send(batch(), timeout_ms=500), replica.send(batch(), timeout_ms=900)
    assert replica.partition.next_deadline_ms() == 500
    replica.partition.tick(now_ms=499)
    assert not slow.results
    replica.partition.tick(now_ms=500)
    assert slow.result.error is ErrorCode.REQUEST_TIMED_OUT and "offset 0" in str(slow.result.message)
    assert replica.partition.next_deadline_ms() == 900
    replica.settle()
    all_hold(replica, 2)
    assert patient.result.error is ErrorCode.NONE
    assert replica.partition.next_deadline_ms() is None


def test_acks_1_does_not_fail_when_replicas_are_added_before_it_is_written() -> None:
    replica = Replica(settings=TWO)
    replica.lead(info(isr=[1], replicas=[1]))
    waits = replica.send(batch(), ACKS_LEADER)
    assert waits.results == []
    replica.lead(info(partition_epoch=2, isr=[1]))
    replica.settle()
    assert [result.error for result in waits.results] == [ErrorCode.NONE]


def test_a_cancelled_ticket_is_not_completed() -> None:
    replica = leader()
    gone, stays = replica.send(batch()), replica.send(batch())
    replica.partition.cancel(gone)
    replica.settle()
    all_hold(replica, 2)
    assert not gone.results and stays.result.base_offset == 1


def test_whoever_waits_is_told_when_another_broker_leads() -> None:
    replica = leader()
    waiting = [replica.send(batch()), replica.send(batch(), ACKS_LEADER)]
    replica.follow(info(leader=2, epoch=2, partition_epoch=2))
    for ticket in waiting:
        assert ticket.result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (ticket.result.leader, ticket.result.leader_epoch) == (2, 1)
    refused = replica.send(batch()).result
    assert (refused.error, refused.leader, refused.leader_epoch) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, 2)
    replica.settle()
    assert replica.partition.end_offset == 2, "what was appended stays until the new leader says otherwise"


def test_whoever_waits_is_told_that_the_directory_failed() -> None:
    replica = leader()
    ticket = replica.send(batch())
    replica.partition.idle(ErrorCode.KAFKA_STORAGE_ERROR, "the directory failed: ask again")
    assert ticket.result.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert replica.send(batch()).result.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert replica.partition.role is ReplicaRole.IDLE and replica.partition.isr == ()


def test_a_leader_of_a_newer_epoch_goes_on_with_what_waits() -> None:
    replica = leader()
    ticket = replica.send(batch())
    replica.lead(info(epoch=2, partition_epoch=2))
    replica.settle()
    all_hold(replica, 1)
    assert ticket.result.base_offset == 0
    replica.send(batch())
    assert replica.partition.epochs.entries == ((1, 0), (2, 1))


def test_older_metadata_changes_nothing() -> None:
    replica = Replica()
    replica.lead(info(epoch=3, partition_epoch=9, isr=[1, 2]))
    replica.take()
    replica.partition.take_changes()
    replica.lead(info(epoch=3, partition_epoch=8, isr=[1, 2, 3]))
    replica.follow(info(leader=2, epoch=2, partition_epoch=7))
    assert replica.partition.role is ReplicaRole.LEADER and replica.partition.isr == (1, 2)
    assert replica.take() == [] and replica.partition.take_changes() == Changes.NONE


def test_a_log_with_records_of_a_later_epoch_than_the_metadata_is_not_led() -> None:
    replica = Replica()
    replica.disk.append(batch(leader_epoch=9))
    stranger = Replica(disk=replica.disk)
    stranger.lead(info(epoch=4))
    (warning,) = stranger.take()
    assert isinstance(warning, Warn) and "leader epoch 9" in warning.message
    assert stranger.send(batch()).result.error is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_slow_directory_is_not_buried_in_memory() -> None:
    replica = leader(settings=TopicSettings(max_message_bytes=UNWRITTEN_LIMIT_BYTES))
    big = batch(b"x" * (4 * 1024 * 1024))
    fitting = UNWRITTEN_LIMIT_BYTES // len(big)
    for _ in range(fitting):
        assert not replica.send(big).results
    refused = replica.send(big).result
    assert refused.error is ErrorCode.REQUEST_TIMED_OUT and "nothing was stored" in str(refused.message)
    assert replica.partition.end_offset == fitting
    replica.work()
    assert not replica.send(big).results


def test_a_directory_that_always_has_a_little_to_do_is_not_slow() -> None:
    replica = leader(settings=TopicSettings(max_message_bytes=UNWRITTEN_LIMIT_BYTES))
    big = batch(b"x" * (4 * 1024 * 1024))
    replica.send(big)
    for _ in range(2 * UNWRITTEN_LIMIT_BYTES // len(big)):
        assert not replica.send(big).results
        replica.work(1)  # one behind, all the time
    assert replica.partition.written_end == replica.partition.end_offset - 1


def test_changes_say_what_moved() -> None:
    replica = leader()
    assert replica.partition.take_changes() & Changes.ROLE
    replica.send(batch())
    assert replica.partition.take_changes() == Changes.END | Changes.DEADLINE, "followers may have it at once"
    replica.work()
    assert replica.partition.take_changes() == Changes.END | Changes.POSITION
    replica.sync()
    all_hold(replica, 1)
    assert replica.partition.take_changes() & Changes.HIGH_WATERMARK


def test_a_report_on_work_before_a_cut_is_ignored() -> None:
    replica = leader()
    replica.send(batch())
    replica.partition.synced(99, 1, 0, now_ms=0)
    assert (replica.partition.written_end, replica.partition.synced_end) == (0, 0)


def test_deadlines_of_many_are_kept_apart() -> None:
    replica = leader()
    tickets: dict[int, Ticket] = {ms: replica.send(batch(), timeout_ms=ms) for ms in (50, 10, 30, 20, 40)}
    for now in (10, 20, 30, 40, 50):
        assert replica.partition.next_deadline_ms() == now
        replica.partition.tick(now_ms=now)
        assert [ms for ms in sorted(tickets) if tickets[ms].results] == list(range(10, now + 1, 10))
    assert replica.partition.next_deadline_ms() is None

"""What a follower does: its position, appends, cuts by epoch, starting over, and becoming something else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from metaquorum.broker.replica.disk_work import AppendPartition, CutPartition, LogAppended, TrimTo
from metaquorum.broker.replica.partition.follower import cut_offset
from metaquorum.broker.replica.partition.values import Changes, FollowerStep, ReplicaRole
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import NO_LEADER
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import ACKS_LEADER, FetchedPartition, FetchPartition
from metaquorum.raft.effects import Warn
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition
from tests.unit.broker.replica_world import DIRECTORY, KEY, ListDisk, Replica, batch, info


def disk_of(epochs: Sequence[tuple[int, int]], end: int, *, start: int = 0) -> ListDisk:
    """One record a batch; `epochs` are (epoch, first offset)."""
    disk = ListDisk()
    disk.start = start
    for offset in range(start, end):
        epoch = max(epoch for epoch, first in epochs if first <= offset)
        disk.append(batch(b"%d.%d" % (epoch, offset), base_offset=offset, leader_epoch=epoch))
    disk.synced = len(disk.batches)
    return disk


def follower(disk: ListDisk | None = None, *, epoch: int = 9, high_watermark: int = 0) -> Replica:
    replica = Replica(2, disk=disk, high_watermark=high_watermark)
    replica.follow(info(leader=1, epoch=epoch))
    replica.take()
    return replica


def position(replica: Replica) -> FetchPartition:
    found = replica.partition.fetch_position()
    assert found is not None
    return found


def part(**fields: object) -> FetchedPartition:
    return FetchedPartition(key=KEY, **{"high_watermark": 0, "log_start_offset": 0, **fields})  # type: ignore[arg-type]


def test_the_position_is_the_end_with_the_last_records_epoch() -> None:
    replica = follower(disk_of([(3, 0), (5, 2)], 4))
    assert position(replica) == FetchPartition(
        key=KEY,
        fetch_offset=4,
        max_bytes=1024 * 1024,
        current_leader_epoch=9,
        last_fetched_epoch=5,
        log_start_offset=0,
    )
    assert position(follower()).last_fetched_epoch == -1


@pytest.mark.parametrize("flush", [True, False])
def test_it_fetches_on_when_what_it_took_counts(flush: bool) -> None:
    replica = Replica(2, config=ReplicaConfig(broker_id=2, log_flush_before_ack=flush))
    replica.follow(info(leader=1))
    asked = position(replica)
    records = batch(base_offset=0, leader_epoch=1) + batch(b"a", b"b", base_offset=1, leader_epoch=1)
    outcome = replica.take_answer(part(records=records, high_watermark=2), asked)
    assert outcome.step is FollowerStep.APPENDED
    (work,) = replica.take()
    batches = Batches.parse(records)
    assert work == AppendPartition(
        directory_id=DIRECTORY, key=KEY, incarnation=1, batches=batches, sync=flush
    )
    assert replica.partition.fetch_position() is None
    assert replica.partition.end_offset == 3
    replica.work()
    assert (replica.partition.fetch_position() is None) is flush
    replica.sync()
    assert position(replica).fetch_offset == 3


def test_its_high_watermark_is_the_leaders_up_to_its_own_end() -> None:
    replica = follower()
    replica.take_answer(
        part(records=batch(base_offset=0, leader_epoch=1), high_watermark=5), position(replica)
    )
    replica.settle()
    assert (replica.partition.high_watermark, replica.partition.lag) == (1, 4)
    outcome = replica.take_answer(part(high_watermark=0), position(replica))
    assert outcome.step is FollowerStep.NOTHING and replica.partition.high_watermark == 1


@pytest.mark.parametrize("told", [0, 1, 2, 3])
def test_the_lag_is_what_is_missing_and_never_less_than_nothing(told: int) -> None:
    replica = follower()
    replica.take_answer(
        part(records=batch(base_offset=0, leader_epoch=1), high_watermark=told), position(replica)
    )
    replica.settle()
    assert replica.partition.lag == max(0, told - 1)


def test_answers_to_older_questions_change_nothing() -> None:
    replica = follower()
    asked = position(replica)
    answer = part(records=batch(base_offset=0, leader_epoch=1), high_watermark=1)
    replica.take_answer(answer, asked)
    assert replica.take_answer(answer, asked).step is FollowerStep.STALE, "its append is not finished"
    replica.settle()
    assert replica.take_answer(answer, asked).step is FollowerStep.STALE, "it is further now"
    now = position(replica)
    replica.follow(info(leader=1, epoch=10, partition_epoch=2))
    assert replica.take_answer(part(), now).step is FollowerStep.STALE, "it is another epoch"
    replica.lead(info(leader=2, epoch=11, partition_epoch=3))
    assert replica.take_answer(part(), now).step is FollowerStep.STALE, "it leads"
    assert replica.partition.end_offset == 1


GOOD = batch(base_offset=0, leader_epoch=1)


@pytest.mark.parametrize(
    ("records", "text"),
    [
        (GOOD[:-1], "bytes, found"),
        (GOOD[:66] + b"\xff" + GOOD[67:], "CRC"),
        (GOOD + batch(base_offset=0, leader_epoch=1), "base offset 1 or above, found 0"),
        (batch(base_offset=0, leader_epoch=10), "epochs up to 9, found 10"),
        (batch(base_offset=0, leader_epoch=5) + batch(base_offset=1, leader_epoch=4), "leader epoch 5"),
        (b"short", "header"),
    ],
)
def test_what_cannot_be_stored_is_not(records: bytes, text: str) -> None:
    replica = follower()
    outcome = replica.take_answer(part(records=records, high_watermark=9), position(replica))
    assert (outcome.step, outcome.error) == (FollowerStep.BACK_OFF, ErrorCode.CORRUPT_MESSAGE)
    assert text in str(outcome.message) and "broker 1" in str(outcome.message)
    assert replica.take() == []
    assert (replica.partition.end_offset, replica.partition.high_watermark) == (0, 0)
    assert position(replica).fetch_offset == 0


@pytest.mark.parametrize(
    ("code", "step", "asks_again"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, FollowerStep.BACK_OFF, True),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, FollowerStep.BACK_OFF, True),
        (ErrorCode.KAFKA_STORAGE_ERROR, FollowerStep.BACK_OFF, True),
        (ErrorCode.FENCED_LEADER_EPOCH, FollowerStep.WAIT, False),
    ],
)
def test_refusals(code: ErrorCode, step: FollowerStep, asks_again: bool) -> None:
    replica = follower()
    outcome = replica.take_answer(part(error=code, message="why"), position(replica))
    assert (outcome.step, outcome.error, outcome.message) == (step, code, "why")
    assert (replica.partition.fetch_position() is not None) is asks_again
    replica.follow(info(leader=1, epoch=9, partition_epoch=2))
    assert (replica.partition.fetch_position() is not None) is asks_again, "the epoch is still the old one"
    replica.follow(info(leader=1, epoch=10, partition_epoch=3))
    assert position(replica).current_leader_epoch == 10


# ---- divergence -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "end", "shared", "to"),
    [
        ([(1, 0), (2, 5)], 10, LogPosition(2, 7), 7),  # the leader's epoch 2 is shorter
        ([(1, 0), (2, 5)], 10, LogPosition(1, 8), 5),  # the leader has no epoch 2, and ours of 1 is shorter
        ([(1, 0), (2, 5)], 10, LogPosition(1, 3), 3),
        ([(1, 0), (3, 5)], 10, LogPosition(2, 9), 5),  # we have no 2: ours of 1, perhaps cut again (KIP-279)
        ([(3, 0)], 4, LogPosition(1, 2), 0),  # nothing in common
        ([(3, 6)], 8, LogPosition(3, 5), 6),  # the leader's ends before we begin
    ],
)
def test_where_a_log_is_cut(own: list[tuple[int, int]], end: int, shared: LogPosition, to: int) -> None:
    assert cut_offset(EpochTable(tuple(own)), end, own[0][1], shared) == to


def test_a_cut_is_work_under_a_new_incarnation_and_overtakes_what_was_under_way() -> None:
    replica = follower(disk_of([(1, 0), (3, 3)], 6))
    outcome = replica.take_answer(part(diverging=LogPosition(1, 4)), position(replica))
    assert outcome.step is FollowerStep.CUT
    assert replica.take() == [CutPartition(directory_id=DIRECTORY, key=KEY, incarnation=2, end_offset=3)]
    assert replica.partition.incarnation == 2 and replica.partition.fetch_position() is None
    late = LogAppended(directory_id=DIRECTORY, key=KEY, incarnation=1, end_offset=99, size_bytes=1)
    replica.partition.appended(late, now_ms=0)
    replica.partition.take_changes()
    replica.settle()
    assert replica.partition.take_changes() & Changes.POSITION
    assert (replica.partition.end_offset, replica.partition.synced_end) == (3, 3)
    assert replica.partition.epochs.entries == ((1, 0),)
    assert (position(replica).fetch_offset, position(replica).last_fetched_epoch) == (3, 1)


def test_producers_go_with_the_records_that_are_cut() -> None:
    disk = ListDisk()
    disk.append(batch(base_offset=0, leader_epoch=1, producer=7, sequence=0))
    disk.append(batch(base_offset=1, leader_epoch=1, producer=7, sequence=1))
    disk.synced = 2
    replica = follower(disk)
    replica.take_answer(part(diverging=LogPosition(1, 1)), position(replica))
    replica.settle()
    replica.lead(info(leader=2, epoch=10, partition_epoch=2, isr=[2]))
    replica.send(batch(producer=7, sequence=1), ACKS_LEADER)
    assert replica.partition.end_offset == 2, "the batch that was cut off is stored again, once"


def test_a_cut_below_the_high_watermark_is_said_loudly() -> None:
    replica = follower(disk_of([(1, 0), (3, 3)], 6), high_watermark=5)
    replica.take_answer(part(diverging=LogPosition(1, 4)), position(replica))
    warning = replica.take()[0]
    assert isinstance(warning, Warn) and "below the high watermark 5" in warning.message
    assert replica.partition.high_watermark == 3


def test_the_high_watermark_is_no_truncation_point() -> None:
    replica = Replica(2, disk=disk_of([(1, 0)], 6), high_watermark=2)
    replica.follow(info(leader=1, epoch=2))
    assert not any(isinstance(each, CutPartition) for each in replica.take())
    assert position(replica).fetch_offset == 6


def test_divergence_that_leaves_nothing_to_cut_is_no_loop_of_cuts() -> None:
    replica = follower(disk_of([(1, 0)], 6))
    outcome = replica.take_answer(part(diverging=LogPosition(1, 6)), position(replica))
    assert (outcome.step, outcome.error) == (FollowerStep.BACK_OFF, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert replica.take() == []


def test_a_log_that_the_leader_knows_nothing_of_starts_over() -> None:
    replica = follower(disk_of([(1, 0)], 6))
    outcome = replica.take_answer(
        part(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=20, message="m"), position(replica)
    )
    assert outcome.step is FollowerStep.CUT
    assert replica.take() == [
        CutPartition(directory_id=DIRECTORY, key=KEY, incarnation=2, end_offset=20, start_over=True)
    ]
    replica.settle()
    assert (replica.partition.start_offset, replica.partition.end_offset) == (20, 20)
    assert (position(replica).fetch_offset, position(replica).last_fetched_epoch) == (20, -1)
    assert replica.partition.high_watermark == 20


def test_out_of_range_without_a_start_waits() -> None:
    replica = follower(disk_of([(1, 0)], 6))
    answer = FetchedPartition(key=KEY, error=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert replica.take_answer(answer, position(replica)).step is FollowerStep.BACK_OFF


def catch_up(leader: Replica, replica: Replica) -> list[FollowerStep]:
    """Fetches until there is nothing more; the steps on the way."""
    steps: list[FollowerStep] = []
    for _ in range(20):
        asked = position(replica)
        outcome = replica.take_answer(leader.answer(asked, replica.broker_id), asked)
        steps.append(outcome.step)
        replica.settle()
        if outcome.step is FollowerStep.NOTHING:
            return steps
    raise AssertionError(steps)


@pytest.mark.parametrize(
    ("leaders", "leaders_end", "own", "own_end"),
    [
        ([(1, 0)], 4, [(1, 0)], 9),  # ahead in the same epoch
        ([(1, 0), (2, 4)], 8, [(1, 0)], 9),  # KIP-101: both went on from 4
        ([(1, 0), (2, 4), (5, 6)], 9, [(1, 0), (3, 2), (4, 7)], 9),  # KIP-279: several epochs apart
        ([(1, 0), (3, 3)], 5, [(1, 0), (2, 1), (4, 4)], 8),
        ([(2, 0)], 3, [(1, 0)], 5),  # nothing in common
        ([(1, 0)], 0, [(1, 0)], 5),  # the leader is empty
        ([(1, 0)], 5, [(1, 0)], 0),  # the follower is
    ],
)
def test_whatever_the_histories_the_logs_are_the_same_in_the_end(
    leaders: list[tuple[int, int]], leaders_end: int, own: list[tuple[int, int]], own_end: int
) -> None:
    leader = Replica(1, disk=disk_of(leaders, leaders_end))
    leader.lead(info(epoch=9))
    replica = follower(disk_of(own, own_end))
    catch_up(leader, replica)
    assert replica.disk.batches == leader.disk.batches
    assert replica.partition.epochs == leader.partition.epochs


def test_a_follower_behind_the_leaders_start_begins_there() -> None:
    leader = Replica(1, disk=disk_of([(1, 5)], 9, start=5))
    leader.lead(info(epoch=9))
    replica = follower(disk_of([(1, 0)], 3))
    steps = catch_up(leader, replica)
    assert steps[0] is FollowerStep.CUT
    assert (replica.partition.start_offset, replica.disk.batches) == (5, leader.disk.batches)


@pytest.mark.parametrize("own", [0, 3])
def test_an_empty_log_begins_with_the_batch_in_which_the_leaders_starts(own: int) -> None:
    """As after DeleteRecords: fetches from offset 5 get a batch that begins at 2."""
    disk = ListDisk()
    disk.start = 2
    for base in (2, 8):
        disk.append(batch(*[b"v"] * 6, base_offset=base, leader_epoch=1))
    disk.start, disk.synced = 5, 2
    leader = Replica(1, disk=disk)
    leader.lead(info(epoch=9))
    replica = follower(disk_of([(1, 0)], own))
    for step in (FollowerStep.CUT, FollowerStep.APPENDED):
        asked = position(replica)
        assert replica.take_answer(leader.answer(asked, 2), asked).step is step
        work = replica.take()
        replica.settle()
    trims = [each.start_offset for each in work if isinstance(each, TrimTo)]
    assert isinstance(work[0], AppendPartition) and trims == [5]
    assert (replica.partition.start_offset, replica.partition.end_offset) == (5, 14)
    assert (replica.disk.start, replica.disk.batches) == (2, leader.disk.batches)


@pytest.mark.parametrize("cut_off", [b"", batch(b"v", base_offset=8, leader_epoch=1)[:-1]])
def test_a_batch_below_an_empty_log_is_not_taken(cut_off: bytes) -> None:
    replica = follower(disk_of([(1, 0)], 8, start=8))
    records = batch(b"v", b"v", base_offset=6, leader_epoch=1) + cut_off
    outcome = replica.take_answer(part(records=records, log_start_offset=6), position(replica))
    assert outcome.step is FollowerStep.BACK_OFF
    assert "expected offset 8, found a batch that ends before 8" in str(outcome.message)


def test_it_trims_to_the_leaders_start_and_asks_once() -> None:
    replica = follower(disk_of([(1, 0)], 6))
    replica.take_answer(part(log_start_offset=4), position(replica))
    assert replica.take() == [TrimTo(directory_id=DIRECTORY, key=KEY, incarnation=1, start_offset=4)]
    replica.take_answer(part(log_start_offset=4), position(replica))
    assert replica.take() == []
    replica.trim(3)
    assert replica.partition.start_offset == 3, "whole segments go, so it may begin lower"
    replica.take_answer(part(log_start_offset=4), position(replica))
    assert replica.take() == []
    replica.take_answer(part(log_start_offset=5), position(replica))
    assert len(replica.take()) == 1
    replica.take_answer(part(log_start_offset=7), position(replica))
    assert replica.take()[0] == TrimTo(directory_id=DIRECTORY, key=KEY, incarnation=1, start_offset=6), (
        "the start of a leader's log that is above its own end"
    )


# ---- other parts ----------------------------------------------------------------------------


def test_without_a_leader_nobody_is_asked() -> None:
    replica = follower()
    replica.follow(info(leader=NO_LEADER, epoch=10, partition_epoch=2))
    assert (replica.partition.role, replica.partition.leader) == (ReplicaRole.FOLLOWER, None)
    assert replica.partition.fetch_position() is None
    assert "try again later" in str(replica.send(batch()).result.message)


def test_elected_during_a_cut_it_leads_when_the_cut_is_done() -> None:
    replica = follower(disk_of([(1, 0), (3, 3)], 6))
    replica.take_answer(part(diverging=LogPosition(1, 4)), position(replica))
    replica.lead(info(leader=2, epoch=10, partition_epoch=2, isr=[2]))
    assert replica.partition.role is ReplicaRole.IDLE
    assert replica.send(batch()).result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    replica.settle()
    assert replica.partition.role is ReplicaRole.LEADER
    ticket = replica.send(batch())
    replica.settle()
    assert ticket.result.base_offset == 3


def test_elected_during_a_cut_and_voted_out_again_it_follows() -> None:
    replica = follower(disk_of([(1, 0), (3, 3)], 6))
    replica.take_answer(part(diverging=LogPosition(1, 4)), position(replica))
    replica.lead(info(leader=2, epoch=10, partition_epoch=2, isr=[2]))
    replica.follow(info(leader=1, epoch=11, partition_epoch=3))
    replica.settle()
    assert replica.partition.role is ReplicaRole.FOLLOWER and position(replica).current_leader_epoch == 11


def test_elected_during_a_cut_and_taken_out_of_service_it_does_not_lead() -> None:
    replica = follower(disk_of([(1, 0), (3, 3)], 6))
    replica.take_answer(part(diverging=LogPosition(1, 4)), position(replica))
    replica.lead(info(leader=2, epoch=10, partition_epoch=2, isr=[2]))
    replica.partition.idle(ErrorCode.KAFKA_STORAGE_ERROR, "its directory is offline")
    replica.settle()
    assert replica.partition.role is ReplicaRole.IDLE


def test_a_leader_that_follows_fetches_when_its_own_appends_are_safe() -> None:
    replica = Replica(2)
    replica.lead(info(leader=2))
    replica.send(batch(), ACKS_LEADER)
    replica.follow(info(leader=1, epoch=2, partition_epoch=2))
    assert replica.partition.fetch_position() is None
    replica.work()
    assert replica.partition.fetch_position() is None
    replica.sync()
    assert (position(replica).fetch_offset, position(replica).last_fetched_epoch) == (1, 1)


def test_an_elected_follower_serves_only_what_is_written() -> None:
    replica = follower()
    sent = batch(producer=7, sequence=0, leader_epoch=0)
    replica.take_answer(part(records=sent, high_watermark=1), position(replica))
    replica.lead(info(leader=2, epoch=10, partition_epoch=2, isr=[2]))
    assert replica.partition.high_watermark == 1 and replica.read(0) == b""
    sent_again = replica.send(sent)
    assert not sent_again.results, "a duplicate of what is committed elsewhere and not written here"
    replica.work()
    assert replica.read(0) == sent and sent_again.result.base_offset == 0

"""What a leader answers to readers: bounds, epochs, divergence, offsets by time."""

from __future__ import annotations

import pytest

from metaquorum.broker.replica.disk_work import OffsetFound
from metaquorum.broker.replica.partition.values import FindPlan, Reader, ReadPlan
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import (
    ACKS_LEADER,
    BEFORE_ALL,
    CONSUMER,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchedPartition,
    FetchPartition,
    ListedOffset,
    ListOffsetsPartition,
)
from metaquorum.storage.types import LogPosition
from tests.unit.broker.replica_world import KEY, ListDisk, Replica, batch, info


def grown(epochs: dict[int, int], *, start: int = 0, high_watermark: int = 0, end: int = 10) -> Replica:
    """A leader of epoch 9 whose log has one record a batch and begins `epochs` (epoch: offset)."""
    disk = ListDisk()
    disk.start = start
    current = 0
    for offset in range(start, end):
        current = max([epoch for epoch, first in epochs.items() if first <= offset], default=current)
        disk.append(batch(base_offset=offset, leader_epoch=current))
    disk.synced = len(disk.batches)
    replica = Replica(disk=disk, high_watermark=high_watermark)
    replica.lead(info(epoch=9))
    return replica


def test_consumers_read_below_the_high_watermark_and_followers_to_the_end() -> None:
    replica = grown({1: 0}, high_watermark=4)
    consumer, follower = replica.fetch_as(CONSUMER, 2), replica.fetch_as(2, 2)
    assert consumer == ReadPlan(
        key=KEY,
        from_offset=2,
        to_offset=4,
        max_bytes=2**20,
        high_watermark=4,
        last_stable_offset=4,
        log_start_offset=0,
        leader_epoch=9,
    )
    assert isinstance(follower, ReadPlan) and follower.to_offset == 10


@pytest.mark.parametrize("offset", [4, 7, 10])
def test_a_consumer_above_the_high_watermark_waits(offset: int) -> None:
    plan = grown({1: 0}, high_watermark=4).fetch_as(CONSUMER, offset)
    assert isinstance(plan, ReadPlan) and plan.is_empty


@pytest.mark.parametrize(("offset", "inside"), [(2, False), (3, True), (10, True), (11, False)])
@pytest.mark.parametrize("reader", [CONSUMER, 2])
def test_offsets_outside_the_log(offset: int, inside: bool, reader: int) -> None:
    replica = grown({1: 3}, start=3, high_watermark=5)
    answer = replica.fetch_as(reader, offset)
    assert isinstance(answer, ReadPlan) is inside
    if isinstance(answer, FetchedPartition):
        assert (answer.error, answer.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 3)
        assert "3 up to 10" in str(answer.message)


def test_what_is_not_written_is_read_by_nobody() -> None:
    replica = grown({1: 0})
    replica.send(batch(), ACKS_LEADER)
    plan = replica.fetch_as(2, 10)
    assert isinstance(plan, ReadPlan) and plan.is_empty
    replica.work()
    plan = replica.fetch_as(2, 10)
    assert isinstance(plan, ReadPlan) and plan.to_offset == 11, "written is enough, synced or not"


@pytest.mark.parametrize(
    ("asked", "code"),
    [(8, ErrorCode.FENCED_LEADER_EPOCH), (10, ErrorCode.UNKNOWN_LEADER_EPOCH), (9, None), (-1, None)],
)
def test_the_leader_epoch_that_is_asked_for(asked: int, code: ErrorCode | None) -> None:
    replica = grown({1: 0}, high_watermark=10)
    read = replica.fetch_as(CONSUMER, 0, epoch=asked)
    listed = replica.partition.list_offset(
        ListOffsetsPartition(key=KEY, timestamp_ms=EARLIEST_TIMESTAMP, current_leader_epoch=asked)
    )
    assert (read.error if isinstance(read, FetchedPartition) else None) is code
    assert isinstance(listed, ListedOffset) and listed.error is (code or ErrorCode.NONE)


@pytest.mark.parametrize(
    ("last", "offset", "diverging"),
    [
        (7, 10, None),  # the very end
        (7, 8, None),
        (4, 5, None),  # behind, and the same so far
        (4, 6, LogPosition(4, 5)),  # epoch 4 ended at 5
        (5, 6, LogPosition(4, 5)),  # an epoch that wrote nothing here
        (8, 12, LogPosition(7, 10)),  # ahead, with a leader that was voted out
        (7, 12, LogPosition(7, 10)),
        (2, 3, LogPosition(2, 2)),
    ],
)
def test_divergence_is_told_by_epoch_and_its_end(
    last: int, offset: int, diverging: LogPosition | None
) -> None:
    replica = grown({2: 0, 4: 2, 7: 5})
    answer = replica.fetch_as(2, offset, last=last)
    if diverging is None:
        assert isinstance(answer, ReadPlan) and answer.to_offset == 10
        return
    assert isinstance(answer, FetchedPartition)
    assert (answer.error, answer.diverging, answer.records) == (ErrorCode.NONE, diverging, b"")
    replica.fetch_as(3, 10)
    assert replica.partition.high_watermark == 0, "who diverges has acknowledged nothing"


def test_the_first_epoch_of_all_is_compared_like_any_other() -> None:
    replica = grown({0: 0, 3: 5})
    answer = replica.fetch_as(2, 8, last=0)
    assert isinstance(answer, FetchedPartition) and answer.diverging == LogPosition(0, 5)
    assert isinstance(replica.fetch_as(2, 5, last=0), ReadPlan)
    assert isinstance(replica.fetch_as(2, 8, last=-1), ReadPlan), "nothing to compare with"


def test_an_epoch_from_before_the_log_is_out_of_range_for_a_follower() -> None:
    replica = grown({5: 3}, start=3)
    for offset in (3, 4):
        answer = replica.fetch_as(2, offset, last=2)
        assert isinstance(answer, FetchedPartition)
        assert (answer.error, answer.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 3)


def test_a_consumer_whose_records_were_deleted_in_an_earlier_epoch_reads_on_from_the_start() -> None:
    """OFFSET_OUT_OF_RANGE would have it begin anywhere."""
    replica = grown({5: 3}, start=3)
    assert isinstance(replica.fetch_as(CONSUMER, 3, last=2), ReadPlan)
    answer = replica.fetch_as(CONSUMER, 4, last=2)
    assert isinstance(answer, FetchedPartition) and answer.diverging == LogPosition(2, 3)


def test_an_answer_tells_the_high_watermark_that_its_own_fetch_moved() -> None:
    replica = grown({1: 0})
    replica.fetch_as(2, 10)
    plan = replica.fetch_as(3, 10)
    assert isinstance(plan, ReadPlan) and plan.high_watermark == 10


def test_a_parked_fetch_looked_at_again_is_no_news_of_the_follower() -> None:
    replica = grown({1: 0})
    replica.fetch_as(2, 10)
    plan = replica.partition.plan_read(
        FetchPartition(key=KEY, fetch_offset=10, max_bytes=1, current_leader_epoch=9), Reader(replica_id=3)
    )
    assert isinstance(plan, ReadPlan) and replica.partition.high_watermark == 0


def test_who_does_not_lead_says_who_does() -> None:
    replica = grown({1: 0})
    replica.follow(info(leader=2, epoch=10, partition_epoch=2))
    answer = replica.fetch_as(CONSUMER, 0)
    assert isinstance(answer, FetchedPartition)
    assert (answer.error, answer.leader, answer.leader_epoch) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, 10)
    assert "use broker 2" in str(answer.message)


# ---- list offsets ---------------------------------------------------------------------------


def listed(replica: Replica, timestamp_ms: int) -> ListedOffset | FindPlan:
    return replica.partition.list_offset(ListOffsetsPartition(key=KEY, timestamp_ms=timestamp_ms))


def test_the_start_and_the_high_watermark() -> None:
    replica = grown({1: 3, 2: 5}, start=3, high_watermark=10)
    assert listed(replica, EARLIEST_TIMESTAMP) == ListedOffset(key=KEY, offset=3, leader_epoch=1, leader=1)
    assert listed(replica, LATEST_TIMESTAMP) == ListedOffset(key=KEY, offset=10, leader_epoch=2, leader=1)


def test_a_new_leader_does_not_guess_the_latest_offset() -> None:
    replica = grown({1: 0}, high_watermark=6)
    answer = listed(replica, LATEST_TIMESTAMP)
    assert isinstance(answer, ListedOffset) and answer.error is ErrorCode.OFFSET_NOT_AVAILABLE
    for broker_id in (2, 3):
        replica.fetch_as(broker_id, 10)
    answer = listed(replica, LATEST_TIMESTAMP)
    assert isinstance(answer, ListedOffset) and answer.offset == 10


def test_a_time_before_all_is_looked_up_as_any_and_other_numbers_are_refused() -> None:
    replica = grown({1: 0}, high_watermark=10)
    plan = FindPlan(key=KEY, timestamp_ms=BEFORE_ALL, below_offset=10, leader_epoch=9)
    assert listed(replica, BEFORE_ALL) == plan
    answer = listed(replica, BEFORE_ALL - 1)
    assert isinstance(answer, ListedOffset) and answer.error is ErrorCode.INVALID_REQUEST


def test_a_time_is_looked_up_below_the_high_watermark() -> None:
    replica = grown({1: 0}, high_watermark=10)
    plan = listed(replica, 500)
    assert plan == FindPlan(key=KEY, timestamp_ms=500, below_offset=10, leader_epoch=9)
    assert isinstance(plan, FindPlan)
    found = OffsetFound(token=1, offset=4, timestamp_ms=510, leader_epoch=1)
    assert replica.partition.found_offset(plan, found) == ListedOffset(
        key=KEY, offset=4, timestamp_ms=510, leader_epoch=1, leader=1
    )
    nothing = OffsetFound(token=1, offset=None, timestamp_ms=-1, leader_epoch=-1)
    assert replica.partition.found_offset(plan, nothing) == ListedOffset(key=KEY, leader=1)
    replica.lead(info(epoch=11, partition_epoch=2))
    assert replica.partition.found_offset(plan, found).error is ErrorCode.FENCED_LEADER_EPOCH


def test_no_record_so_young_is_not_said_by_a_leader_that_is_behind() -> None:
    replica = grown({1: 0}, high_watermark=6)
    plan = listed(replica, 500)
    assert isinstance(plan, FindPlan) and plan.below_offset == 6
    nothing = OffsetFound(token=1, offset=None, timestamp_ms=-1, leader_epoch=-1)
    assert replica.partition.found_offset(plan, nothing).error is ErrorCode.OFFSET_NOT_AVAILABLE


@pytest.mark.parametrize("timestamp_ms", [-6, -100])
def test_other_negative_times_mean_nothing(timestamp_ms: int) -> None:
    answer = listed(grown({1: 0}), timestamp_ms)
    assert isinstance(answer, ListedOffset) and answer.error is ErrorCode.INVALID_REQUEST

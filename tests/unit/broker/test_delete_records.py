"""Records that clients delete are gone everywhere before the answer, or refused as in Kafka; epochs' ends."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.broker.replica.disk_work import LogSettings, TrimTo
from metaquorum.broker.replica.topic_settings import TopicSettings
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import DeletedRecords, EpochPartition
from tests.unit.broker.replica_world import Replica, batch, info


class Ticket:
    def __init__(self, deadline_ms: int = 10**9) -> None:
        self.deadline_ms = deadline_ms
        self.results: list[DeletedRecords] = []

    def complete(self, result: DeletedRecords) -> None:
        self.results.append(result)


def fetch(replica: Replica, broker_id: int, offset: int, start: int) -> None:
    """A follower's fetch: it holds what is below `offset`, and its log starts at `start`."""
    replica.fetch_as(broker_id, offset, start=start)


@pytest.fixture(name="leader")
def fixture_leader() -> Replica:
    """Ten committed records, on brokers 1 (the leader) and 2; 3 is not in sync."""
    replica = Replica(broker_id=1)
    replica.lead(info(leader=1, replicas=(1, 2, 3), isr=(1, 2)))
    for _ in range(5):
        replica.send(batch(b"a", b"b"))
    replica.settle()
    fetch(replica, 2, 10, 0)
    assert replica.partition.high_watermark == 10
    return replica


def test_it_waits_for_the_disk_and_for_every_replica_in_sync(leader: Replica) -> None:
    ticket = Ticket()
    assert leader.partition.delete_records(ticket, 6) is None
    assert [work.start_offset for work in leader.take() if isinstance(work, TrimTo)] == [6]
    leader.trim(6)
    assert ticket.results == []
    fetch(leader, 2, 10, 4)
    fetch(leader, 3, 10, 0)
    assert ticket.results == []
    fetch(leader, 2, 10, 6)
    assert ticket.results == [DeletedRecords(key=leader.partition.key, low_watermark=6)]
    again = leader.partition.delete_records(Ticket(), 5)
    assert again == DeletedRecords(key=leader.partition.key, low_watermark=6)


def test_a_replica_that_leaves_the_isr_is_not_waited_for(leader: Replica) -> None:
    ticket = Ticket()
    assert leader.partition.delete_records(ticket, 6) is None
    leader.trim(6)
    leader.lead(info(leader=1, replicas=(1, 2, 3), isr=(1,), partition_epoch=2))
    assert [each.low_watermark for each in ticket.results] == [6]


@pytest.mark.parametrize("offset", [11, -2, -5])
def test_what_clients_cannot_read_cannot_be_deleted(leader: Replica, offset: int) -> None:
    refused = leader.partition.delete_records(Ticket(), offset)
    assert refused is not None and refused.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert refused.low_watermark == -1
    assert leader.take() == []


def test_everything_to_the_high_watermark(leader: Replica) -> None:
    leader.send(batch(b"a", b"b"))
    leader.settle()
    leader.take()
    assert leader.partition.delete_records(Ticket(), -1) is None
    assert [work.start_offset for work in leader.take() if isinstance(work, TrimTo)] == [10]


def test_a_compacted_topic_keeps_its_records(leader: Replica) -> None:
    kept = TopicSettings(log=LogSettings(deletes=False, compacts=True))
    leader.partition.change_settings(kept, now_ms=0)
    refused = leader.partition.delete_records(Ticket(), 5)
    assert refused is not None and refused.error is ErrorCode.POLICY_VIOLATION


def test_who_waits_too_long_is_told(leader: Replica) -> None:
    ticket = Ticket(deadline_ms=500)
    assert leader.partition.delete_records(ticket, 6) is None
    leader.trim(6)
    due_ms = leader.partition.next_deadline_ms()
    assert due_ms is not None and due_ms <= 500
    leader.partition.tick(now_ms=499)
    assert ticket.results == []
    leader.partition.tick(now_ms=500)
    assert [each.error for each in ticket.results] == [ErrorCode.REQUEST_TIMED_OUT]


@pytest.mark.parametrize("isr", [(1,), (1, 2)])
def test_a_time_limit_is_for_followers_and_not_for_the_leaders_own_disk(
    leader: Replica, isr: tuple[int, ...]
) -> None:
    """A request with timeout 0, librdkafka's default, deletes from a topic with one replica."""
    leader.lead(info(leader=1, replicas=(1, 2, 3), isr=isr, partition_epoch=2))
    ticket = Ticket(deadline_ms=0)
    assert leader.partition.delete_records(ticket, 6) is None
    leader.partition.tick(now_ms=400)
    assert ticket.results == []
    leader.trim(6)
    leader.partition.tick(now_ms=400)
    alone = ErrorCode.NONE if isr == (1,) else ErrorCode.REQUEST_TIMED_OUT
    assert [each.error for each in ticket.results] == [alone]


def test_a_leader_that_goes_leaves_no_one_waiting(leader: Replica) -> None:
    waiting, gone = Ticket(), Ticket()
    leader.partition.delete_records(waiting, 7)
    leader.partition.delete_records(gone, 8)
    leader.partition.cancel(gone)
    leader.follow(info(leader=2, replicas=(1, 2, 3), isr=(1, 2), epoch=9, partition_epoch=9))
    assert [each.error for each in waiting.results] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert gone.results == []
    refused = leader.partition.delete_records(Ticket(), 7)
    assert refused is not None and refused.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def ends(replica: Replica, epoch: int, current: int = -1) -> tuple[Any, ...]:
    asked = EpochPartition(key=replica.partition.key, leader_epoch=epoch, current_leader_epoch=current)
    found = replica.partition.end_of_epoch(asked)
    return found.error, found.leader_epoch, found.end_offset


def test_where_epochs_end(leader: Replica) -> None:
    first = leader.partition.leader_epoch
    assert ends(leader, first) == (ErrorCode.NONE, first, 10)
    assert ends(leader, first + 1) == (ErrorCode.NONE, -1, -1)
    assert ends(leader, -1) == (ErrorCode.NONE, -1, -1)
    leader.lead(info(leader=1, replicas=(1, 2, 3), isr=(1, 2), epoch=first + 3, partition_epoch=9))
    leader.send(batch(b"a", b"b"))
    leader.settle()
    assert ends(leader, first) == (ErrorCode.NONE, first, 10)
    assert ends(leader, first + 2) == (ErrorCode.NONE, first, 10)
    assert ends(leader, first + 3) == (ErrorCode.NONE, first + 3, 12)
    assert ends(leader, first, current=first)[0] is ErrorCode.FENCED_LEADER_EPOCH
    assert ends(leader, first, current=first + 9)[0] is ErrorCode.UNKNOWN_LEADER_EPOCH
    leader.trim(10)
    assert ends(leader, first) == (ErrorCode.NONE, first, 10)

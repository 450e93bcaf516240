"""Transactions at a partition's leader: who may begin and end one, what readers of committed records see."""

from __future__ import annotations

import pytest

from metaquorum.broker.replica.partition.values import Reader, ReadPlan
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import (
    ACKS_ALL,
    LATEST_TIMESTAMP,
    NOT_LED,
    FetchPartition,
    ListedOffset,
    ListOffsetsPartition,
    ProducePartition,
    ProduceResult,
    TransactionalPartition,
)
from metaquorum.storage.batches.batch import Batches, EndMarker, encode_batch, encode_marker
from metaquorum.storage.batches.format import TRANSACTIONAL, hop_headers
from tests.unit.broker.replica_world import KEY, WALL_MS, Replica, Ticket, batch, info

COMMITTED = Reader(read_committed=True)


def alone() -> Replica:
    """A leader without followers: what is synced is committed."""
    replica = Replica()
    replica.lead(info(isr=(1,), replicas=(1,)))
    return replica


def records(producer: int, sequence: int, *, epoch: int = 0, transactional: bool = True) -> bytes:
    return encode_batch(
        base_offset=0,
        leader_epoch=-1,
        timestamp_ms=WALL_MS,
        values=[b"v"],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL if transactional else 0,
    )


def begin(replica: Replica, producer: int, epoch: int = 0) -> int | None:
    asked = TransactionalPartition(key=KEY, producer_id=producer, producer_epoch=epoch)
    return replica.partition.begin_verification(asked).guard


def send(
    replica: Replica, data: bytes, *, guard: int | None = None, by_coordinator: bool = False
) -> ProduceResult:
    ticket = Ticket()
    part = ProducePartition(key=KEY, batch=Batches.arrived(data), guard=guard)
    result = replica.partition.produce(
        ticket, part, ACKS_ALL, by_coordinator=by_coordinator, wall_ms=replica.wall_ms
    )
    if result is None:
        replica.settle()
        result = ticket.result
    return result


def write(replica: Replica, producer: int, sequence: int, epoch: int = 0) -> ProduceResult:
    """Through the verification, as a coordinator that agrees would have it."""
    guard = begin(replica, producer, epoch)
    return send(replica, records(producer, sequence, epoch=epoch), guard=guard)


def end(
    replica: Replica, producer: int, *, committed: bool, epoch: int = 0, coordinator: int = 1
) -> ProduceResult:
    marker = EndMarker(committed, coordinator)
    data = encode_marker(marker, producer_id=producer, producer_epoch=epoch, timestamp_ms=WALL_MS)
    return send(replica, data, by_coordinator=True)


def stable(replica: Replica) -> int:
    return replica.partition.last_stable_offset


def plan(replica: Replica, offset: int = 0, reader: Reader = COMMITTED) -> ReadPlan:
    asked = FetchPartition(key=KEY, fetch_offset=offset, max_bytes=2**20)
    found = replica.partition.plan_read(asked, reader)
    assert isinstance(found, ReadPlan)
    return found


def test_readers_of_committed_records_stop_before_an_open_transaction() -> None:
    replica = alone()
    assert send(replica, batch()).error is ErrorCode.NONE
    assert write(replica, 7, 0).base_offset == 1
    assert send(replica, batch()).base_offset == 2
    assert (plan(replica).to_offset, plan(replica, reader=Reader()).to_offset) == (1, 3)
    assert plan(replica, reader=Reader()).last_stable_offset == 1, "everyone hears of it"
    latest = ListOffsetsPartition(key=KEY, timestamp_ms=LATEST_TIMESTAMP)
    for reader, offset in ((COMMITTED, 1), (Reader(), 3)):
        listed = replica.partition.list_offset(latest, reader)
        assert isinstance(listed, ListedOffset) and listed.offset == offset
    assert end(replica, 7, committed=True).base_offset == 3
    assert stable(replica) == replica.partition.end_offset == 4


def test_an_aborted_transaction_is_told_where_it_may_have_records() -> None:
    replica = alone()
    for producer in (7, 8):
        write(replica, producer, 0)
    end(replica, 8, committed=False)
    assert stable(replica) == 0, "that of producer 7 is open"
    end(replica, 7, committed=True)
    data = replica.disk.read(plan(replica))
    assert replica.partition.aborted_in(0, data) == ((8, 1),)
    assert replica.partition.aborted_in(3, replica.disk.read(plan(replica, 3))) == ()


def test_an_aborted_transaction_without_its_marker_is_not_told() -> None:
    """A cleaner took it away with all its records: readers would wait for it, and leave out what follows."""
    replica = alone()
    write(replica, 7, 0)
    end(replica, 7, committed=False)
    write(replica, 7, 1)
    end(replica, 7, committed=True)
    data = replica.disk.read(plan(replica))
    assert replica.partition.aborted_in(0, data) == ((7, 0),)
    cleaned = data[hop_headers(data)[2][0] :]
    assert replica.partition.aborted_in(0, cleaned) == ()
    cut_off = data[: hop_headers(data)[1][0]]
    assert replica.partition.aborted_in(0, cut_off) == ((7, 0),), "its marker is in the next answer"


def test_a_transaction_is_open_until_its_marker_is_committed() -> None:
    replica = Replica()
    replica.lead(info(isr=(1, 2), replicas=(1, 2)))
    ticket = Ticket()
    part = ProducePartition(key=KEY, batch=Batches.arrived(records(7, 0)), guard=begin(replica, 7))
    assert replica.partition.produce(ticket, part, ACKS_ALL, wall_ms=WALL_MS) is None
    replica.settle()
    replica.fetch_as(2, 1)
    assert ticket.result.error is ErrorCode.NONE and stable(replica) == 0
    marker = encode_marker(EndMarker(True, 1), producer_id=7, producer_epoch=0, timestamp_ms=WALL_MS)
    waits = Ticket()
    part = ProducePartition(key=KEY, batch=Batches.arrived(marker))
    assert replica.partition.produce(waits, part, ACKS_ALL, by_coordinator=True, wall_ms=WALL_MS) is None
    replica.settle()
    assert (replica.partition.high_watermark, stable(replica)) == (1, 0)
    replica.fetch_as(2, 2)
    assert waits.result.base_offset == 1 and stable(replica) == 2


def test_a_transaction_begins_only_after_verification() -> None:
    replica = alone()
    assert send(replica, records(7, 0)).error is ErrorCode.INVALID_TXN_STATE
    assert send(replica, records(7, 0), guard=5).error is ErrorCode.INVALID_TXN_STATE
    guard = begin(replica, 7)
    assert guard is not None and begin(replica, 7) == guard, "one for all that are under way"
    assert send(replica, records(7, 0), guard=guard).error is ErrorCode.NONE
    assert begin(replica, 7) is None, "it has begun"
    assert send(replica, records(7, 1), guard=guard).base_offset == 1
    assert begin(replica, 7, epoch=1) is not None, "another process of the producer may have taken over"


def test_the_coordinator_is_not_asked_about_an_epoch_that_is_over() -> None:
    replica = alone()
    write(replica, 7, 0, epoch=3)
    assert begin(replica, 7, epoch=2) is None
    refused = send(replica, records(7, 1, epoch=2))
    assert (refused.error, refused.log_start_offset) == (ErrorCode.INVALID_PRODUCER_EPOCH, 0)


def test_a_batch_that_was_verified_while_another_broker_led_is_sent_again() -> None:
    """The transaction is open at its coordinator: a refusal that ends it would be wrong."""
    replica = alone()
    earlier = begin(replica, 7)
    replica.follow(info(leader=2, epoch=2, partition_epoch=2, isr=(2,), replicas=(1, 2)))
    meanwhile = begin(replica, 7)
    assert (earlier, meanwhile) == (1, NOT_LED)
    for guard in (earlier, meanwhile):
        assert send(replica, records(7, 0), guard=guard).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    replica.lead(info(epoch=3, partition_epoch=3, isr=(1,), replicas=(1, 2)))
    for guard in (earlier, meanwhile):
        assert send(replica, records(7, 0), guard=guard).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert send(replica, records(7, 0)).error is ErrorCode.INVALID_TXN_STATE
    assert write(replica, 7, 0).error is ErrorCode.NONE


def test_a_marker_makes_a_guard_worthless() -> None:
    replica = alone()
    guard = begin(replica, 7)
    end(replica, 7, committed=False)
    assert send(replica, records(7, 0), guard=guard).error is ErrorCode.INVALID_TXN_STATE
    assert stable(replica) == 1


def test_a_fenced_producer_and_a_former_coordinator_write_nothing() -> None:
    replica = alone()
    write(replica, 7, 0)
    assert end(replica, 7, committed=False, epoch=1, coordinator=4).error is ErrorCode.NONE
    size = replica.partition.end_offset
    assert write(replica, 7, 1).error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(replica, 7, committed=True).error is ErrorCode.INVALID_PRODUCER_EPOCH
    fenced = end(replica, 7, committed=True, epoch=1, coordinator=3)
    assert fenced.error is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert write(replica, 7, 5, epoch=1).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert replica.partition.end_offset == size
    assert write(replica, 7, 0, epoch=1).error is ErrorCode.NONE


def test_a_batch_outside_of_the_open_transaction_is_refused() -> None:
    replica = alone()
    write(replica, 7, 0)
    assert send(replica, records(7, 1, transactional=False)).error is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("by_coordinator", [True, False])
def test_only_coordinators_write_markers(by_coordinator: bool) -> None:
    replica = alone()
    data = encode_marker(EndMarker(True, 1), producer_id=7, producer_epoch=0, timestamp_ms=WALL_MS)
    expected = ErrorCode.NONE if by_coordinator else ErrorCode.INVALID_RECORD
    assert send(replica, data, by_coordinator=by_coordinator).error is expected


def test_a_coordinator_writes_several_batches_of_one_producer() -> None:
    replica = alone()
    for offset in range(2):
        assert send(replica, records(7, -1), by_coordinator=True).base_offset == offset


def test_a_producer_with_an_open_transaction_is_never_forgotten() -> None:
    replica = alone()
    write(replica, 7, 0)
    replica.partition.expire_producers(WALL_MS + 10**12)
    assert stable(replica) == 0 and len(replica.partition.producers) == 1


def test_a_follower_knows_what_its_leader_knew() -> None:
    leader = alone()
    write(leader, 7, 0)
    write(leader, 8, 0)
    end(leader, 8, committed=False)
    follower = Replica()
    follower.follow(info(leader=2, isr=(2, 1), replicas=(2, 1)))
    follower.disk.append(b"".join(leader.disk.batches))
    opened = follower.disk.opened()
    assert opened.producers == leader.partition.producers
    assert list(opened.producers.aborted) == list(leader.partition.producers.aborted)

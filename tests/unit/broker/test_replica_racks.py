"""Consumers read from a replica in their rack (KIP-392): whom a leader sends them to, and what a follower
gives."""

from __future__ import annotations

import pytest
from msgspec import structs
from msgspec.structs import replace

from metaquorum.broker.replica.partition.values import Changes, Reader, ReadPlan
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import FetchedPartition, FetchPartition, FetchRequest
from tests.unit.broker.manager_world import A, Cluster, Host, answer_to, found
from tests.unit.broker.replica_world import CONFIG, KEY, KnownBrokers, Replica, batch, info

RACKS = {1: "a", 2: "b", 3: "b"}
AWARE = structs.replace(CONFIG, replica_selector_is_rack_aware=True)


def read(replica: Replica, offset: int, rack: str | None, *, epoch: int = -1) -> FetchedPartition | ReadPlan:
    part = FetchPartition(key=KEY, fetch_offset=offset, max_bytes=2**20, current_leader_epoch=epoch)
    return replica.partition.fetch(part, Reader(rack=rack), now_ms=replica.now_ms)


def leader(*, aware: bool = True, isr: tuple[int, ...] = (1, 2, 3), rack: str = "a") -> Replica:
    """Three records, which 2 holds; 3 holds two of them, and its log starts at 1."""
    config = AWARE if aware else CONFIG
    replica = Replica(config=config, brokers=KnownBrokers(racks={**RACKS, 1: rack}))
    replica.lead(info(isr=isr))
    for _ in range(3):
        replica.send(batch())
    replica.settle()
    replica.fetch_as(2, 3, start=0)
    replica.fetch_as(3, 2, start=1)
    return replica


@pytest.mark.parametrize(
    ("offset", "rack", "sent_to"),
    [
        (0, "b", 2),
        (2, "b", 2),  # the one that holds most
        (0, "a", None),  # the leader's own
        (0, "c", None),
        (0, "", None),
        (0, None, None),
    ],
)
def test_a_leader_sends_readers_to_their_rack(offset: int, rack: str | None, sent_to: int | None) -> None:
    found = read(leader(), offset, rack)
    if sent_to is None:
        assert isinstance(found, ReadPlan) and (found.from_offset, found.to_offset) == (offset, 2)
        return
    assert isinstance(found, FetchedPartition) and found.error is ErrorCode.NONE
    assert (found.preferred_read_replica, found.high_watermark, found.records) == (sent_to, 2, b"")


def test_only_one_in_sync_that_has_the_offset_will_do() -> None:
    without_2 = leader(isr=(1, 3))
    assert isinstance(read(without_2, 0, "b"), ReadPlan), "the log of 3 starts at 1"
    sent = read(without_2, 1, "b")
    assert isinstance(sent, FetchedPartition) and sent.preferred_read_replica == 3
    assert isinstance(read(without_2, 3, "b"), ReadPlan), "3 holds two records"
    assert isinstance(read(leader(isr=(1,)), 1, "b"), ReadPlan)
    assert isinstance(read(leader(aware=False), 0, "b"), ReadPlan), "without the selector the leader serves"
    assert isinstance(read(leader(rack="b"), 0, "b"), ReadPlan), "the leader is in that rack itself"


def stored(offset: int) -> bytes:
    return batch(base_offset=offset, leader_epoch=1)


def follower() -> Replica:
    """Of leader 1: two records, of which one is committed as far as it knows."""
    replica = Replica(2, config=AWARE, brokers=KnownBrokers(racks=RACKS))
    replica.follow(info())
    take(replica, stored(0) + stored(1), high_watermark=1)
    return replica


def take(replica: Replica, records: bytes, *, high_watermark: int) -> None:
    asked = replica.partition.fetch_position()
    assert asked is not None
    part = FetchedPartition(
        key=KEY, high_watermark=high_watermark, log_start_offset=0, leader_epoch=1, records=records
    )
    replica.take_answer(part, asked)
    replica.settle()


def test_a_follower_gives_what_it_knows_to_be_committed() -> None:
    replica = follower()
    for rack in ("b", ""):
        plan = read(replica, 0, rack, epoch=1)
        assert isinstance(plan, ReadPlan) and (plan.from_offset, plan.to_offset) == (0, 1)
    ahead = read(replica, 2, "b")
    assert isinstance(ahead, ReadPlan) and ahead.is_empty
    for offset, rack, epoch, code in (
        (0, None, 1, ErrorCode.NOT_LEADER_OR_FOLLOWER),  # a client that knows leaders only
        (0, "b", 0, ErrorCode.FENCED_LEADER_EPOCH),
        (0, "b", 2, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (3, "b", 1, ErrorCode.OFFSET_OUT_OF_RANGE),
    ):
        refused = read(replica, offset, rack, epoch=epoch)
        assert isinstance(refused, FetchedPartition) and refused.error is code, refused


def test_what_is_committed_is_read_once_it_is_written() -> None:
    replica = follower()
    asked = replica.partition.fetch_position()
    assert asked is not None
    part = FetchedPartition(key=KEY, high_watermark=3, log_start_offset=0, leader_epoch=1, records=stored(2))
    replica.take_answer(part, asked)
    replica.partition.take_changes()
    plan = read(replica, 2, "b")
    assert isinstance(plan, ReadPlan) and plan.is_empty
    replica.work()
    assert replica.partition.take_changes() & Changes.HIGH_WATERMARK, "readers that wait look again"
    plan = read(replica, 2, "b")
    assert isinstance(plan, ReadPlan) and plan.to_offset == 3


def test_a_follower_that_truncates_or_has_no_leader_gives_nothing() -> None:
    replica = follower()
    replica.partition.follow(info(leader=-1, epoch=2, partition_epoch=2), now_ms=0)
    refused = read(replica, 0, "b")
    assert isinstance(refused, FetchedPartition) and refused.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    replica.partition.follow(info(leader=3, epoch=3, partition_epoch=3), now_ms=0)
    assert isinstance(read(replica, 0, "b"), ReadPlan)
    replica.partition._log.cut(1)
    refused = read(replica, 0, "b")
    assert isinstance(refused, FetchedPartition) and refused.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_session_is_sent_elsewhere_once_a_replica_in_its_rack_will_do() -> None:
    cluster = Cluster()
    cluster.broker(2, rack="b")
    key = cluster.topic("x", place=A, replicas=(1, 2))
    host = Host(cluster, found(A), replica_selector_is_rack_aware=True)
    host.publish()
    host.work()
    part = FetchPartition(key=key, fetch_offset=0, max_bytes=2**20)
    asked = FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=2**20, session_epoch=0, partitions=(part,), rack="b"
    )
    begun = answer_to(host.ask(replace(asked, max_wait_ms=0)))
    (first,) = begun.partitions
    assert not first.is_elsewhere, "it has not fetched yet"
    going_on = replace(asked, session_id=begun.session_id, session_epoch=1, partitions=())
    assert host.ask(going_on, key="c") == [], "nothing to read: it waits"
    follower = replace(part, current_leader_epoch=0, log_start_offset=0)
    host.ask(replace(asked, replica_id=2, replica_epoch=102, session_epoch=-1, partitions=(follower,)), "f")
    assert answer_to(host.tick(500), "c").partitions == ()
    (sent,) = answer_to(host.ask(replace(going_on, session_epoch=2, partitions=(part,))), "k").partitions
    assert (sent.preferred_read_replica, sent.error) == (2, ErrorCode.NONE)

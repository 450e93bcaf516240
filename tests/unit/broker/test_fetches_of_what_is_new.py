"""A follower that asks for a partition in the very moment in which this broker begins to lead it."""

from __future__ import annotations

from metaquorum.broker.replica.events import DataEvent, DataRequestArrived, DataRespond
from metaquorum.metadata.requests.data import (
    TO_HIGH_WATERMARK,
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    FetchPartition,
    FetchRequest,
)
from tests.unit.broker.manager_world import A, Cluster, Host, answer_to, of_kind
from tests.unit.broker.replica_world import WALL_MS

FOLLOWER = 2


def test_a_fetch_that_finds_the_log_opened_meanwhile_counts() -> None:
    """The leader hears where the follower's log starts: a partition that is quiet is not named again."""
    cluster = Cluster()
    host = Host(cluster)
    host.start()
    host.publish()
    key = cluster.topic("x", place=A, replicas=(1, FOLLOWER))
    host.publish()
    position = FetchPartition(
        key=key,
        fetch_offset=0,
        max_bytes=1,
        current_leader_epoch=0,
        last_fetched_epoch=-1,
        log_start_offset=0,
    )
    request = FetchRequest(
        replica_id=FOLLOWER,
        replica_epoch=100 + FOLLOWER,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1,
        session_id=0,
        session_epoch=0,
        partitions=(position,),
    )
    events: list[DataEvent] = [DataRequestArrived(key="fetch", request=request)]
    while host.queue:
        events += host._carry_out(host.queue.popleft())
    for event in events:
        host.manager.gather(event, serving=True, now_ms=host.now_ms, wall_ms=WALL_MS)
    effects = host.manager.settle(now_ms=host.now_ms, wall_ms=WALL_MS)
    assert of_kind(effects, DataRespond) == [], "it waits for records"

    part = DeleteRecordsPartition(key=key, offset=TO_HIGH_WATERMARK)
    answer = answer_to(host.ask(DeleteRecordsRequest(partitions=(part,), timeout_ms=3_000)))
    assert answer.results == (DeletedRecords(key=key, low_watermark=0),)

"""What is said of replicas that an unregistered broker leaves behind."""

from __future__ import annotations

from metaquorum.cli.admin.brokers import LeftBehind, left_behind, left_behind_json, left_behind_text
from metaquorum.clients.admin.topics import DescribedPartition, DescribedTopic


def topic(name: str, *replicas: tuple[int, ...]) -> DescribedTopic:
    partitions = tuple(
        DescribedPartition(index=index, replicas=each, isr=each, leader=each[0], leader_epoch=0)
        for index, each in enumerate(replicas)
    )
    return DescribedTopic(name=name, topic_id=bytes(16), partitions=partitions)


def test_replicas_are_counted_and_the_first_are_named() -> None:
    topics = [topic("orders", *[(1, 2)] * 6, (2, 3)), topic("single", (1,), (2,)), topic("far", (2, 3))]
    left = left_behind(topics, 1)
    assert left == LeftBehind(
        replicas=(*(f"orders-{index}" for index in range(6)), "single-0"), alone=("single-0",)
    )
    assert left_behind_text(left, 1) == (
        "7 replicas stay assigned to broker 1 and under-replicated: orders-0, orders-1, orders-2, orders-3,"
        " orders-4 and 2 more; the only replica of single-0; move them to other brokers:"
        " metaquorum partitions plan --drain 1, then partitions reassign"
    )
    assert left_behind_json(left) == {
        "underReplicated": 7,
        "withoutAnotherReplica": 1,
        "partitions": ["orders-0", "orders-1", "orders-2", "orders-3", "orders-4"],
    }
    one = left_behind(topics[2:], 3)
    assert left_behind_text(one, 3).startswith(
        "1 replica stays assigned to broker 3 and under-replicated: far-0; move"
    )
    assert left_behind(topics, 9) == LeftBehind()

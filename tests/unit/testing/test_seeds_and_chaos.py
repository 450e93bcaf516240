"""Seeds repeat what a cluster draws, chaos breaks it by a schedule, and `check_log` judges what was read."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from confluent_kafka import Producer

from metaquorum.testing import Chaos, Cluster, ClusterError, HistoryError, ReadMessage, check_log
from tests.unit.testing.test_cluster import produced


def drawn(seed: int) -> tuple[Any, ...]:
    """What a cluster with this seed draws."""
    with Cluster(brokers=3, controllers=1, seed=seed) as cluster:
        cluster.create_topic("orders", 6)
        image = cluster._nodes[0].image
        assert image is not None
        info = image.topics.topic_named("orders")
        assert info is not None
        parts = image.topics.partitions_of(info.topic_id)
        return cluster.log().identity.cluster_id, [part.replicas for part in parts]  # type: ignore[union-attr]


def test_the_same_seed_draws_the_same_ids_and_placement() -> None:
    assert drawn(5) == drawn(5) != drawn(6)


def test_the_schedule_is_that_of_the_seed() -> None:
    chaos = Chaos(kills=3, cuts=2, slow_disks=1)
    first, again, other = (chaos.schedule(random.Random(seed), (0, 1, 2)) for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(step.kind for step in first) == ["cut", "cut", "kill", "kill", "kill", "slow disk"]
    assert all(0.2 <= step.lasts_s <= 1.0 and step.node in (0, 1, 2) for step in first)


def test_nothing_acknowledged_is_lost_in_chaos() -> None:
    chaos = Chaos(kills=1, cuts=1, slow_disks=1, lasts_s=(0.1, 0.3), pause_s=(0.0, 0.1))
    properties = {"log.flush.before.ack": True, "default.replication.factor": 3}
    with Cluster(brokers=3, seed=11, chaos=chaos, properties=properties) as cluster:
        topic = cluster.create_topic("orders", 2, 3, configs={"min.insync.replicas": 2})
        acknowledged: list[tuple[str, int, bytes]] = []
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 100,
            }
        )

        def done(error: Any, message: Any) -> None:
            assert error is None, error
            acknowledged.append((message.topic(), message.partition(), message.value()))

        for number in range(40):
            producer.produce(topic, str(number), partition=number % 2, on_delivery=done)
            producer.poll(0.02)
        assert producer.flush(60) == 0
        cluster.wait_for_chaos()
        read = [ReadMessage(each.topic, each.partition, each.value) for each in cluster.consume_all(topic)]
        check_log(acknowledged, read)
        texts = [event.text for event in cluster.events]
        assert sum("was killed" in each and "healed" not in each for each in texts) == 1
        assert sum("is isolated" in each and "healed" not in each for each in texts) == 1
    assert not any(each.name == "kafka chaos" for each in threading.enumerate())


def test_a_cluster_that_closes_ends_its_chaos() -> None:
    with Cluster(brokers=2, chaos=Chaos(cuts=50, lasts_s=(5, 9))) as cluster:
        produced(cluster.bootstrap_servers, cluster.create_topic("orders", 1, 1), ["a"])
    assert not any(each.name == "kafka chaos" for each in threading.enumerate())


SENT = [("t", 0, "a"), ("t", 0, "b"), ("t", 1, "c"), ("t", 0, "d", "tx"), ("t", 0, "e", "gone")]
GOOD = [("t", 0, "a"), ("t", 1, "c"), ("t", 0, "b"), ("t", 0, "d")]


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (GOOD, None),
        ([*GOOD, ("t", 1, "late")], None),
        (GOOD[:-1], r"1 acknowledged, and never read: 'd'"),
        ([*GOOD, ("t", 0, "a")], "1 read more than once: 'a'"),
        ([*GOOD, ("t", 0, "e")], "1 read, although its transaction was aborted: 'e'"),
        ([*GOOD, ("t", 0, "x")], "1 read, and never acknowledged: 'x'"),
        ([("t", 0, "b"), *GOOD[:2], GOOD[3]], "1 read before a message that was acknowledged earlier: 'b'"),
        ([*GOOD[:1], ("t", 0, "c"), *GOOD[2:]], "another partition than it was acknowledged in: 'c'"),
        ([], "4 acknowledged, and never read: 'a', 'b', 'c', 'd'"),
    ],
)
def test_each_broken_promise_is_named(read: list[Any], text: str | None) -> None:
    if text is None:
        check_log(SENT, read, aborted=["gone"], unknown=["late"])
        return
    with pytest.raises(HistoryError, match=text) as caught:
        check_log(SENT, read, aborted=["gone"], unknown=["late"])
    assert "\n" not in str(caught.value)


def test_what_cannot_be_judged_or_scheduled_is_one_line() -> None:
    with pytest.raises(ClusterError, match="'a' was acknowledged more than once: give messages unique"):
        check_log([("t", 0, "a"), ("t", 0, "a")], [])
    for chaos, text in (
        (Chaos(kills=-1), "Chaos: kills=-1: write one that is not negative"),
        (Chaos(lasts_s=(2, 1)), "write the shorter one first"),
    ):
        with pytest.raises(ClusterError, match=text):
            Cluster(chaos=chaos).start()
    with pytest.raises(ClusterError, match="a cluster has no brokrs: it has properties"):
        Cluster(brokrs=2)  # type: ignore[call-arg]

"""A compacted topic on real brokers, whose cleaners are separate processes and are killed meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import psutil
import pytest

from tests.e2e.cluster import FAST_BROKERS, HOST, Cluster, Node

KEYS, ROUNDS = 40, 50
LITTLE = ROUNDS * KEYS * 70
"""Bytes: half of what two rounds write."""
FAST = {
    "controller": FAST_BROKERS["controller"],
    "broker": {**FAST_BROKERS["broker"], "log.cleaner.backoff.ms": "100", "log.cleaner.threads": "2"},
}
SETTINGS = (
    ("cleanup.policy", "compact"),
    ("segment.bytes", "20000"),
    ("min.cleanable.dirty.ratio", "0.01"),
)


@pytest.fixture(name="cluster")
def fixture_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, controllers=1, brokers=2, properties=FAST, log_dirs=2) as cluster:
        yield cluster
        cluster.assert_no_bugs()


def write(bootstrap: str, number: int) -> None:
    """Every key many times; its last value names the round."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "batch.num.messages": 40}
    )
    for turn in range(ROUNDS):
        last = turn == ROUNDS - 1
        for key in range(KEYS):
            value = b"last %d" % number if last else b"v" * 60
            producer.produce("state", value, b"key %d" % key, partition=key % 2)
    assert producer.flush(60) == 0


def stored(node: Node) -> int:
    return sum(
        file.stat().st_size
        for place in node.log_dirs
        for file in place.glob("state-*/*.log")
        if file.exists()
    )


def cleaners(node: Node) -> list[psutil.Process]:
    return psutil.Process(node.pid).children()


def test_logs_are_compacted_though_cleaners_are_killed_and_end_with_their_broker(cluster: Cluster) -> None:
    cluster.start()
    cluster.create_topic("state", 2, 2, configs=SETTINGS)
    bootstrap = ",".join(f"{HOST}:{node.kafka_port}" for node in cluster.brokers)
    for number in range(3):
        write(bootstrap, number)
        for node in cluster.brokers:
            cluster.wait(lambda node=node: stored(node) < LITTLE or None, "the cleaners to clean", 60)
            running = cluster.wait(lambda node=node: cleaners(node) or None, "a cleaner to run", 60)
            for process in running:
                process.send_signal(signal.SIGKILL)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    places = [confluent_kafka.TopicPartition("state", part, 0) for part in range(2)]
    consumer.assign(places)
    found: dict[bytes, bytes] = {}
    ends = {part: consumer.get_watermark_offsets(place)[1] for part, place in enumerate(places)}
    while any(place.offset < ends[place.partition] for place in consumer.position(places)):
        message = consumer.poll(30)
        assert message is not None and message.error() is None
        found[message.key()] = message.value()
    consumer.close()
    assert found == {b"key %d" % key: b"last 2" for key in range(KEYS)}
    write(bootstrap, 3)
    node = cluster.brokers[0]
    running = cluster.wait(lambda: cleaners(node) or None, "a cleaner to run", 60)
    node.kill()
    cluster.wait(lambda: not any(map(psutil.Process.is_running, running)) or None, "its cleaners to end", 60)
    node.start()
    write(bootstrap, 4)
    cluster.wait(lambda: cleaners(node) or None, "a cleaner to run", 60)

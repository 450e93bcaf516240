"""Clusters in the process of a test: start and close, a suite of tests, and a week of retention.

Beside them, in the same run, the start of librdkafka's mock cluster.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, Producer

from metaquorum.testing import Cluster
from metaquorum.testing.shared import SharedCluster
from tests.bench.figures import Figure, percentile

FIRST = """
import time
begun = time.perf_counter()
from metaquorum.testing import Cluster
with Cluster() as cluster:
    from confluent_kafka import Producer
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(cluster.create_topic("orders"), "a")
    producer.flush(60)
    print(time.perf_counter() - begun)
"""
SHAPES: dict[str, tuple[dict[str, int], float]] = {
    "one combined node": ({}, 100),
    "3 brokers, 3 controllers": ({"brokers": 3, "controllers": 3}, 300),
}
"""By name, the arguments, and the target in ms."""
MESSAGES_PER_TEST = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--times", type=int, default=20, help="clusters of each shape")
    parser.add_argument("--tests", type=int, default=100, help="tests of the suite")


def run(options: argparse.Namespace) -> Iterator[Figure]:
    firsts = [first_s() * 1000 for _ in range(3)]
    yield Figure(
        name="first cluster of a process, with imports", value=percentile(firsts, 0.5), unit="ms", at_most=700
    )
    yield from starts("librdkafka's mock cluster of 3 brokers: start", options.times, mock_cluster)
    for name, (shape, target_ms) in SHAPES.items():
        started, closed = [], []
        for _ in range(options.times):
            begun = time.perf_counter()
            cluster = Cluster(**shape).start()
            send(cluster.bootstrap_servers, cluster.create_topic("orders"), 1)
            ready = time.perf_counter()
            cluster.close()
            started.append((ready - begun) * 1000)
            closed.append((time.perf_counter() - ready) * 1000)
        yield from both(f"{name}: first message acknowledged", started, target_ms)
        yield from both(f"{name}: close", closed, 50)
    yield Figure(
        name=f"{options.tests} tests with {MESSAGES_PER_TEST} messages",
        value=suite_s(options.tests),
        unit="s",
        at_most=6,
    )
    yield Figure(name="a week over 10,000 messages in 20 partitions", value=week_s(), unit="s", at_most=0.5)


def first_s() -> float:
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    return float(done.stdout)


def starts(name: str, times: int, start: Callable[[], Any]) -> Iterator[Figure]:
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        start()
        took.append((time.perf_counter() - begun) * 1000)
    yield from both(name, took, None)


def both(name: str, values: list[float], at_most: float | None) -> Iterator[Figure]:
    yield Figure(name=f"{name}, median", value=percentile(values, 0.5), unit="ms", at_most=at_most)
    yield Figure(name=f"{name}, worst", value=max(values), unit="ms")


def mock_cluster() -> None:
    """Until its first message is acknowledged."""
    producer = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": ""})
    producer.produce("orders", "a")
    producer.flush(60)


def send(servers: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in range(count):
        producer.produce(topic, str(number))
    assert producer.flush(60) == 0


def suite_s(tests: int) -> float:
    """Tests that produce and consume, one after another, with a cluster that they share."""
    shared = SharedCluster(Cluster)
    begun = time.perf_counter()
    for _ in range(tests):
        topic = shared.topic()
        send(shared.bootstrap_servers, topic, MESSAGES_PER_TEST)
        config = {"group.id": shared.unique(), "auto.offset.reset": "earliest"}
        consumer = Consumer({"bootstrap.servers": shared.bootstrap_servers, **config})
        consumer.subscribe([topic])
        assert len(consumer.consume(MESSAGES_PER_TEST, 60)) == MESSAGES_PER_TEST
        consumer.close()
        shared.clean()
    took_s = time.perf_counter() - begun
    shared.close()
    return took_s


def week_s() -> float:
    configs = {"retention.ms": 7 * 86_400_000, "segment.ms": 86_400_000}
    with Cluster() as cluster:
        topic = cluster.create_topic("orders", 20, configs=configs)
        send(cluster.bootstrap_servers, topic, 10_000)
        begun = time.perf_counter()
        cluster.clock.advance(days=7)
        return time.perf_counter() - begun

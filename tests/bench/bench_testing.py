"""Clusters of tests, in process and as processes: start and close, a suite of tests, a week of retention.

Beside them, in the same run, the start of librdkafka's mock cluster.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

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
MEMORY = """
import gc
import psutil
from metaquorum.testing import Cluster
def size():
    gc.collect()
    return psutil.Process().memory_full_info().uss
with Cluster():
    pass
before = size()
with Cluster(brokers=6, controllers=3) as cluster:
    print((size() - before) / len(cluster.nodes))
"""
SHAPES: dict[str, tuple[dict[str, int], float]] = {
    "one combined node": ({}, 100),
    "3 brokers, 3 controllers": ({"brokers": 3, "controllers": 3}, 300),
}
"""By name, the arguments, and the target in ms."""
MESSAGES_PER_TEST = 10
MIB = 1024 * 1024


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
        started, closed, worked = [], [], []
        for _ in range(options.times):
            begun, work = time.perf_counter(), time.process_time()
            cluster = Cluster(**shape).start()
            send(cluster.bootstrap_servers, cluster.create_topic("orders"), 1)
            ready = time.perf_counter()
            worked.append((time.process_time() - work) * 1000)
            cluster.close()
            started.append((ready - begun) * 1000)
            closed.append((time.perf_counter() - ready) * 1000)
        yield from both(f"{name}: first message acknowledged", started, target_ms)
        yield Figure(name=f"{name}: its processor time", value=percentile(worked, 0.5), unit="ms")
        yield from both(f"{name}: close", closed, 50)
    started = [processes_s() * 1000 for _ in range(min(options.times, 5))]
    yield from both("3 brokers, 3 controllers, as processes: all serve", started, 1500)
    yield Figure(name="idle memory of a node", value=node_bytes() / MIB, unit="MiB", at_most=15)
    tests = f"{options.tests} tests with {MESSAGES_PER_TEST} messages"
    for how, begin in WAYS.items():
        begun, work = time.perf_counter(), time.process_time()
        suite(options.tests, begin)
        yield Figure(name=f"{tests}, {how}", value=time.perf_counter() - begun, unit="s", at_most=6)
        yield Figure(name=f"{tests}, {how}: processor time", value=time.process_time() - work, unit="s")
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


def processes_s() -> float:
    """Until all nodes serve."""
    begun = time.perf_counter()
    with Cluster(3, 3, mode="processes", timeout_s=60):
        return time.perf_counter() - begun


def node_bytes() -> float:
    """What a cluster that does nothing needs for each node, in a process that has had one."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    return float(done.stdout)


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


def in_a_group(shared: SharedCluster, topic: str) -> Consumer:
    consumer = consumer_of(shared)
    consumer.subscribe([topic])
    return consumer


def in_a_group_without_waits(shared: SharedCluster, topic: str) -> Consumer:
    """As docs/testing.md has it."""
    group = shared.unique()
    shared.cluster.commit_offsets(group, topic)
    consumer = consumer_of(shared, {"group.id": group, "reconnect.backoff.ms": 20})
    consumer.subscribe([topic])
    return consumer


def from_an_offset(shared: SharedCluster, topic: str) -> Consumer:
    consumer = consumer_of(shared)
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


WAYS: dict[str, Callable[[SharedCluster, str], Consumer]] = {
    "in a group": in_a_group,
    "in a group that has committed, and reconnect.backoff.ms=20": in_a_group_without_waits,
    "from offset 0 of a partition": from_an_offset,
}
"""By name, how the consumer of a test begins."""


def consumer_of(shared: SharedCluster, config: dict[str, Any] | None = None) -> Consumer:
    common = {"bootstrap.servers": shared.bootstrap_servers, "auto.offset.reset": "earliest"}
    return Consumer({**common, "group.id": shared.unique(), **(config or {})})


def suite(tests: int, begin: Callable[[SharedCluster, str], Consumer]) -> None:
    """Tests that produce and consume, one after another, with a cluster that they share."""
    shared = SharedCluster(Cluster)
    for _ in range(tests):
        topic = shared.topic()
        send(shared.bootstrap_servers, topic, MESSAGES_PER_TEST)
        consumer = begin(shared, topic)
        assert len(consumer.consume(MESSAGES_PER_TEST, 60)) == MESSAGES_PER_TEST
        consumer.close()
        shared.clean()
    shared.close()


def week_s() -> float:
    configs = {"retention.ms": 7 * 86_400_000, "segment.ms": 86_400_000}
    with Cluster() as cluster:
        topic = cluster.create_topic("orders", 20, configs=configs)
        send(cluster.bootstrap_servers, topic, 10_000)
        begun = time.perf_counter()
        cluster.clock.advance(days=7)
        return time.perf_counter() - begun

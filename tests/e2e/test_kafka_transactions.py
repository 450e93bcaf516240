"""Transactions of Kafka's clients on real brokers: all of a transaction or nothing, with its offsets, also
when leaders and coordinators are killed in the middle.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import kafka
import pytest

from tests.e2e.cluster import FAST_BROKERS, Cluster, Node
from tests.e2e.kafka_site import kafka_site

pytestmark = pytest.mark.e2e

HOST = "127.0.0.1"
PATIENCE_S = 60.0
PARTITIONS = 3
QUICK = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "100",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


class Site:
    """Three brokers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        for node in cluster.brokers:
            node.set_properties(QUICK)
        self.bootstrap = ",".join(f"{HOST}:{node.kafka_port}" for node in cluster.brokers)

    def topic(self, name: str) -> str:
        self.cluster.create_topic(name, partitions=PARTITIONS, replicas=3)
        return name

    def producer(self, name: str, **config: Any) -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": 30_000,
                "linger.ms": 2,
                **config,
            }
        )
        producer.init_transactions(PATIENCE_S)
        return producer

    def read(self, topic: str, expected: int, isolation: str = "read_committed") -> list[bytes]:
        """Everything up to the end of each partition, as a consumer of this isolation level sees it."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"reader-{topic}",
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
        found: list[bytes] = []
        ends: set[int] = set()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and (len(ends) < PARTITIONS or len(found) < expected):
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                found.append(message.value())
                ends.discard(message.partition())
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ends.add(message.partition())
        consumer.close()
        return sorted(found)

    def leader(self, topic: str, partition: int) -> Node:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.bootstrap})
        found = admin.list_topics(topic, 10).topics[topic].partitions[partition].leader
        return next(node for node in self.cluster.brokers if node.node_id == found)


@pytest.fixture(name="site", scope="module")
def fixture_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with kafka_site(tmp_path_factory.mktemp("transactions"), Site, 1, FAST_BROKERS) as site:
        yield site


def send(producer: confluent_kafka.Producer, topic: str, tag: str, count: int = 9) -> list[bytes]:
    sent = [f"{tag}-{number}".encode() for number in range(count)]
    for number, value in enumerate(sent):
        producer.produce(topic, value, partition=number % PARTITIONS)
    return sent


def test_committed_is_read_and_aborted_is_not(site: Site) -> None:
    topic = site.topic("ends")
    producer = site.producer("ends")
    kept: list[bytes] = []
    for number in range(6):
        producer.begin_transaction()
        sent = send(producer, topic, f"t{number}")
        if number % 2:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
            kept += sent
    assert site.read(topic, len(kept)) == sorted(kept)
    everything = site.read(topic, 2 * len(kept), "read_uncommitted")
    assert len(everything) == 2 * len(kept)


def test_an_open_transaction_is_not_read(site: Site) -> None:
    topic = site.topic("open")
    producer = site.producer("open")
    producer.begin_transaction()
    sent = send(producer, topic, "open")
    producer.flush(PATIENCE_S)
    assert site.read(topic, 0) == []
    producer.commit_transaction(PATIENCE_S)
    assert site.read(topic, len(sent)) == sorted(sent)


def test_offsets_go_with_the_transaction(site: Site) -> None:
    source, target = site.topic("source"), site.topic("target")
    plain = confluent_kafka.Producer({"bootstrap.servers": site.bootstrap})
    sent = send(plain, source, "in", 30)
    assert plain.flush(PATIENCE_S) == 0
    group = {
        "bootstrap.servers": site.bootstrap,
        "group.id": "copiers",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    producer = site.producer("copier")
    copied = 0
    for is_last in (False, True):
        # The first one reads everything and aborts: the second one reads it all again.
        consumer = confluent_kafka.Consumer(group)
        consumer.subscribe([source])
        producer.begin_transaction()
        copied = 0
        deadline = time.monotonic() + PATIENCE_S
        while copied < len(sent) and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                producer.produce(target, message.value(), partition=copied % PARTITIONS)
                copied += 1
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), PATIENCE_S
        )
        if is_last:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
        consumer.close()
        assert copied == len(sent)
    assert site.read(target, len(sent)) == sorted(sent)
    checker = confluent_kafka.Consumer(group)
    parts = [confluent_kafka.TopicPartition(source, n) for n in range(PARTITIONS)]
    assert sum(part.offset for part in checker.committed(parts, PATIENCE_S)) == len(sent)
    checker.close()


def test_a_second_process_fences_the_first(site: Site) -> None:
    topic = site.topic("fenced")
    first = site.producer("one-of-two")
    first.begin_transaction()
    send(first, topic, "first")
    first.flush(PATIENCE_S)
    second = site.producer("one-of-two")
    second.begin_transaction()
    sent = send(second, topic, "second")
    second.commit_transaction(PATIENCE_S)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        first.commit_transaction(PATIENCE_S)
    assert caught.value.args[0].fatal()
    assert site.read(topic, len(sent)) == sorted(sent)


def test_a_transaction_that_takes_too_long_is_aborted(site: Site) -> None:
    topic = site.topic("slow")
    producer = site.producer("slow", **{"transaction.timeout.ms": 1_500})
    producer.begin_transaction()
    send(producer, topic, "slow")
    producer.flush(PATIENCE_S)
    plain = confluent_kafka.Producer({"bootstrap.servers": site.bootstrap})
    sent = send(plain, topic, "after")
    assert plain.flush(PATIENCE_S) == 0
    # The last stable offset advances without the producer.
    assert site.read(topic, len(sent)) == sorted(sent)


def test_kafka_python_commits_and_aborts(site: Site) -> None:
    topic = site.topic("python")
    producer = kafka.KafkaProducer(bootstrap_servers=site.bootstrap.split(","), transactional_id="python")
    producer.init_transactions()
    kept = []
    for number, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        for part in range(PARTITIONS):
            producer.send(topic, b"p-%d-%d" % (number, part), partition=part)
        producer.flush()
        if commits:
            producer.commit_transaction()
            kept += [b"p-%d-%d" % (number, part) for part in range(PARTITIONS)]
        else:
            producer.abort_transaction()
    producer.close()
    assert site.read(topic, len(kept)) == sorted(kept)


def test_leaders_and_coordinators_die_in_the_middle(site: Site) -> None:
    """Every transaction that was reported as committed is there completely, and no other one at all."""
    topic = site.topic("killed")
    producer = site.producer("killed")
    kept: list[bytes] = []
    for number, victim in enumerate(
        (None, (topic, 0), ("__transaction_state", 0), ("__transaction_state", 1))
    ):
        producer.begin_transaction()
        sent = send(producer, topic, f"k{number}")
        node = None
        if victim is not None:
            producer.flush(PATIENCE_S)
            node = site.leader(*victim)
            node.kill()
        aborts = number == 1
        for _ in range(20):
            try:
                (producer.abort_transaction if aborts else producer.commit_transaction)(PATIENCE_S)
                break
            except confluent_kafka.KafkaException as error:
                if error.args[0].txn_requires_abort():
                    aborts = True
                elif not error.args[0].retriable():
                    raise
        if not aborts:
            kept += sent
        if node is not None:
            node.start()
            site.cluster.wait_brokers({each.node_id: "running" for each in site.cluster.brokers})
    assert site.read(topic, len(kept)) == sorted(kept)
    assert len(kept) >= 9

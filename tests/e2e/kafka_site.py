"""Brokers for tests of Kafka's clients: what librdkafka writes and reads there, nodes killed in turn under a
client's load, and exact counts of what that client reports as written.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka
import confluent_kafka.admin

from tests.e2e.cluster import FAST_BROKERS, Cluster, Node

HOST = "127.0.0.1"
S = TypeVar("S")

QUICK_BROKERS = {
    **FAST_BROKERS["broker"],
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "500",
}
"""Each internal topic has one partition: its leader coordinates every group, or every transaction."""

QUICK = {**FAST_BROKERS, "broker": QUICK_BROKERS}


@contextmanager
def kafka_site(
    folder: Path, site: Callable[[Cluster], S], controllers: int, properties: Mapping[str, Mapping[str, str]]
) -> Iterator[S]:
    """A running cluster with three brokers, which has met no bug when it ends."""
    with Cluster(folder, controllers=controllers, brokers=3, properties=properties) as cluster:
        made = site(cluster)
        cluster.start()
        yield made
        cluster.assert_no_bugs()


class KafkaCluster:
    """Three brokers. `ports`: by broker id."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ports = {node.node_id: node.kafka_port for node in cluster.brokers}
        for node in cluster.brokers:
            node.set_properties(
                {
                    "log.cleaner.backoff.ms": "200",
                    "broker.rack": f"rack-{node.node_id}",
                    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
                }
            )

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports.values())

    def create_topic(self, name: str, partitions: int = 3) -> None:
        self.cluster.create_topic(name, partitions=partitions, replicas=3)

    def leader(self, name: str) -> Node:
        """The broker that leads partition 0, according to the metadata of a client."""
        client = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.bootstrap})

        def leading() -> Node | None:
            """None: the broker that responded does not know the topic, or its leader, yet."""
            parts = client.list_topics(name, 10).topics[name].partitions
            leader_id = parts[0].leader if parts else -1
            return next((node for node in self.cluster.brokers if node.node_id == leader_id), None)

        return self.cluster.wait(leading, f"a leader of {name}")


def wait_for_leaders(site: KafkaCluster, topic: str, partitions: int = 3) -> None:
    """Waits until every leader knows that it leads."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": site.bootstrap, "group.id": "none"})

    def answers(index: int) -> bool:
        part = confluent_kafka.TopicPartition(topic, index)
        try:
            return consumer.get_watermark_offsets(part, timeout=20) is not None
        except confluent_kafka.KafkaException:
            return False

    for index in range(partitions):
        site.cluster.wait(lambda index=index: answers(index) or None, f"a leader of {topic} {index}")
    consumer.close()


def confluent_produce(site: KafkaCluster, topic: str, sent: list[bytes], **config: Any) -> None:
    failed: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": site.bootstrap, "linger.ms": 5, **config})
    for number, value in enumerate(sent):
        producer.produce(
            topic, value, key=b"%d" % number, on_delivery=lambda error, _: error and failed.append(error)
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failed == []


def confluent_read_all(site: KafkaCluster, topic: str, partitions: int) -> list[bytes]:
    """Up to the last stable offset of each partition, one partition after the other."""
    config = {"bootstrap.servers": site.bootstrap, "group.id": "none", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer({**config, "isolation.level": "read_committed"})
    found: list[bytes] = []
    for index in range(partitions):
        consumer.assign([confluent_kafka.TopicPartition(topic, index, confluent_kafka.OFFSET_BEGINNING)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found.append(message.value())
        assert message is not None and message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
    consumer.close()
    return found


def confluent_read(site: KafkaCluster, topic: str, count: int, partitions: int = 3) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": site.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    start = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic, index, start) for index in range(partitions)])
    found: list[bytes] = []
    until = time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        for message in consumer.consume(count - len(found), timeout=1.0):
            assert message.error() is None, message.error()
            found.append(message.value())
    consumer.close()
    return found


# ---- faults


def restart(site: KafkaCluster, victim: Node) -> None:
    victim.start()
    victim.wait_for_line("listens on", timeout_s=60)
    site.cluster.wait_brokers({node.node_id: "running" for node in site.cluster.brokers})


def kill_leader(site: KafkaCluster, topic: str) -> None:
    """kill -9 of the leader of partition 0; restarts it when there is another."""
    victim = site.leader(topic)
    victim.kill()
    site.cluster.wait(lambda: site.leader(topic) is not victim or None, f"another leader of {topic}")
    restart(site, victim)


def kill_controller(site: KafkaCluster) -> None:
    """kill -9 of the active controller; restarts it when there is another."""
    quorum = site.cluster.quorum()
    victim = site.cluster.controller(quorum.leader_id)
    victim.kill()
    site.cluster.wait_leader(after_epoch=quorum.leader_epoch)
    victim.start()
    site.cluster.wait_caught_up(victim)


# ---- what clients do while nodes are killed

ROUND = 3
"""Partitions of a topic for transactions: each writes one message to every partition."""


@dataclass
class Outcome:
    """As the client itself counts. `written`: messages of an idempotent producer, all acknowledged;
    `committed` and `unknown`: transactions that ended in a commit or in an error; `topics`: created ones."""

    written: int = 0
    committed: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)

    def counts(self) -> list[int]:
        return [self.written, len(self.committed), len(self.topics)]


def create_topics_of_load(site: KafkaCluster, prefix: str) -> None:
    site.create_topic(f"{prefix}-written", partitions=1)
    site.create_topic(f"{prefix}-transactions", partitions=ROUND)


def kill_in_turn(site: KafkaCluster, topic: str, counts: Callable[[], list[int]]) -> None:
    """kill -9 of the topic's leader, of the transaction coordinator and of the active controller; before and
    after each of them all `counts` increase."""

    def wait_more() -> None:
        before = counts()
        site.cluster.wait(
            lambda: all(now > then for now, then in zip(counts(), before, strict=True)) or None,
            "progress of every kind",
        )

    wait_more()
    kill_leader(site, topic)
    wait_more()
    kill_leader(site, "__transaction_state")
    wait_more()
    kill_controller(site)
    wait_more()


def assert_exact(site: KafkaCluster, prefix: str, outcome: Outcome) -> None:
    """PREFIX-written has every message once and in order; PREFIX-transactions has each transaction completely
    or not at all."""
    wanted = [b"%d" % number for number in range(outcome.written)]
    assert confluent_read_all(site, f"{prefix}-written", 1) == wanted
    found = Counter(confluent_read_all(site, f"{prefix}-transactions", ROUND))
    assert set(found.values()) <= {ROUND}, found
    kept = {int(value) for value in found}
    assert set(outcome.committed) <= kept <= {*outcome.committed, *outcome.unknown}
    assert set(outcome.topics) <= site.cluster.topics().keys()

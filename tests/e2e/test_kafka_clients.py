"""Kafka's clients with real brokers: they see the cluster, produce with any acks and codec, and read the
records back.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import pytest

from tests.e2e.cluster import FAST_BROKERS
from tests.e2e.kafka_site import (
    HOST,
    KafkaCluster,
    confluent_produce,
    confluent_read,
    kafka_site,
    restart,
    wait_for_leaders,
)

pytestmark = pytest.mark.e2e

MESSAGES = 500


@pytest.fixture(name="site", scope="module")
def fixture_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with kafka_site(tmp_path_factory.mktemp("kafka"), KafkaCluster, 1, FAST_BROKERS) as site:
        yield site


def values(tag: str) -> list[bytes]:
    return [f"{tag} {number} ".encode() * 5 for number in range(MESSAGES)]


# ---- librdkafka


def test_librdkafka_sees_the_cluster(site: KafkaCluster) -> None:
    site.create_topic("seen", partitions=4)
    wait_for_leaders(site, "seen", 4)
    found = confluent_kafka.admin.AdminClient({"bootstrap.servers": site.bootstrap}).list_topics(timeout=20)
    assert found.cluster_id == site.cluster.cluster_id
    assert {broker.id: broker.port for broker in found.brokers.values()} == site.ports
    assert [len(part.replicas) for part in found.topics["seen"].partitions.values()] == [3] * 4


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_produces_with_every_codec_and_reads_all_back(site: KafkaCluster, codec: str) -> None:
    topic = f"rd-{codec}"
    site.create_topic(topic)
    confluent_produce(site, topic, values(codec), **{"compression.type": codec})
    assert sorted(confluent_read(site, topic, MESSAGES)) == sorted(values(codec))


def test_librdkafka_reads_from_the_replica_in_its_rack(site: KafkaCluster) -> None:
    site.create_topic("racks", partitions=1)
    confluent_produce(site, "racks", values("early"))
    leader = site.leader("racks").node_id
    near = next(broker for broker in site.ports if broker != leader)
    read_from: list[int] = []

    def note(text: str) -> None:
        topic = json.loads(text)["topics"].get("racks")
        if topic is not None and "0" in topic["partitions"]:
            read_from.append(topic["partitions"]["0"]["broker"])

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": site.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "client.rack": f"rack-{near}",
            "statistics.interval.ms": 100,
            "stats_cb": note,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("racks", 0, confluent_kafka.OFFSET_BEGINNING)])
    found: list[bytes] = []
    wanted = values("early")

    def read_on() -> bool:
        for message in consumer.consume(500, timeout=0.2):
            assert message.error() is None, message.error()
            found.append(message.value())
        return len(found) >= len(wanted) and near in read_from

    site.cluster.wait(read_on, f"everything to be read, from broker {near}")
    # The follower learns of later commits, and passes them to its readers.
    confluent_produce(site, "racks", values("late"))
    wanted += values("late")
    site.cluster.wait(read_on, "what came later")
    consumer.close()
    assert (found, read_from[-1]) == (wanted, near)


@pytest.mark.parametrize("config", [{"acks": 0}, {"acks": 1}, {"enable.idempotence": True}], ids=str)
def test_librdkafka_produces_with_every_acks(site: KafkaCluster, config: dict[str, Any]) -> None:
    topic = "rd-" + "-".join(f"{key}-{value}".replace(".", "-") for key, value in config.items())
    site.create_topic(topic)
    # With acks=0 no client learns that a leader does not know the topic yet.
    wait_for_leaders(site, topic)
    confluent_produce(site, topic, values("acks"), **config)
    assert sorted(confluent_read(site, topic, MESSAGES)) == sorted(values("acks"))


def test_offsets_are_found_by_place_and_time(site: KafkaCluster) -> None:
    site.create_topic("times", partitions=1)
    producer = confluent_kafka.Producer({"bootstrap.servers": site.bootstrap})
    for number in range(10):
        producer.produce("times", b"%d" % number, timestamp=1_700_000_000_000 + number * 1000)
        producer.flush(30)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": site.bootstrap, "group.id": "none"})
    part = confluent_kafka.TopicPartition("times", 0)
    assert consumer.get_watermark_offsets(part, timeout=20) == (0, 10)
    part.offset = 1_700_000_004_500
    (found,) = consumer.offsets_for_times([part], timeout=20)
    assert found.offset == 5
    consumer.assign([confluent_kafka.TopicPartition("times", 0, 0)])
    assert consumer.poll(20).value() == b"0"
    consumer.seek(confluent_kafka.TopicPartition("times", 0, 7))
    assert [each.value() for each in consumer.consume(3, timeout=20)] == [b"7", b"8", b"9"]
    consumer.close()


def test_every_replica_of_a_compacted_topic_keeps_the_last_value_of_each_key(site: KafkaCluster) -> None:
    rules = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
    site.cluster.create_topic("compacted", 1, 3, configs=tuple(rules.items()))
    wait_for_leaders(site, "compacted", 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": site.bootstrap, "compression.type": "lz4"})
    for number in range(400):
        producer.produce("compacted", random.Random(number).randbytes(500), key=b"key %d" % (number % 7))
        producer.flush(30) if number % 5 == 4 else None
    assert producer.flush(30) == 0
    refused: list[Any] = []
    producer.produce("compacted", b"no key", on_delivery=lambda error, _: refused.append(error.code()))
    producer.flush(30)
    assert refused == [confluent_kafka.KafkaError.INVALID_RECORD]
    # 200 kB were produced; the active segment and the last value of each key stay.
    for node in site.cluster.brokers:
        place = Path(node.log_dirs[0]) / "compacted-0"

        def compacted(place: Path = place) -> bool:
            with contextlib.suppress(FileNotFoundError):  # the cleaner replaces segments meanwhile
                return sum(path.stat().st_size for path in place.glob("*.log")) < 50_000
            return False

        site.cluster.wait(lambda check=compacted: check() or None, f"{place} is compacted")
    found = confluent_read_keys(site, "compacted")
    assert found == {b"key %d" % key: random.Random(393 + (key - 393) % 7).randbytes(500) for key in range(7)}


def confluent_read_keys(site: KafkaCluster, topic: str) -> dict[bytes, bytes]:
    """The last value of every key in partition 0, of a log in which offsets are missing."""
    config = {"bootstrap.servers": site.bootstrap, "group.id": "none", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(config)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    found: dict[bytes, bytes] = {}
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found[message.key()] = message.value()
    consumer.close()
    return found


# ---- kafka-python


@pytest.mark.parametrize("config", [{}, {"enable_idempotence": False, "acks": 1}], ids=str)
def test_kafka_python_produces_and_reads_back(site: KafkaCluster, config: dict[str, Any]) -> None:
    topic = f"kp-{len(config)}"
    site.create_topic(topic)
    producer = kafka.KafkaProducer(bootstrap_servers=site.bootstrap.split(","), linger_ms=5, **config)
    waiting = [producer.send(topic, value) for value in values("kp")]
    for each in waiting:
        each.get(timeout=60)
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=site.bootstrap.split(","), consumer_timeout_ms=20_000)
    consumer.assign([kafka.TopicPartition(topic, index) for index in range(3)])
    consumer.seek_to_beginning()
    found = []
    for message in consumer:
        found.append(message.value)
        if len(found) == MESSAGES:
            break
    consumer.close()
    assert sorted(found) == sorted(values("kp"))


def test_kafka_python_describes_the_cluster(site: KafkaCluster) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=site.bootstrap.split(","))
    found = admin.describe_cluster()
    admin.close()
    assert found["cluster_id"] == site.cluster.cluster_id
    assert {broker["port"] for broker in found["brokers"]} == set(site.ports.values())


# ---- faults


def test_a_killed_leader_loses_nothing_that_was_acknowledged(site: KafkaCluster) -> None:
    site.create_topic("survives", partitions=1)
    sent = values("survives")
    acknowledged: list[bytes] = []
    config = {"bootstrap.servers": site.bootstrap, "enable.idempotence": True, "linger.ms": 1}
    producer = confluent_kafka.Producer(config)
    victim = site.leader("survives")
    killer = threading.Timer(0.5, victim.kill)
    killer.start()
    for value in sent:
        producer.produce(
            "survives", value, on_delivery=lambda error, done: error or acknowledged.append(done.value())
        )
        producer.poll(0.003)
    assert producer.flush(90) == 0
    killer.join()
    assert acknowledged == sent
    # In order, and once each: the producer was idempotent.
    assert confluent_read(site, "survives", MESSAGES, partitions=1) == sent
    restart(site, victim)


GARBAGE = (b"GET / HTTP/1.1\r\n\r\n", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\4spam")


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_on_the_port_ends_one_connection(site: KafkaCluster, garbage: bytes) -> None:
    port = next(iter(site.ports.values()))
    client = confluent_kafka.admin.AdminClient({"bootstrap.servers": f"{HOST}:{port}"})
    with socket.create_connection((HOST, port), timeout=20) as caller:
        caller.sendall(garbage)
        with contextlib.suppress(ConnectionResetError):
            assert caller.recv(1) == b""
    assert len(client.list_topics(timeout=20).brokers) == 3

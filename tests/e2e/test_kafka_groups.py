"""Consumer groups of Kafka's clients on real brokers: members join, leave and are killed, and so are
coordinators; no committed offset is lost, and every message is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import kafka
import pytest

from metaquorum.node.local_nodes import free_ports
from tests.e2e.cluster import FAST_BROKERS, Cluster, Node

pytestmark = pytest.mark.e2e

HOST = "127.0.0.1"
PARTITIONS = 4
MESSAGES = 200
PATIENCE_S = 60.0
SESSION_MS = 2_000
QUICK_MEMBERS = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 200}
QUICK_GROUPS = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.migration.policy": "bidirectional",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "200",
    "group.min.session.timeout.ms": "500",
}


class Site:
    """Three brokers and one topic with messages, which every test reads in a group of its own."""

    admin: confluent_kafka.admin.AdminClient

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        ports = dict(zip((node.node_id for node in cluster.brokers), free_ports(3), strict=True))
        for node in cluster.brokers:
            listeners = f"PLAINTEXT://{node.address},KAFKA://{HOST}:{ports[node.node_id]}"
            protocols = {
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,GRPC:PLAINTEXT,KAFKA:PLAINTEXT"
            }
            node.set_properties({"listeners": listeners, **protocols, **QUICK_GROUPS})
        self.bootstrap = ",".join(f"{HOST}:{port}" for port in ports.values())
        self.sent = sorted(b"message %d" % number for number in range(MESSAGES))

    def fill(self, topic: str) -> None:
        self.cluster.create_topic(topic, partitions=PARTITIONS, replicas=3)
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap})
        for number in range(MESSAGES):
            producer.produce(topic, b"message %d" % number, key=b"%d" % number)
        assert producer.flush(PATIENCE_S) == 0

    def consumer(self, group: str, **config: Any) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                **({} if "group.protocol" in config else QUICK_MEMBERS),
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **config,
            }
        )

    def coordinator(self, group: str) -> Node:
        described = self.admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
        return next(node for node in self.cluster.brokers if node.node_id == described.coordinator.id)


@pytest.fixture(name="site", scope="module")
def fixture_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("groups")
    with Cluster(folder, controllers=1, brokers=3, properties=FAST_BROKERS) as cluster:
        site = Site(cluster)
        cluster.start()
        # Kept: without a reference its futures would end.
        site.admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": site.bootstrap})
        site.fill("orders")
        yield site
        cluster.assert_no_bugs()


def until(happened: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = happened()
        if found:
            return found
    raise AssertionError(f"not within {PATIENCE_S} s: {what}")


def read(consumers: list[confluent_kafka.Consumer], found: list[bytes]) -> None:
    """Lets every member make progress; what it read is added."""
    for consumer in consumers:
        for message in consumer.consume(100, timeout=0.05):
            assert message.error() is None, message.error()
            found.append(message.value())


def shares(consumers: list[confluent_kafka.Consumer]) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


def share_out(consumers: list[confluent_kafka.Consumer], wanted: list[int], found: list[bytes]) -> None:
    def settled() -> bool:
        read(consumers, found)
        owned = [(each.topic, each.partition) for one in consumers for each in one.assignment()]
        return shares(consumers) == wanted and len(set(owned)) == len(owned) == PARTITIONS

    until(settled, f"members have {wanted} partitions")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_two_members_share_a_topic_and_one_takes_over_when_the_other_leaves(
    site: Site, strategy: str
) -> None:
    group, found = f"shared-{strategy}", list[bytes]()
    first, second = (site.consumer(group, **{"partition.assignment.strategy": strategy}) for _ in range(2))
    first.subscribe(["orders"])
    share_out([first], [PARTITIONS], found)
    second.subscribe(["orders"])
    share_out([first, second], [2, 2], found)
    until(lambda: read([first, second], found) or len(set(found)) >= MESSAGES, "all messages are read")
    first.commit(offsets=[confluent_kafka.TopicPartition("orders", 0, MESSAGES)], asynchronous=False)
    assert sorted(set(found)) == site.sent
    second.close()
    share_out([first], [PARTITIONS], found)
    first.close()
    listed = site.admin.list_consumer_groups().result(PATIENCE_S)
    assert [each.state.name for each in listed.valid if each.group_id == group] == ["EMPTY"]


def test_a_member_that_dies_is_dropped_and_its_partitions_are_read_by_the_other(site: Site) -> None:
    found: list[bytes] = []
    alive, dead = site.consumer("mortal"), site.consumer("mortal")
    alive.subscribe(["orders"])
    dead.subscribe(["orders"])
    share_out([alive, dead], [2, 2], found)
    described = site.admin.describe_consumer_groups(["mortal"])["mortal"].result(PATIENCE_S)
    assert sorted(len(each.assignment.topic_partitions) for each in described.members) == [2, 2]
    # A thread of librdkafka cannot be killed: a member whose poll interval expires leaves in the same way.
    dying = site.consumer("mortal", **{"max.poll.interval.ms": SESSION_MS})
    dying.subscribe(["orders"])
    share_out([alive, dead, dying], [1, 1, 2], found)
    share_out([alive, dead], [2, 2], found)
    for each in (alive, dead, dying):
        each.close()


def test_committed_offsets_survive_the_death_of_their_coordinator(site: Site) -> None:
    group = "kept"
    consumer = site.consumer(group)
    consumer.subscribe(["orders"])
    read_up: list[bytes] = []
    share_out([consumer], [PARTITIONS], read_up)
    node = site.coordinator(group)
    for committed in (1, 2, 3):
        consumer.commit(offsets=_all_at(committed), asynchronous=False)
    node.kill()
    asked = [confluent_kafka.TopicPartition("orders", index) for index in range(PARTITIONS)]
    assert [each.offset for each in consumer.committed(asked, PATIENCE_S)] == [3] * PARTITIONS
    until(lambda: _commits(consumer, _all_at(4)), "the new coordinator takes commits")
    other = site.consumer(group)
    assert [each.offset for each in other.committed(asked, PATIENCE_S)] == [4] * PARTITIONS
    share_out([consumer], [PARTITIONS], read_up)
    node.start()
    other.close()
    consumer.close()


def _all_at(offset: int) -> list[confluent_kafka.TopicPartition]:
    return [confluent_kafka.TopicPartition("orders", index, offset) for index in range(PARTITIONS)]


def _commits(consumer: confluent_kafka.Consumer, parts: list[confluent_kafka.TopicPartition]) -> bool:
    """A member that was removed when the coordinator changed rejoins when it polls."""
    consumer.poll(0.1)
    with contextlib.suppress(confluent_kafka.KafkaException):
        consumer.commit(offsets=parts, asynchronous=False)
        return True
    return False


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(site: Site) -> None:
    found: list[bytes] = []
    config = {"session.timeout.ms": 20_000}
    first = site.consumer("static", **{**config, "group.instance.id": "one"})
    second = site.consumer("static", **{**config, "group.instance.id": "two"})
    rebalances: list[Any] = []
    first.subscribe(["orders"], on_assign=lambda _, parts: rebalances.append(parts))
    second.subscribe(["orders"])
    share_out([first, second], [2, 2], found)
    mine = {each.partition for each in second.assignment()}
    before = len(rebalances)
    second.close()
    back = site.consumer("static", **{**config, "group.instance.id": "two"})
    back.subscribe(["orders"])
    share_out([first, back], [2, 2], found)
    assert {each.partition for each in back.assignment()} == mine
    assert len(rebalances) == before
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        site.admin.delete_consumer_groups(["static"])["static"].result(PATIENCE_S)
    assert refused.value.args[0].name() == "NON_EMPTY_GROUP"
    first.close()
    back.close()


def test_members_of_the_new_protocol_share_commit_and_take_over(site: Site) -> None:
    """KIP-848: the coordinator assigns."""
    new = {"group.protocol": "consumer"}
    group, found = "modern", list[bytes]()
    first, second = site.consumer(group, **new), site.consumer(group, **new)
    first.subscribe(["orders"])
    share_out([first], [PARTITIONS], found)
    second.subscribe(["orders"])
    share_out([first, second], [2, 2], found)
    until(lambda: read([first, second], found) or set(found) == set(site.sent), "all messages are read")
    mine = [confluent_kafka.TopicPartition(each.topic, each.partition, 7) for each in first.assignment()]
    first.commit(offsets=mine, asynchronous=False)
    assert [each.offset for each in second.committed(mine, PATIENCE_S)] == [7, 7]
    described = site.admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    assert (described.state.name, described.type.name) == ("STABLE", "CONSUMER")
    assert sorted(len(each.assignment.topic_partitions) for each in described.members) == [2, 2]
    second.close()
    share_out([first], [PARTITIONS], found)
    node = site.coordinator(group)
    node.kill()
    third = site.consumer(group, **new)
    third.subscribe(["orders"])
    share_out([first, third], [2, 2], found)
    node.start()
    first.close()
    third.close()
    classic = site.consumer(group)
    classic.subscribe(["orders"])
    share_out([classic], [PARTITIONS], found)
    classic.close()


def test_members_change_the_protocol_one_by_one_and_back_and_read_all_once(
    site: Site,
) -> None:
    group, found, sent = "rolled", list[bytes](), list[bytes]()
    site.cluster.create_topic(group, partitions=PARTITIONS, replicas=3)
    producer = confluent_kafka.Producer({"bootstrap.servers": site.bootstrap})

    def member(**config: Any) -> confluent_kafka.Consumer:
        consumer = site.consumer(group, **config)
        consumer.subscribe([group])
        return consumer

    def all_is_read(members: list[confluent_kafka.Consumer], wanted: list[int]) -> None:
        """A batch of messages, each of which is read once, and committed."""
        share_out(members, wanted, found)
        batch = [b"%d" % number for number in range(len(sent), len(sent) + 50)]
        for value in batch:
            producer.produce(group, value, key=value)
        assert producer.flush(PATIENCE_S) == 0
        sent.extend(batch)
        until(lambda: read(members, found) or len(found) >= len(sent), "all messages are read")
        assert sorted(found) == sorted(sent)
        for each in members:
            each.commit(asynchronous=False)

    def kind() -> str:
        return str(site.admin.describe_consumer_groups([group])[group].result(PATIENCE_S).type.name)

    new = {"group.protocol": "consumer"}
    first, second = member(), member()
    all_is_read([first, second], [2, 2])
    assert kind() == "CLASSIC"
    third = member(**new)
    all_is_read([first, second, third], [1, 1, 2])
    assert kind() == "CONSUMER"
    first.close()
    fourth = member(**new)
    all_is_read([second, third, fourth], [1, 1, 2])
    second.close()
    all_is_read([third, fourth], [2, 2])
    fifth = member()
    all_is_read([third, fourth, fifth], [1, 1, 2])
    third.close()
    fourth.close()
    all_is_read([fifth], [PARTITIONS])
    assert kind() == "CLASSIC"
    fifth.close()


def test_offsets_are_read_deleted_and_go_with_their_group(site: Site) -> None:
    consumer = site.consumer("tidy")
    parts = [confluent_kafka.TopicPartition("orders", index, index + 1) for index in range(PARTITIONS)]
    consumer.commit(offsets=parts, asynchronous=False)
    consumer.close()
    admin = site.admin
    request = confluent_kafka.ConsumerGroupTopicPartitions("tidy")
    offsets = admin.list_consumer_group_offsets([request])["tidy"].result(PATIENCE_S).topic_partitions
    assert {each.partition: each.offset for each in offsets} == {0: 1, 1: 2, 2: 3, 3: 4}
    change = confluent_kafka.ConsumerGroupTopicPartitions("tidy", parts[:1])
    admin.alter_consumer_group_offsets([change])["tidy"].result(PATIENCE_S)
    admin.delete_consumer_groups(["tidy"])["tidy"].result(PATIENCE_S)
    with pytest.raises(confluent_kafka.KafkaException) as missing:
        admin.delete_consumer_groups(["tidy"])["tidy"].result(PATIENCE_S)
    assert missing.value.args[0].name() == "GROUP_ID_NOT_FOUND"
    left = admin.list_consumer_group_offsets([request])["tidy"].result(PATIENCE_S).topic_partitions
    assert all(each.offset < 0 for each in left)


def test_kafka_python_shares_seeks_and_commits(site: Site) -> None:
    def member() -> kafka.KafkaConsumer:
        return kafka.KafkaConsumer(
            "orders",
            bootstrap_servers=site.bootstrap,
            group_id="python",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS * 3,
            heartbeat_interval_ms=200,
        )

    first, second = member(), member()
    found: list[bytes] = []

    def poll(*consumers: kafka.KafkaConsumer) -> None:
        for consumer in consumers:
            for records in consumer.poll(timeout_ms=50).values():
                found.extend(record.value for record in records)

    def shared() -> bool:
        poll(first, second)
        return sorted(len(each.assignment()) for each in (first, second)) == [2, 2]

    until(shared, "both have two partitions")
    until(lambda: poll(first, second) or sorted(set(found)) == site.sent, "all messages are read")
    first.commit()
    at = next(iter(first.assignment()))
    assert first.committed(at) == first.position(at)
    second.close()
    until(lambda: poll(first) or len(first.assignment()) == PARTITIONS, "the other takes over")
    first.seek_to_beginning(*first.assignment())
    found.clear()
    until(lambda: poll(first) or sorted(set(found)) == site.sent, "all messages are read again")
    first.close()


def test_aiokafka_shares_and_commits(site: Site) -> None:
    async def scenario() -> None:
        members = [
            aiokafka.AIOKafkaConsumer(
                "orders",
                bootstrap_servers=site.bootstrap,
                group_id="aio",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=SESSION_MS * 3,
                heartbeat_interval_ms=200,
            )
            for _ in range(2)
        ]
        found: list[bytes] = []
        async with contextlib.AsyncExitStack() as stack:
            for member in members:
                await member.start()
                stack.push_async_callback(member.stop)
            async with asyncio.timeout(PATIENCE_S):
                while sorted(set(found)) != site.sent or sorted(len(m.assignment()) for m in members) != [
                    2,
                    2,
                ]:
                    for member in members:
                        for records in (await member.getmany(timeout_ms=50)).values():
                            found += [record.value for record in records]
                for member in members:
                    await member.commit()
                    for at in member.assignment():
                        assert await member.committed(at) == await member.position(at)

    asyncio.run(scenario())

"""`metaquorum groups` and `transactions`, with consumers and producers of librdkafka."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from metaquorum.cli.main import main
from metaquorum.clients.admin.replicas import alter_reassignments
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.metadata.requests.partitions import WantedReplicas
from metaquorum.testing import Cluster
from tests.e2e.in_process import in_process

pytestmark = pytest.mark.e2e

PATIENCE_S = 90.0
MESSAGES = 40
QUICK = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "100",
}


class Site:
    def __init__(self, cluster: Cluster) -> None:
        self.bootstrap = cluster.bootstrap_servers

    def run(self, *words: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, [*words, "--bootstrap", self.bootstrap, "--timeout", "60"])
        assert result.exit_code == code, result.output
        return result.stderr if code else result.stdout

    def shown(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def producer(self, **config: Any) -> Producer:
        return Producer({"bootstrap.servers": self.bootstrap, **config})

    def read(self, group: str, count: int, **config: Any) -> tuple[Consumer, list[int]]:
        """Reads and commits this many messages as a member of the group; returns both."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "client.id": f"reader-of-{group}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **config,
            }
        )
        consumer.subscribe(["orders"])
        found: list[int] = []

        def enough() -> bool:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(int(message.value()))
                consumer.commit(message, asynchronous=False)
            return len(found) == count

        until(enough, f"{group} reads {count} messages")
        return consumer, found


@pytest.fixture(name="site", scope="module")
def fixture_site() -> Iterator[Site]:
    with in_process(2, 1, properties=QUICK) as cluster:
        site = Site(cluster)
        cluster.create_topic("orders", 2)
        producer = site.producer()
        for number in range(MESSAGES):
            producer.produce("orders", str(number).encode(), partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0
        yield site


def until(happened: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < end, f"not within {PATIENCE_S} s: {what}"


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_a_groups_offsets_are_shown_moved_and_deleted(site: Site, kind: str, tmp_path: Path) -> None:
    name = f"app-{kind}"
    reader, _ = site.read(name, MESSAGES, **({"group.protocol": "consumer"} if kind == "consumer" else {}))
    (listed,) = [each for each in site.shown("groups", "list") if each["groupId"] == name]
    assert (listed["type"], listed["state"], listed["protocolType"]) == (kind, "Stable", "consumer")
    (group,) = site.shown("groups", "describe", name)
    (member,) = group["members"]
    assert (member["clientId"], len(member["partitions"])) == (f"reader-of-{name}", 2)
    half = MESSAGES // 2
    rows = [(each["committedOffset"], each["endOffset"], each["lag"]) for each in group["partitions"]]
    assert rows == [(half, half, 0)] * 2
    assert {each["memberId"] for each in group["partitions"]} == {member["memberId"]}
    to_start = ("groups", "reset", name, "--to-earliest", "--all-topics")
    assert site.run(*to_start, "--execute", code=1).startswith("metaquorum: NON_EMPTY_GROUP: ")
    assert site.run("groups", "delete", name, code=1).startswith("metaquorum: NON_EMPTY_GROUP: ")
    subscribed = site.run("groups", "delete", name, "--offsets", "--topic", "orders", code=1)
    assert subscribed.count("GROUP_SUBSCRIBED_TO_TOPIC") == 2
    reader.close()

    saved = tmp_path / "offsets.csv"
    saved.write_text(site.run("groups", "reset", name, "--to-current", "--all-topics", "--export"))
    assert saved.read_text() == f"orders,0,{half}\norders,1,{half}\n"
    assert "  0\n" in site.run(*to_start).replace("  0    \n", "  0\n")
    (group,) = site.shown("groups", "describe", name)
    assert [each["lag"] for each in group["partitions"]] == [0, 0], "without --execute nothing changes"
    site.run("groups", "reset", name, "--shift-by", "-3", "--topic", "orders:1", "--execute")
    (group,) = site.shown("groups", "describe", name)
    assert [each["lag"] for each in group["partitions"]] == [0, 3]
    again, read = site.read(name, 3)
    again.close()
    assert sorted(read) == [MESSAGES - 5, MESSAGES - 3, MESSAGES - 1]
    site.run("groups", "reset", name, "--to-offset", "7", "--topic", "orders", "--execute")
    site.run("groups", "reset", name, "--from-file", str(saved), "--execute")
    (group,) = site.shown("groups", "describe", name)
    assert [each["committedOffset"] for each in group["partitions"]] == [half, half]

    site.run("groups", "delete", name, "--offsets", "--topic", "orders:0")
    (group,) = site.shown("groups", "describe", name)
    assert [each["partition"] for each in group["partitions"]] == [1]
    assert site.run("groups", "delete", name) == f"group {name}: deleted\n"
    assert "there is no group" in site.run("groups", "describe", name, code=1)
    assert name not in [each["groupId"] for each in site.shown("groups", "list")]


def test_times_lead_to_offsets(site: Site) -> None:
    site.run("groups", "reset", "clock", "--to-datetime", "2020-01-01", "--topic", "orders", "--execute")
    (group,) = site.shown("groups", "describe", "clock")
    assert [each["committedOffset"] for each in group["partitions"]] == [0, 0]
    plan = site.shown("groups", "reset", "clock", "--to-datetime", "2100-01-01", "--topic", "orders")
    assert [each["newOffset"] for each in plan["offsets"]] == [MESSAGES // 2] * 2
    plan = site.shown("groups", "reset", "clock", "--by-duration", "P1D", "--all-topics")
    assert [each["newOffset"] for each in plan["offsets"]] == [0, 0]


def test_one_partition_without_a_new_offset_leaves_all_as_they_are(site: Site) -> None:
    site.run("groups", "reset", "half", "--to-offset", "5", "--topic", "orders:1", "--execute")
    shift = ("groups", "reset", "half", "--shift-by", "1", "--topic", "orders", "--execute")
    problem = site.run(*shift, code=1)
    assert "orders-0: nothing was committed to shift" in problem
    assert "nothing was changed" in problem
    (group,) = site.shown("groups", "describe", "half")
    assert [(each["partition"], each["committedOffset"]) for each in group["partitions"]] == [(1, 5)]


def test_a_transaction_is_shown_and_aborted_where_it_lies(site: Site) -> None:
    producer = site.producer(**{"transactional.id": "payments", "transaction.timeout.ms": 600_000})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("orders", b"-1", partition=0)
    producer.flush(PATIENCE_S)
    (listed,) = site.shown("transactions", "list", "--state", "Ongoing")
    assert listed["transactionalId"] == "payments"
    (found,) = site.shown("transactions", "describe", "payments")
    assert (found["state"], found["partitions"]) == ("Ongoing", [{"topic": "orders", "partition": 0}])
    assert found["durationMs"] >= 0
    assert "TRANSACTIONAL_ID_NOT_FOUND" in site.run("transactions", "describe", "nobody", code=1)
    at = ("--topic", "orders", "--partition", "0")
    (known,) = site.shown("transactions", "describe-producers", *at)
    assert (known["producerId"], known["currentTransactionStartOffset"]) == (
        listed["producerId"],
        MESSAGES // 2,
    )
    # Its coordinator knows it and will end it.
    hanging = site.run("transactions", "find-hanging", "--max-transaction-timeout", "0")
    assert hanging.startswith("no transaction hangs in ")
    assert "no open transaction begins at offset 3" in site.run(
        "transactions", "abort", *at, "--start-offset", "3", code=1
    )
    site.run("transactions", "abort", *at, "--start-offset", str(MESSAGES // 2))
    (known,) = site.shown("transactions", "describe-producers", *at)
    assert known["currentTransactionStartOffset"] is None
    (found,) = site.shown("transactions", "describe", "payments")
    assert found["state"] == "Ongoing", "the marker is in the partition alone"
    producer.abort_transaction(PATIENCE_S)


# A reassignment under a replication quota: it is slow until the quota is removed.


HELD_S = 6
BATCHES = 12


@pytest.fixture(name="cluster")
def fixture_cluster(tmp_path: Path) -> Iterator[Cluster]:
    small_fetches = {"replica.fetch.max.bytes": 100_000}
    with in_process(2, 1, properties=small_fetches, directory=tmp_path / "throttled") as cluster:
        yield cluster


def configure(cluster: Cluster, *arguments: str) -> None:
    done = CliRunner().invoke(
        main, ["configs", "alter", *arguments, "--bootstrap", cluster.bootstrap_servers]
    )
    assert done.exit_code == 0, done.output + done.stderr


def create(cluster: Cluster, *topics: str, on: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    wanted = [NewTopic(name, 1, replica_assignment=[[on]]) for name in topics]
    for created in admin.create_topics(wanted).values():
        created.result(60)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for name in topics:
        for _ in range(BATCHES):
            producer.produce(name, b"x" * 100_000)
            assert producer.flush(60) == 0


def move(cluster: Cluster, *topics: str, to: int) -> None:
    wanted = tuple(WantedReplicas(topic=name, partition=0, replicas=(to,)) for name in topics)

    async def ask() -> tuple[object, ...]:
        host, _, port = cluster.bootstrap_servers.partition(",")[0].rpartition(":")
        client = KafkaClient(((host, int(port)),), client_id="test", timeout_ms=60_000)
        try:
            return tuple(result.error for result in await alter_reassignments(client, wanted))
        finally:
            await client.close()

    assert asyncio.run(ask()) == (0,) * len(topics)


def is_moved(cluster: Cluster, topic: str, to: int) -> bool:
    known = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(topic, 60)
    return known.topics[topic].partitions[0].isrs == [to]


def is_begun(cluster: Cluster, topic: str, on: int) -> bool:
    """Whether part of it is on this broker."""
    files = Path(cluster.directory or "").glob(f"broker-{on}/**/{topic}-0/*.log")
    return any(file.stat().st_size for file in files)


def test_replicas_catch_up_as_fast_as_their_quota_allows(cluster: Cluster) -> None:
    source, target = cluster.brokers
    create(cluster, "led", "fed", "free", on=source)
    for direction, topic, broker in (("leader", "led", source), ("follower", "fed", target)):
        configure(cluster, "topic", topic, "--set", f"{direction}.replication.throttled.replicas=0:{broker}")
        configure(cluster, "broker", str(broker), "--set", f"{direction}.replication.throttled.rate=10000")
    move(cluster, "led", "fed", "free", to=target)
    cluster.wait_until(lambda: is_moved(cluster, "free", target), "what is not throttled to move")
    held = ("led", "fed")
    for name in held:
        cluster.wait_until(lambda name=name: is_begun(cluster, name, target), f"the copy of {name} to begin")
    for _ in range(HELD_S):
        cluster.clock.advance(seconds=1)
        assert not any(is_moved(cluster, name, target) for name in held)
    for direction, broker in (("leader", source), ("follower", target)):
        configure(cluster, "broker", str(broker), "--delete", f"{direction}.replication.throttled.rate")
    for name in held:
        cluster.wait_until(lambda name=name: is_moved(cluster, name, target), f"{name} to move")

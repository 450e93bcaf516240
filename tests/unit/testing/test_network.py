"""Faults of the network: between nodes, and between clients and nodes."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from metaquorum.testing import Cluster, ClusterError
from metaquorum.testing.network import Network
from tests.unit.testing.test_cluster import consumed, produced


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as made:
        yield made


def sending(cluster: Cluster, topic: str, value: str, **config: Any) -> tuple[Producer, list[Any]]:
    """A producer that has sent a message, and the name of its error, once there is one."""
    found: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "billing", **config})
    producer.produce(topic, value, on_delivery=lambda error, _: found.append(error and error.name()))
    return producer, found


def test_an_isolated_leader_is_replaced_and_its_unacknowledged_message_is_gone() -> None:
    with Cluster(brokers=3) as cluster:
        topic = cluster.create_topic("orders", configs={"min.insync.replicas": 2})
        produced(cluster.bootstrap_servers, topic, ["a"])
        first = cluster.leader(topic, 0)
        with cluster.isolate(first):
            producer, found = sending(cluster, topic, "never acknowledged", **{"message.timeout.ms": 60_000})
            assert producer.flush(0.2) == 1 and found == []
            cluster.clock.advance(seconds=9)
            cluster.wait_until(lambda: cluster.leader(topic, 0) != first)
            others = [each for each in cluster.brokers if each != first]
            assert cluster.active_controller in others
            assert cluster.create_topic("made-meanwhile")
        assert producer.flush(30) == 0 and found == [None]
        cluster.wait_for_full_isr(topic)
        assert consumed(cluster.bootstrap_servers, topic, 2) == ["a", "never acknowledged"]
        texts = [event.text for event in cluster.events]
        assert texts == [f"combined-{first} is isolated", f"healed: combined-{first} is isolated"]


def test_a_follower_that_is_cut_off_leaves_the_isr_and_returns(cluster: Cluster) -> None:
    topic = cluster.create_topic("cut-follower", configs={"min.insync.replicas": 1})
    leader = cluster.leader(topic, 0)
    follower = next(each for each in cluster.brokers if each not in (leader, cluster.active_controller))
    with cluster.cut(follower, leader):
        producer, found = sending(cluster, topic, "a")
        assert producer.flush(0.2) == 1, "the follower is in the ISR and does not have it"
        cluster.clock.advance(seconds=40)
        assert producer.flush(20) == 0 and found == [None]
    cluster.wait_for_full_isr(topic)


@pytest.mark.parametrize("direction", ["to", "from"])
def test_one_direction_is_enough_to_stop_replication(cluster: Cluster, direction: str) -> None:
    topic = cluster.create_topic(f"one-way-{direction}", configs={"min.insync.replicas": 1})
    leader = cluster.leader(topic, 0)
    follower = next(each for each in cluster.brokers if each != leader)
    with cluster.cut(follower, leader, direction=direction):
        producer, found = sending(cluster, topic, "a")
        assert producer.flush(0.2) == 1
    assert producer.flush(20) == 0 and found == [None], "what waited goes on"


def test_a_delay_between_nodes_delays_what_needs_both(cluster: Cluster) -> None:
    topic = cluster.create_topic("delayed", configs={"min.insync.replicas": 3})
    leader = cluster.leader(topic, 0)
    follower = next(each for each in cluster.brokers if each != leader)
    with cluster.delay(follower, leader, ms=600_000, jitter=1000) as delay:
        producer, found = sending(cluster, topic, "a")
        assert producer.flush(0.2) == 1 and found == []
        delay.heal()
        assert producer.flush(20) == 0 and found == [None]
    with cluster.delay(follower, leader, ms=20, jitter=10, direction="to"):
        assert produced(cluster.bootstrap_servers, topic, ["b", "c"]) == [1, 2]


async def test_after_a_long_delay_has_healed_a_short_one_is_short() -> None:
    arrived = asyncio.Queue[bytes]()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            arrived.put_nowait(data)
        writer.close()

    server = await asyncio.start_server(receive, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    network = Network(random.Random(0))
    network.place(1, [address[1]])
    _, writer = await asyncio.open_connection(*network.route_of(0)(*address))
    for delay_ms, sent in ((600_000, b"late"), (1, b"soon"), (600_000, b"late again")):
        await network.begin([(0, 1)], (delay_ms, 0))
        writer.write(sent)
        if delay_ms == 1:
            assert await asyncio.wait_for(arrived.get(), 20) == sent
        else:
            await asyncio.sleep(0.05)
            assert arrived.empty()
        await network.end([(0, 1)], (delay_ms, 0))
        if delay_ms > 1:
            assert await asyncio.wait_for(arrived.get(), 20) == sent
    writer.close()
    await network.close()
    server.close()


@pytest.mark.parametrize("direction", ["both", "to", "from"])
def test_a_client_that_is_cut_off_waits_and_goes_on(cluster: Cluster, direction: str) -> None:
    topic = cluster.create_topic(f"client-{direction}", configs={"min.insync.replicas": 1})
    leader = cluster.leader(topic, 0)
    with cluster.cut("billing", leader, direction=direction):
        producer, found = sending(cluster, topic, "a")
        assert produced(cluster.bootstrap_servers, topic, ["of another client"]) == [0]
        assert producer.flush(0.2) == 1 and found == []
    assert producer.flush(20) == 0 and found == [None]


def test_the_same_from_the_nodes_side_and_by_principal(cluster: Cluster) -> None:
    topic = cluster.create_topic("by-principal", configs={"min.insync.replicas": 1})
    leader = cluster.leader(topic, 0)
    with cluster.cut(leader, "User:ANONYMOUS", direction="to"):
        producer, found = sending(cluster, topic, "a")
        assert producer.flush(0.2) == 1 and found == []
    assert producer.flush(20) == 0


def test_an_answer_does_not_reach_a_client_that_was_cut_off_while_it_waited(cluster: Cluster) -> None:
    topic = cluster.create_topic("parked", configs={"min.insync.replicas": 1})
    leader = cluster.leader(topic, 0)
    found: list[list[str]] = []
    with cluster.fault("Fetch", client="rdkafka", topic=topic) as fetches:
        reader = threading.Thread(
            target=lambda: found.append(consumed(cluster.bootstrap_servers, topic, 1)), daemon=True
        )
        reader.start()
        fetches.wait(1)
        with cluster.cut("rdkafka", leader, direction="from"):
            producer, _ = sending(cluster, topic, "a")
            producer.flush(20)
            reader.join(0.3)
            assert found == []
        reader.join(30)
        assert found == [["a"]]


def test_a_slow_way_to_a_client_takes_its_time(cluster: Cluster) -> None:
    topic = cluster.create_topic("slow-client")
    for node in cluster.brokers:
        cluster.delay("billing", node, ms=5, jitter=2)
    producer, found = sending(cluster, topic, "a")
    assert producer.flush(20) == 0 and found == [None]
    cluster.clean()


def test_an_isolated_node_answers_no_client_if_asked(cluster: Cluster) -> None:
    topic = cluster.create_topic("no-clients", configs={"min.insync.replicas": 1})
    leader = cluster.leader(topic, 0)
    with cluster.isolate(leader, clients=True):
        producer, found = sending(cluster, topic, "a", **{"bootstrap.servers": _address(cluster, leader)})
        assert producer.flush(0.2) == 1 and found == []
    assert producer.flush(20) == 0


def _address(cluster: Cluster, node: int) -> str:
    return cluster.bootstrap_servers.split(",")[cluster.brokers.index(node)]


def test_dropped_connections_are_counted_and_made_again(cluster: Cluster) -> None:
    topic = cluster.create_topic("dropped", configs={"min.insync.replicas": 3})
    leader = cluster.leader(topic, 0)
    follower = next(each for each in cluster.brokers if each != leader)
    producer, found = sending(cluster, topic, "a")
    producer.flush(20)
    with cluster.fault("ApiVersions", node=leader, client="billing") as connects:
        assert cluster.drop_connections("billing", leader) >= 1
        producer.produce(topic, "b", on_delivery=lambda error, _: found.append(error))
        connects.wait(1)
        assert producer.flush(20) == 0 and found == [None, None]
    assert cluster.drop_connections(follower, leader) >= 1
    assert cluster.drop_connections("nobody", leader) == 0
    assert produced(cluster.bootstrap_servers, topic, ["c"]) == [2]
    assert "0 connections between client nobody and" in cluster.events[-1].text


def test_a_node_starts_again_while_it_is_cut_off(cluster: Cluster) -> None:
    one, other = (each for each in cluster.brokers if each != cluster.active_controller)
    with cluster.cut(one, other):
        cluster.restart(one)
    topic = cluster.create_topic("after-a-cut", configs={"min.insync.replicas": 3})
    assert produced(cluster.bootstrap_servers, topic, ["a"]) == [0]


def test_a_node_that_does_not_answer_is_one_line_too() -> None:
    with Cluster(brokers=1, controllers=1) as cluster:
        cluster._first_timeout_s = 2
        with cluster.stop(3000):
            with pytest.raises(ClusterError, match="topic orders"):
                cluster.create_topic("orders")


def test_what_cannot_be_cut_is_one_line(cluster: Cluster) -> None:
    for attempt, text in (
        (lambda: cluster.cut(0, 9), "no node 9: it has 0, 1, 2"),
        (lambda: cluster.cut(1, 1), "combined-1 is both ends"),
        (lambda: cluster.cut("a", "b"), "are clients: name a node"),
        (lambda: cluster.cut(0, 1, direction="up"), 'write "both", "to" or "from"'),
        (lambda: cluster.isolate(9), "no node 9"),
        (lambda: cluster.delay(0, 1, ms=-1), "ms=-1: write one that is not negative"),
        (lambda: cluster.drop_connections("a", 9), "no node 9"),
    ):
        with pytest.raises(ClusterError, match=text) as caught:
            attempt()
        assert "\n" not in str(caught.value)
    cut = cluster.cut(0, 1)
    cut.heal()
    cut.heal()

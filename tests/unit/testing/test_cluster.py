"""A cluster in this process: clients of every kind use it, and nothing of it is left afterwards."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

import metaquorum
from metaquorum.node.local_nodes import free_ports
from metaquorum.testing import Cluster, ClusterError, ClusterTimeoutError, contents
from metaquorum.testing.clock import ClusterClock
from metaquorum.testing.loop import HURRY_FACTOR, HURRY_S, LoopThread
from metaquorum.testing.node import TestNode
from tests.many_clusters import growth


def produced(servers: str, topic: str, values: list[str]) -> list[int]:
    """The offsets of messages that were acknowledged."""
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": servers})

    def done(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=done)
    producer.flush(20)
    return offsets


def consumed(servers: str, topic: str, count: int, wait: int = 300) -> list[str]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[str] = []
    for _ in range(wait):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
        if len(found) == count:
            break
    consumer.close()
    return found


def test_one_node_serves_every_client_of_python() -> None:
    values = [f"m{at}" for at in range(5)]
    with Cluster() as cluster:
        assert (cluster.nodes, cluster.brokers, cluster.controllers) == ((0,), (0,), (0,))
        topic = cluster.create_topic("orders", configs={"retention.ms": 1_000_000})
        assert produced(cluster.bootstrap_servers, topic, values) == [0, 1, 2, 3, 4]
        assert consumed(cluster.bootstrap_servers, topic, 5) == values
        assert asyncio.run(by_aiokafka(cluster.bootstrap_servers, topic)) == values
        assert by_kafka_python(cluster.bootstrap_servers, topic) == values
        cluster.delete_topic(topic)
        with pytest.raises(ClusterError, match="UNKNOWN_TOPIC"):
            cluster.delete_topic(topic)


async def by_aiokafka(servers: str, topic: str) -> list[str]:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        return [(await consumer.getone()).value.decode() for _ in range(5)]
    finally:
        await consumer.stop()


def by_kafka_python(servers: str, topic: str) -> list[str]:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic, bootstrap_servers=servers, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    try:
        return [next(consumer).value.decode() for _ in range(5)]
    finally:
        consumer.close()


def test_three_brokers_replicate_what_they_acknowledge() -> None:
    with Cluster(brokers=3, controllers=3, log_dirs=2) as cluster:
        assert cluster.controllers == (3000, 3001, 3002) and cluster.brokers == (0, 1, 2)
        topic = cluster.create_topic("orders", configs={"min.insync.replicas": 3})
        assert produced(cluster.bootstrap_servers, topic, ["a", "b"]) == [0, 1]
        assert consumed(cluster.bootstrap_servers, topic, 2) == ["a", "b"]


def test_an_idle_cluster_writes_little() -> None:
    """Each record that only says that nothing happens is work for every node."""
    with Cluster(clock="manual") as cluster:

        def end_offset() -> int:
            image = cluster._brokers()[0].image
            assert image is not None
            return image.provenance.offset

        cluster.clock.advance(seconds=6)
        before = end_offset()
        cluster.clock.advance(seconds=20)
        assert 0 < end_offset() - before <= 5


def test_a_manual_clock_moves_for_a_new_topic_as_far_as_its_followers_need() -> None:
    with Cluster(clock="manual") as cluster:
        before_ms = cluster.clock.wall_ms
        cluster.create_topic("orders")
        assert cluster.clock.wall_ms - before_ms == 500


def test_idle_voters_seldom_ask_each_other() -> None:
    """Each fetch is work for two nodes and the network between them."""
    with Cluster(brokers=1, controllers=3, clock="manual") as cluster:

        def steps() -> int:
            drivers = [node.process.driver for node in cluster._nodes.values() if node.process]
            return sum(driver.statistics.steps for driver in drivers)

        cluster.clock.advance(seconds=6)
        before = steps()
        cluster.clock.advance(seconds=20)
        assert 0 < steps() - before < 20 * 24


async def test_an_asynchronous_test_enters_it_without_blocking_its_loop() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    task = asyncio.create_task(turn())
    async with Cluster() as cluster:
        assert turns > 3
        topic = await asyncio.to_thread(cluster.create_topic, "orders")
        assert await asyncio.to_thread(produced, cluster.bootstrap_servers, topic, ["a"]) == [0]
    task.cancel()


def test_data_in_a_directory_stays_there_for_the_log_tools(tmp_path: Path) -> None:
    home = tmp_path / "kept"
    with Cluster(directory=home) as cluster:
        topic = cluster.create_topic("orders")
        produced(cluster.bootstrap_servers, topic, ["a"])
    log = metaquorum.open_log(home / "combined-0" / "data")
    records = [each.record for item in log.items() for each in getattr(item, "records", ())]
    assert any(getattr(record, "name", None) == "orders" for record in records)
    with pytest.raises(ClusterError, match="is not empty: give an empty one"):
        Cluster(directory=home)
    with pytest.raises(ClusterError, match="is a file"):
        Cluster(directory=home / "combined-0" / "data" / "meta.properties")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"brokers": 0}, "at least one broker"),
        ({"brokers": 1, "controllers": 0}, "give at least one"),
        ({"log_dirs": 0}, "at least one"),
        ({"brokers": 10_000_000}, "have fewer"),
        ({"properties": {"num.partitoins": 3}}, "num.partitoins"),
        ({"properties": {"num.partitions": "many"}}, "num.partitions"),
        ({"brokers": 3, "racks": ("a", "b")}, "racks=.*write 3, one name for each broker"),
        ({"racks": ("",)}, "racks=.*write 1, one name for each broker"),
        ({"racks": (7,)}, "racks=.*write a list of strings"),
        ({"racks": "a"}, "racks='a': write a list of strings"),
        ({"racks": {"a"}}, "racks=.*write a list of strings"),
        ({"racks": ("a",), "properties": {"broker.rack": "b"}}, "leave out one of them"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(arguments: dict[str, Any], text: str) -> None:
    before = threading.active_count()
    with pytest.raises(ClusterError, match=text) as caught:
        Cluster(**arguments).start()
    assert "\n" not in str(caught.value)
    assert threading.active_count() == before


@pytest.mark.parametrize("controllers", [None, 1])
def test_brokers_are_in_their_racks_and_replicas_are_spread_over_them(controllers: int | None) -> None:
    with Cluster(brokers=4, controllers=controllers, racks=("a", "a", "b", "b")) as cluster:
        cluster.create_topic("orders", 8, 2)
        found = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=20)
        assert found.cluster_id == cluster.cluster_id
        replicas = [part.replicas for part in found.topics["orders"].partitions.values()]
        assert [sorted(each // 2 for each in part) for part in replicas] == [[0, 1]] * 8
        known = cluster._nodes[0].image
        assert known is not None
        assert [known.brokers[each].rack for each in cluster.brokers] == ["a", "a", "b", "b"]


def test_a_port_that_is_taken_is_named_with_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        def drawn(count: int) -> list[int]:
            return [port, *free_ports(count - 1)]

        monkeypatch.setattr("metaquorum.testing.forming.free_ports", drawn)
        with pytest.raises(ClusterError, match=f"combined-0 did not start: .*{port}"):
            Cluster().start()


def test_a_range_of_ports_that_is_taken_is_one_line_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("metaquorum.node.local_nodes.PORTS", range(port, port + 1))
        with pytest.raises(
            ClusterError, match=rf"4 ports are needed, and of {port} to .* all are taken: end other"
        ):
            Cluster().start()


def test_a_cluster_is_used_between_its_start_and_its_end() -> None:
    cluster = Cluster()
    with pytest.raises(ClusterError, match="not started"):
        cluster.create_topic("x")
    with cluster, pytest.raises(ClusterError, match="running: make another one"):
        cluster.start()
    cluster.close()
    uses: list[Any] = [
        lambda: cluster.create_topic("x"),
        lambda: cluster.fault("Produce"),
        lambda: cluster.intercept("Produce", lambda request: None),
        lambda: cluster.kill(0),
        lambda: cluster.cut("client", 0),
        lambda: cluster.clock.advance(seconds=1),
        lambda: cluster.messages("x"),
    ]
    for use in uses:
        with pytest.raises(ClusterError, match="closed"):
            use()
    with pytest.raises(ClusterError, match="closed: make another one"):
        cluster.start()


def _in_a_fork(cluster: Cluster, answers: Any) -> None:
    try:
        cluster.create_topic("x")
    except ClusterError as error:
        answers.put(str(error))
    cluster.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_cannot_use_the_cluster_and_does_not_end_it() -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    with Cluster() as cluster:
        fork = context.Process(target=_in_a_fork, args=(cluster, answers))
        fork.start()
        assert "forked after the cluster was started" in answers.get(timeout=20)
        fork.join(20)
        assert cluster.create_topic("x") == "x"


def test_one_after_another_leave_no_thread_no_descriptor_no_port_and_no_memory() -> None:
    assert growth(25) == []


async def _busy_for(turns: int) -> float:
    """Works for so many turns of the loop, and returns how much of the cluster's time passed."""
    begun_s = asyncio.get_running_loop().time()
    for _ in range(turns):
        await asyncio.sleep(0)
    return asyncio.get_running_loop().time() - begun_s


def test_a_clock_in_a_hurry_does_not_run_away_while_a_thread_works() -> None:
    clock = ClusterClock()
    thread = LoopThread(clock, "a loop")

    async def work() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(60, list)  # a timer to which the clock would move
        began_s = time.monotonic()
        await loop.run_in_executor(None, time.sleep, 0.1)
        return time.monotonic() - began_s

    try:
        clock.hurry()
        begun_s = clock.seconds()
        worked_s = thread.run(work(), 60, "the work")
        assert clock.seconds() - begun_s <= HURRY_FACTOR * worked_s + 2 * HURRY_S
        clock.follow()
    finally:
        thread.close()


def test_a_clock_in_a_hurry_passes_while_all_wait_and_unix_time_does_not() -> None:
    clock = ClusterClock()
    thread = LoopThread(clock, "a loop")
    try:
        clock.hurry()
        begun_s, wall_ms = clock.seconds(), clock.wall_ms()
        busy = asyncio.run_coroutine_threadsafe(_busy_for(1_000), thread.loop)
        assert busy.result(60) == 0
        thread.run(asyncio.sleep(3), 60, "three seconds")
        assert round(clock.seconds() - begun_s, 3) == 3 and clock.wall_ms() == wall_ms
        clock.follow()
        before_ms = time.time() * 1000 - 1
        assert before_ms <= clock.wall_ms() <= time.time() * 1000 + 1
        ahead_s = clock.seconds() - time.monotonic()
        thread.run(asyncio.sleep(0.05), 60, "a moment")
        assert abs(clock.seconds() - time.monotonic() - ahead_s) < 0.01
    finally:
        thread.close()


def test_brokers_start_once_the_controllers_have_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(brokers=1, controllers=2)
    begun: list[tuple[str, bool]] = []
    start = TestNode.start

    def started(node: TestNode) -> None:
        begun.append((node.name, cluster._leader_of_quorum() is not None))
        start(node)

    monkeypatch.setattr(TestNode, "start", started)
    with cluster:
        assert begun == [("controller-3000", False), ("controller-3001", False), ("broker-0", True)]


def test_a_cluster_that_has_started_is_not_in_a_hurry() -> None:
    with Cluster() as cluster:
        assert not cluster._time.is_hurried
        cluster.kill(0).heal()
        assert not cluster._time.is_hurried


def test_a_call_that_takes_too_long_says_for_what() -> None:
    thread = LoopThread(ClusterClock(), "a loop")
    try:
        with pytest.raises(ClusterTimeoutError, match=r"waited 0\.05 s for the moon"):
            thread.run(asyncio.sleep(60), 0.05, "the moon")
    finally:
        thread.close()
    assert not any(each.name == "a loop" for each in threading.enumerate())


def test_a_call_in_vain_says_which_nodes_run() -> None:
    with Cluster(timeout_s=20) as cluster:
        cluster.timeout_s = -4.95
        with pytest.raises(ClusterTimeoutError, match=r"waited 0\.05 s for the moon; combined-0 runs$"):
            cluster._run(asyncio.sleep(60), "the moon")
        cluster.timeout_s = 20


def test_an_attempt_whose_answer_was_lost_has_made_or_deleted_the_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("create_topics", "delete_topics"):
        once = getattr(contents, name)

        async def twice(*given: Any, _once: Any = once) -> Any:
            await _once(*given)
            return await _once(*given)

        monkeypatch.setattr(contents, name, twice)
    with Cluster() as cluster:
        assert cluster.create_topic("orders") == "orders"
        with pytest.raises(ClusterError, match="TOPIC_ALREADY_EXISTS"):
            cluster.create_topic("orders")
        cluster.delete_topic("orders")
        with pytest.raises(ClusterError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            cluster.delete_topic("orders")

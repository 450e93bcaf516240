"""A reassignment under a replication quota: it is slow until the quota is removed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from metaquorum.cli.main import main
from metaquorum.clients.admin.replicas import alter_reassignments
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.metadata.requests.partitions import WantedReplicas
from metaquorum.testing import Cluster
from tests.e2e.in_process import in_process

pytestmark = pytest.mark.e2e
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

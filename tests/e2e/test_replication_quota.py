"""A reassignment under a replication quota on real brokers: it is slow until the quota is removed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from click.testing import CliRunner

from metaquorum.cli.main import main
from metaquorum.clients.admin.replicas import alter_reassignments
from metaquorum.metadata.requests.partitions import WantedReplicas
from tests.e2e.cluster import FAST_BROKERS, HOST, Cluster

pytestmark = pytest.mark.e2e
HELD_S = 6.0
BATCHES = 12
SMALL_FETCHES = {"broker": {**FAST_BROKERS["broker"], "replica.fetch.max.bytes": "100000"}}


@pytest.fixture(name="cluster")
def fixture_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    properties = {**FAST_BROKERS, **SMALL_FETCHES}
    with Cluster(
        tmp_path_factory.mktemp("throttled"), controllers=1, brokers=2, properties=properties
    ) as cluster:
        cluster.start()
        yield cluster
        cluster.assert_no_bugs()


def configure(cluster: Cluster, *arguments: str) -> None:
    done = CliRunner().invoke(
        main, ["configs", "alter", *arguments, "--bootstrap", cluster.bootstrap_servers]
    )
    assert done.exit_code == 0, done.output + done.stderr


def create(cluster: Cluster, *topics: str, on: int) -> None:
    for name in topics:
        cluster.create_topic(name, assignments=((on,),))
    bootstrap = {"bootstrap.servers": f"{HOST}:{cluster.brokers[0].kafka_port}"}
    producer = confluent_kafka.Producer(bootstrap)
    for name in topics:
        for _ in range(BATCHES):
            producer.produce(name, b"x" * 100_000)
            assert producer.flush(60) == 0


def move(cluster: Cluster, *topics: str, to: int) -> None:
    wanted = tuple(WantedReplicas(topic=name, partition=0, replicas=(to,)) for name in topics)
    results = cluster.kafka(lambda client: alter_reassignments(client, wanted))
    assert [result.error for result in results] == [0] * len(topics), results


def is_moved(cluster: Cluster, topic: str, to: int) -> bool:
    (partition,) = cluster.partitions(topic)
    return partition.isr == (to,)


def is_begun(cluster: Cluster, topic: str) -> bool:
    """Whether part of it is on the second broker."""
    files = cluster.brokers[1].home.rglob(f"{topic}-0/*.log")
    return any(file.stat().st_size for file in files)


def test_replicas_catch_up_as_fast_as_their_quota_allows(cluster: Cluster) -> None:
    source, target = (broker.node_id for broker in cluster.brokers)
    create(cluster, "led", "fed", "free", on=source)
    for direction, topic, broker in (("leader", "led", source), ("follower", "fed", target)):
        configure(cluster, "topic", topic, "--set", f"{direction}.replication.throttled.replicas=0:{broker}")
        configure(cluster, "broker", str(broker), "--set", f"{direction}.replication.throttled.rate=10000")
    move(cluster, "led", "fed", "free", to=target)
    cluster.wait(lambda: is_moved(cluster, "free", target), "what is not throttled moves")
    held = ("led", "fed")
    for name in held:
        cluster.wait(lambda name=name: is_begun(cluster, name), f"the copy of {name} begins")
    until = time.monotonic() + HELD_S
    while time.monotonic() < until:
        assert not any(is_moved(cluster, name, target) for name in held)
        time.sleep(0.5)
    for direction, broker in (("leader", source), ("follower", target)):
        configure(cluster, "broker", str(broker), "--delete", f"{direction}.replication.throttled.rate")
    for name in held:
        cluster.wait(lambda name=name: is_moved(cluster, name, target), f"{name} moves without a quota", 90)

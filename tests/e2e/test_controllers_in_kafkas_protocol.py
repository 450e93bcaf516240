"""Controllers with a listener of Kafka's protocol: log tools, administration, and again after a failover."""

from __future__ import annotations

import json
from pathlib import Path

from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.wire.messages import (
    CreateTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    FetchRequest,
)
from tests.e2e.cluster import HOST, Cluster, Node, client_loop
from tests.e2e.processes import run_cli


class KafkaControllers(Cluster):
    """Its controllers' Kafka listeners."""

    def at(self, *nodes: Node) -> str:
        return ",".join(f"{HOST}:{node.kafka_port}" for node in nodes or self.controllers)


def test_controllers_serve_kafkas_protocol(tmp_path: Path) -> None:
    with KafkaControllers(tmp_path, brokers=1) as cluster:
        cluster.start()
        cluster.create_topic("orders", partitions=3)
        leader = cluster.leader()
        followers = [each for each in cluster.controllers if each is not leader]
        the_log_is_read(cluster, followers[0])
        administration_works(cluster, leader, followers[0])
        cluster.kill_all([leader])
        cluster.wait(lambda: cluster.quorum().leader_id not in (-1, leader.node_id), "another leader")
        cluster.create_topic("payments")
        the_log_is_read(cluster, followers[1], "payments")
        cluster.assert_no_bugs()


def the_log_is_read(cluster: KafkaControllers, first: Node, topic: str = "orders") -> None:
    """From any controller, and over gRPC as before: the same log."""
    answers = []
    for bootstrap in (cluster.at(first), first.address, cluster.bootstrap_servers):
        found = run_cli("log", "state", f"topic/{topic}", "--json", "--bootstrap", bootstrap)
        assert found.returncode == 0, found.stderr
        answers.append({key: value for key, value in json.loads(found.stdout).items() if key == "topics"})
    assert answers[0] == answers[1] == answers[2]
    for command in (
        ("why", f"topic/{topic}/0.leader"),
        ("summary",),
        ("check",),
        ("timeline",),
    ):
        verdicts = None if command[0] == "summary" else 0  # it judges the elections
        found = run_cli("log", *command, "--bootstrap", cluster.at(first), expect=verdicts)
        assert topic in found.stdout or command[0] in ("summary", "check"), found.stdout


def administration_works(cluster: KafkaControllers, leader: Node, follower: Node) -> None:
    """As with Kafka's tools and --bootstrap-controller (KIP-919): DescribeCluster names the controllers' own
    listeners, and the active one does what brokers forward."""

    async def ask(node: Node) -> None:
        async with KafkaClient(cluster.at(node), timeout_ms=20_000, asks_brokers=False) as client:
            described = await client.ask(DescribeClusterRequest(endpoint_type=2), lowest=1)
            ports = {each.broker_id: each.port for each in described.brokers}
            assert ports == {each.node_id: each.kafka_port for each in cluster.controllers}
            assert (described.controller_id, described.cluster_id) == (leader.node_id, cluster.cluster_id)
            assert (await client.ask(DescribeClusterRequest(), lowest=1)).error_code == 114
            assert (await client.ask(FetchRequest(), lowest=12)).error_code == 42
            resource = DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name="orders")
            configs = await client.ask(DescribeConfigsRequest(resources=(resource,)))
            assert [each.error_code for each in configs.results] == [0]

    async def change() -> None:
        """A follower refuses, and names the leader."""
        async with KafkaClient(cluster.at(follower), timeout_ms=20_000) as client:
            topic = CreateTopicsRequest.CreatableTopic(name="made", num_partitions=1, replication_factor=1)
            made = await client.ask(CreateTopicsRequest(topics=(topic,), timeout_ms=10_000))
            assert [each.error_code for each in made.topics] == [0]

    loop = client_loop()
    loop.call(ask(leader))
    loop.call(ask(follower))
    loop.call(change())
    assert "made" in cluster.topics()

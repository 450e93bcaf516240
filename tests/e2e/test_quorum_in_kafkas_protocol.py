"""Three controllers whose quorum speaks Kafka's protocol, with logins and with certificates: writes, a killed
leader, a voter that catches up by a snapshot, and voters that are refused."""

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
from tests.e2e.cluster import HOST, Cluster, Node, client_loop, log_end_offset, log_start_offset
from tests.e2e.kafka_quorum import (
    JAAS_KEY,
    LOGIN,
    PLAIN,
    SMALL_LOG,
    KafkaQuorum,
    certificates,
    mutual_tls,
)
from tests.e2e.processes import run_cli


def test_a_quorum_over_kafkas_protocol(tmp_path: Path) -> None:
    with KafkaQuorum(tmp_path, keys=LOGIN | SMALL_LOG, brokers=1) as cluster:
        cluster.start()
        cluster.create_topic("before")
        leader, epoch = cluster.leader(), cluster.quorum().leader_epoch
        cluster.kill_all([leader])
        cluster.wait_leader(after_epoch=epoch, not_node=leader.node_id)
        behind = log_end_offset(leader)
        now, number = cluster.leader(), 0

        def trimmed() -> bool:
            nonlocal number
            number += 1
            cluster.create_topic(f"after-{number}", partitions=20)
            return log_start_offset(now) > behind

        cluster.wait(trimmed, "a log that begins after the killed one's end")
        leader.start()
        cluster.wait_caught_up(leader)
        cluster.wait(lambda: log_start_offset(leader) > behind, "a log that continues from the snapshot")
        # Registered over Kafka's protocol, also the one that returned; its addresses are those of gRPC.
        cluster.wait(lambda: all_are_registered(cluster), "all controllers in the log")
        assert set(cluster.topics()) == {"before", *(f"after-{at}" for at in range(1, number + 1))}
        another, epoch = cluster.leader(), cluster.quorum().leader_epoch
        another.stop()
        cluster.wait_leader(after_epoch=epoch, not_node=another.node_id)
        cluster.create_topic("last")
        for node in cluster.controllers:
            assert "lane" not in node.log_file.read_text()
        cluster.assert_no_bugs()


def all_are_registered(cluster: KafkaQuorum) -> bool:
    asked = ("log", "state", "--bootstrap", cluster.bootstrap_servers)
    found = [run_cli(*asked, f"controller/{each.node_id}", expect=None) for each in cluster.controllers]
    return all(each.returncode == 0 and "KAFKA" in each.stdout for each in found)


def test_a_voter_without_the_login_is_refused_and_says_so(tmp_path: Path) -> None:
    with KafkaQuorum(tmp_path, keys=LOGIN) as cluster:
        wrong = cluster.controllers[0]
        users = 'user_node="secret" username="node" password="wrong"'
        wrong.set_properties({JAAS_KEY: f"{PLAIN} required {users};"})
        for node in cluster.controllers:
            node.start()
        cluster.wait_leader(not_node=wrong.node_id)
        wrong.wait_for_line("cannot be asked: it refuses the login", timeout_s=60)
        cluster.assert_no_bugs()


def lines(node: Node, part: str) -> list[str]:
    return [line for line in node.lines() if part in line]


def test_voters_with_certificates(tmp_path: Path) -> None:
    """Mutual TLS: a killed leader is followed by another one. A certificate of another authority, and one
    whose principal may not act on the cluster, are refused in one line on each side, and the quorum goes on
    without them."""
    certificates(tmp_path)
    with KafkaQuorum(tmp_path, keys=mutual_tls(tmp_path), brokers=1) as cluster:
        cluster.start()
        leader, epoch = cluster.leader(), cluster.quorum().leader_epoch
        cluster.kill_all([leader])
        cluster.wait_leader(after_epoch=epoch, not_node=leader.node_id)
        asked = [each for each in cluster.controllers if each is not leader]

        leader.set_properties(mutual_tls(tmp_path, "stranger"))
        leader.start()
        for node in asked:
            at = f"node {node.node_id} at {HOST}:{node.kafka_port} cannot be asked: "
            leader.wait_for_line(f"{at}it refuses this client's certificate", timeout_s=60)
            node.wait_for_line("its certificate is not accepted: unable to get local issuer certificate")
            assert len(lines(leader, at)) == 1
        cluster.create_topic("without-it")
        leader.stop()

        leader.set_properties(mutual_tls(tmp_path, "other"))
        leader.start()
        leader.wait_for_line("allow this node's principal ClusterAction", timeout_s=60)
        cluster.create_topic("without-it-again")
        leader.stop()

        leader.set_properties(mutual_tls(tmp_path))
        leader.start()
        cluster.wait_caught_up(leader)
        cluster.assert_no_bugs()


# Controllers with a listener of Kafka's protocol: log tools, administration, and again after a failover.


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

"""Three controllers whose quorum speaks Kafka's protocol, with logins: writes, a killed leader, and a voter
that catches up by a snapshot."""

from __future__ import annotations

from pathlib import Path

from metaquorum.node.local_nodes import free_ports
from tests.e2e.cluster import HOST, Cluster, Node, log_end_offset, log_start_offset
from tests.e2e.processes import run_cli

USERS = 'user_node="secret" username="node" password="secret"'
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class KafkaQuorum(Cluster):
    """Voters ask each other on their second listener, which has SASL."""

    def write_config(self, node: Node) -> None:
        super().write_config(node)
        if node.role == "controller":
            if not node.kafka_port:
                controllers = self.controllers
                for each, port in zip(controllers, free_ports(len(controllers)), strict=True):
                    each.kafka_port = port
            both = f"CONTROLLER://{node.address},KAFKA://{HOST}:{node.kafka_port}"
            node.set_properties(
                {
                    "listeners": both,
                    "controller.listener.names": "CONTROLLER,KAFKA",
                    "controller.quorum.protocol": "kafka",
                    "controller.quorum.voters": ",".join(
                        f"{each.node_id}@{HOST}:{each.kafka_port}:{each.directory_id}"
                        for each in self.controllers
                    ),
                    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,KAFKA:SASL_PLAINTEXT",
                    "sasl.enabled.mechanisms": "PLAIN",
                    "sasl.mechanism.controller.protocol": "PLAIN",
                    "listener.name.kafka.plain.sasl.jaas.config": f"{PLAIN} required {USERS};",
                    "authorizer.class.name": ("org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
                    "super.users": "User:node;User:ANONYMOUS",
                    "metadata.log.max.record.bytes.between.snapshots": "3000",
                    "metadata.log.segment.ms": "100",
                    "metadata.max.retention.bytes": "1",
                }
            )


def test_a_quorum_over_kafkas_protocol(tmp_path: Path) -> None:
    with KafkaQuorum(tmp_path, brokers=1) as cluster:
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
    with KafkaQuorum(tmp_path) as cluster:
        wrong = cluster.controllers[0]
        key = "listener.name.kafka.plain.sasl.jaas.config"
        users = 'user_node="secret" username="node" password="wrong"'
        wrong.set_properties({key: f"{PLAIN} required {users};"})
        for node in cluster.controllers:
            node.start()
        cluster.wait_leader(not_node=wrong.node_id)
        wrong.wait_for_line("cannot be asked: it refuses the login", timeout_s=60)
        cluster.assert_no_bugs()

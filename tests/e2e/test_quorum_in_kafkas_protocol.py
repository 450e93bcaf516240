"""Three controllers whose quorum speaks Kafka's protocol, with logins: writes, a killed leader, and a voter
that catches up by a snapshot."""

from __future__ import annotations

import shutil
from pathlib import Path

from metaquorum.node.local_nodes import free_ports
from tests.e2e.cluster import HOST, Cluster, Node

USERS = 'user_node="secret" username="node" password="secret"'
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class KafkaQuorum(Cluster):
    """Voters ask each other on their second listener, which has SASL."""

    _ports: dict[int, int]

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
                        f"{each.node_id}@{HOST}:{each.kafka_port}" for each in self.controllers
                    ),
                    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,KAFKA:SASL_PLAINTEXT",
                    "sasl.enabled.mechanisms": "PLAIN",
                    "sasl.mechanism.controller.protocol": "PLAIN",
                    "listener.name.kafka.plain.sasl.jaas.config": f"{PLAIN} required {USERS};",
                    "authorizer.class.name": (
                        "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
                    ),
                    "super.users": "User:node;User:ANONYMOUS",
                    "metadata.log.max.record.bytes.between.snapshots": "2000",
                    "metadata.max.retention.bytes": "1",
                    "metadata.log.segment.bytes": "4096",
                }
            )


def test_a_quorum_over_kafkas_protocol(tmp_path: Path) -> None:
    with KafkaQuorum(tmp_path, brokers=1) as cluster:
        cluster.start()
        cluster.create_topic("before")
        leader = cluster.leader()
        epoch = cluster.quorum().leader_epoch
        cluster.kill_all([leader])
        cluster.wait_leader(after_epoch=epoch, not_node=leader.node_id)
        for number in range(40):
            cluster.create_topic(f"after-{number}", partitions=3)
        now = cluster.leader()
        cluster.wait(lambda: now.snapshots() or None, "a snapshot")
        cluster.wait(lambda: now.metadata_log_start() > 0 or None, "a log that does not begin at 0")
        # The killed one comes back with nothing but its identity: only a snapshot brings it up to date.
        for path in leader.data.glob("__cluster_metadata-0/*"):
            if path.is_file():
                path.unlink()
        shutil.rmtree(leader.data / "__cluster_metadata-0", ignore_errors=True)
        cluster.assert_no_bugs()

"""Clusters of real processes whose voters ask each other in Kafka's protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.e2e.cluster import HOST, Cluster, Node
from tests.unit.server.certificates import certificate_files, certificates_of

USERS = 'user_node="secret" username="node" password="secret"'
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS_KEY = "listener.name.kafka.plain.sasl.jaas.config"

LOGIN = {
    "listener.security.protocol.map": "GRPC_CONTROLLER:PLAINTEXT,KAFKA:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    JAAS_KEY: f"{PLAIN} required {USERS};",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:node;User:ANONYMOUS",
}
"""A listener of voters with SASL, and an authorizer."""

BROKERS_LOGIN = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,GRPC_CONTROLLER:PLAINTEXT,KAFKA:SASL_PLAINTEXT",
    "sasl.mechanism.controller.protocol": "PLAIN",
    JAAS_KEY: f'{PLAIN} required username="node" password="secret";',
}
"""A broker's login there."""

SMALL_LOG = {
    "metadata.log.max.record.bytes.between.snapshots": "3000",
    "metadata.log.segment.ms": "100",
    "metadata.max.retention.bytes": "1",
}
"""Snapshots all the time, and no records that one covers."""


class KafkaQuorum(Cluster):
    """Voters ask each other on their second listener, and so do brokers if `brokers_too`. `keys`: more lines
    of every controller's file; `broker_keys`: of every broker's."""

    def __init__(
        self,
        directory: Path,
        *,
        keys: dict[str, str],
        controllers: int = 3,
        brokers: int = 0,
        brokers_too: bool = False,
        broker_keys: Mapping[str, str] | None = None,
        log_dirs: int = 0,
        formatting: Sequence[str] = (),
    ) -> None:
        self._keys = keys
        self._brokers_too = brokers_too
        self._broker_keys = broker_keys or {}
        super().__init__(
            directory, controllers=controllers, brokers=brokers, log_dirs=log_dirs, formatting=formatting
        )

    @property
    def by_kafka(self) -> dict[str, str]:
        """With these lines a node asks controllers on their second listener."""
        voters = [f"{each.node_id}@{HOST}:{each.kafka_port}:{each.directory_id}" for each in self.controllers]
        return {
            "controller.listener.names": "GRPC_CONTROLLER,KAFKA",
            "controller.quorum.protocol": "kafka",
            "controller.quorum.voters": ",".join(voters),
        }

    def write_config(self, node: Node) -> None:
        super().write_config(node)
        if node.role == "broker":
            node.set_properties({**(self.by_kafka if self._brokers_too else {}), **self._broker_keys})
            return
        node.set_properties(
            {
                "listeners": f"GRPC_CONTROLLER://{node.address},KAFKA://{HOST}:{node.kafka_port}",
                **self.by_kafka,
                **self._keys,
            }
        )


def certificates(folder: Path) -> None:
    """Files of nodes: `node` and `other` of one authority, `stranger` of another."""
    certificates_of(folder, "node", "other")
    certificate_files(folder, "stranger", certificate_files(folder, "other-authority", None))


def mutual_tls(folder: Path, name: str = "node") -> dict[str, str]:
    """A listener of voters that requires certificates of the authority, and an authorizer that allows `node`
    everything; this node's certificate is that of `name`."""
    return {
        "listener.security.protocol.map": "GRPC_CONTROLLER:PLAINTEXT,KAFKA:SSL",
        "listener.name.kafka.ssl.keystore.location": str(folder / f"{name}.pem"),
        "listener.name.kafka.ssl.truststore.location": str(folder / "authority.crt"),
        "listener.name.kafka.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:CN=node;User:ANONYMOUS",
    }

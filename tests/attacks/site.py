"""The cluster that is attacked: a controller and two brokers with the listeners of docs/security.md, and few
file descriptors.

The first broker is attacked; the second is beside it, as a follower and as a leader of its own partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.config.security import TlsFiles
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.requests.common import DescribeQuorumResponse, NewTopic
from metaquorum.network.tls import TlsMaterial
from metaquorum.node.local_nodes import free_ports
from tests.e2e.cluster import FAST_BROKERS, HOST, Cluster, Node, client_loop
from tests.topics import create_topics
from tests.unit.server.certificates import certificate_files, certificates_of

PORTS = ("clients", "brokers", "open", "broker-grpc", "controller-grpc", "quorum", "metrics")
"""The ports of an attacked site: Kafka's with SASL_SSL, with SSL and certificates, and PLAINTEXT; gRPC of a
broker and of the controller, with certificates; the controller's of Kafka's protocol, with certificates;
metrics over http."""

TOPIC = "orders"
PASSWORDS = {"alice": "alice-secret-8812", "bob": "bob-secret-8813"}
"""Users of the SASL listener. alice may do everything, bob nothing, as `other` among the certificates."""
OPEN_FILES = 1_024
"""The limit of every node: the usual soft limit of a shell."""
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What an attacker knows: `ports` by name, and `folder` with the certificates node, other (no rights) and
    stranger (of another authority), each as NAME.pem (with the key) and NAME.crt; authority.crt."""

    host: str
    ports: dict[str, int]
    folder: str
    topic: str = TOPIC

    def address(self, port: str) -> tuple[str, int]:
        """The address of a port by its name."""
        return self.host, self.ports[port]


class AttackedSite:
    """See the module. Create it with `attacked_site`."""

    def __init__(self, cluster: Cluster, folder: Path, open_files: int) -> None:
        self.cluster, self.folder = cluster, folder
        self._open_files = open_files
        names = ("clients", "brokers", "open", "metrics", "clients-2", "brokers-2")
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        (self.controller,) = cluster.controllers
        self.victim, self.beside = cluster.brokers
        certificates_of(folder, "node", "other")
        certificate_files(folder, "stranger", certificate_files(folder, "elsewhere", None))
        self.clients = {0: ports["clients"], 1: ports["clients-2"]}
        ports |= {
            "broker-grpc": self.victim.port,
            "controller-grpc": self.controller.port,
            "quorum": self.controller.kafka_port,
        }
        self.target = Target(host=HOST, ports={name: ports[name] for name in PORTS}, folder=str(folder))
        self._configure(ports)
        self._tls = TlsMaterial.load(
            TlsFiles(keystore=folder / "node.pem", truststore=folder / "authority.crt")
        )
        self._admin: AdminClient | None = None

    def _configure(self, ports: dict[str, int]) -> None:
        users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
        common = {
            "ssl.keystore.location": str(self.folder / "node.pem"),
            "ssl.truststore.location": str(self.folder / "authority.crt"),
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:node;User:alice",
            "listener.security.protocol.map": "CONTROLLER:SSL,GRPC_CONTROLLER:SSL,GRPC:SSL,BROKERS:SSL,"
            "CLIENTS:SASL_SSL,OPEN:PLAINTEXT",
        }
        self.controller.set_properties(
            {
                **common,
                "metrics.listener": f"http://{HOST}:{ports['metrics']}",
            }
        )
        for node, suffix in ((self.victim, ""), (self.beside, "-2")):
            listeners = f"GRPC://{node.address},BROKERS://{HOST}:{ports['brokers' + suffix]}"
            listeners += f",CLIENTS://{HOST}:{ports['clients' + suffix]}"
            if not suffix:
                listeners += f",OPEN://{HOST}:{ports['open']}"
            node.set_properties(
                {
                    **common,
                    "listeners": listeners,
                    "inter.broker.listener.name": "BROKERS",
                    "sasl.enabled.mechanisms": "PLAIN",
                    "listener.name.clients.plain.sasl.jaas.config": f"{_PLAIN} {users};",
                }
            )

    @property
    def nodes(self) -> list[Node]:
        """The controller, the attacked broker and the one beside it."""
        return self.cluster.nodes

    def start(self) -> None:
        """Starts every node, limits its files, and creates the topic: each broker leads one partition."""
        for node in self.nodes:
            node.start(prefix=("sh", "-c", f'ulimit -n {self._open_files}; exec "$@"', "sh"))
        for node in self.nodes:
            node.wait_for_line("listens on", timeout_s=60)
        self._admin = AdminClient(self.cluster.bootstrap, timeout_ms=3_000, tls=self._tls)
        self.cluster.wait(self._are_up, "both brokers to run")
        new = NewTopic(name=TOPIC, assignments=((0, 1), (1, 0)))
        results = client_loop().call(create_topics(self.admin, [new]))
        assert [result.error for result in results] == [0], results

    @property
    def admin(self) -> AdminClient:
        """A client of the controller with a node's certificate."""
        assert self._admin is not None
        return self._admin

    def quorum(self, timeout_s: float = 30) -> DescribeQuorumResponse:
        """A linearizable read at the controller."""
        return client_loop().call(self.admin.describe_quorum(), timeout_s)

    def registrations(self) -> dict[int, BrokerRegistration]:
        """The brokers as the controller sees them."""
        brokers = client_loop().call(self.admin.list_brokers()).brokers
        return {one.broker_id: one for one in brokers}

    def _are_up(self) -> bool:
        found = self.registrations()
        return len(found) == 2 and not any(one.fenced for one in found.values())

    def client(self, broker_id: int, user: str = "alice") -> dict[str, Any]:
        """librdkafka's settings for a login at a broker."""
        return {
            "bootstrap.servers": f"{HOST}:{self.clients[broker_id]}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.folder / "authority.crt"),
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
            "log_level": 0,
        }

    def close(self) -> None:
        """Closes the clients; leaving the cluster's context ends the processes."""
        if self._admin is not None:
            client_loop().call(self._admin.close())


@contextmanager
def attacked_site(directory: Path, open_files: int = OPEN_FILES) -> Iterator[AttackedSite]:
    """A running site, until the end of the context."""
    folder = directory / "tls"
    folder.mkdir(parents=True)
    with Cluster(directory, controllers=1, brokers=2, properties=FAST_BROKERS) as cluster:
        site = AttackedSite(cluster, folder, open_files)
        try:
            site.start()
            yield site
        finally:
            site.close()

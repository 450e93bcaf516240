"""A combined node with the listeners, certificates and logins of docs/security.md."""

from __future__ import annotations

import re
from pathlib import Path

import confluent_kafka
import pytest

from metaquorum.node.local_nodes import CONTROLLER_GRPC_LISTENER, free_ports
from tests.e2e.cluster import random_id
from tests.e2e.processes import REPOSITORY, Process, run_cli, wait_until
from tests.unit.server.certificates import certificates_of

pytestmark = pytest.mark.e2e

HOST = "127.0.0.1"
READY_S = 40.0
PASSWORD = "alice-secret-2209"
_BLOCK = re.compile(r"```properties\n(.*?)```", re.DOTALL)


def settings_of_the_page(folder: Path, ports: dict[str, int]) -> str:
    """The first block of the page, with the test's addresses and files in it."""
    (block, *_) = _BLOCK.findall((REPOSITORY / "docs" / "security.md").read_text())
    for number, name in ((9091, "GRPC"), (9092, "BROKERS"), (9093, "CLIENTS")):
        assert f"{name}://10.0.0.4:{number}" in block
        block = block.replace(f"10.0.0.4:{number}", f"{HOST}:{ports[name]}")
    block = block.replace("/etc/metaquorum/ca.pem", str(folder / "authority.crt"))
    own = f"listeners=CONTROLLER://{HOST}:{ports['QUORUM']},"
    own += f"{CONTROLLER_GRPC_LISTENER}://{HOST}:{ports['CONTROLLER']},"
    return block.replace("/etc/metaquorum/", f"{folder}/").replace("listeners=", own, 1)


class SecuredNode:
    """Call `stop` at the end. The certificate of `node` belongs to a super user, that of `other` to no known
    user."""

    def __init__(self, folder: Path) -> None:
        certificates_of(folder, "node", "other")
        self.folder = folder
        names = ("QUORUM", "CONTROLLER", "GRPC", "BROKERS", "CLIENTS")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        file = folder / "node.properties"
        file.write_text(
            settings_of_the_page(folder, self.ports) + "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.bootstrap.servers={HOST}:{self.ports['QUORUM']}\n"
            f"log.dirs={folder / 'data'}\n"
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            "super.users=User:CN=node\noffsets.topic.num.partitions=1\n"
            "offsets.topic.replication.factor=1\n"
        )
        run_cli(
            *("storage", "format", "--config", file, "--cluster-id", random_id(), "--standalone"),
            *("--add-scram", f"SCRAM-SHA-512=[name=alice,iterations=4096,password={PASSWORD}]"),
        )
        self.process = Process("combined", ("node", "run", file), folder / "process.log")
        self.process.start()

    def certificate(self, name: str) -> tuple[str, ...]:
        truststore = str(self.folder / "authority.crt")
        return "--truststore", truststore, "--keystore", str(self.folder / f"{name}.pem")

    def run(self, *words: str, name: str = "node", code: int = 0) -> tuple[str, str]:
        """A command of an administrator with a certificate, to brokers."""
        where = ("--bootstrap", f"{HOST}:{self.ports['BROKERS']}")
        done = run_cli(*words, *where, *self.certificate(name), expect=code)
        return done.stdout, done.stderr

    def client(self, password: str = PASSWORD) -> dict[str, str]:
        return {
            "bootstrap.servers": f"{HOST}:{self.ports['CLIENTS']}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.folder / "authority.crt"),
            # The page requires clients of every listener to send a certificate, including those that log in.
            "ssl.certificate.location": str(self.folder / "other.crt"),
            "ssl.key.location": str(self.folder / "other.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": password,
        }


def test_one_node_with_both_roles_keeps_to_the_page(tmp_path: Path) -> None:
    node = SecuredNode(tmp_path)
    try:
        wait_until(lambda: "broker 1 is unfenced" in node.process.output(), "it to serve", timeout_s=READY_S)
        node.run("topics", "create", "orders", "--replication-factor", "1")
        on_orders = ("--resource-type", "topic", "--resource-name", "orders", "--operation", "all")
        node.run("acls", "add", "User:alice", *on_orders)
        producer = confluent_kafka.Producer(node.client())
        failed: list[object] = []
        producer.produce("orders", b"one", on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(READY_S) == 0 and failed == [None]

        said: list[str] = []
        stranger = confluent_kafka.Producer(
            {**node.client("wrong"), "error_cb": lambda error: said.append(str(error)), "log_level": 0}
        )
        wait_until(
            lambda: stranger.poll(0.1) >= 0 and any("uthentication" in each for each in said),
            "the wrong password to be refused",
            timeout_s=READY_S,
        )
        _, problem = node.run("topics", "list", "--timeout", "5", name="other")
        refused = node.run("topics", "delete", "orders", name="other", code=1)[1]
        assert "orders" in refused and refused.count("\n") == 1, (refused, problem)

        controllers = ("--bootstrap-controllers", f"{HOST}:{node.ports['CONTROLLER']}")
        told = run_cli("features", "describe", *controllers, *node.certificate("node")).stdout
        assert "metadata.version" in told
        denied = run_cli(
            "features", "describe", *controllers, *node.certificate("other"), "--timeout", "5", expect=1
        )
        assert "User:CN=other may not act on the cluster" in denied.stderr
        assert node.process.stop() == 0
    finally:
        node.process.kill()
    output = node.process.output()
    assert PASSWORD not in output and "Traceback" not in output

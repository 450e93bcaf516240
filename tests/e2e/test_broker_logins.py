"""A new cluster whose only login was formatted: from their first start, brokers log in to each other with it,
with sessions that expire all the time, and so do clients; a broker with a wrong password stays out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.main import main
from metaquorum.node.local_nodes import free_ports
from tests.e2e.cluster import HOST, Cluster, Node
from tests.e2e.data_calls import DataCalls
from tests.e2e.test_data_basic import FAST, values, wait_in_sync

pytestmark = pytest.mark.e2e
MECHANISM = "SCRAM-SHA-256"
PASSWORD = "broker-secret-5520"
JAAS_KEY = "listener.name.brokers.scram-sha-256.sasl.jaas.config"
SESSION_MS = 2_000
LOGIN = ("--add-scram", f"{MECHANISM}=[name=broker,iterations=8192,password={PASSWORD}]")


def jaas(password: str) -> dict[str, str | None]:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return {JAAS_KEY: f'{module} username="broker" password="{password}";'}


@pytest.fixture(name="cluster")
def fixture_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, controllers=1, brokers=3, properties=FAST, formatting=LOGIN) as cluster:
        for node, port in zip(cluster.brokers, free_ports(3), strict=True):
            node.set_properties(
                {
                    "listeners": f"PLAINTEXT://{HOST}:{node.kafka_port},GRPC://{node.address},"
                    f"BROKERS://{HOST}:{port}",
                    "listener.security.protocol.map": "BROKERS:SASL_PLAINTEXT",
                    "inter.broker.listener.name": "BROKERS",
                    "sasl.enabled.mechanisms": MECHANISM,
                    "sasl.mechanism.inter.broker.protocol": MECHANISM,
                    "connections.max.reauth.ms": str(SESSION_MS),
                    **jaas("wrong" if node.node_id == 2 else PASSWORD),
                }
            )
        cluster.start()
        yield cluster
        cluster.assert_no_bugs()


def lines(node: Node, part: str) -> list[str]:
    return [line for line in node.lines() if part in line]


def list_users(cluster: Cluster, password: str) -> Result:
    """Sent to the brokers' listener, with the login that they use."""
    login = f'username="broker" password="{password}"'
    (cluster.directory / "client.properties").write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={MECHANISM}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required {login};\n"
    )
    listeners = dict(line.split("=", 1) for line in cluster.brokers[0].config.read_text().splitlines())
    address = listeners["listeners"].rpartition("BROKERS://")[2]
    file = str(cluster.directory / "client.properties")
    words = ["users", "scram", "list", "--bootstrap", address, "--command-config", file]
    return CliRunner().invoke(main, words, catch_exceptions=False)


def test_brokers_log_in_to_follow_and_a_wrong_password_keeps_one_out(cluster: Cluster) -> None:
    assert list_users(cluster, PASSWORD).output.endswith(f"'broker' are {MECHANISM}=iterations=8192\n")
    assert list_users(cluster, "wrong").exit_code == 1
    calls = DataCalls(cluster)
    cluster.create_topic("orders", assignments=((0, 1, 2),))

    # The broker that cannot log in leaves the ISR, and the others continue.
    wait_in_sync(cluster, calls, "orders", {0, 1})
    assert calls.produce_until_taken("orders", values(0, 10)).base_offset == 0
    leader, _, outsider = cluster.brokers
    (told,) = lines(outsider, "cannot be reached")
    assert "it refuses the login" in told and told.endswith(f"correct {JAAS_KEY}")
    assert len(lines(leader, "at listener BROKERS: its login with SCRAM-SHA-256 failed")) < 10

    # With the right password it follows, and every broker logs in again before a session expires.
    outsider.stop()
    outsider.set_properties(jaas(PASSWORD))
    outsider.start()
    wait_in_sync(cluster, calls, "orders", {0, 1, 2})
    time.sleep(2 * SESSION_MS / 1000)
    assert calls.produce_until_taken("orders", values(10, 15)).base_offset == 10
    assert set(calls.partition("orders").isr) == {0, 1, 2}
    assert lines(leader, "its session has ended") == []
    expected = list(enumerate(values(0, 15)))
    assert calls.read_all(calls.leader("orders"), "orders", up_to=15) == expected

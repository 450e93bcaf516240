"""The files that come with Apache Kafka 3.7 to 4.1 start controllers, brokers and combined nodes of ours.

Ports and directories are the test's, and hosts this machine's. Nothing else is changed, and no line is added.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import confluent_kafka
import pytest

from metaquorum.config.load import load_config
from metaquorum.node.local_nodes import free_ports
from tests.e2e.cluster import random_id
from tests.e2e.processes import Process, run_cli, wait_until

pytestmark = pytest.mark.e2e

READY_S = 60

_MAP = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
_COMMON = {
    "listener.security.protocol.map": _MAP,
    "controller.listener.names": "CONTROLLER",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}
STATIC = {"controller.quorum.voters": "1@localhost:9093"}
"""As in config/kraft of 3.7 to 3.9."""
DYNAMIC = {"controller.quorum.bootstrap.servers": "localhost:9093"}
"""As in config/kraft/reconfig-server.properties of 3.9, and in config of 4.0 and 4.1."""
CONTROLLER = {**_COMMON, "process.roles": "controller", "node.id": "1", "listeners": "CONTROLLER://:9093"}
BROKER = {
    **_COMMON,
    "process.roles": "broker",
    "node.id": "2",
    "listeners": "PLAINTEXT://localhost:9092",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092",
}
SERVER = {
    **_COMMON,
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092",
}
_TOLD = {"advertised.listeners": "CONTROLLER://localhost:9093"}
_BOTH_TOLD = {"advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093"}
FILES: Mapping[str, tuple[dict[str, str], ...]] = {
    "3.7 controller and broker": (CONTROLLER | STATIC, BROKER | STATIC),
    "3.7 server": (SERVER | STATIC,),
    "3.9 reconfig-server": (SERVER | DYNAMIC | _BOTH_TOLD,),
    "4.1 controller and broker": (CONTROLLER | DYNAMIC | _TOLD, BROKER | DYNAMIC),
    "4.1 server": (SERVER | DYNAMIC | _BOTH_TOLD,),
}


def started(folder: Path, pairs: Mapping[str, str], ports: Mapping[str, int], cluster_id: str) -> Process:
    """A node with this file, formatted as Kafka's quick start does."""
    name = pairs["process.roles"].replace(",", "-")
    text = "".join(f"{key}={value}\n" for key, value in pairs.items())
    text = text.replace("://:", "://localhost:")
    for usual, port in ports.items():
        text = text.replace(f"localhost:{usual}", f"127.0.0.1:{port}")
    path = folder / f"{name}.properties"
    path.write_text(f"{text}log.dirs={folder / name}\n")
    config = load_config(path)
    assert config.quorum_speaks_kafka and config.grpc_listeners == ()
    alone = "controller" in name and "controller.quorum.voters" not in pairs
    words = ("storage", "format", "-t", cluster_id, "-c", path)
    run_cli(*words, *(("--standalone",) if alone else ()))
    process = Process(name, ("node", "run", path), folder / f"{name}.log")
    process.start()
    return process


@pytest.mark.parametrize("files", FILES.values(), ids=list(FILES))
def test_a_client_produces_to_nodes_of_kafkas_own_files(
    tmp_path: Path, files: tuple[dict[str, str], ...]
) -> None:
    client, controller = free_ports(2)
    ports, cluster_id = {"9092": client, "9093": controller}, random_id()
    with contextlib.ExitStack() as stack:
        nodes = []
        for pairs in files:
            nodes.append(started(tmp_path, pairs, ports, cluster_id))
            stack.callback(nodes[-1].kill)
        wait_until(lambda: "is unfenced" in nodes[-1].output(), "the broker to serve", timeout_s=READY_S)
        producer = confluent_kafka.Producer({"bootstrap.servers": f"127.0.0.1:{client}"})
        failed: list[object] = []
        producer.produce("orders", b"one", on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(READY_S) == 0 and failed == [None]
        # Kafka's tools and the log's readers are answered on the controllers' listener.
        told = run_cli("log", "state", "--bootstrap", f"127.0.0.1:{controller}", "topic/orders").stdout
        assert "orders" in told
        for node in reversed(nodes):
            assert node.stop() == 0

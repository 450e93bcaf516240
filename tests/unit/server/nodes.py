"""Formatted directories, configuration files and running processes' insides, for tests of the servers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metaquorum.broker.replica.manager import ReplicaManager
from metaquorum.broker.server.main import BrokerProcess, open_process
from metaquorum.cli.main import main
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.config.load import load_config
from metaquorum.config.node import NodeConfig
from metaquorum.controller.server.kafka_quorum import way_to_voters
from metaquorum.controller.server.main import ControllerProcess
from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.listeners.listener import KafkaListeners
from metaquorum.metadata.authorizer import ANONYMOUS
from metaquorum.network.tls import NodeTls
from metaquorum.node.driver import Ending
from metaquorum.node.local_nodes import free_ports
from metaquorum.node.replica import check_directories, check_metadata_directory, open_replica
from metaquorum.observability.metrics.service import bind_metrics
from metaquorum.raft.events import ShutdownRequested
from metaquorum.rpc.channels import bind, direct, new_server
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.uuids import random_uuid
from metaquorum.wire import codec
from metaquorum.wire.table import API_BY_NAME

CLUSTER_ID = "Xk7gN1qkQ3uWm5dJ3v5c2A"
SPEAKS_GRPC = {"quorum", "controller", "broker", "producer-ids", "log-dirs"}
"""Groups of commands that ask controllers; the others ask brokers."""


def free_port() -> int:
    """A port that nobody listens on. It lies below those that the kernel gives to outgoing connections, and
    is drawn from many: another worker's server must not take it between this look and its use."""
    return free_ports(1)[0]


def listeners(kafka_port: int, grpc_port: int) -> str:
    """A broker's, on the loopback interface."""
    return f"PLAINTEXT://127.0.0.1:{kafka_port},GRPC://127.0.0.1:{grpc_port}"


async def forwarded(client: AdminClient, body: Any) -> Any:
    """What the active controller answers to a request of Kafka's protocol, asked as a broker asks it."""
    name = type(body).__name__.removesuffix("Request")
    key, version = API_BY_NAME[name].key, FORWARDED[name].max_version
    answer = await client.forward(
        b"".join(codec.encode_request(codec.RequestHeader(key, version, 1), body)),
        broker_id=101,
        principal=ANONYMOUS,
        client_address="127.0.0.1",
        by_token=False,
        timeout_ms=60_000,
    )
    return codec.decode_response(key, version, answer.frame).body


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port that refuses connections for as long as the context lasts: bound, so nobody else can listen,
    and never listening itself."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers of this test have replicas that do nothing: the test itself tells the controller of them."""
    monkeypatch.setattr(ReplicaManager, "publish", lambda self, *image, **times: [])


def formatted(directory: Path, node_id: int, *, cluster_id: str = CLUSTER_ID) -> Path:
    """A directory as `storage format` leaves it, without a bootstrap checkpoint."""
    directory.mkdir(parents=True)
    identity = MetaProperties(
        cluster_id=cluster_id, node_id=node_id, directory_id=random_uuid(random.Random(node_id))
    )
    store_meta_properties(PosixDisk(), str(directory), identity)
    return directory


CONTROLLER_NAMES = "CONTROLLER,GRPC_CONTROLLER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One controller alone in its quorum, and a broker beside it."""

    root: Path
    controller_port: int
    broker_port: int
    """Where it speaks gRPC; `kafka_port`: Kafka's protocol."""
    kafka_port: int = 0
    quorum_port: int = 0
    """Where the controller speaks Kafka's protocol; `controller_port`: gRPC."""

    def bootstrap(self, group: str) -> list[str]:
        """The option that says where a command of this group finds its nodes."""
        if group in SPEAKS_GRPC:
            return ["--bootstrap-controllers", f"127.0.0.1:{self.controller_port}"]
        return ["--bootstrap", f"127.0.0.1:{self.kafka_port}"]

    @property
    def broker_listeners(self) -> str:
        return listeners(self.kafka_port, self.broker_port)

    def controller_file(self, more: Mapping[str, str] | None = None) -> Path:
        return self._write(
            "controller.properties",
            {
                "process.roles": "controller",
                "node.id": "1",
                "listeners": f"CONTROLLER://127.0.0.1:{self.quorum_port},"
                f"GRPC_CONTROLLER://127.0.0.1:{self.controller_port}",
                "controller.quorum.voters": f"1@127.0.0.1:{self.quorum_port}",
                "controller.listener.names": CONTROLLER_NAMES,
                "log.dirs": str(self.root / "controller"),
                **(more or {}),
            },
        )

    def broker_file(self, more: Mapping[str, str] | None = None) -> Path:
        return self._write(
            "broker.properties",
            {
                "process.roles": "broker",
                "node.id": "101",
                "listeners": self.broker_listeners,
                "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
                "controller.listener.names": CONTROLLER_NAMES,
                "log.dirs": str(self.root / "broker"),
                **(more or {}),
            },
        )

    def _write(self, name: str, pairs: Mapping[str, str]) -> Path:
        path = self.root / name
        path.write_text("".join(f"{key}={value}\n" for key, value in pairs.items()))
        return path


def new_site(root: Path) -> Site:
    """Formatted directories and free ports."""
    formatted(root / "controller", 1)
    formatted(root / "broker", 101)
    return Site(
        root=root,
        controller_port=free_port(),
        broker_port=free_port(),
        kafka_port=free_port(),
        quorum_port=free_port(),
    )


@contextlib.asynccontextmanager
async def running_controller(path: Path) -> AsyncIterator[ControllerProcess]:
    """The insides of a controller process on this loop, shut down in order at the end."""
    config = load_config(path, "controller")
    every_tls = NodeTls(config)
    server = new_server()
    for first in config.grpc_listeners[:1]:
        bind(server, first.host, first.port, every_tls.of(first.name))
    kafka = KafkaListeners(config, every_tls)
    kafka.bind()
    metrics = bind_metrics(config.metrics_listener, config.tls)
    way = way_to_voters(config, every_tls, direct)
    process = ControllerProcess(
        config, open_replica(config, check_directories(config)), server, metrics, kafka=kafka, way=way
    )
    async with _running(process):
        yield process


@contextlib.asynccontextmanager
async def running_broker(path: Path) -> AsyncIterator[BrokerProcess]:
    async with running_broker_config(load_config(path, "broker")) as process:
        yield process


@contextlib.asynccontextmanager
async def running_broker_config(config: NodeConfig) -> AsyncIterator[BrokerProcess]:
    """The same for a configuration that was read already."""
    tls = NodeTls(config)
    server = new_server()
    for listener in config.grpc_listeners:
        bind(server, listener.host, listener.port, tls.of(listener.name))
    kafka = KafkaListeners(config, tls)
    kafka.bind()
    metrics = bind_metrics(config.metrics_listener, config.tls)
    process = await open_process(config, check_metadata_directory(config), server, kafka, tls, metrics)
    async with _running(process):
        yield process


@contextlib.asynccontextmanager
async def _running(process: ControllerProcess | BrokerProcess) -> AsyncIterator[None]:
    task: asyncio.Task[Ending] = asyncio.create_task(process.run())
    try:
        yield
        process.driver.post(ShutdownRequested())
        ending = await asyncio.wait_for(task, 60)
        assert not ending.failed, ending.reason
    finally:
        process.driver.end("the test is over", failed=True)
        await asyncio.gather(task, return_exceptions=True)


async def commanded(site: Site, *arguments: str, typed: str | None = None, code: int = 0) -> Result:
    """The command line in a thread of its own, as the cluster runs on this loop."""
    line = [*arguments, *site.bootstrap(arguments[0])]
    result = await asyncio.to_thread(CliRunner().invoke, main, line, input=typed)
    assert result.exit_code == code, (arguments, result.output, result.stderr)
    return result

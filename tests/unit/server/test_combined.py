"""A combined node's insides on one loop: both health services, one page of figures, one end."""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from metaquorum.broker.server.main import open_disks
from metaquorum.combined.process import CombinedProcess
from metaquorum.config.load import load_config
from metaquorum.listeners.listener import KafkaListeners
from metaquorum.metadata.settings.keys import BROKER, CONTROLLER
from metaquorum.network.tls import NodeTls
from metaquorum.node.replica import check_metadata_directory
from metaquorum.observability.metrics.service import bind_metrics
from metaquorum.observability.metrics.statistics import NodeStatistics
from metaquorum.raft.events import ShutdownRequested
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.health import health_problem
from tests.unit.server.nodes import formatted, free_port

HOST = "127.0.0.1"


async def serves(port: int) -> None:
    """Waits until the role behind this port says so."""
    for _ in range(1_000):
        problem = await health_problem((HOST, port), timeout_ms=1_000)
        if not problem:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(problem)


async def test_both_roles_of_one_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The broker asks the controllers by Kafka's protocol, as voters do."""
    controller, kafka_port, grpc, metrics, quorum = (free_port() for _ in range(5))
    path = tmp_path / "node.properties"
    path.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"listeners=GRPC_CONTROLLER://{HOST}:{controller},PLAINTEXT://{HOST}:{kafka_port},"
        f"GRPC://{HOST}:{grpc},CONTROLLER://{HOST}:{quorum}\n"
        "controller.listener.names=CONTROLLER,GRPC_CONTROLLER\n"
        f"controller.quorum.voters=1@{HOST}:{quorum}\n"
        f"log.dirs={formatted(tmp_path / 'data', 1)}\nmetrics.listener=http://{HOST}:{metrics}\n"
    )
    config = load_config(path)
    servers = new_server(), new_server()
    bind(servers[0], HOST, controller, None)
    bind(servers[1], HOST, grpc, None)
    tls = NodeTls(config)
    assert config.quorum_speaks_kafka
    kafka = KafkaListeners(config.of(CONTROLLER), tls), KafkaListeners(config.of(BROKER), tls)
    for each in kafka:
        each.bind()
    stats = NodeStatistics(0)
    replica, data = await open_disks(config, config.of(BROKER), check_metadata_directory(config), stats)
    bound = bind_metrics(config.metrics_listener, config.tls)
    process = CombinedProcess(config, replica, data, servers, kafka, tls, bound, stats)
    caplog.set_level(logging.INFO)
    task = asyncio.create_task(process.run())
    try:
        for port in (controller, grpc):
            await serves(port)
        assert len(kafka[0]) > 0  # the broker's own requests
        url = f"http://{HOST}:{metrics}/metrics"
        page = (await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read())).decode()
        process.driver.post(ShutdownRequested())
        ending = await asyncio.wait_for(task, 30)
    finally:
        process.driver.end("the test is over", failed=True)
        await asyncio.gather(task, return_exceptions=True)
    assert not ending.failed, ending.reason
    names = Counter(line.split()[2] for line in page.splitlines() if line.startswith("# TYPE"))
    assert max(names.values()) == 1
    assert "kafka_server_ReplicaManager_LeaderCount" in names
    assert "kafka_controller_KafkaController_ActiveControllerCount" in names
    assert 'role="combined"' in page
    lines = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("combined 1 listens on") for line in lines) == 1
    # Each change of metadata is told once, by one of the roles.
    assert sum(line.startswith("broker 1 is unfenced") for line in lines) == 1
    assert config.of(CONTROLLER).listeners[0].port == controller

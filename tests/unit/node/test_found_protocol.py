"""A broker whose file does not say it finds out what the controllers speak, once at its start."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from pathlib import Path

import pytest

from metaquorum.config.load import load_config
from metaquorum.config.node import NodeConfig
from metaquorum.config.security import TlsFiles
from metaquorum.network.tls import TlsMaterial
from metaquorum.node import process
from metaquorum.node.driver import Ending
from metaquorum.node.process import found_protocol, run_process
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.reach import spoken_at, tls_problem
from tests.unit.clients.test_wrong_protocol import answer_as_kafka, fixture_kafka_port
from tests.unit.config.test_config import BROKER, CONTROLLER, written
from tests.unit.server.certificates import certificate_files
from tests.unit.server.nodes import free_port

__all__ = ["fixture_kafka_port"]
HOST = "127.0.0.1"


def at(port: int) -> dict[str, str]:
    return {**BROKER, "controller.quorum.voters": f"1@{HOST}:{port}"}


def test_at_a_kafka_listener(tmp_path: Path, kafka_port: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert found_protocol(load_config(written(tmp_path, at(kafka_port)))) == "kafka"
    (line,) = caplog.messages
    assert line.startswith(f"controllers speak Kafka's protocol: {HOST}:{kafka_port} answers so")


@pytest.mark.parametrize("has_tls", [False, True])
async def test_at_a_grpc_listener(tmp_path: Path, has_tls: bool) -> None:
    server, port = new_server(), free_port()
    tls = material(tmp_path) if has_tls else None
    bind(server, HOST, port, tls)
    await server.start()
    try:
        assert await asyncio.to_thread(spoken_at, HOST, port, tls) == "grpc"
    finally:
        await server.stop(None)


def test_at_a_kafka_listener_with_tls(tmp_path: Path) -> None:
    tls = material(tmp_path)
    plain = socket.create_server((HOST, 0))
    with tls.server_context("none").wrap_socket(plain, server_side=True) as listening:
        threading.Thread(target=answer_as_kafka, args=(listening,), daemon=True).start()
        port = listening.getsockname()[1]
        assert spoken_at(HOST, port, tls) == "kafka"
        assert spoken_at(HOST, port, None) is None


def material(folder: Path) -> TlsMaterial:
    certificate_files(folder, "node", certificate_files(folder, "authority", None))
    files = TlsFiles(keystore=folder / "node.pem", truststore=folder / "authority.crt")
    return TlsMaterial.load(files)


def test_a_name_that_no_host_has_is_one_that_does_not_answer(tmp_path: Path) -> None:
    """The log of a quorum may name it: Python raises UnicodeError for it, no OSError."""
    for tls in (None, material(tmp_path)):
        assert spoken_at("a..b", 1, tls) is None
        assert tls_problem("a..b", 1, tls) == ""


def test_where_no_controller_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    assert spoken_at(HOST, port, None) is None
    assert found_protocol(load_config(written(tmp_path, at(port))), wait_s=0) == "kafka"
    (line,) = caplog.messages
    assert f"no controller answers at {HOST}:{port} yet" in line and "controller.quorum.protocol=grpc" in line


@pytest.mark.parametrize("found", ["grpc", "kafka"])
def test_the_whole_broker_asks_by_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    begun: list[NodeConfig] = []

    async def serve(config: NodeConfig) -> Ending:
        begun.append(config)
        return Ending(failed=False, reason="it ends")

    monkeypatch.setattr(process, "found_protocol", lambda config: found)
    assert run_process(str(written(tmp_path, BROKER)), "broker", serve) == 0
    (config,) = begun
    assert config.quorum_speaks_kafka is (found == "kafka")
    assert config.grpc_controller_listener == (None if found == "kafka" else "CONTROLLER")
    assert config.controller_listener == "CONTROLLER" and not config.finds_protocol


@pytest.mark.parametrize(
    ("file", "more", "finds"),
    [
        (BROKER, {}, True),
        (BROKER, {"controller.quorum.protocol": "kafka"}, False),
        (BROKER, {"controller.quorum.protocol": "grpc"}, False),
        (BROKER, {"controller.listener.names": "CONTROLLER,GRPC"}, False),
        (BROKER, {"broker.id.generation.enable": "true", "node.id": ""}, False),
        (CONTROLLER, {}, False),
    ],
)
def test_only_a_broker_whose_file_leaves_it_open_asks(
    tmp_path: Path, file: dict[str, str], more: dict[str, str], finds: bool
) -> None:
    pairs = {name: value for name, value in {**file, **more}.items() if value}
    assert load_config(written(tmp_path, pairs)).finds_protocol is finds

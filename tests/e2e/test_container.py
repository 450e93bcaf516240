"""`metaquorum node start`, which a container runs: environment, formatting, serving, and the same again."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.cli.layout import existing_cluster_id
from metaquorum.node.local_nodes import free_ports
from tests.e2e.processes import ENVIRONMENT, Process, run_cli, running

pytestmark = pytest.mark.e2e

CLUSTER = "4L6g3nShT-eMCtK--X86sw"


def variables(tmp_path: Path, **more: str) -> dict[str, str]:
    client, controller, grpc = free_ports(3)
    return {
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_NODE_ID": "7",
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller},"
        f"GRPC_CONTROLLER://127.0.0.1:{grpc}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER,GRPC_CONTROLLER",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": f"7@127.0.0.1:{controller}",
        "METAQUORUM_DATA": str(tmp_path / "data"),
        **more,
    }


def test_a_node_formats_its_volume_once_serves_and_starts_again(tmp_path: Path) -> None:
    environment = variables(tmp_path, CLUSTER_ID=CLUSTER)
    node = Process("node", ("node", "start"), tmp_path / "node.log")
    for formatted in (True, False):
        node.start(environment=environment)
        node.wait_for_line("is unfenced")
        assert ("formatted " in node.output()) is formatted
        with running("node", "health", env={**ENVIRONMENT, **environment}, text=True) as asked:
            said, _ = asked.communicate(timeout=30)
            assert (asked.returncode, said) == (0, "serves\n")
        assert node.stop() == 0
    assert existing_cluster_id(tmp_path / "data") == CLUSTER
    with running("node", "health", env={**ENVIRONMENT, **environment}, text=True) as asked:
        asked.communicate(timeout=30)
        assert asked.returncode == 1


def test_what_cannot_be_formatted_is_one_line(tmp_path: Path) -> None:
    broker = {
        "KAFKA_PROCESS_ROLES": "broker",
        "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:9092",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@127.0.0.1:9",
    }
    node = Process("node", ("node", "start"), tmp_path / "node.log")
    node.start(environment=variables(tmp_path, **broker))
    assert node.wait_exit() == 1
    assert node.lines() == [
        "metaquorum: CLUSTER_ID is not set, and nothing is formatted: set it to the same id on every node "
        "(metaquorum storage random-uuid prints one)"
    ]
    node.start(environment=variables(tmp_path, METAQUORUM_FORMAT="never"))
    assert node.wait_exit() == 1
    assert "metaquorum storage format" in node.last_line()


def test_a_volume_of_another_cluster_is_refused(tmp_path: Path) -> None:
    run_cli("storage", "format", "-t", CLUSTER, "--node-id", 7, "-d", tmp_path / "data")
    extra = variables(
        tmp_path, KAFKA_LOG_DIRS=f"{tmp_path}/data,{tmp_path}/new", CLUSTER_ID="5L6g3nShT-eMCtK--X86sw"
    )
    node = Process("node", ("node", "start"), tmp_path / "node.log")
    node.start(environment=extra)
    assert node.wait_exit() == 1
    assert CLUSTER in node.last_line()

"""Real brokers that get their own ids: two on one host, lost disks, a failover, kill -9 in between (S0)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from metaquorum.node.local_nodes import free_ports
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import load_meta_properties
from tests.e2e.cluster import FAST_BROKERS, Cluster, Node
from tests.e2e.processes import run_cli

pytestmark = pytest.mark.e2e


def newcomer(cluster: Cluster, name: str, more: Mapping[str, str | None] | None = None) -> Node:
    """A broker without an id, with two directories that do not exist yet."""
    (port,) = free_ports(1)
    node = Node(cluster.directory / name, "broker", -1, port, "")
    cluster.nodes.append(node)
    cluster.write_config(node)
    node.set_properties(
        {
            "node.id": None,
            "log.dirs": f"{node.data},{node.home / 'data-2'}",
            "broker.id.generation.enable": "true",
            **(more or {}),
        }
    )
    return node


def written_ids(node: Node) -> set[int | None]:
    directories = (node.data, node.home / "data-2")
    return {load_meta_properties(PosixDisk(), str(one)).node_id for one in directories}


def lose_disks(node: Node) -> None:
    for directory in (node.data, node.home / "data-2"):
        shutil.rmtree(directory)


def listing(cluster: Cluster) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        run_cli("brokers", "bindings", "--json", "--bootstrap-controllers", cluster.bootstrap).stdout
    )
    return found


def bindings(cluster: Cluster) -> dict[str, int]:
    found = listing(cluster)["bindings"]
    assert isinstance(found, list)
    return {one["key"]: one["brokerId"] for one in found}


def test_s0_two_brokers_of_one_host_get_their_ids_back_after_losing_their_disks(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=3, properties=FAST_BROKERS) as cluster:
        cluster.start()
        first = newcomer(cluster, "first", {"broker.id.binding.key": "slot-1"})
        second = newcomer(cluster, "second", {"broker.id.binding.key": "slot-2"})
        first.start()
        second.start()
        cluster.wait_brokers({1001: "running", 1002: "running"})
        first_id, second_id = next(iter(written_ids(first))), next(iter(written_ids(second)))
        assert written_ids(first) == {first_id} and written_ids(second) == {second_id}
        assert {first_id, second_id} == {1001, 1002}
        assert bindings(cluster) == {"slot-1": first_id, "slot-2": second_id}
        epochs = {broker_id: one.epoch for broker_id, one in cluster.registrations().items()}

        # Killed, emptied and restarted at once: it gets its id again when its session has expired.
        first.kill()
        lose_disks(first)
        first.start()
        cluster.wait_new_epoch(int(first_id or 0), after=epochs[int(first_id or 0)])
        assert written_ids(first) == {first_id}

        # The same while the active controller is killed.
        second.kill()
        lose_disks(second)
        leader = cluster.leader()
        leader.kill()
        second.start()
        cluster.wait_new_epoch(int(second_id or 0), after=epochs[int(second_id or 0)])
        leader.start()
        assert written_ids(second) == {second_id}

        # One disk of two is lost: the other one has the id, and no request is needed.
        assert first.stop() == 0
        shutil.rmtree(first.data)
        first.start()
        cluster.wait_brokers({int(first_id or 0): "running"})
        assert written_ids(first) == {first_id}
        assert set(cluster.registrations()) == {1001, 1002}, "no id was lost or made"
        assert bindings(cluster) == {"slot-1": first_id, "slot-2": second_id}
        assert listing(cluster)["claims"] == []
        cluster.assert_no_bugs()


def test_s0_23_brokers_that_share_a_key_get_different_ids(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=1, properties=FAST_BROKERS) as cluster:
        cluster.start()
        nodes = [newcomer(cluster, f"broker-{at}") for at in range(2)]
        nodes[0].start()
        cluster.wait_brokers({1001: "running"})
        nodes[1].start()
        cluster.wait_brokers({1001: "running", 1002: "running"})
        assert [written_ids(node) for node in nodes] == [{1001}, {1002}]
        assert bindings(cluster) == {"127.0.0.1": 1001}
        cluster.assert_no_bugs()


def test_s0_2_s0_15_a_conflict_is_one_line_and_a_replacement_machine_is_bound(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=1, properties=FAST_BROKERS) as cluster:
        cluster.start()
        old = newcomer(cluster, "old", {"broker.id.binding.key": "old-host"})
        old.start()
        cluster.wait_brokers({1001: "running"})
        assert old.stop() == 0
        old.set_properties({"node.id": "7"})
        old.start()
        assert old.wait_exit() == 1
        line = old.last_line()
        assert "node.id is 7" in line and f"{old.data}/meta.properties says 1001" in line

        cluster.wait_brokers({1001: "fenced"})
        run_cli("brokers", "bind", "new-host", "1001", "--bootstrap-controllers", cluster.bootstrap)
        new = newcomer(cluster, "new", {"broker.id.binding.key": "new-host"})
        new.start()
        cluster.wait_brokers({1001: "running"})
        assert written_ids(new) == {1001} and bindings(cluster) == {"new-host": 1001}
        cluster.assert_no_bugs()

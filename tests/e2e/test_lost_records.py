"""A controller's directory is replaced with an older copy: nodes that know of more stop, and every tool
reports it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from metaquorum.cli.errors import EXIT_VIOLATIONS
from metaquorum.metadata.requests.common import NewTopic
from tests.e2e.cluster import FAST_BROKERS, Cluster, Node, log_end_offset
from tests.e2e.processes import run_cli

pytestmark = pytest.mark.e2e

LOST = "committed records were lost"


def _refuses_to_start_twice(node: Node, before: bytes) -> None:
    """At every restart it reports the same, and its log stays."""
    for _ in range(2):
        assert node.wait_exit() == 1
        line = node.last_line()
        assert f"{node.role} {node.node_id}: {LOST}: leader" in line
        assert f"{node.metadata_log}/known-committed" in line and "metaquorum log salvage" in line
        assert _segment(node)[: len(before)] == before, "nothing was cut"
        node.start()
    assert node.wait_exit() == 1


def _segment(node: Node) -> bytes:
    return b"".join(path.read_bytes() for path in node.segments())


def test_an_older_copy_of_a_directory_takes_nothing_back_in_silence(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=3, brokers=1, properties=FAST_BROKERS) as cluster:
        cluster.start()
        (broker,) = cluster.brokers
        knows = cluster.leader()
        absent, replaced = (node for node in cluster.controllers if node is not knows)
        cluster.wait_caught_up(replaced)
        assert replaced.stop() == 0
        backup = shutil.copytree(replaced.data, tmp_path / "backup")
        replaced.start()
        cluster.wait_caught_up(replaced)
        cluster.kill_all([absent])
        # A retry may meet its own success.
        cluster.create_topics(NewTopic(name="kept", partitions=1, replication_factor=1))
        assert "kept" in cluster.topics()
        cluster.wait_caught_up(replaced)
        cluster.kill_all([knows, replaced])
        logs = {node: _segment(node) for node in (knows, broker)}
        end = log_end_offset(knows)
        shutil.rmtree(replaced.data)
        shutil.copytree(backup, replaced.data)
        for node in (absent, replaced):
            node.start()
        after = cluster.wait_leader()
        assert after.leader_id in (absent.node_id, replaced.node_id)
        assert "kept" not in cluster.topics(), "the two of them cannot know of it"

        _refuses_to_start_twice(broker, logs[broker])
        knows.start()
        _refuses_to_start_twice(knows, logs[knows])
        assert log_end_offset(knows) >= end

        said = run_cli("quorum", "describe", "--bootstrap-controllers", cluster.bootstrap)
        assert f"{LOST}: node {knows.node_id} knows that everything below offset" in said.stdout
        found = json.loads(
            run_cli("quorum", "describe", "--bootstrap-controllers", cluster.bootstrap, "--json").stdout
        )
        assert {one["nodeId"] for one in found["lostCommitted"]} == {knows.node_id, broker.node_id}
        asked = run_cli("controller", "status", "--bootstrap-controllers", cluster.leader().address)
        assert LOST in asked.stdout
        cluster.kill_all([absent, replaced])

        homes = [str(node.data) for node in cluster.controllers]
        checked = run_cli("log", "check", *homes, expect=EXIT_VIOLATIONS)
        assert LOST in checked.stdout and str(knows.data) in checked.stdout
        ranked = run_cli("log", "salvage", *homes)
        assert str(knows.data) in ranked.stderr and "were committed" in ranked.stderr
        _start_from_the_one_that_knows(cluster, knows, tmp_path / "salvaged")
        assert "kept" in cluster.topics()
        cluster.assert_no_bugs()


def _start_from_the_one_that_knows(cluster: Cluster, knows: Node, target: Path) -> None:
    """What every message recommends: a new voter set, made from the node that knows the most."""
    voters = ",".join(
        f"{node.node_id}@{node.kafka_address}:{node.directory_id}" for node in cluster.controllers
    )
    made = run_cli("log", "salvage", str(knows.data), "--voters", voters, "--to", str(target))
    assert made.returncode == 0, made.stderr
    for node in cluster.controllers:
        shutil.rmtree(node.data)
        shutil.copytree(target / f"controller-{node.node_id}", node.data)
    cluster.start()

"""Voters in the log with real processes: a quorum of one grows automatically, static voters are upgraded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from metaquorum.metadata.requests.common import DescribeQuorumResponse
from tests.e2e.cluster import Cluster, Node
from tests.e2e.processes import run_cli

pytestmark = pytest.mark.e2e


class JoiningCluster(Cluster):
    """The first controller is formatted as the only voter, and the others request to be added."""

    def write_config(self, node: Node) -> None:
        super().write_config(node)
        node.set_properties(
            {
                "controller.quorum.voters": None,
                "controller.quorum.bootstrap.servers": (
                    self.controllers[0].address
                    if node.role == "broker"
                    else self.controllers[0].kafka_address
                ),
                "metadata.log.max.record.bytes.between.snapshots": "2000",
                **({"controller.quorum.auto.join.enable": "true"} if node.role == "controller" else {}),
            }
        )

    def _formatting(self, node: Node, cluster_id: str | None) -> list[str]:
        more = []
        if node.role == "controller":
            more = ["--standalone" if self.is_first(node) else "--no-initial-controllers"]
        identity = ["--cluster-id", cluster_id or self.cluster_id]
        return ["storage", "format", "--config", str(node.config), *identity, *more]

    def is_first(self, node: Node) -> bool:
        return node is self.controllers[0] and not node.log_file.exists()


def wait_voters(cluster: Cluster, wanted: int) -> DescribeQuorumResponse:
    def counted() -> DescribeQuorumResponse | None:
        found = cluster.quorum()
        return found if len(found.voters) == wanted and found.high_watermark > 0 else None

    return cluster.wait(counted, f"{wanted} voters")


def test_a_quorum_of_one_grows_to_three_and_survives_what_it_can_then(tmp_path: Path) -> None:
    with JoiningCluster(tmp_path, controllers=3, brokers=1) as cluster:
        first, *others = cluster.controllers
        first.start()
        cluster.brokers[0].start()
        cluster.wait_brokers({0: "running"})
        for number in range(5):
            cluster.create_topic(f"before-{number}", partitions=20)
        for node in others:
            node.start()
        wait_voters(cluster, 3)
        topics = cluster.topics()

        leader = cluster.leader()
        epoch = cluster.quorum().leader_epoch
        leader.kill()
        cluster.wait_leader(after_epoch=epoch)
        cluster.create_topic("without-the-first")
        leader.start()
        cluster.wait_caught_up(leader)

        lost = cluster.controllers[2]
        before = {each.node_id: each.directory_id for each in cluster.quorum().voters}
        lost.kill()
        shutil.rmtree(lost.data)
        cluster.format(lost)
        lost.start()

        def replaced() -> bool:
            voters = {each.node_id: each.directory_id for each in cluster.quorum().voters}
            return len(voters) == 3 and voters[lost.node_id] != before[lost.node_id]

        cluster.wait(replaced, "the emptied voter to be replaced by itself")
        cluster.kill_all(cluster.nodes)
        assert any(len(node.snapshots()) > 1 for node in cluster.controllers), "one starts from its own"
        for node in cluster.nodes:
            node.start()
        cluster.wait_leader()
        cluster.wait_brokers({0: "running"})
        assert cluster.topics().items() >= topics.items() and "without-the-first" in cluster.topics()
        assert len(cluster.quorum().voters) == 3
        cluster.assert_no_bugs()


def test_static_voters_become_dynamic_ones_while_the_quorum_serves(tmp_path: Path) -> None:
    """The broker has never known more than two addresses of the static voters."""
    with Cluster(tmp_path, controllers=3, brokers=1) as cluster:
        servers = ",".join(node.address for node in cluster.controllers[:2])
        cluster.brokers[0].set_properties(
            {"controller.quorum.voters": None, "controller.quorum.bootstrap.servers": servers}
        )
        cluster.start()
        leader = cluster.leader()
        cluster.create_topic("static")
        epoch = cluster.quorum().leader_epoch
        leader.kill()
        cluster.wait_leader(after_epoch=epoch)
        leader.start()
        cluster.create_topic("follows-the-next-leader")
        end = cluster.quorum().high_watermark
        cluster.wait(
            lambda: any(one.log_end_offset >= end for one in cluster.quorum().observers),
            "the broker to follow",
        )
        features = ("features", "upgrade", "--bootstrap", cluster.bootstrap_servers)
        early = run_cli(*features, "kraft.version=1", expect=1)
        assert (
            "kraft.version cannot become 1: it needs metadata.version 3.9-IV0" in early.stdout + early.stderr
        )
        run_cli(*features, "metadata.version=3.9")
        run_cli(*features, "kraft.version=1")
        run_cli(*features, "kraft.version=1")  # it is: nothing to do
        down = run_cli(
            *("features", "downgrade", "--bootstrap", cluster.bootstrap_servers, "kraft.version=0"), expect=1
        )
        assert "kraft.version is 1 and never falls" in down.stdout + down.stderr
        cluster.create_topic("kept")
        topics = cluster.topics()
        cluster.kill_all(cluster.nodes)
        for at, node in enumerate(cluster.nodes):
            if at > 0:  # one keeps the old line, which is no longer used
                node.set_properties(
                    {
                        "controller.quorum.voters": None,
                        "controller.quorum.bootstrap.servers": (
                            cluster.bootstrap if node.role == "broker" else cluster.quorum_servers
                        ),
                    }
                )
            node.start()
        cluster.wait_leader()
        cluster.wait_brokers({0: "running"})
        assert cluster.topics() == topics
        cluster.create_topic("after")
        assert "controller.quorum.voters is no longer used" in cluster.controllers[0].output()
        cluster.assert_no_bugs()

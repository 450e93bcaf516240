"""Controllers that have only a listener of Kafka's protocol become voters by themselves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from metaquorum.clients.admin.cluster import describe_voters
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.clients.search import ClientError
from metaquorum.metadata.errors import ApiError
from tests.e2e.cluster import HOST, Node, client_loop
from tests.e2e.test_voters import JoiningCluster

pytestmark = pytest.mark.e2e


class KafkasListeners(JoiningCluster):
    """No controller has a listener for gRPC."""

    def write_config(self, node: Node) -> None:
        super().write_config(node)
        node.set_properties(
            {
                "listeners": f"KAFKA://{HOST}:{node.kafka_port}",
                "controller.listener.names": "KAFKA",
                "listener.security.protocol.map": "KAFKA:PLAINTEXT",
            }
        )

    def directories(self) -> dict[int, bytes]:
        """The voters and their directories, by the leader."""

        async def ask() -> dict[int, bytes]:
            servers = ",".join(each.kafka_address for each in self.controllers)
            async with KafkaClient(servers, timeout_ms=5_000, asks_brokers=False) as client:
                try:
                    voters = (await describe_voters(client)).voters
                except (ApiError, ClientError):
                    return {}
                return {each.node_id: each.directory_id for each in voters}

        return client_loop().call(ask())


def test_they_join_and_a_lost_directory_is_replaced(tmp_path: Path) -> None:
    with KafkasListeners(tmp_path, controllers=3) as cluster:
        for node in cluster.controllers:
            node.start()
        cluster.wait(lambda: len(cluster.directories()) == 3, "three voters")
        before, lost = cluster.directories(), cluster.controllers[2]
        lost.kill()
        shutil.rmtree(lost.data)
        cluster.format(lost)
        lost.start()
        lost.wait_for_line("its entry with a directory that it lost was removed", timeout_s=90)
        cluster.wait(lambda: len(cluster.directories()) == 3, "three voters again")
        after = cluster.directories()
        assert {node_id for node_id in before if before[node_id] != after[node_id]} == {lost.node_id}
        cluster.assert_no_bugs()

"""Two controllers as processes and a model of Kafka 3.7's voter, in one quorum over sockets."""

from __future__ import annotations

from pathlib import Path

from metaquorum.node.local_nodes import free_ports
from tests.e2e.cluster import HOST, Node, read_batches
from tests.e2e.kafka_peer import KafkaPeer
from tests.e2e.kafka_quorum import KafkaQuorum

PEER = 3002


def test_kafkas_vote_lets_ours_lead_and_its_log_is_theirs(tmp_path: Path) -> None:
    """The vote of Kafka's voter decides after a kill -9 of the leader. In the end, the three logs are the
    same bytes, and Kafka's process was never told what would end it."""
    (port,) = free_ports(1)
    with KafkaQuorum(tmp_path, keys={}, controllers=2) as cluster:
        ports = {each.node_id: each.kafka_port for each in cluster.controllers} | {PEER: port}
        voters = ",".join(f"{node_id}@{HOST}:{at}" for node_id, at in ports.items())
        for node in cluster.controllers:
            node.set_properties({"controller.quorum.voters": voters})
        cluster.start()
        leader, epoch = cluster.leader(), cluster.quorum().leader_epoch
        peer = KafkaPeer(PEER, ports, cluster.cluster_id)
        peer.start()
        try:
            cluster.wait(lambda: has_the_log_of(peer, leader), "Kafka's voter to have the log")
            cluster.kill_all([leader])
            (other,) = [each for each in cluster.controllers if each is not leader]
            led = cluster.wait_leader(after_epoch=epoch, not_node=leader.node_id)
            assert led.leader_id == other.node_id
            leader.start()
            cluster.wait_caught_up(leader)
            cluster.wait(
                lambda: has_the_log_of(peer, leader) and has_the_log_of(peer, other),
                "three logs of one content",
            )
            assert {epoch, led.leader_epoch} <= {each[2] for each in peer.voter.disk.batches}
            assert peer.stopped is None, peer.stopped
            cluster.assert_no_bugs()
        finally:
            peer.close()


def has_the_log_of(peer: KafkaPeer, node: Node) -> bool:
    """Byte for byte."""
    batches = [bytes(each.data) for each in read_batches(node)]
    return batches == [bytes(each[3]) for each in list(peer.voter.disk.batches)]

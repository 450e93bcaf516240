"""Three controllers whose quorum speaks Kafka's protocol, with logins and with certificates: writes, a killed
leader, a voter that catches up by a snapshot, and voters that are refused."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.cluster import HOST, Node, log_end_offset, log_start_offset
from tests.e2e.kafka_quorum import (
    JAAS_KEY,
    LOGIN,
    PLAIN,
    SMALL_LOG,
    KafkaQuorum,
    certificates,
    mutual_tls,
)
from tests.e2e.processes import run_cli


def test_a_quorum_over_kafkas_protocol(tmp_path: Path) -> None:
    with KafkaQuorum(tmp_path, keys=LOGIN | SMALL_LOG, brokers=1) as cluster:
        cluster.start()
        cluster.create_topic("before")
        leader, epoch = cluster.leader(), cluster.quorum().leader_epoch
        cluster.kill_all([leader])
        cluster.wait_leader(after_epoch=epoch, not_node=leader.node_id)
        behind = log_end_offset(leader)
        now, number = cluster.leader(), 0

        def trimmed() -> bool:
            nonlocal number
            number += 1
            cluster.create_topic(f"after-{number}", partitions=20)
            return log_start_offset(now) > behind

        cluster.wait(trimmed, "a log that begins after the killed one's end")
        leader.start()
        cluster.wait_caught_up(leader)
        cluster.wait(lambda: log_start_offset(leader) > behind, "a log that continues from the snapshot")
        # Registered over Kafka's protocol, also the one that returned; its addresses are those of gRPC.
        cluster.wait(lambda: all_are_registered(cluster), "all controllers in the log")
        assert set(cluster.topics()) == {"before", *(f"after-{at}" for at in range(1, number + 1))}
        another, epoch = cluster.leader(), cluster.quorum().leader_epoch
        another.stop()
        cluster.wait_leader(after_epoch=epoch, not_node=another.node_id)
        cluster.create_topic("last")
        for node in cluster.controllers:
            assert "lane" not in node.log_file.read_text()
        cluster.assert_no_bugs()


def all_are_registered(cluster: KafkaQuorum) -> bool:
    asked = ("log", "state", "--bootstrap", cluster.bootstrap_servers)
    found = [run_cli(*asked, f"controller/{each.node_id}", expect=None) for each in cluster.controllers]
    return all(each.returncode == 0 and "KAFKA" in each.stdout for each in found)


def test_a_voter_without_the_login_is_refused_and_says_so(tmp_path: Path) -> None:
    with KafkaQuorum(tmp_path, keys=LOGIN) as cluster:
        wrong = cluster.controllers[0]
        users = 'user_node="secret" username="node" password="wrong"'
        wrong.set_properties({JAAS_KEY: f"{PLAIN} required {users};"})
        for node in cluster.controllers:
            node.start()
        cluster.wait_leader(not_node=wrong.node_id)
        wrong.wait_for_line("cannot be asked: it refuses the login", timeout_s=60)
        cluster.assert_no_bugs()


def lines(node: Node, part: str) -> list[str]:
    return [line for line in node.lines() if part in line]


def test_voters_with_certificates(tmp_path: Path) -> None:
    """Mutual TLS: a killed leader is followed by another one. A certificate of another authority, and one
    whose principal may not act on the cluster, are refused in one line on each side, and the quorum goes on
    without them."""
    certificates(tmp_path)
    with KafkaQuorum(tmp_path, keys=mutual_tls(tmp_path), brokers=1) as cluster:
        cluster.start()
        leader, epoch = cluster.leader(), cluster.quorum().leader_epoch
        cluster.kill_all([leader])
        cluster.wait_leader(after_epoch=epoch, not_node=leader.node_id)
        asked = [each for each in cluster.controllers if each is not leader]

        leader.set_properties(mutual_tls(tmp_path, "stranger"))
        leader.start()
        for node in asked:
            at = f"node {node.node_id} at {HOST}:{node.kafka_port} cannot be asked: "
            leader.wait_for_line(f"{at}it refuses this client's certificate", timeout_s=60)
            node.wait_for_line("its certificate is not accepted: unable to get local issuer certificate")
            assert len(lines(leader, at)) == 1
        cluster.create_topic("without-it")
        leader.stop()

        leader.set_properties(mutual_tls(tmp_path, "other"))
        leader.start()
        leader.wait_for_line("allow this node's principal ClusterAction", timeout_s=60)
        cluster.create_topic("without-it-again")
        leader.stop()

        leader.set_properties(mutual_tls(tmp_path))
        leader.start()
        cluster.wait_caught_up(leader)
        cluster.assert_no_bugs()

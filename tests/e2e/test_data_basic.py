"""Real brokers hold data: what was produced with acks=all is on three brokers and survives kill -9."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import UNASSIGNED
from metaquorum.storage.uuids import uuid_to_text
from tests.broker_calls import batch
from tests.e2e.cluster import FAST_BROKERS, Cluster, Node
from tests.e2e.data_calls import DataCalls

FAST = {
    "controller": FAST_BROKERS["controller"],
    "broker": {
        **FAST_BROKERS["broker"],
        "replica.lag.time.max.ms": "3000",
        "replica.fetch.backoff.ms": "100",
    },
}


@pytest.fixture(name="cluster")
def fixture_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, controllers=1, brokers=3, properties=FAST, log_dirs=2) as cluster:
        cluster.start()
        yield cluster
        cluster.assert_no_bugs()


def values(first: int, end: int) -> list[bytes]:
    return [f"message {number}".encode() for number in range(first, end)]


def wait_in_sync(cluster: Cluster, calls: DataCalls, topic: str, brokers: set[int]) -> None:
    cluster.wait(lambda: set(calls.partition(topic).isr) == brokers, f"{topic} to be in sync on {brokers}")


def test_records_are_replicated_and_survive_kills_of_everyone(cluster: Cluster) -> None:
    calls = DataCalls(cluster)
    cluster.create_topic("orders", partitions=1, replicas=3)
    assert calls.produce_until_taken("orders", values(0, 10)).base_offset == 0
    wait_in_sync(cluster, calls, "orders", {0, 1, 2})
    assert calls.produce_until_taken("orders", values(10, 25)).base_offset == 10
    leader = calls.leader("orders")
    expected = list(enumerate(values(0, 25)))
    assert calls.read_all(leader, "orders", up_to=25) == expected

    # The leader is killed; another one has everything that was acknowledged.
    before = cluster.registrations()[leader.node_id].epoch
    leader.kill()
    result = calls.produce_until_taken("orders", values(25, 30))
    assert result.base_offset == 25
    successor = calls.leader("orders")
    assert successor.node_id != leader.node_id
    expected = list(enumerate(values(0, 30)))
    assert calls.read_all(successor, "orders", up_to=30) == expected
    leader.start()
    cluster.wait_new_epoch(leader.node_id, after=before)
    wait_in_sync(cluster, calls, "orders", {0, 1, 2})

    # All brokers are killed at once.
    cluster.kill_all(cluster.brokers)
    for broker in cluster.brokers:
        broker.start()
    assert calls.produce_until_taken("orders", values(30, 31)).base_offset == 30
    expected = list(enumerate(values(0, 31)))
    assert calls.read_all(calls.leader("orders"), "orders", up_to=31) == expected
    wait_in_sync(cluster, calls, "orders", {0, 1, 2})

    # A clean shutdown keeps the same.
    assert set(cluster.stop().values()) == {0}
    cluster.start()
    cluster.wait(lambda: calls.partition("orders").leader >= 0, "a leader")
    assert calls.read_all(calls.leader("orders"), "orders", up_to=31) == expected


def test_replicas_lie_where_the_log_says_and_log_dirs_says_so(cluster: Cluster) -> None:
    calls = DataCalls(cluster)
    cluster.create_topic("many", partitions=6, replicas=3)

    def assigned() -> bool:
        found = cluster.partitions("many")
        return all(set(each.isr) == {0, 1, 2} and UNASSIGNED not in each.directories for each in found)

    cluster.wait(assigned, "every replica to have a directory")
    partitions = cluster.partitions("many")
    for broker in cluster.brokers:
        found = calls.directories(broker)
        assert list(found) == broker.log_dirs
        counts = [sum(len(topic.partitions) for topic in each.topics) for each in found.values()]
        assert counts == [3, 3], "new replicas go to the directory with the fewest"
        for path, directory in found.items():
            assert directory.error_code == ErrorCode.NONE
            assert 0 < directory.usable_bytes <= directory.total_bytes
            for replica in directory.topics[0].partitions:
                info = partitions[replica.partition_index]
                at = info.replicas.index(broker.node_id)
                assert info.directories[at] == directory.directory_id, uuid_to_text(directory.directory_id)
                assert (path / f"many-{replica.partition_index}").is_dir()


def test_bad_requests_are_refused_with_their_codes(cluster: Cluster) -> None:
    calls = DataCalls(cluster)
    cluster.create_topic("orders", partitions=1, replicas=3)
    calls.produce_until_taken("orders", values(0, 5))
    leader = calls.leader("orders")
    other = next(node for node in cluster.brokers if node is not leader)
    assert calls.produce(other, "orders", values(0, 1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert calls.produce(leader, "nothing", values(0, 1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert calls.fetch(leader, "orders", 999).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    good = batch(values(5, 6))
    for broken in (good[:-1] + bytes([good[-1] ^ 1]), good[:16] + b"\x01" + good[17:], b"short"):
        result = calls.call(leader, lambda to, sent=broken: to.produce("orders", sent))
        assert ErrorCode(result.error_code).name in (
            "CORRUPT_MESSAGE",
            "INVALID_RECORD",
            "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        )
        assert result.error_message
    assert calls.produce_until_taken("orders", values(5, 6)).base_offset == 5


@pytest.mark.parametrize("fences_itself", [True, False], ids=["fences itself", "serves on"])
def test_the_quorum_is_gone_for_longer_than_a_lease(tmp_path: Path, fences_itself: bool) -> None:
    """`broker.self.fencing.enable`: false is Kafka's behavior; acks=all waits for all in-sync replicas either
    way."""
    enable = {"broker.self.fencing.enable": str(fences_itself).lower()}
    properties = {**FAST, "broker": {**FAST["broker"], **enable}}
    with Cluster(tmp_path, controllers=1, brokers=3, properties=properties) as cluster:
        cluster.start()
        calls = DataCalls(cluster)
        cluster.create_topic("orders", partitions=1, replicas=3)
        calls.produce_until_taken("orders", values(0, 10))
        wait_in_sync(cluster, calls, "orders", {0, 1, 2})
        leader = calls.leader("orders")
        cluster.kill_all(cluster.controllers)
        said = "still serving, because broker.self.fencing.enable is false"
        if fences_itself:
            cluster.wait(lambda: refuses(calls, leader), "the leader to serve nobody")
            assert said not in leader.log_file.read_text()
        else:
            cluster.wait(
                lambda: all(said in one.log_file.read_text() for one in cluster.brokers), "leases to end"
            )
            assert calls.produce(leader, "orders", values(10, 20)).base_offset == 10
            assert calls.read_all(leader, "orders", up_to=20) == list(enumerate(values(0, 20)))
        for controller in cluster.controllers:
            controller.start()
        end = 10 if fences_itself else 20
        assert calls.produce_until_taken("orders", values(end, end + 5)).base_offset == end
        wait_in_sync(cluster, calls, "orders", {0, 1, 2})
        expected = list(enumerate(values(0, end + 5)))
        assert calls.read_all(calls.leader("orders"), "orders", up_to=end + 5) == expected
        cluster.assert_no_bugs()


def refuses(calls: DataCalls, node: Node) -> bool:
    """Whether a consumer learns that this broker serves no clients."""
    return calls.fetch(node, "orders", 0).error_code != ErrorCode.NONE

"""Replicas whose logs are damaged under real brokers (ADR 13)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.metadata.errors import ErrorCode
from metaquorum.storage.batches.batch import iter_batches
from tests.e2e.cluster import Cluster, Node
from tests.e2e.data_calls import DataCalls
from tests.e2e.test_data_disks import FAST, directory_of, make_topic, values, wait_isr


@pytest.fixture(name="cluster")
def fixture_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, controllers=1, brokers=3, properties=FAST, log_dirs=2) as cluster:
        yield cluster
        cluster.assert_no_bugs()


def damage(replica: Path) -> tuple[Path, bytes]:
    """Flips a bit of the first batch, and removes the recovery point, which would keep the next start from
    verifying that batch."""
    segment = min(replica.glob("*.log"))
    before = segment.read_bytes()
    assert len(list(iter_batches(before))) > 1
    segment.write_bytes(before[:70] + bytes([before[70] ^ 1]) + before[71:])
    (replica / "recovery-point").unlink()
    return segment, before


def stopped_and_damaged(calls: DataCalls, node: Node) -> tuple[Path, bytes]:
    replica = directory_of(calls, node) / "orders-0"
    assert node.stop() == 0
    return damage(replica)


def test_a_damaged_follower_is_recreated_and_what_was_there_is_kept(cluster: Cluster) -> None:
    calls = DataCalls(cluster)
    cluster.start()
    make_topic(cluster, calls)
    leader = calls.leader("orders")
    assert calls.produce_until_taken("orders", values(10, 20)).base_offset == 10
    follower = next(node for node in cluster.brokers if node.node_id != leader.node_id)
    segment, _ = stopped_and_damaged(calls, follower)
    bad = segment.read_bytes()
    follower.start()
    wait_isr(cluster, calls, {0, 1, 2})
    (aside,) = segment.parent.parent.glob("orders-0.*-stray")
    assert (aside / segment.name).read_bytes() == bad
    assert {each.error_code for each in calls.directories(follower).values()} == {ErrorCode.NONE}
    assert leader.stop() == 0
    assert calls.produce_until_taken("orders", values(20, 21)).base_offset == 20


def test_the_last_one_in_sync_waits_until_it_is_whole_and_the_rest_serves(cluster: Cluster) -> None:
    calls = DataCalls(cluster)
    cluster.start()
    cluster.create_topic("orders", partitions=1, replicas=1)
    assert calls.produce_until_taken("orders", values(0, 10)).base_offset == 0
    assert calls.produce_until_taken("orders", values(10, 20)).base_offset == 10
    leader = calls.leader("orders")
    segment, good = stopped_and_damaged(calls, leader)
    leader.start()
    cluster.wait(lambda: "stays offline" in leader.output(), "the line about the damaged replica")
    assert calls.partition("orders").leader in (None, -1)
    assert leader.is_running and not cluster.registrations()[leader.node_id].fenced
    assert {each.error_code for each in calls.directories(leader).values()} == {ErrorCode.NONE}
    assert leader.stop() == 0
    segment.write_bytes(good)
    leader.start()
    cluster.wait(lambda: calls.partition("orders").leader == leader.node_id, "the replica to lead again")
    assert calls.produce_until_taken("orders", values(20, 21)).base_offset == 20
    assert calls.read_all(leader, "orders", up_to=21) == list(enumerate(values(0, 21)))

"""Disks that are lost or replaced, and what brokers do periodically, done now."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from metaquorum.clients.admin.topics import create_topics, delete_topics
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.storage.disk.interface import read_file, write_atomically
from metaquorum.storage.errors import DiskError
from metaquorum.testing import Cluster, ClusterError
from metaquorum.testing.memory_disk import MemoryDisk
from tests.unit.testing.test_cluster import consumed, produced


def test_a_broker_with_a_new_disk_copies_everything_again() -> None:
    with Cluster(brokers=2, controllers=1) as cluster:
        topic = cluster.create_topic("orders", configs={"min.insync.replicas": 1})
        produced(cluster.bootstrap_servers, topic, ["a", "b"])
        first = cluster.leader(topic, 0)
        with cluster.lose_disk(first):
            cluster.clock.advance(seconds=8)
            assert cluster.leader(topic, 0) != first
        cluster.wait_for_full_isr(topic)
        with cluster.kill(cluster.leader(topic, 0)):
            cluster.clock.advance(seconds=8)
            assert cluster.leader(topic, 0) == first
            assert consumed(cluster.bootstrap_servers, topic, 2) == ["a", "b"]


def test_a_voter_with_a_new_disk_votes_again() -> None:
    with Cluster(brokers=1, controllers=3) as cluster:
        active = cluster.active_controller
        with cluster.lose_disk(active):
            cluster.clock.advance(seconds=5)
            other = cluster.active_controller
            assert other != active
        cluster.clock.advance(seconds=9)
        with cluster.kill(next(each for each in cluster.controllers if each not in (active, other))):
            assert cluster.create_topic("two-of-three")


def test_a_lost_disk_of_all_replicas_loses_acknowledged_messages() -> None:
    with Cluster(brokers=1, controllers=1) as cluster:
        topic = cluster.create_topic("orders")
        earlier = cluster.copy_disk(0)
        assert produced(cluster.bootstrap_servers, topic, ["a"]) == [0]
        with cluster.restore_disk_from(earlier):
            pass
        assert produced(cluster.bootstrap_servers, topic, ["b"]) == [0]
        assert consumed(cluster.bootstrap_servers, topic, 1) == ["b"]
        assert "combined-0" not in cluster.events[0].text and "has its disk of" in cluster.events[0].text


def test_retention_runs_when_it_is_asked() -> None:
    configs = {"retention.ms": 3_600_000, "segment.ms": 600_000, "file.delete.delay.ms": 0}
    properties = {"log.retention.check.interval.ms": 2**31 - 1}
    with Cluster(clock="manual", properties=properties) as cluster:
        topic = cluster.create_topic("orders", configs=configs)
        produced(cluster.bootstrap_servers, topic, ["old"])
        cluster.clock.advance(hours=2)
        assert consumed(cluster.bootstrap_servers, topic, 1) == ["old"]
        cluster.run_retention()
        assert produced(cluster.bootstrap_servers, topic, ["new"]) == [1]
        assert consumed(cluster.bootstrap_servers, topic, 1) == ["new"]


def test_compaction_runs_when_it_is_asked() -> None:
    configs = {"cleanup.policy": "compact", "segment.bytes": 1024, "min.cleanable.dirty.ratio": 0.01}
    with Cluster(properties={"log.cleaner.backoff.ms": 2**31 - 1}) as cluster:
        topic = cluster.create_topic("orders", configs=configs)
        produced_keyed(cluster.bootstrap_servers, topic, 60)
        cluster.run_compaction()
        left = consumed(cluster.bootstrap_servers, topic, 60, wait=20)
        assert 1 <= len(left) < 30 and left[-1] == "59" * 30


def produced_keyed(servers: str, topic: str, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    for number in range(count):
        producer.produce(topic, str(number) * 30, key="same")
        producer.flush(20)


def test_a_real_disk_is_not_lost(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path / "c") as cluster:
        for attempt in (lambda: cluster.lose_disk(0), lambda: cluster.copy_disk(0)):
            with pytest.raises(ClusterError, match="leave `directory` out"):
                attempt()


def test_a_cluster_closes_without_the_work_that_its_disks_have_left(caplog: pytest.LogCaptureFixture) -> None:
    count = 200
    begun, renamed = threading.Event(), []
    before = set(threading.enumerate())

    def slow(operation: str, path: str, size: int) -> None:
        if operation == "rename":
            begun.set()
            renamed.append(path)
            time.sleep(0.01)

    with Cluster() as cluster:
        names = [f"topic-{number}" for number in range(count)]
        topics = [NewTopic(name=name, partitions=1, replication_factor=1) for name in names]
        cluster._run(create_topics(cluster._asks(), topics), "topics")
        cluster.wait_for_topic(names[-1])
        disk = cluster._nodes[0].disk
        assert isinstance(disk, MemoryDisk)
        disk.faults = (*disk.faults, slow)
        cluster._run(delete_topics(cluster._asks(), names), "topics to go")
        assert begun.wait(20)
        (works,) = [each for each in set(threading.enumerate()) - before if each.name.startswith("io ")]
    works.join(20)
    assert not works.is_alive() and len(renamed) < count
    assert not [each for each in caplog.records if "failed" in each.getMessage()]


# The disk in memory for nodes with threads: its limit, its count of bytes, and threads that share a file.


def disk_of(bytes_max: int) -> MemoryDisk:
    disk = MemoryDisk(random.Random(1), bytes_max, lambda: 7)
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk


def test_it_takes_its_size_and_no_byte_more() -> None:
    disk = disk_of(10)
    file = disk.open_append("/d/a")
    file.append(b"0123456789")
    with pytest.raises(DiskError, match="no space left"):
        file.append(b"x")
    assert (file.size(), disk.free_bytes("/d"), disk.total_bytes("/d")) == (10, 0, 10)
    file.truncate(4)
    assert disk.free_bytes("/d") == 6
    write_atomically(disk, "/d/b", b"abc")
    write_atomically(disk, "/d/b", b"de")
    assert disk.free_bytes("/d") == 4
    disk.remove("/d/a")
    disk.remove("/d/b")
    assert disk.free_bytes("/d") == 10


def test_a_killed_node_writes_nothing_more_and_keeps_what_it_wrote() -> None:
    disk = disk_of(100)
    file = disk.open_append("/d/a")
    file.append(b"synced")
    file.sync()
    disk.sync_directory("/d")
    file.append(b", not")
    disk.killed(power_lost=False)
    with pytest.raises(DiskError, match="killed"):
        file.append(b"x")
    assert read_file(disk, "/d/a") == b"synced, not"
    assert disk.free_bytes("/d") == 100 - len(b"synced, not")


def test_a_power_loss_keeps_what_was_synced() -> None:
    for seed in range(20):
        disk = MemoryDisk(random.Random(seed), 100, lambda: 7)
        disk.make_directory("/d")
        disk.sync_directory("/")
        file = disk.open_append("/d/a")
        file.append(b"synced")
        file.sync()
        disk.sync_directory("/d")
        file.truncate(3)
        file.append(b"then")
        disk.killed(power_lost=True)
        found = read_file(disk, "/d/a")
        assert found == b"synced" or found.startswith(b"syn")


def test_threads_read_and_append_at_the_same_time() -> None:
    disk = disk_of(1 << 24)
    file = disk.open_append("/d/a")
    ended = threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        try:
            while not ended.is_set():
                assert set(file.read_at(0, 1 << 20)) <= {ord("x")}
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(2_000):
        file.append(b"x" * 100)
    ended.set()
    thread.join()
    assert (problems, file.size()) == ([], 200_000)


def test_a_node_that_is_being_killed_writes_nothing_and_gives_its_lock_back() -> None:
    disk = disk_of(100)
    lock = disk.lock("/d")
    file = disk.open_append("/d/a")
    file.append(b"before")
    disk.kill()
    with pytest.raises(DiskError, match="killed"):
        file.append(b"x")
    with pytest.raises(DiskError, match="killed"):
        disk.open_append("/d/b")
    lock.release()
    disk.killed(power_lost=False)
    assert read_file(disk, "/d/a") == b"before" and not disk.exists("/d/b")
    disk.lock("/d")

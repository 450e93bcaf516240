"""KIP-112's system tests and the kills of the requirements and the design, with real processes under load
(S3.31-S3.34).

A producer with acks=all and a consumer run through each failure; at the end every acknowledged message was
read once and in order. `validate` checks the cluster by the criteria of KIP-112.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.clients.admin.replicas import alter_reassignments
from metaquorum.metadata.image import UNASSIGNED
from metaquorum.metadata.image.types import PartitionInfo
from metaquorum.metadata.requests.partitions import WantedReplicas
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.reader import LogReader
from tests.e2e.broken_disks import FaultFile, LoopDisk, prefix_of, why_no_loop_disks
from tests.e2e.cluster import FAST_BROKERS, Cluster, Node
from tests.e2e.data_calls import DataCalls
from tests.e2e.data_traffic import Traffic
from tests.e2e.processes import run_cli
from tests.images import offline_replicas

FAST = {
    "controller": FAST_BROKERS["controller"],
    "broker": {
        **FAST_BROKERS["broker"],
        "replica.lag.time.max.ms": "2000",
        "replica.fetch.backoff.ms": "100",
        "offsets.topic.num.partitions": "1",
    },
}
MIN_ISR_2 = (("min.insync.replicas", "2"),)


class Hurt:
    """A cluster with a file of faults for its brokers' disks."""

    def __init__(self, cluster: Cluster, faults: FaultFile) -> None:
        self.cluster = cluster
        self.faults = faults

    def start(self, node: Node) -> None:
        node.start(environment=self.faults.environment if node.role == "broker" else None)

    def create(self, name: str, partitions: int = 1, *, configs: tuple[tuple[str, str], ...] = ()) -> None:
        self.cluster.create_topic(name, partitions, 3, configs=configs)
        self.wait_in_sync(name)

    def partitions(self, name: str) -> tuple[PartitionInfo, ...]:
        return tuple(self.cluster.partitions(name))

    def broker(self, node_id: int) -> Node:
        return next(node for node in self.cluster.brokers if node.node_id == node_id)

    def leader(self, name: str) -> Node:
        found = self.cluster.wait(
            lambda: [each.leader for each in self.partitions(name)[:1] if each.leader >= 0], "a leader"
        )
        return self.broker(found[0])

    def wait_in_sync(self, name: str, brokers: frozenset[int] = frozenset({0, 1, 2})) -> None:
        """Until every partition has a leader and all its replicas are in sync, in directories that the log
        names."""

        def settled() -> bool:
            return all(
                set(each.isr) == brokers and each.leader >= 0 and UNASSIGNED not in each.directories
                for each in self.partitions(name)
            )

        self.cluster.wait(settled, f"{name} to be in sync on {set(brokers)}")

    def directory_of(self, name: str, node: Node) -> Path:
        """The directory in which a broker keeps partition 0 of a topic. The log may name it, and the replica
        as in sync, before the broker has created it: if a broker has one good directory, the controller knows
        which it is."""
        (path,) = self.cluster.wait(
            lambda: [path for path in node.log_dirs if (path / f"{name}-0").is_dir()],
            f"{name}-0 to lie on {node.name}",
        )
        return path

    def validate(self, name: str, *, offline: set[int], running: set[int]) -> None:
        """S3.31: brokers as expected, and the topic's replicas described as they are."""
        self.cluster.wait_brokers(dict.fromkeys(running, "running"))

        def as_expected() -> bool:
            registrations = self.cluster.registrations()
            (partition,) = self.partitions(name)[:1]
            found = set(offline_replicas(registrations, partition))
            return found == offline and partition.leader not in offline | {-1}

        self.cluster.wait(as_expected, f"{name} to be led, with the offline replicas {offline}")


def move(cluster: Cluster, topic: str, partition: int, replicas: tuple[int, ...]) -> None:
    wanted = WantedReplicas(topic=topic, partition=partition, replicas=replicas)
    (result,) = cluster.kafka(lambda client: alter_reassignments(client, [wanted]))
    assert result.error == 0, result


@pytest.fixture(name="hurt")
def fixture_hurt(tmp_path: Path) -> Iterator[Hurt]:
    with Cluster(tmp_path, controllers=3, brokers=3, properties=FAST, log_dirs=2) as cluster:
        hurt = Hurt(cluster, FaultFile(tmp_path / "faults.json"))
        for node in cluster.nodes:
            hurt.start(node)
        cluster.start()
        yield hurt
        cluster.assert_no_bugs()


def test_a_directory_that_is_bad_when_its_broker_starts(hurt: Hurt) -> None:
    """ST1 (S3.32): the leader is killed, its directory breaks, and it starts without that directory."""
    hurt.create("st1")
    traffic = Traffic(hurt.cluster, "st1").start()
    leader = hurt.leader("st1")
    lost = hurt.directory_of("st1", leader)
    leader.kill()
    hurt.faults.add(lost, "eacces")
    hurt.start(leader)
    hurt.validate("st1", offline={leader.node_id}, running={0, 1, 2})
    traffic.flows()
    assert hurt.leader("st1") is not leader
    # Nothing is recreated in the other directory (S3.6), unlike in Kafka 3.7.0.
    (other,) = [path for path in leader.log_dirs if path != lost]
    assert not (other / "st1-0").exists()
    # The directory is used again at the next start (S3.17), with its data.
    leader.stop()
    hurt.faults.clear()
    hurt.start(leader)
    hurt.wait_in_sync("st1")
    assert hurt.directory_of("st1", leader) == lost
    traffic.finish()


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_directory_that_fails_under_a_running_broker(hurt: Hurt, role: str) -> None:
    """ST2 and ST3 (S3.33, S3.34): its other directory continues to serve, also when it is the last broker."""
    hurt.create("st2")
    traffic = Traffic(hurt.cluster, "st2").start()
    leader = hurt.leader("st2")
    victim = leader if role == "leader" else hurt.broker((leader.node_id + 1) % 3)
    lost = hurt.directory_of("st2", victim)
    hurt.faults.add(lost, "eio")
    hurt.validate("st2", offline={victim.node_id}, running={0, 1, 2})
    traffic.flows()
    assert "is bad" in victim.output() or "failed" in victim.output()
    traffic.finish()
    hurt.create("after")
    assert hurt.directory_of("after", victim) != lost, "new replicas go to good directories (S3.4)"
    second = Traffic(hurt.cluster, "after").start()
    for other in hurt.cluster.brokers:
        if other is not victim:
            other.kill()
    hurt.cluster.wait(lambda: hurt.leader("after") is victim, f"{victim.name} to lead alone")
    second.flows()
    second.finish()


def test_the_last_directory_of_a_broker_moves_its_leaders_with_its_last_word(tmp_path: Path) -> None:
    """Sessions last ten minutes here: only its last heartbeat can move the leaders, or release its id."""
    slow = {**FAST, "controller": {"broker.session.timeout.ms": "600000"}}
    with Cluster(tmp_path, controllers=3, brokers=3, properties=slow, log_dirs=2) as cluster:
        hurt = Hurt(cluster, FaultFile(tmp_path / "faults.json"))
        for node in cluster.nodes:
            hurt.start(node)
        cluster.start()
        hurt.create("orders", configs=MIN_ISR_2)
        traffic = Traffic(cluster, "orders").start()
        leader = hurt.leader("orders")
        for path in leader.log_dirs:
            hurt.faults.add(path, "eio")
        cluster.wait(lambda: not leader.is_running, "the broker to stop")
        cluster.wait_brokers({leader.node_id: "fenced"})
        assert hurt.leader("orders") is not leader
        assert "no log directory is online" in leader.output()
        traffic.flows()
        hurt.faults.clear()
        hurt.start(leader)
        hurt.wait_in_sync("orders")
        traffic.finish()
        cluster.assert_no_bugs()


def test_kills_under_load_lose_and_double_nothing(hurt: Hurt) -> None:
    """kill -9 of a follower, the leader, the active controller, and of all nodes at once."""
    cluster = hurt.cluster
    hurt.create("orders", 3, configs=MIN_ISR_2)
    traffic = Traffic(cluster, "orders", partitions=3).start()
    for which in ("follower", "leader"):
        leader = hurt.leader("orders")
        victim = leader if which == "leader" else hurt.broker((leader.node_id + 1) % 3)
        before = cluster.registrations()[victim.node_id].epoch
        victim.kill()
        traffic.flows()
        hurt.start(victim)
        cluster.wait_new_epoch(victim.node_id, after=before)
        hurt.wait_in_sync("orders")
    active = cluster.leader()
    active.kill()
    traffic.flows()
    hurt.start(active)
    cluster.kill_all(cluster.nodes)
    for node in cluster.nodes:
        hurt.start(node)
    traffic.flows()
    hurt.wait_in_sync("orders")
    traffic.finish()


def test_a_follower_is_cut_off_and_comes_back(hurt: Hurt) -> None:
    """It is stopped, as if partitioned: it leaves the ISR, and rejoins when it has caught up."""
    hurt.create("orders", configs=MIN_ISR_2)
    traffic = Traffic(hurt.cluster, "orders").start()
    leader = hurt.leader("orders")
    frozen = hurt.broker((leader.node_id + 1) % 3)
    frozen.signal(signal.SIGSTOP)
    try:
        hurt.cluster.wait(
            lambda: frozen.node_id not in hurt.partitions("orders")[0].isr, "it to leave the ISR"
        )
        traffic.flows(100)
    finally:
        frozen.signal(signal.SIGCONT)
    hurt.wait_in_sync("orders")
    traffic.finish()


def test_rolling_restart_reassignment_and_deletion_under_load(hurt: Hurt) -> None:
    """No produce fails while every broker is restarted (S1.24) and replicas move; a topic that is deleted
    while a replica of it is offline is removed when its directory returns (S3.21)."""
    cluster = hurt.cluster
    hurt.create("orders", 2, configs=MIN_ISR_2)
    hurt.create("doomed")
    traffic = Traffic(cluster, "orders", partitions=2).start()
    victim = cluster.brokers[0]
    doomed = hurt.directory_of("doomed", victim)
    hurt.faults.add(doomed, "eio")
    hurt.validate("doomed", offline={0}, running={0, 1, 2})
    cluster.delete_topics("doomed")
    traffic.flows()
    hurt.faults.clear()
    for broker in cluster.brokers:
        assert broker.stop() == 0
        hurt.start(broker)
        cluster.wait_brokers({broker.node_id: "running"})
        hurt.wait_in_sync("orders")
        traffic.flows()
    cluster.wait(lambda: not (doomed / "doomed-0").exists(), "the deleted topic's replica to go")
    move(cluster, "orders", 0, (1, 2))
    cluster.wait(lambda: set(hurt.partitions("orders")[0].replicas) == {1, 2}, "the replica to move away")
    traffic.flows()
    cluster.wait(lambda: not any((path / "orders-0").exists() for path in victim.log_dirs), "its files to go")
    move(cluster, "orders", 0, (0, 1, 2))
    hurt.wait_in_sync("orders")
    traffic.flows()
    traffic.finish()


@pytest.mark.skipif(why_no_loop_disks() is not None, reason=f"no disk to cut off: {why_no_loop_disks()}")
def test_power_loss_of_every_broker_at_once_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Every disk loses what was not synced: all brokers are stopped, their file systems shut down without a
    flush, and then they are killed."""
    with Cluster(tmp_path, controllers=1, brokers=3, properties=FAST, log_dirs=1) as cluster:
        disks = {broker.node_id: LoopDisk(broker.log_dirs[0]) for broker in cluster.brokers}
        hurt = Hurt(cluster, FaultFile(tmp_path / "faults.json"))

        def start_all() -> None:
            for node in cluster.nodes:
                if not node.is_running:
                    node.start(prefix_of([disks[node.node_id]]) if node.role == "broker" else ())

        start_all()
        cluster.start()
        hurt.create("orders", 2, configs=MIN_ISR_2)
        traffic = Traffic(cluster, "orders", partitions=2, every_s=0.001).start()
        for _ in range(2):
            traffic.flows(300)
            for broker in cluster.brokers:
                broker.signal(signal.SIGSTOP)
            for broker in cluster.brokers:
                disks[broker.node_id].shut_down(broker.pid)
            cluster.kill_all(cluster.brokers)
            start_all()
            traffic.flows(300)
            hurt.wait_in_sync("orders")
        traffic.finish()
        cluster.assert_no_bugs()


def test_an_unclean_election_loses_what_it_says_and_no_more(hurt: Hurt) -> None:
    cluster, calls = hurt.cluster, DataCalls(hurt.cluster)
    unclean = (("unclean.leader.election.enable", "true"),)
    cluster.create_topic("fast", assignments=((0, 1),), configs=unclean)
    hurt.wait_in_sync("fast", frozenset({0, 1}))
    first, second = hurt.broker(0), hurt.broker(1)
    kept = [b"kept %d" % number for number in range(10)]
    calls.produce_until_taken("fast", kept)
    cluster.wait(lambda: _has(second, "fast", 10), "a copy on the follower")
    second.kill()
    hurt.wait_in_sync("fast", frozenset({0}))
    assert calls.produce_until_taken("fast", [b"lost"] * 5).base_offset == 10
    first.kill()
    cluster.wait_brokers({0: "fenced"})
    hurt.start(second)
    hurt.wait_in_sync("fast", frozenset({1}))
    assert calls.produce_until_taken("fast", [b"after"]).base_offset == 10
    expected = [*enumerate(kept), (10, b"after")]
    assert calls.read_all(second, "fast", up_to=11) == expected
    # The old leader truncates what only it had, and then matches.
    hurt.start(first)
    hurt.wait_in_sync("fast", frozenset({0, 1}))
    second.kill()
    cluster.wait(lambda: hurt.leader("fast") is first, "the old leader to lead again")
    assert calls.read_all(first, "fast", up_to=11) == expected
    told = run_cli("log", "timeline", cluster.leader().metadata_log).stdout
    assert "unclean" in told


def _has(node: Node, topic: str, end_offset: int) -> bool:
    """Whether the broker's own files hold the partition up to there."""
    (path,) = [path / f"{topic}-0" for path in node.log_dirs if (path / f"{topic}-0").is_dir()]
    reader = LogReader(PosixDisk(), str(path))
    try:
        return any(batch.header.next_offset >= end_offset for batch in reader.batches())
    finally:
        reader.close()

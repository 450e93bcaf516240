"""Log directories that break under real brokers: EIO of a real file system, a hang, a missing one; and
replicas that move between them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.broker.replica.placement.moves import LIMIT
from metaquorum.cli.main import main
from metaquorum.metadata.errors import ErrorCode
from metaquorum.storage.partition.replica_directory import CLEAN_SHUTDOWN_FILE as FILE_NAME
from tests.e2e.broken_disks import FaultFile, LoopDisk, prefix_of, why_no_loop_disks
from tests.e2e.cluster import FAST_BROKERS, Cluster, Node
from tests.e2e.data_calls import DataCalls
from tests.e2e.data_traffic import Traffic

HANG_MS = 1_500
FAST = {
    "controller": FAST_BROKERS["controller"],
    "broker": {
        **FAST_BROKERS["broker"],
        "replica.lag.time.max.ms": "3000",
        "replica.fetch.backoff.ms": "100",
        "log.dir.hang.timeout.ms": str(HANG_MS),
    },
}


@pytest.fixture(name="cluster")
def fixture_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, controllers=1, brokers=3, properties=FAST, log_dirs=2) as cluster:
        yield cluster
        cluster.assert_no_bugs()


def values(first: int, end: int) -> list[bytes]:
    return [f"message {number}".encode() for number in range(first, end)]


def make_topic(cluster: Cluster, calls: DataCalls) -> None:
    """`orders`, in sync on all three, with ten records."""
    cluster.create_topic("orders", partitions=1, replicas=3)
    assert calls.produce_until_taken("orders", values(0, 10)).base_offset == 0
    wait_isr(cluster, calls, {0, 1, 2})


def wait_isr(cluster: Cluster, calls: DataCalls, brokers: set[int]) -> None:
    cluster.wait(lambda: set(calls.partition("orders").isr) == brokers, f"orders to be in sync on {brokers}")


def directory_of(calls: DataCalls, node: Node) -> Path:
    """The directory of the node's replica of `orders`."""
    return next(path for path, each in calls.directories(node).items() if each.topics)


def assert_led_elsewhere(cluster: Cluster, calls: DataCalls, node: Node, directory: Path, text: str) -> None:
    """The failed directory's partition has another leader and all its data; its broker keeps running and says
    why."""
    assert calls.produce_until_taken("orders", values(10, 20)).base_offset == 10
    successor = calls.leader("orders")
    assert successor.node_id != node.node_id
    assert calls.read_all(successor, "orders", up_to=20) == list(enumerate(values(0, 20)))
    assert node.is_running
    assert not cluster.registrations()[node.node_id].fenced
    found = calls.directories(node)
    bad = found.pop(directory)
    assert bad.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert bad.error_message is not None
    assert text in bad.error_message
    ((path, good),) = found.items()
    assert (good.error_code, good.topics) == (ErrorCode.NONE, ())
    assert not (path / "orders-0").exists(), "nothing is re-created while a directory is bad (S3.6)"


@pytest.mark.skipif(why_no_loop_disks() is not None, reason=f"no real EIO here: {why_no_loop_disks()}")
def test_a_real_io_error_moves_the_leader_and_a_repaired_disk_comes_back(cluster: Cluster) -> None:
    calls = DataCalls(cluster)
    disks = {node.node_id: [LoopDisk(path) for path in node.log_dirs] for node in cluster.brokers}
    for node in cluster.brokers:
        node.start(prefix_of(disks[node.node_id]))
    cluster.start()
    make_topic(cluster, calls)
    leader = calls.leader("orders")
    directory = directory_of(calls, leader)
    (disk,) = [each for each in disks[leader.node_id] if each.directory == directory]
    disk.shut_down(leader.pid)
    assert_led_elsewhere(cluster, calls, leader, directory, "I/O error")
    # A restart mounts a file system that works: the replica catches up.
    assert leader.stop() == 0
    leader.start(prefix_of(disks[leader.node_id]))
    wait_isr(cluster, calls, {0, 1, 2})
    assert {each.error_code for each in calls.directories(leader).values()} == {ErrorCode.NONE}
    assert calls.produce_until_taken("orders", values(20, 21)).base_offset == 20


def test_a_directory_that_hangs_is_found_and_does_not_hold_up_the_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    calls = DataCalls(cluster)
    faults = {node.node_id: FaultFile(tmp_path / f"faults-{node.node_id}.json") for node in cluster.brokers}
    for node in cluster.brokers:
        node.start(environment=faults[node.node_id].environment)
    cluster.start()
    make_topic(cluster, calls)
    leader = calls.leader("orders")
    directory = directory_of(calls, leader)
    faults[leader.node_id].add(directory, "hang")
    assert_led_elsewhere(cluster, calls, leader, directory, f"has not returned for {HANG_MS} ms")
    assert leader.stop() == 0


def test_a_granted_shutdown_is_clean_while_the_metadata_directory_is_slow(tmp_path: Path) -> None:
    """A call to that directory is under way nearly always, and hangs only when its time is over."""
    fast = {**FAST, "broker": {**FAST["broker"], "log.dir.probe.interval.ms": "50"}}
    with Cluster(tmp_path, controllers=1, brokers=3, properties=fast, log_dirs=1) as cluster:
        faults = FaultFile(tmp_path / "faults.json")
        for node, slow_ms in zip(cluster.brokers, (50, 100, 200), strict=True):
            faults.add(node.data, "slow", ms=slow_ms)
            node.start(environment=faults.environment)
        cluster.start()
        for node in cluster.brokers:
            assert node.stop() == 0, node.output()
            (directory,) = node.log_dirs
            assert (directory / FILE_NAME).exists()


def test_a_broker_starts_without_a_directory_that_is_not_there(cluster: Cluster) -> None:
    calls = DataCalls(cluster)
    cluster.start()
    make_topic(cluster, calls)
    leader = calls.leader("orders")
    directory = directory_of(calls, leader)
    before = cluster.registrations()[leader.node_id].epoch
    leader.kill()
    aside = directory.with_name("aside")
    shutil.move(directory, aside)
    leader.start()
    cluster.wait_new_epoch(leader.node_id, after=before)
    assert calls.produce_until_taken("orders", values(10, 20)).base_offset == 10
    found = calls.directories(leader)
    assert found.pop(directory).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not directory.exists(), "a missing directory is not made anew: its disk may not be mounted"
    (good,) = found.values()
    assert good.topics == ()
    # The disk is there again at the next start.
    assert leader.stop() == 0
    shutil.move(aside, directory)
    leader.start()
    wait_isr(cluster, calls, {0, 1, 2})
    assert calls.read_all(calls.leader("orders"), "orders", up_to=20) == list(enumerate(values(0, 20)))


def test_replicas_move_under_load_and_through_kill_9(cluster: Cluster) -> None:
    """Moves the leader's replica and kills its broker in the middle, then that of the next leader: every
    record is there, in order."""
    calls = DataCalls(cluster)
    cluster.start()
    cluster.create_topic("orders", partitions=1, replicas=3)
    run(cluster, "configs", "alter", "topic", "orders", "--set", "file.delete.delay.ms=1000")
    wait_isr(cluster, calls, {0, 1, 2})
    traffic = Traffic(cluster, "orders").start()
    moved = calls.leader("orders")
    source, target = places(calls, moved)
    told = ("broker", str(moved.node_id))
    run(cluster, "configs", "alter", *told, "--set", f"{LIMIT}=1")
    cluster.wait(lambda: LIMIT in run(cluster, "configs", "describe", *told), "the limit to hold")
    assert "orders-0 is moving" in move(cluster, moved, target)

    def half_done() -> bool:
        found = [part for topic in calls.directories(moved)[target].topics for part in topic.partitions]
        return any(each.is_future_key and each.end_offset > 0 and each.offset_lag > 0 for each in found)

    cluster.wait(half_done, "a part of it to be copied")
    epoch = cluster.registrations()[moved.node_id].epoch
    moved.kill()
    traffic.flows()
    moved.start()
    cluster.wait_new_epoch(moved.node_id, after=epoch)
    cluster.wait(half_done, "the limit to hold again")
    run(cluster, "configs", "alter", *told, "--delete", LIMIT)
    assert f" in {target}\n" in move(cluster, moved, target, "--wait", "90")
    leader = calls.leader("orders")
    _, other = places(calls, leader)
    assert move(cluster, leader, other, "--wait", "90") == f"orders-0 is in {other}\n"
    traffic.flows()
    count = traffic.finish().total
    assert list((target / "orders-0").iterdir())
    cluster.wait(lambda: not [*source.glob("orders-0*")], "the old files to go")
    wait_isr(cluster, calls, {0, 1, 2})
    for broker in (moved, leader):
        cluster.kill_all(each for each in cluster.brokers if each is not broker)
        cluster.wait(lambda alone=broker: calls.leader("orders") is alone, f"{broker.name} to lead")  # type: ignore[misc]
        read = calls.read_all(broker, "orders", up_to=count)
        assert read == [(number, b"0:%d" % number) for number in range(count)]
        cluster.start()
        wait_isr(cluster, calls, {0, 1, 2})


def places(calls: DataCalls, node: Node) -> tuple[Path, Path]:
    """The directory with the node's replica of `orders`, and the other one."""
    source = directory_of(calls, node)
    (target,) = [each for each in node.log_dirs if each != source]
    return source, target


def run(cluster: Cluster, *words: str) -> str:
    bootstrap = ("--bootstrap", cluster.bootstrap_servers, "--timeout", "60")
    result = CliRunner().invoke(main, [*words, *bootstrap])
    assert result.exit_code == 0, result.output
    return result.stdout


def move(cluster: Cluster, node: Node, to: Path, *more: str) -> str:
    return run(
        cluster, "log-dirs", "move", "orders", "0", "--broker", str(node.node_id), "--to", str(to), *more
    )


def test_without_its_metadata_directory_a_broker_stops_in_order(cluster: Cluster) -> None:
    cluster.start()
    broker = cluster.brokers[0]
    shutil.rmtree(broker.data)
    assert broker.wait_exit() == 1
    assert "the metadata log's directory failed" in broker.lines()[-1]

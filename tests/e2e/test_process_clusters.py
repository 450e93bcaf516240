"""Test clusters whose nodes are processes: real kills and pauses, and an end that follows their owner's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from metaquorum.cli.local.process_cluster import REFUSED, ProcessCluster
from metaquorum.platforms import process_runs
from metaquorum.testing import Cluster, ClusterError
from tests.e2e.processes import ENVIRONMENT, wait_until

pytestmark = pytest.mark.e2e

OWNER = """
import json, multiprocessing, sys, time
from metaquorum.testing import Cluster
cluster = Cluster(mode="processes").start()
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
child.start()
cluster.pause(0)
print(json.dumps([list(cluster.pids.values()), str(cluster._shape.directory), child.pid]), flush=True)
time.sleep(60)
"""


@pytest.fixture(name="cluster", scope="module")
def fixture_cluster() -> Iterator[ProcessCluster]:
    with Cluster(brokers=2, controllers=1, mode="processes", timeout_s=60) as cluster:
        assert isinstance(cluster, ProcessCluster)
        yield cluster


def sent(cluster: Cluster, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(topic, value)
    assert producer.flush(60) == 0


def test_every_node_is_a_process_and_keeps_what_was_acknowledged(cluster: ProcessCluster) -> None:
    pids = cluster.pids
    assert {*pids} == {0, 1, 3000} and len({*pids.values()}) == 3
    assert cluster.active_controller == 3000
    topic = cluster.create_topic("orders", 1)
    cluster.wait_for_full_isr(topic)
    sent(cluster, topic, "a")
    with cluster.kill(cluster.leader(topic, 0)) as fault:
        assert "was killed" in fault.text and len(cluster.pids) == 2
    assert cluster.pids != pids and len(cluster.pids) == 3
    assert [each.value for each in cluster.messages(topic)] == [b"a"]
    assert any("was killed" in line for line in cluster.timeline())
    cluster.clean()


def test_a_paused_node_is_stopped_and_goes_on(cluster: ProcessCluster) -> None:
    pid = cluster.pids[1]
    with cluster.pause(1):
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "the process to be stopped")
        with pytest.raises(ClusterError, match="broker-1 is paused already"):
            cluster.pause(1)
        with pytest.raises(ClusterError, match="broker-1 is paused: resume it first"):
            cluster.stop(1)
        cluster.resume(1)
        assert cluster.pids[1] == pid and psutil.Process(pid).status() != psutil.STATUS_STOPPED
    with pytest.raises(ClusterError, match="broker-1 is not paused"):
        cluster.resume(1)


def test_a_node_with_a_limit_of_memory_has_it_until_it_heals(cluster: ProcessCluster) -> None:
    process = psutil.Process(cluster.pids[0])
    with cluster.limit_memory(0, more_bytes=64 << 20):
        limit = process.rlimit(psutil.RLIMIT_DATA)[0]
        assert 64 << 20 <= limit < process.memory_info().data + (128 << 20)
    assert process.rlimit(psutil.RLIMIT_DATA)[0] == psutil.RLIM_INFINITY


def test_a_node_that_lost_its_disk_gets_the_messages_again(cluster: ProcessCluster) -> None:
    topic = cluster.create_topic("copied", 1)
    sent(cluster, topic, "a")
    with cluster.lose_disk(0):
        assert not list((Path(str(cluster._shape.directory)) / "broker-0" / "data").glob("copied-*"))
    cluster.wait_for_full_isr(topic)
    assert [each.value for each in cluster.messages(topic)] == [b"a"]
    cluster.clean()


def test_nothing_is_left_after_the_end() -> None:
    with Cluster(mode="processes", timeout_s=60) as cluster:
        assert isinstance(cluster, ProcessCluster)
        directory, pids = Path(str(cluster._shape.directory)), [*cluster.pids.values()]
        assert directory.is_dir() and cluster.directory is None
    assert not directory.exists() and not any(map(process_runs, pids))
    with pytest.raises(ClusterError, match="closed"):
        cluster.create_topic("late")


def test_a_given_directory_stays_as_one_of_local_up(tmp_path: Path) -> None:
    with Cluster(mode="processes", directory=tmp_path, timeout_s=60) as cluster:
        assert cluster.directory == str(tmp_path)
    assert (tmp_path / "cluster.json").is_file() and list(tmp_path.glob("*/process.log"))
    assert not list(tmp_path.glob("*/process.json"))


def test_nodes_end_with_their_owner_even_paused_and_with_a_fork_of_it() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=ENVIRONMENT)
    assert owner.stdout is not None
    pids, directory, fork = json.loads(owner.stdout.readline())
    try:
        assert all(map(process_runs, pids)) and os.path.isdir(directory)
        owner.kill()
        owner.wait()
        gone: Callable[[], bool] = lambda: not any(map(runs, pids)) and not os.path.exists(directory)  # noqa: E731
        wait_until(gone, "the nodes and their directory to go")
        assert runs(fork)
    finally:
        os.kill(fork, signal.SIGKILL)
        owner.stdout.close()


def runs(pid: int) -> bool:
    """Whether it is there, and not only its exit code."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_nodes_in_this_process_can_do_names_that_mode(name: str) -> None:
    assert callable(getattr(Cluster, name)), f"there is no {name} to refuse"
    with pytest.raises(ClusterError, match=rf'^{name} .*use Cluster\(mode="in-process"\)$'):
        getattr(Cluster(mode="processes"), name)(0)


@pytest.mark.parametrize("wish", [{"clock": "manual"}, {"version": "3.6"}, {"disk_bytes": 1}], ids=str)
def test_what_only_that_mode_has_is_refused_at_once(wish: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match=r'use Cluster\(mode="in-process"\)'):
        Cluster(mode="processes", **wish)


def test_the_clock_of_processes_does_not_move() -> None:
    with pytest.raises(ClusterError, match="to move the clock needs nodes in the process"):
        Cluster(mode="processes").clock.advance(seconds=1)


def test_nodes_in_this_process_cannot_be_paused() -> None:
    with pytest.raises(ClusterError, match='write "in-process" or "processes"'):
        Cluster(mode="docker")
    with Cluster() as cluster:
        for call in (cluster.pause, cluster.resume, lambda node: cluster.limit_memory(node, more_bytes=1)):
            with pytest.raises(ClusterError, match=r'combined-0 .*use Cluster\(mode="processes"\)$'):
                call(0)

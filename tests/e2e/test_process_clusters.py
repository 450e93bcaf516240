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
from msgspec.structs import replace

from metaquorum.cli.local.process_cluster import REFUSED, ProcessCluster
from metaquorum.clients.admin.topics import look_up_topics
from metaquorum.platforms import process_runs
from metaquorum.testing import Chaos, Cluster, ClusterError
from metaquorum.testing.interception import Intercepted
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


def test_faults_within_each_other_heal_in_any_order(cluster: ProcessCluster) -> None:
    paused, isolated = cluster.pause(1), cluster.isolate(1)
    killed, lost = cluster.kill(1), cluster.lose_disk(1)
    for fault in (killed, paused, lost):
        assert 1 not in cluster.pids
        fault.heal()
    assert 1 in cluster.pids, "it runs, although it cannot serve"
    isolated.heal()
    topic = cluster.create_topic("healed", 1, configs={"min.insync.replicas": 2})
    cluster.wait_for_full_isr(topic)
    sent(cluster, topic, "a")
    cluster.clean()


def test_racks_are_those_of_the_processes() -> None:
    racks = ("a", "b", "a")
    with Cluster(brokers=3, controllers=1, racks=racks, mode="processes", timeout_s=60) as cluster:
        cluster.create_topic("spread", 4, 2)
        described = cluster._run(look_up_topics(cluster._asks(), ("spread",)), "topic spread")
        placed = [{racks[each] for each in part.replicas} for part in described[0].partitions]
        assert placed == [{"a", "b"}] * 4
        known = cluster._run(cluster._asks().brokers(), "brokers")
        assert [known[each].rack for each in (0, 1, 2)] == ["a", "b", "a"]


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


def delivered(
    cluster: Cluster, topic: str, value: str, timeout_ms: int = 30_000, **config: Any
) -> str | None:
    """The name of a message's error; None: it was acknowledged."""
    found: list[Any] = []
    common = {"bootstrap.servers": cluster.bootstrap_servers, "message.timeout.ms": timeout_ms}
    producer = Producer({**common, **config})
    producer.produce(topic, value, on_delivery=lambda error, _: found.append(error and error.name()))
    producer.flush(60)
    return found[0]  # type: ignore[no-any-return]


def test_requests_are_met_in_other_processes_by_name_by_a_predicate_and_by_a_function(
    cluster: ProcessCluster,
) -> None:
    topic = cluster.create_topic("met", 1)
    with cluster.fault("Produce", topic=topic, error="TOPIC_AUTHORIZATION_FAILED", times=1) as refused:
        assert delivered(cluster, topic, "refused") == "TOPIC_AUTHORIZATION_FAILED" and refused.hits == 1
        assert delivered(cluster, topic, "a") is None
    bodies: list[Any] = []
    with cluster.observe("Produce", predicate=lambda body: bool(bodies.append(body) or True)) as all_of_them:
        with cluster.fault("Produce", lose_answer=True, times=1) as lost:
            assert delivered(cluster, topic, "b", **{"enable.idempotence": True}) is None
        assert lost.hits == 1 and all_of_them.hits == len(bodies) == 2 and bodies[0].acks == -1
    seen: list[Intercepted] = []

    def later(request: Intercepted) -> Any:
        seen.append(request)
        return lambda answer: replace(answer, throttle_time_ms=1)

    with cluster.intercept("Produce", later):
        assert delivered(cluster, topic, "c", **{"client.id": "billing"}) is None
    assert [(each.client_id, each.node) for each in seen] == [("billing", cluster.leader(topic, 0))]
    assert delivered(cluster, topic, "d") is None and len(seen) == 1 and len(bodies) == 2
    assert [each.value for each in cluster.messages(topic)] == [b"a", b"b", b"c", b"d"]
    with cluster.refuse("billing", topic):
        assert delivered(cluster, topic, "e", **{"client.id": "billing"}) == "TOPIC_AUTHORIZATION_FAILED"
    cluster.clean()


def test_the_network_between_processes_is_cut_delayed_and_dropped(cluster: ProcessCluster) -> None:
    topic = cluster.create_topic("followed", 1)
    cluster.wait_for_full_isr(topic)
    leader = cluster.leader(topic, 0)
    with cluster.cut("billing", leader):
        assert delivered(cluster, topic, "never", 500, **{"client.id": "billing"}) == "_MSG_TIMED_OUT"
        assert delivered(cluster, topic, "a") is None
    with cluster.delay(0, 1, ms=100) as late, cluster.isolate(1 - leader) as isolated:
        assert delivered(cluster, topic, "b") is None  # once the follower has left the ISR
        late.heal()
    cluster.wait_for_full_isr(topic)
    assert cluster.drop_connections(0, 1) > 0
    assert delivered(cluster, topic, "c") is None
    assert [each.value for each in cluster.messages(topic)] == [b"a", b"b", b"c"]
    events = [each.text for each in cluster.events]
    assert f"healed: {isolated.text}" in events and any("connections between" in each for each in events)
    cluster.clean()


def test_a_node_that_starts_meets_the_faults_in_force_and_a_paused_one_later(cluster: ProcessCluster) -> None:
    topic = cluster.create_topic("again", 1)
    cluster.wait_for_full_isr(topic)
    leader = cluster.leader(topic, 0)
    with cluster.kill(leader), cluster.isolate(1 - leader):
        early = cluster.observe("Produce", topic=topic)
    cluster.wait_for_full_isr(topic)
    if cluster.leader(topic, 0) != leader:
        cluster.move_leader(topic, to=leader)
    with cluster.pause(leader):
        late = cluster.observe("Produce", topic=topic)
    assert delivered(cluster, topic, "a") is None
    assert (early.hits, late.hits) == (1, 1)
    cluster.clean()


def test_disks_of_processes_are_slow_full_and_failing_until_they_heal(cluster: ProcessCluster) -> None:
    topic = cluster.create_topic("stored", 1)
    cluster.wait_for_full_isr(topic)
    follower = 1 - cluster.leader(topic, 0)
    with cluster.disk_slow(follower, delay_s=0.01):
        assert delivered(cluster, topic, "a") is None
    with cluster.disk_full(follower):
        assert delivered(cluster, topic, "b") is None  # by the leader alone
        wait_until(lambda: follower not in cluster.pids, "a broker without its metadata log to end")
        assert "no space" in cluster._what_nodes_do()
    assert follower in cluster.pids
    cluster.wait_for_full_isr(topic)
    cluster.clean()


def test_a_disk_of_earlier_comes_back(cluster: ProcessCluster) -> None:
    topic = cluster.create_topic("earlier", 1)
    cluster.wait_for_full_isr(topic)
    sent(cluster, topic, "a")
    follower = 1 - cluster.leader(topic, 0)
    copy = cluster.copy_disk(follower)
    sent(cluster, topic, "b")
    with cluster.restore_disk_from(copy) as restored:
        assert follower not in cluster.pids and "has its disk of" in restored.text
    cluster.wait_for_full_isr(topic)
    cluster.move_leader(topic, to=follower)
    assert [each.value for each in cluster.messages(topic)] == [b"a", b"b"]
    with Cluster() as other, pytest.raises(ClusterError, match="of a cluster of processes: restore it there"):
        other.restore_disk_from(copy._replace(node=0))
    cluster.run_retention()
    cluster.clean()


def test_chaos_and_an_older_release(tmp_path: Path) -> None:
    chaos = Chaos(kills=1, cuts=1, slow_disks=1, lasts_s=(0.1, 0.2), pause_s=(0, 0.1))
    shape: dict[str, Any] = {"mode": "processes", "version": "3.6", "chaos": chaos, "timeout_s": 90}
    with Cluster(brokers=2, controllers=1, **shape) as cluster:
        cluster.wait_for_chaos()
        assert sum("was killed" in each.text for each in cluster.events) == 2
        seen: list[Intercepted] = []
        topic = cluster.create_topic("old")
        with cluster.intercept("Produce", seen.append):
            assert delivered(cluster, topic, "a") is None
        assert {each.version for each in seen} == {9}


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


@pytest.mark.parametrize("wish", [{"clock": "manual"}, {"disk_bytes": 1}], ids=str)
def test_what_only_that_mode_has_is_refused_at_once(wish: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match=r'use Cluster\(mode="in-process"\)'):
        Cluster(mode="processes", **wish)


def test_the_clock_of_processes_does_not_move() -> None:
    with pytest.raises(ClusterError, match="to move the clock needs nodes in the process"):
        Cluster(mode="processes").clock.advance(seconds=1)


def test_what_is_not_synced_is_lost_in_process_only(cluster: ProcessCluster) -> None:
    with pytest.raises(ClusterError, match=r'a power loss needs .*use Cluster\(mode="in-process"\)'):
        cluster.kill(0, power_lost=True)


def test_nodes_in_this_process_cannot_be_paused() -> None:
    with pytest.raises(ClusterError, match='write "in-process" or "processes"'):
        Cluster(mode="docker")
    with Cluster() as cluster:
        for call in (cluster.pause, cluster.resume, lambda node: cluster.limit_memory(node, more_bytes=1)):
            with pytest.raises(ClusterError, match=r'combined-0 .*use Cluster\(mode="processes"\)$'):
                call(0)

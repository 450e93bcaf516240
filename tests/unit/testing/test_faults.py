"""What a test does to a cluster: nodes, disks and the clock; each fault is an event and heals."""

from __future__ import annotations

import selectors
import time
from typing import Any

import pytest
from confluent_kafka import Producer

from metaquorum.testing import Cluster, ClusterError
from tests.unit.testing.test_cluster import consumed, produced


def test_another_broker_leads_when_one_is_killed_and_it_comes_back() -> None:
    with Cluster(brokers=3) as cluster:
        topic = cluster.create_topic("orders", configs={"min.insync.replicas": 2})
        produced(cluster.bootstrap_servers, topic, ["a"])
        first = cluster.leader(topic, 0)
        with cluster.kill(first) as fault:
            assert cluster.active_controller != first
            cluster.clock.advance(seconds=8)
            assert cluster.leader(topic, 0) != first
            assert produced(cluster.bootstrap_servers, topic, ["b"]) == [1]
            with pytest.raises(ClusterError, match=f"combined-{first} is down already"):
                cluster.kill(first)
        assert not fault.is_in_force
        assert consumed(cluster.bootstrap_servers, topic, 2) == ["a", "b"]
        name = f"combined-{first}"
        texts = [event.text for event in cluster.events]
        assert texts == [f"{name} was killed", f"{name} was started", f"healed: {name} was killed"]


def test_what_a_leader_had_is_read_from_the_next_one_if_it_was_just_killed() -> None:
    """While nobody knows that it is dead, requests are for it; then they go to the new leader."""
    sessions = {"broker.session.timeout.ms": 1000, "broker.heartbeat.interval.ms": 250}
    with Cluster(brokers=3, properties=sessions) as cluster:
        topic = cluster.create_topic("orders", configs={"min.insync.replicas": 1})
        produced(cluster.bootstrap_servers, topic, ["a", "b"])
        cluster.commit_offsets("billing", topic, 1)
        with cluster.kill(cluster.leader(topic, 0)):
            assert cluster.lag("billing") == {(topic, 0): 1}
        with cluster.kill(cluster.leader(topic, 0)):
            assert [each.value for each in cluster.messages(topic)] == [b"a", b"b"]


@pytest.mark.parametrize("power_lost", [False, True])
def test_acknowledged_messages_survive_the_end_of_the_only_node(power_lost: bool) -> None:
    properties = {"log.flush.before.ack": True}
    with Cluster(properties=properties) as cluster:
        topic = cluster.create_topic("orders")
        assert produced(cluster.bootstrap_servers, topic, ["a", "b"]) == [0, 1]
        with cluster.kill(0, power_lost=power_lost):
            pass
        assert consumed(cluster.bootstrap_servers, topic, 2) == ["a", "b"]
        with cluster.stop(0):
            assert "shut" in cluster._nodes[0].last_words or cluster._nodes[0].last_words
        cluster.restart(0)
        assert produced(cluster.bootstrap_servers, topic, ["c"]) == [2]


def test_a_full_directory_is_another_brokers_chance() -> None:
    with Cluster(brokers=2, controllers=1, log_dirs=2) as cluster:
        topic = cluster.create_topic("orders", configs={"min.insync.replicas": 1})
        first = cluster.leader(topic, 0)
        for log_dir in (0, 1):
            cluster.disk_full(first, log_dir)
        assert len(produced(cluster.bootstrap_servers, topic, ["x" * 1000])) == 1
        assert cluster.leader(topic, 0) != first


@pytest.mark.parametrize("way", ["read_only", "fails"])
def test_a_broken_directory_is_used_again_once_it_heals(way: str) -> None:
    with Cluster(brokers=1, controllers=1, log_dirs=2) as cluster:
        topics = topics_in_all_directories(cluster)
        broken = (
            cluster.disk_read_only(0, 0) if way == "read_only" else cluster.disk_fails(0, 0, after_bytes=10)
        )
        errors = [delivered(cluster, topic) for topic in topics]
        assert None in errors and len(set(errors)) == 2, "one directory of two is gone"
        broken.heal()
        assert {delivered(cluster, topic) for topic in topics} == {None}


def test_cleaning_repairs_a_directory_that_a_broker_gave_up() -> None:
    with Cluster(brokers=1, controllers=1, log_dirs=2) as cluster:
        topics_in_all_directories(cluster)
        healed = cluster.disk_fails(0, 0)
        assert None in {delivered(cluster, topic) for topic in topics_of(cluster)}
        cluster.wait_until(lambda: len(directories(cluster)) == 1, "the directory to be given up")
        assert healed.end() and len(directories(cluster)) == 1, "a disk that works again is not used yet"
        cluster.clean()
        assert len(directories(cluster)) == 2


def topics_of(cluster: Cluster) -> list[str]:
    image = cluster._nodes[0].image
    return [] if image is None else [each.name for each in image.topics.all()]


def directories(cluster: Cluster) -> tuple[bytes, ...]:
    """Those that the only broker uses."""
    image = cluster._nodes[0].image
    assert image is not None
    return tuple(image.brokers[0].directories)


def topics_in_all_directories(cluster: Cluster) -> list[str]:
    """A broker draws the directory of a new partition: as many topics as it takes."""
    node, topics = cluster._nodes[0], list[str]()
    while len(topics) < 2 or not all(
        any(name.startswith("orders-") for name in node.disk.list_directory(str(path)))
        for path in node.config.log_dirs
    ):
        topics.append(cluster.create_topic(f"orders-{len(topics)}"))
        cluster.wait_for_full_isr(topics[-1])
        assert delivered(cluster, topics[-1]) is None
    return topics


def delivered(cluster: Cluster, topic: str) -> str | None:
    """The name of the error of a message; None if it was acknowledged."""
    found: list[str | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "message.timeout.ms": 3000})
    producer.produce(topic, "a" * 100, on_delivery=lambda error, _: found.append(error and error.name()))
    producer.flush(20)
    return found[0]


def test_a_slow_disk_delays_and_is_released_when_it_heals() -> None:
    with Cluster() as cluster:
        topic = cluster.create_topic("orders")
        acknowledged: list[Any] = []
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        with cluster.disk_slow(0, delay_s=600):
            producer.produce(topic, "a", on_delivery=lambda error, message: acknowledged.append(error))
            assert producer.flush(0.5) == 1 and acknowledged == []
        producer.flush(20)
        assert acknowledged == [None]


def test_a_slow_disk_of_one_node_does_not_slow_the_others() -> None:
    with Cluster(brokers=3) as cluster:
        slow = next(each for each in cluster.controllers if each != cluster.active_controller)
        with cluster.disk_slow(slow, delay_s=600):
            cluster.create_topic("orders")
            assert cluster._nodes[slow].is_up
        cluster.wait_for_full_isr("orders")


def test_what_cannot_be_done_is_one_line() -> None:
    with Cluster() as cluster:
        for attempt, text in (
            (lambda: cluster.kill(7), "no node 7: it has 0"),
            (lambda: cluster.pause(0), "mode="),
            (lambda: cluster.disk_full(0, 3), "no log_dir 3"),
            (lambda: cluster.clock.advance(seconds=-1), "forward only"),
            (cluster.clock.advance, "forward only"),
            (lambda: cluster.clock.advance(seconds=float("nan")), "forward only"),
            (lambda: cluster.clock.advance(days=10**9), "by up to 100 years"),
            (lambda: cluster.disk_slow(0, delay_s=-1), "not negative"),
            (lambda: cluster.disk_fails(0, after_bytes=-1), "not negative"),
            (lambda: cluster.leader("none", 0), "no partition none-0"),
        ):
            with pytest.raises(ClusterError, match=text) as caught:
                attempt()
            assert "\n" not in str(caught.value)
    with pytest.raises(ClusterError, match="manual"):
        Cluster(clock="stopped")
    with pytest.raises(ClusterError, match="timeout_s=0: give"):
        Cluster(timeout_s=0)
    with pytest.raises(ClusterError, match="no space left on the disk in memory"):
        Cluster(disk_bytes=10).start()


def test_a_directory_below_a_file_is_one_line(tmp_path: Any) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="a part of the path is a file"):
        Cluster(directory=tmp_path / "file" / "cluster").start()


def test_a_directory_on_the_real_disk_has_no_faults(tmp_path: Any) -> None:
    with Cluster(directory=tmp_path / "c") as cluster:
        for attempt in (lambda: cluster.disk_full(0), lambda: cluster.kill(0, power_lost=True)):
            with pytest.raises(ClusterError, match="leave `directory` out"):
                attempt()


@pytest.mark.parametrize("clock", ["real", "manual"])
def test_a_week_of_retention_passes_at_once(clock: str, caplog: pytest.LogCaptureFixture) -> None:
    configs = {"retention.ms": 7 * 24 * 3_600_000, "file.delete.delay.ms": 1000}
    with Cluster(clock=clock) as cluster:
        topic = cluster.create_topic("orders", configs=configs)
        produced(cluster.bootstrap_servers, topic, ["old"])
        before_ms = cluster.clock.wall_ms
        cluster.clock.advance(days=8)
        assert "stalled" not in caplog.text, "time that a test moves is not a pause of the process"
        assert cluster.clock.wall_ms - before_ms >= 8 * 24 * 3_600_000
        assert produced(cluster.bootstrap_servers, topic, ["new"]) == [1]
        assert consumed(cluster.bootstrap_servers, topic, 1) == ["new"]


def test_a_manual_clock_waits_for_the_test() -> None:
    with Cluster(brokers=2, clock="manual") as cluster:
        assert cluster.clock.wall_ms == cluster.clock.wall_ms
        topic = cluster.create_topic("orders")
        assert produced(cluster.bootstrap_servers, topic, ["a"]) == [0]


def test_cleaning_removes_topics_and_groups_and_heals() -> None:
    with Cluster(brokers=2) as cluster:
        topic = cluster.create_topic("orders")
        produced(cluster.bootstrap_servers, topic, ["a"])
        consumed(cluster.bootstrap_servers, topic, 1)
        faults = [cluster.disk_slow(1, delay_s=0.001), cluster.kill(0)]
        cluster.heal_all()
        assert not any(each.is_in_force for each in faults)
        assert sum(event.text.startswith("healed: ") for event in cluster.events) == len(faults)
        assert len(cluster.consume_all(topic)) == 1
        fault = cluster.disk_slow(1, delay_s=0.001)
        cluster.clean()
        assert not fault.is_in_force
        assert cluster.create_topic("orders") == "orders"
        assert consumed(cluster.bootstrap_servers, topic, 0) == []
        assert produced(cluster.bootstrap_servers, topic, ["b"]) == [0]


class FewAtATime(selectors.DefaultSelector):
    """A machine on which nodes get little done in any time: one socket or thread a turn of the loop."""

    is_slow = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout)
        if self.is_slow:
            time.sleep(0.001)
        return found[:1] if self.is_slow else found


def test_the_clock_waits_for_nodes_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "DefaultSelector", FewAtATime)
    with Cluster(brokers=2, controllers=3, clock="manual") as cluster:
        epochs = [node.process.raft.epoch for node in cluster._nodes.values() if node.process]
        monkeypatch.setattr(FewAtATime, "is_slow", True)
        cluster.clock.advance(seconds=3)
        monkeypatch.setattr(FewAtATime, "is_slow", False)
        assert epochs == [node.process.raft.epoch for node in cluster._nodes.values() if node.process]
        assert cluster._is_whole()


def leaderships(cluster: Cluster, topic: str) -> tuple[int, list[int]]:
    """The epochs of the quorum, and of the leaders of a topic."""
    parts = cluster._partitions_of(topic) or ()
    epochs = [node.process.raft.epoch for node in cluster._nodes.values() if node.process]
    return max(epochs), [part.leader_epoch for part in parts]  # type: ignore[attr-defined]


def test_time_that_a_test_has_pass_is_exact_and_ends_no_leadership_for_a_while() -> None:
    with Cluster(brokers=3) as cluster:
        topic = cluster.create_topic("orders", 3)
        before = leaderships(cluster, topic)
        for seconds in (9, 80):
            begun_ms, begun_s = cluster.clock.wall_ms, time.monotonic()
            cluster.clock.advance(seconds=seconds)
            moved_s = (cluster.clock.wall_ms - begun_ms) / 1000
            assert moved_s == pytest.approx(seconds, abs=0.1), (
                f"in {time.monotonic() - begun_s:.1f} s of real time"
            )
        assert leaderships(cluster, topic) == before


def test_no_way_of_any_length_costs_an_election_or_a_session() -> None:
    with Cluster(brokers=3, controllers=3, clock="manual") as cluster:  # of a machine however busy
        topic = cluster.create_topic("orders", 3)
        before = leaderships(cluster, topic)
        for way in ({"seconds": 91}, {"hours": 2}, {"days": 8}, {"days": 1000}):
            cluster.clock.advance(**way)  # type: ignore[arg-type]
            assert leaderships(cluster, topic) == before, way
            assert " fenced: " not in "".join(cluster.timeline())


def test_a_long_way_still_has_what_a_fault_causes() -> None:
    with Cluster(brokers=3, controllers=3, clock="manual") as cluster:
        topic = cluster.create_topic("orders", 3)
        leader, active = cluster.leader(topic, 0), cluster.active_controller
        epoch, leader_epochs = leaderships(cluster, topic)
        with cluster.kill(leader), cluster.kill(active):
            cluster.clock.advance(days=8)
            assert cluster.leader(topic, 0) != leader and cluster.active_controller != active
            assert leaderships(cluster, topic)[1][0] == leader_epochs[0] + 1
            elected = leaderships(cluster, topic)
            assert elected[0] > epoch
            cluster.clock.advance(days=8)
            assert leaderships(cluster, topic) == elected
        assert len(produced(cluster.bootstrap_servers, topic, ["a"])) == 1


def test_a_week_ends_no_leadership_of_a_single_node_and_closes_no_connection() -> None:
    with Cluster() as cluster:
        topic = cluster.create_topic("orders", 3)
        before = leaderships(cluster, topic)
        cluster.clock.advance(days=7)
        assert leaderships(cluster, topic) == before

"""A quorum that is restarted, rolled, left by its leader, or rejoined by a node that was down for a long
time.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.metadata.requests.common import DescribeQuorumResponse
from tests.e2e.cluster import FAST_BROKERS, Cluster, Node, log_bytes, log_end_offset, log_start_offset
from tests.e2e.processes import run_cli, wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(
        tmp_path_factory.mktemp("restart"), controllers=3, brokers=2, properties=FAST_BROKERS
    ) as running:
        running.start()
        yield running
        running.assert_no_bugs()


@pytest.mark.parametrize("how", ["SIGTERM", "kill -9"])
def test_a_restart_of_everything_keeps_everything(cluster: Cluster, how: str) -> None:
    for number in range(5):
        cluster.create_topic(f"kept-{how[:4]}-{number}", partitions=number + 1)
    topics, before, quorum = cluster.topics(), cluster.registrations(), cluster.quorum()
    if how == "SIGTERM":
        assert set(cluster.stop().values()) == {0}
    else:
        cluster.kill_all(cluster.nodes)
    for node in cluster.controllers:
        node.start()
    cluster.wait_leader(after_epoch=quorum.leader_epoch)
    # A new leader knows only its durable lower bound until a majority has the first record of its epoch.
    cluster.wait(lambda: cluster.quorum().high_watermark > quorum.high_watermark, "a commit of the new epoch")
    assert cluster.topics() == topics
    kept = cluster.registrations()
    assert {one.broker_id: (one.epoch, one.incarnation_id, one.directories) for one in kept.values()} == {
        one.broker_id: (one.epoch, one.incarnation_id, one.directories) for one in before.values()
    }
    for node in cluster.brokers:
        node.start()
    for broker_id, known in before.items():
        registration = cluster.wait_new_epoch(broker_id, after=known.epoch)
        assert registration.incarnation_id != before[broker_id].incarnation_id
        assert registration.directories == before[broker_id].directories
    assert cluster.topics() == topics


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_a_node_that_still_starts_ends_in_order(cluster: Cluster, role: str) -> None:
    leader_id = cluster.wait_leader().leader_id
    node = next(one for one in cluster.nodes if one.role == role and one.node_id != leader_id)
    assert node.stop() == 0
    node.start()
    status = Path(f"/proc/{node.pid}/status")
    wait_until(lambda: _catches(status.read_text(), signal.SIGTERM), f"{node.name} to take SIGTERM")
    assert node.stop() == 0
    assert "SIGTERM" in node.output()
    node.start()
    node.wait_for_line("listens on")


def _catches(status: str, number: signal.Signals) -> bool:
    """By the line `SigCgt:` of a process's status: a bit for each signal that it handles."""
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_a_restarted_leader_does_not_resume_its_epoch(cluster: Cluster) -> None:
    quorum = cluster.quorum()
    leader = cluster.controller(quorum.leader_id)
    leader.kill()
    leader.start()
    leader.wait_for_line(f"epoch {quorum.leader_epoch}: resigned")
    after = cluster.wait_leader(after_epoch=quorum.leader_epoch)
    assert after.leader_epoch > quorum.leader_epoch
    assert f"epoch {quorum.leader_epoch}: leader" not in leader.output()
    cluster.wait_caught_up(leader)
    assert leader.quorum_state().epoch >= after.leader_epoch


def test_the_only_voter_does_not_resume_its_epoch(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=1, brokers=1) as cluster:
        cluster.start()
        cluster.create_topic("kept")
        topics = cluster.topics()
        epochs = [cluster.quorum().leader_epoch]
        for _ in range(2):
            cluster.controllers[0].kill()
            cluster.controllers[0].start()
            epochs.append(cluster.wait_leader().leader_epoch)
        assert epochs == sorted(set(epochs))
        assert cluster.topics() == topics
        cluster.assert_no_bugs()


def test_sigterm_of_the_active_controller_hands_over(cluster: Cluster) -> None:
    """The others would wait for a silent leader far longer than this test waits for a new one, and the old
    one logs that it resigned before it ended."""
    patience_s = 120
    patient = {"controller.quorum.fetch.timeout.ms": str(patience_s * 1000)}
    leader = cluster.leader()
    others = [node for node in cluster.controllers if node is not leader]
    for node in others:
        assert node.stop() == 0
        node.set_properties(patient)
        node.start()
        cluster.wait_caught_up(node)
    before = cluster.quorum()
    assert before.leader_id == leader.node_id
    began = time.monotonic()
    assert leader.stop() == 0
    after = cluster.wait_leader(after_epoch=before.leader_epoch)
    assert time.monotonic() - began < patience_s / 4
    assert after.leader_id in {node.node_id for node in others}
    resigned = leader.wait_for_line(f"epoch {before.leader_epoch}: resigned")
    lines = leader.lines()
    assert lines.index(resigned) > lines.index(next(line for line in lines if "SIGTERM" in line))
    assert leader.last_line().endswith(f"controller {leader.node_id}: stopped on request")
    leader.start()
    cluster.wait_caught_up(leader)
    for node in others:
        node.set_properties(dict.fromkeys(patient))
        assert node.stop() == 0
        node.start()
        cluster.wait_caught_up(node)


@pytest.mark.parametrize("when", ["the last stop", "before what Kafka deleted was written"])
def test_a_log_that_kafka_trimmed_meanwhile_is_verified_and_led(tmp_path: Path, when: str) -> None:
    """Kafka's retention knows nothing of recovery-point, which then names segments that are gone."""
    small = {
        "metadata.log.max.record.bytes.between.snapshots": "3000",
        "metadata.log.segment.ms": "100",
    }
    properties = {"controller": small, "broker": small}
    with Cluster(tmp_path, controllers=1, brokers=1, properties=properties) as cluster:
        cluster.start()
        voter = cluster.controllers[0]
        point = voter.metadata_log / "recovery-point"
        cluster.create_topic("early")
        assert voter.stop() == 0
        first_stop = point.read_bytes()
        voter.start()
        for number in range(40):
            cluster.create_topic(f"kept-{number}", partitions=5)
        topics = cluster.topics()
        cluster.wait(lambda: bool(voter.snapshots()), "a snapshot")
        assert voter.stop() == 0
        start = _trimmed_as_kafka_does(voter)
        if when != "the last stop":
            point.write_bytes(first_stop)
        voter.start()
        cluster.wait_leader()
        assert cluster.topics() == topics
        assert log_start_offset(voter) == start
        assert "another program has written this log since recovery-point was stored" in voter.output()
        cluster.create_topic("after")
        assert voter.stop() == 0
        voter.start()
        cluster.wait_leader()
        assert {*topics, "after"} == set(cluster.topics())
        assert "another program" not in voter.output()
        cluster.assert_no_bugs()


def _trimmed_as_kafka_does(node: Node) -> int:
    """Keeps the newest snapshot and what follows it; the start of the log from then on."""
    *older, newest = node.snapshots()
    covered, _ = map(int, newest.stem.split("-"))
    segments = node.segments()
    gone = [one for one, behind in itertools.pairwise(segments) if int(behind.stem) <= covered]
    assert gone, f"{[one.name for one in segments]} with a snapshot at {covered}"
    start = int(segments[len(gone)].stem)
    for path in [*older, *gone]:
        path.unlink()
    path = node.metadata_log / "leader-epoch-checkpoint"
    version, _, *lines = path.read_text().splitlines()
    epochs = [(epoch, int(offset)) for epoch, offset in (line.split() for line in lines)]
    before = [epoch for epoch, offset in epochs if offset <= covered][-1:]
    kept = [(epoch, covered) for epoch in before] + [(e, offset) for e, offset in epochs if offset > covered]
    path.write_text("\n".join([version, str(len(kept)), *(f"{epoch} {at}" for epoch, at in kept)]) + "\n")
    return start


def test_a_node_far_behind_catches_up_by_snapshot_and_leads(tmp_path: Path) -> None:
    trimming = {
        "metadata.log.max.record.bytes.between.snapshots": "3000",
        "metadata.log.segment.ms": "100",
        "metadata.max.retention.bytes": "1",
    }
    properties = {"controller": trimming, "broker": trimming}
    with Cluster(tmp_path, controllers=3, brokers=1, properties=properties) as cluster:
        cluster.start()
        laggard = next(node for node in cluster.controllers if node is not cluster.leader())
        cluster.create_topic("early")
        cluster.wait_caught_up(laggard)
        assert laggard.stop() == 0
        end_offset = log_end_offset(laggard)
        leader, number = cluster.leader(), 0

        def trimmed() -> bool:
            nonlocal number
            number += 1
            cluster.create_topic(f"later-{number}", partitions=20)
            return log_start_offset(leader) > end_offset

        cluster.wait(trimmed, "the leader to trim its log")
        topics = cluster.topics()
        laggard.start()
        cluster.wait_caught_up(laggard)
        assert log_start_offset(laggard) > end_offset
        assert laggard.snapshots()

        asked_in: set[int] = set()

        def handed_over() -> DescribeQuorumResponse | None:
            """Requested once per epoch: on a slow machine the second successor may stand for election before
            the first."""
            found = cluster.quorum()
            if found.leader_id == laggard.node_id:
                return found
            if found.leader_epoch not in asked_in:
                asked_in.add(found.leader_epoch)
                cluster.call(lambda client: client.transfer_leadership(laggard.node_id))
            return None

        after = cluster.wait(handed_over, "the node that was behind to lead")
        assert cluster.topics() == topics
        cluster.create_topic("written-by-the-laggard")
        assert cluster.topics().keys() - topics.keys() == {"written-by-the-laggard"}
        # What it writes is the same on the others, from an offset that all of them still have.
        quorum = cluster.quorum()
        assert quorum.leader_epoch == after.leader_epoch
        for node in cluster.controllers:
            cluster.wait_caught_up(node)
        start = max(log_start_offset(node) for node in cluster.controllers)
        first, *others = [
            log_bytes(node, from_offset=start, to_offset=quorum.high_watermark)
            for node in cluster.controllers
        ]
        assert all(other == first for other in others)
        # A restart loads the fetched snapshot, and the short tail after it.
        laggard.kill()
        laggard.start()
        opened = laggard.wait_for_line("opened")
        assert "image at 0," not in opened and "log 0 to" not in opened
        cluster.wait_caught_up(laggard)
        cluster.assert_no_bugs()


def test_an_emptied_disk_observes_and_says_so(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=3) as cluster:
        cluster.start()
        before = cluster.quorum()
        emptied = next(node for node in cluster.controllers if node.node_id != before.leader_id)
        assert emptied.stop() == 0
        emptied.data.rename(emptied.home / "lost")
        formatted = run_cli(
            "storage", "format", "--config", emptied.config, "--cluster-id", cluster.cluster_id
        )
        assert "it will only observe, not vote" in formatted.stderr
        emptied.start()

        def observes() -> bool:
            observers = {one.node_id: one for one in cluster.quorum().observers}
            return emptied.node_id in observers and observers[emptied.node_id].lag < 5

        cluster.wait(observes, "the emptied node to observe")
        said = [line for line in emptied.lines() if "directory" in line and "WARNING" in line]
        assert len(said) == 1, emptied.output()
        # It neither votes nor stands: with the other follower gone, the leader alone is not a majority.
        other = next(one for one in cluster.controllers if one not in (emptied, cluster.leader()))
        leader = cluster.leader()
        other.kill()
        leader.wait_for_line(f"epoch {before.leader_epoch}: ")
        wait_until(lambda: "resigned" in leader.output(), "the leader to give up its office")
        assert ": leader" not in "".join(line for line in emptied.lines() if "epoch" in line)
        other.start()
        cluster.wait_leader(after_epoch=before.leader_epoch)
        cluster.assert_no_bugs()

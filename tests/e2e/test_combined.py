"""Combined nodes as processes: kill -9 under a producer, a clean shutdown, and what log tools report about
them.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition

from metaquorum.cli.layout import create
from metaquorum.cli.local.cluster import LocalCluster
from metaquorum.cli.main import main
from metaquorum.node.local_nodes import LocalNode, free_ports

pytestmark = pytest.mark.e2e

READY_S = 40.0
TOPIC = "orders"
SETTINGS = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "200",
    "offsets.topic.num.partitions": "1",
    "default.replication.factor": "1",
}


@contextmanager
def running(directory: Path, count: int, **more: str) -> Iterator[LocalCluster]:
    extra = {"combined": {**SETTINGS, **{name.replace("_", "."): value for name, value in more.items()}}}
    layout = create(directory, combined=count, ports=free_ports(count), extra=extra, dynamic_voters=True)
    with LocalCluster(layout) as cluster:
        try:
            cluster.start_all()
            cluster.wait_ready(READY_S)
            yield cluster
        finally:
            for node in layout.nodes:
                cluster.kill(node)


class Written:
    """A producer that continues whatever happens, and what was acknowledged to it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.acknowledged: set[bytes] = set()
        self._count = 0
        settings = {"bootstrap.servers": cluster.layout.bootstrap_servers, "enable.idempotence": True}
        self._producer = confluent_kafka.Producer({**settings, "log_level": 0})

    def write(self, count: int) -> None:
        """Sends this many more messages, without waiting for them."""
        for _ in range(count):
            self._count += 1
            self._producer.produce(TOPIC, str(self._count).encode(), on_delivery=self._delivered)
        self._producer.poll(0.05)

    def flush(self) -> None:
        assert self._producer.flush(READY_S) == 0

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged.add(message.value() or b"")


def read_all(cluster: LocalCluster, group: str) -> list[bytes]:
    """Every message of the topic, in order, read by a member of `group`, which commits its end position."""
    servers = {"bootstrap.servers": cluster.layout.bootstrap_servers, "log_level": 0}
    consumer = confluent_kafka.Consumer({**servers, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        partition = TopicPartition(TOPIC, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=READY_S)
        consumer.subscribe([TOPIC])
        found: list[bytes] = []
        while len(found) < end:
            message = consumer.poll(READY_S)
            assert message is not None, f"{len(found)} of {end} messages in {READY_S:.0f} s"
            if message.error() is None:
                found.append(message.value() or b"")
        consumer.commit(asynchronous=False)
        (committed,) = consumer.committed([partition], timeout=READY_S)
        assert committed.offset == end
        return found
    finally:
        consumer.close()


def said(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def replace_the_disk(cluster: LocalCluster, node: LocalNode) -> None:
    """As docs/operations.md says for an emptied voter disk; this disk had the broker's replicas too."""
    layout = cluster.layout
    before = {each.node_id: each.directory_id for each in cluster.client.quorum().voters}
    cluster.kill(node)
    shutil.rmtree(layout.data(node))
    where = ("--config", layout.config(node), "--cluster-id", layout.cluster_id)
    said("storage", "format", *where, "--no-initial-controllers")
    cluster.start(node)
    where = ("--bootstrap-controllers", layout.bootstrap, "--timeout", READY_S)
    said("quorum", "replace-voter", node.node_id, *where)
    cluster.wait_ready(READY_S)
    after = {each.node_id: each.directory_id for each in cluster.client.quorum().voters}
    assert {each for each in before if before[each] != after.get(each)} == {node.node_id} <= set(after)

    def in_sync() -> bool:
        (topic,) = json.loads(
            said("topics", "describe", TOPIC, "--json", "--bootstrap", layout.bootstrap_servers)
        )
        return all(len(each["isr"]) == 3 for each in topic["partitions"])

    cluster.wait_until(in_sync, READY_S, "its replicas to be in sync")


def test_one_node_loses_nothing_by_kill_9_and_stops_in_order(tmp_path: Path) -> None:
    rng = random.Random()
    with running(tmp_path / "one", 1) as cluster:
        (node,) = cluster.layout.nodes
        written = Written(cluster)
        written.write(200)
        written.flush()
        written.write(rng.randint(1, 2_000))
        cluster.kill(node)
        cluster.start(node)
        cluster.wait_ready(READY_S)
        written.write(200)
        written.flush()
        found = read_all(cluster, "g")
        assert len(written.acknowledged) >= 400 and written.acknowledged <= set(found)
        assert len(found) == len(set(found))
        assert cluster.stop(node) == "stopped"
        lines = cluster.layout.log_file(node).read_text().splitlines()
    asked = next(at for at, line in enumerate(lines) if "SIGTERM" in line)
    ending = "\n".join(lines[asked:])
    assert ending.index("granted the shutdown") < ending.index("combined 0: stopped on request")
    data = cluster.layout.data(node)
    assert (data / f"{TOPIC}-0").is_dir() and cluster.layout.metadata_log(node).is_dir()
    assert "0 errors, 0 warnings" in said("log", "check", data)
    assert f"topic/{TOPIC}" in said("log", "state", data)
    (survivor,) = json.loads(said("log", "salvage", "--json", data))["survivors"]
    assert (survivor["nodeId"], survivor["role"]) == (node.node_id, "voter")


def test_three_nodes_go_on_when_the_active_one_is_killed(tmp_path: Path) -> None:
    with running(tmp_path / "three", 3, default_replication_factor="3") as cluster:
        written = Written(cluster)
        written.write(200)
        written.flush()
        quorum = cluster.client.quorum()
        active = cluster.layout.node(f"combined-{quorum.leader_id}")
        assert {each.node_id for each in quorum.voters} == {0, 1, 2} and not quorum.observers
        written.write(1_000)
        cluster.kill(active)
        written.write(200)
        written.flush()
        assert cluster.client.quorum().leader_epoch > quorum.leader_epoch
        cluster.start(active)
        cluster.wait_ready(READY_S)
        replace_the_disk(cluster, active)
        found = read_all(cluster, "g")
        assert len(written.acknowledged) >= 1_400 and written.acknowledged <= set(found)
        assert len(found) == len(set(found))
        assert set(cluster.stop_all().values()) == {"stopped"}
    nodes = [cluster.layout.data(node) for node in cluster.layout.nodes]
    # A leader that stops last may hold records that no other node has: those were never committed.
    checked = json.loads(CliRunner().invoke(main, ["log", "check", "--json", *map(str, nodes)]).output)
    assert checked["batchesCompared"] > 0 and not checked["lostCommitted"]
    assert {one["kind"] for one in checked["differences"]} <= {"epochs differ"}
    assert not any(log["errors"] for log in checked["logs"])

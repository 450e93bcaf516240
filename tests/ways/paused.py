"""The ways with SIGSTOP, which needs a process for each node: no connection ends, and nothing is answered."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.storage.disk.posix import PosixDisk
from tests.e2e.cluster import Cluster
from tests.ways.ways import DIED, PARTITIONS, SILENT, TOPIC, Deed, Way


def go_paused(way: Way, directory: Path) -> tuple[list[Deed], Path]:
    """As `ways.go`; each deed is the pause of a broker or of the active controller."""
    both = {"broker.session.timeout.ms": way.session_ms, "broker.heartbeat.interval.ms": "500"}
    causes = {"metadata.log.causes.enable": str(way.causes).lower()}
    rng = random.Random(f"nodes of {way.number}")
    properties = {"controller": both | causes, "broker": both}
    with Cluster(directory, controllers=3, brokers=way.brokers, properties=properties) as cluster:
        cluster.start()
        cluster.create_topic(TOPIC, PARTITIONS, replicas=way.brokers)
        done = [_paused(cluster, role, rng) for role, _ in way.deeds]
        home = directory / "kept"
        shutil.copytree(cluster.leader().home, home)
    return done, home


def _paused(cluster: Cluster, role: str, rng: random.Random) -> Deed:
    from_offset = _end_offset(cluster)
    quorum = cluster.quorum()
    if role == "broker":
        node = rng.choice(cluster.brokers)
        node.pause()
        cluster.wait_brokers({node.node_id: "fenced"})
        node.resume()
    else:
        node = cluster.controller(quorum.leader_id)
        node.pause()
        cluster.wait_leader(after_epoch=quorum.leader_epoch, not_node=node.node_id)
        node.resume()
    cluster.wait_brokers({one.node_id: "running" for one in cluster.brokers})
    return Deed(
        text=f"pause {role} {node.node_id}",
        node=node.node_id,
        from_offset=from_offset,
        to_offset=_end_offset(cluster),
        broker=SILENT if role == "broker" else None,
        controller=DIED if role == "controller" else None,
    )


def _end_offset(cluster: Cluster) -> int:
    return open_log(PosixDisk(), str(cluster.leader().home)).end_offset

"""2,000,000 partitions in three real controllers: memory, and snapshots while heartbeats are answered.

The directories are seeded with a snapshot. 300 simulated brokers send heartbeats. Topics are created one
after another until the active controller writes a snapshot; its own log says how long that takes. Then a
follower is killed and started: it loads the snapshot. Peaks are the kernel's (VmHWM), reset before the
snapshot.
"""

from __future__ import annotations

import argparse
import re
import time

from metaquorum.metadata.requests.common import NewTopic
from tests.bench.bench_failover_clock import shown, simulated_task
from tests.bench.figures import Figure, percentile
from tests.bench.fleet import FleetProcess, fleets
from tests.bench.quorum import wait_all_caught_up
from tests.bench.seeding import Shape, forget_peak, peak_resident_mib, resident_mib, seeded, start
from tests.e2e.cluster import Cluster, Node

BETWEEN_SNAPSHOTS = 1024 * 1024
"""Bytes between two snapshots: few, so that the benchmark need not write for long."""

BYTES_A_PARTITION = 80
"""The minimum size of a PartitionRecord in the log."""

SETTLE_S = 3.0
_WROTE = re.compile(r"wrote snapshot .* in (\d+) ms")
_OPENED = re.compile(r"opened .* in (\d+) ms")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partitions", type=int, default=2_000_000)
    parser.add_argument("--heartbeat-ms", type=int, default=2000)


def run(options: argparse.Namespace) -> list[Figure]:
    shape = Shape(partitions=options.partitions)
    everyone = list(range(shape.brokers))
    properties = {"controller": {"metadata.log.max.record.bytes.between.snapshots": str(BETWEEN_SNAPSHOTS)}}
    with seeded(Shape(partitions=0), properties=properties) as empty:
        start(empty)
        time.sleep(SETTLE_S)
        without = resident_mib(empty.leader().pid)
    with seeded(shape, properties=properties) as cluster, shown(cluster):
        task = simulated_task(cluster, shape, everyone, fetches=False, heartbeat_ms=options.heartbeat_ms)
        with fleets(task, ready=False) as (beating,):
            start(cluster, [beating])
            time.sleep(SETTLE_S)
            return measure(cluster, beating, shape, without)


def measure(cluster: Cluster, beating: FleetProcess, shape: Shape, without_mib: float) -> list[Figure]:
    active = cluster.leader()
    held = resident_mib(active.pid)
    followers = [node for node in cluster.controllers if node is not active]
    forget_peak(active.pid)
    beating.tell(do="mark")
    write_ms = written_ms(cluster, active)
    writing = beating.tell(do="report")["latencies_ms"]
    peak = peak_resident_mib(active.pid)
    beating.tell(do="mark")
    open_ms, ready_s = restarted(cluster, followers[0])
    loading = beating.tell(do="report")["latencies_ms"]

    def a_partition(mib: float) -> float:
        return (mib - without_mib) * 2**20 / shape.partitions

    return [
        Figure(name="partitions", value=shape.partitions, unit=""),
        Figure(name="resident memory of an active controller without any", value=without_mib, unit="MiB"),
        Figure(name="resident memory of the active controller", value=held, unit="MiB", at_most=1024),
        Figure(
            name="the same, peak while a snapshot is written",
            value=peak,
            unit="MiB",
            at_most=1024,
            kafka="1.7 to 1.8 GB at 500,000",
        ),
        Figure(name="a partition", value=a_partition(held), unit="bytes", at_most=150, kafka="1.1 to 2.1 KB"),
        Figure(name="a partition, at the peak", value=a_partition(peak), unit="bytes", at_most=150),
        Figure(name="snapshot written", value=write_ms / 1000, unit="s", at_most=10),
        *waits("while it is written", writing),
        Figure(
            name="snapshot and log loaded by a follower that starts",
            value=open_ms / 1000,
            unit="s",
            at_most=5,
        ),
        Figure(name="its start to caught up", value=ready_s, unit="s"),
        *waits("while it is loaded", loading),
    ]


def waits(when: str, latencies_ms: list[float]) -> list[Figure]:
    return [
        Figure(
            name=f"heartbeat {when}, p99 of {len(latencies_ms)}",
            value=percentile(latencies_ms, 0.99),
            unit="ms",
        ),
        Figure(name=f"heartbeat {when}, worst", value=max(latencies_ms), unit="ms", at_most=100),
    ]


def written_ms(cluster: Cluster, active: Node) -> int:
    """Writes until the active controller begins a snapshot; returns how long that took according to its
    log."""
    written = 0
    while written < BETWEEN_SNAPSHOTS:
        topics = [
            NewTopic(name=f"more-{written}-{at}", partitions=100, replication_factor=3) for at in range(10)
        ]
        cluster.create_topics(*topics)
        written += 1000 * BYTES_A_PARTITION
    return cluster.wait(lambda: _logged(active, _WROTE), "a snapshot to be written")


def _logged(node: Node, pattern: re.Pattern[str]) -> int | None:
    found = [match for line in node.lines() if (match := pattern.search(line))]
    return int(found[-1][1]) if found else None


def restarted(cluster: Cluster, node: Node) -> tuple[int, float]:
    """Kills a follower and starts it: ms until its image was loaded, s until it had caught up."""
    node.kill()
    begun = time.monotonic()
    node.start()
    open_ms = cluster.wait(lambda: _logged(node, _OPENED), f"{node.name} to open its directory")
    wait_all_caught_up(cluster)
    return open_ms, time.monotonic() - begun

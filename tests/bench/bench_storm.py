"""A storm of transitions: a given number of brokers fenced or unfenced every second, at 1,000,000 partitions.

300 simulated brokers send heartbeats from one process and fetch the log from another. Every fence takes about
10,000 partitions from a broker; the same broker is unfenced two seconds later. Counted are elections of the
quorum, brokers that were fenced unintentionally, and how long heartbeats wait.
"""

from __future__ import annotations

import argparse
import time
from collections import deque

from tests.bench.bench_failover_clock import simulated_task
from tests.bench.figures import Figure, percentile
from tests.bench.fleet import FleetProcess, fleets
from tests.bench.quorum import cpu_seconds
from tests.bench.seeding import Shape, seeded, start
from tests.e2e.cluster import Cluster

UNFENCED_AFTER_S = 2.0
SETTLE_S = 3.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--brokers", type=int, default=300)
    parser.add_argument("--transitions-per-s", type=float, default=5.0)
    parser.add_argument("--heartbeat-ms", type=int, default=2000, help="as brokers do by default")


def run(options: argparse.Namespace) -> list[Figure]:
    shape = Shape(partitions=options.partitions, brokers=options.brokers)
    everyone = list(range(shape.brokers))
    with seeded(shape) as cluster:
        tasks = (
            simulated_task(cluster, shape, everyone, fetches=False, heartbeat_ms=options.heartbeat_ms),
            simulated_task(cluster, shape, everyone, heartbeats=False),
        )
        with fleets(*tasks, ready=False) as (beating, fetching):
            start(cluster, [beating, fetching])
            time.sleep(SETTLE_S)
            return storm(cluster, beating, fetching, options)


def storm(
    cluster: Cluster, beating: FleetProcess, fetching: FleetProcess, options: argparse.Namespace
) -> list[Figure]:
    before = cluster.quorum()
    pids = {node.node_id: node.pid for node in cluster.controllers}
    used = {node_id: cpu_seconds(pid) for node_id, pid in pids.items()}
    beating.tell(do="mark")
    fetching.tell(do="mark")
    begun = time.monotonic()
    done, took = transitions(beating, options)
    seconds = time.monotonic() - begun
    seen, fetched = beating.tell(do="report"), fetching.tell(do="report")
    used = {node_id: (cpu_seconds(pid) - used[node_id]) / seconds for node_id, pid in pids.items()}
    after = cluster.quorum()
    logs = [line for node in cluster.controllers for line in node.lines()]
    waits = seen["latencies_ms"]
    return [
        Figure(name="transitions a second", value=done / seconds, unit="1/s"),
        Figure(name="records written", value=after.high_watermark - before.high_watermark, unit=""),
        Figure(
            name="elections of the quorum",
            value=after.leader_epoch - before.leader_epoch,
            unit="",
            at_most=0,
        ),
        Figure(
            name="brokers fenced without being asked",
            value=sum("sent no heartbeat" in line for line in logs),
            unit="",
            at_most=0,
        ),
        Figure(name="heartbeats refused or lost", value=seen["refused"] + seen["failed"], unit="", at_most=0),
        Figure(name=f"heartbeat, p99 of {len(waits)}", value=percentile(waits, 0.99), unit="ms"),
        Figure(name="heartbeat, worst", value=max(waits), unit="ms", at_most=100),
        Figure(name="a transition, p99 (asked and committed)", value=percentile(took, 0.99), unit="ms"),
        Figure(name="fetches answered per second", value=fetched["fetches"] / seconds, unit="1/s"),
        Figure(name="bytes fetched a second", value=fetched["fetched_bytes"] / seconds / 2**20, unit="MiB/s"),
        *(
            Figure(
                name=f"CPU of controller {node_id}" + (" (active)" if node_id == after.leader_id else ""),
                value=share,
                unit="cores",
            )
            for node_id, share in sorted(used.items())
        ),
        Figure(
            name="pauses over 200 ms that controllers noted",
            value=sum("was stalled for" in line for line in logs),
            unit="",
        ),
    ]


def transitions(beating: FleetProcess, options: argparse.Namespace) -> tuple[int, list[float]]:
    """Fences one broker after another and unfences each after a while, at the given rate."""
    every_s = 1 / options.transitions_per_s
    away: deque[tuple[float, int]] = deque()
    took: list[float] = []
    begun = time.monotonic()
    number = victim = 0
    while (now := time.monotonic()) < begun + options.seconds:
        due = begun + number * every_s
        if now < due:
            time.sleep(due - now)
        number += 1
        if away and away[0][0] <= time.monotonic():
            broker, fence = away.popleft()[1], False
        else:
            broker, fence = victim % options.brokers, True
            victim += 1
            away.append((time.monotonic() + UNFENCED_AFTER_S, broker))
        start_s = time.perf_counter()
        beating.tell(do="want", broker=broker, fence=fence)
        took.append((time.perf_counter() - start_s) * 1e3)
    return number, took

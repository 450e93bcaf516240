"""Controlled shutdown of a broker that leads 10,000 partitions: how long the active controller is busy.

300 simulated brokers and three real controllers; the leaving broker leads the given number of partitions and
requests its shutdown in a heartbeat. The first response comes when the first batch of moves is committed, the
last one when the broker may stop. Processor time is that of the active controller for all of it, including
heartbeats of the others. Each run shuts down another broker.
"""

from __future__ import annotations

import argparse
import statistics
import time

from tests.bench.bench_failover_clock import shown, simulated_task
from tests.bench.figures import Figure
from tests.bench.fleet import fleets
from tests.bench.quorum import cpu_seconds
from tests.bench.seeding import Shape, seeded, start

LEAVING = 7
SETTLE_S = 2.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--leads", type=int, default=10_000, help="partitions that the broker leads")
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)


def run(options: argparse.Namespace) -> list[Figure]:
    found = [one_shutdown(options) for _ in range(options.runs)]
    return [
        Figure(
            name=f"{name}, median of {len(found)}",
            value=statistics.median(each[at] for each in found),
            unit="ms",
            at_most=target,
        )
        for at, (name, target) in enumerate(
            (
                ("asked to allowed to stop", 150),
                ("asked to first moves committed", None),
                ("processor time of the active controller", 150),
            )
        )
    ]


def one_shutdown(options: argparse.Namespace) -> tuple[float, float, float]:
    shape = Shape(partitions=options.partitions, leads=(LEAVING, options.leads))
    with seeded(shape) as cluster, shown(cluster):
        task = simulated_task(cluster, shape, list(range(shape.brokers)), fetches=False, heartbeat_ms=2000)
        with fleets(task, ready=False) as (beating,):
            start(cluster, [beating])
            time.sleep(SETTLE_S)
            active = cluster.leader()
            used = cpu_seconds(active.pid)
            took = beating.tell(do="shut down", broker=LEAVING)
            used = cpu_seconds(active.pid) - used
            return took["all_ms"], took["first_ms"], used * 1000

"""kill -9 of a broker: the time until every survivor has learned of it, part by part (S4.19).

Three controllers are real processes with their own directories. `10k` and `100k`: three real brokers; the
dead one has a replica of every partition and leads a third of them; the partitions are recreated for every
run. `1M`: 300 simulated brokers in three processes, of which the one with the victim is killed, and one real
broker that holds no replica and applies the log as the others would. `1M-all`: the victim has a replica of
every partition, and only eight of the simulated brokers fetch. Sessions last 3 s, and heartbeats are sent
every 0.5 s, as in the measurements of Apache Kafka. Meanwhile probes send heartbeats every 20 ms (at 1M: the
survivors, at their own interval): how long a heartbeat waits is reported too. tests/bench/moments.py says
what is read where.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from metaquorum.clients.admin.cluster import unregister_broker
from metaquorum.metadata.requests.common import NewTopic
from tests.bench.figures import Figure, percentile
from tests.bench.fleet import FleetProcess, Task, addresses, fleets
from tests.bench.moments import Fencing, fencing
from tests.bench.quorum import applied_offset, wait_all_caught_up
from tests.bench.seeding import EPOCH, Shape, seeded, start
from tests.e2e.cluster import Cluster, Node, client_loop

SESSION = {"broker.session.timeout.ms": "3000"}
PROPERTIES = {"controller": SESSION, "broker": {"broker.heartbeat.interval.ms": "500"}}
HEARTBEAT_MS = 500
PROBES = (9000, 9001, 9002)
PROBE_MS = 20
SETTLE_S = 2.0
FOLLOWERS_OF_ALL = 8
"""Simulated brokers that fetch in `1M-all`: 45 MB for each of 300 is more than one machine can send."""
CASES = ("10k", "100k", "1M", "1M-all")
SIZES = {"10k": 10_000, "100k": 100_000, "1M": 1_000_000, "1M-all": 1_000_000}

COMMITTED_MS = {"10k": 40, "100k": 250, "1M": 100, "1M-all": 3000}
APPLIED_MS = {"10k": 100}
KAFKA = {
    "10k": {
        "detection": "2,832 ms",
        "decision": "101 ms",
        "commit": "41 ms",
        "committed": "140 ms",
        "applied": "435 ms",
        "total": "3,417 ms",
    },
    "100k": {"committed": "1,100 to 3,500 ms, controllers only"},
}
"""Medians of quiet runs, from MEASUREMENTS.md, tables b and b'; they end when clients see every leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One death. Times are Unix ms; `waits_ms`: heartbeats of the probes and of simulated survivors."""

    killed_ms: int
    found: Fencing
    applied_ms: int
    waits_ms: list[float]
    survivors: int


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", default=",".join(CASES), help="cases, separated by commas")
    parser.add_argument("--runs", type=int, default=3, help="kills per case (1M-all: always one)")
    parser.add_argument("--partitions", type=int, default=0, help="another size for the cases 1M and 1M-all")


def run(options: argparse.Namespace) -> list[Figure]:
    figures: list[Figure] = []
    for case in options.cases.split(","):
        size = options.partitions if options.partitions and case.startswith("1M") else SIZES[case]
        found = real(size, options.runs) if size <= 100_000 else simulated(case, size, options.runs)
        figures += figures_of(case, size, found)
    return figures


# --- real brokers


def real(partitions: int, runs: int) -> list[Run]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        Cluster(Path(directory), controllers=3, brokers=3, properties=PROPERTIES) as cluster,
        shown(cluster),
    ):
        cluster.start()
        return [real_death(cluster, partitions, number) for number in range(runs)]


@contextmanager
def shown(cluster: Cluster) -> Iterator[None]:
    """Prints what the processes logged if a benchmark fails."""
    try:
        yield
    except Exception:
        print(cluster.report([]), file=sys.stderr)
        raise


def real_death(cluster: Cluster, partitions: int, number: int) -> Run:
    create(cluster, f"run-{number}", partitions)
    victim = cluster.brokers[number % len(cluster.brokers)]
    survivors = [node for node in cluster.brokers if node is not victim]
    task = Task(
        cluster_id=cluster.cluster_id,
        controllers=addresses(cluster.controllers),
        brokers=list(PROBES),
        fetches=False,
        heartbeat_ms=PROBE_MS,
    )
    with fleets(task) as (probes,):
        wait_applied(cluster)
        time.sleep(SETTLE_S)
        active, start = cluster.leader(), cluster.quorum().high_watermark
        probes.tell(do="mark")
        killed_ms = now_ms()
        victim.kill()
        found = fencing(active, survivors, victim.node_id, killed_ms, start)
        waits = probes.tell(do="report")["latencies_ms"]
    delete_all(cluster)
    for probe in PROBES:
        cluster.kafka(lambda client, probe=probe: unregister_broker(client, probe))  # type: ignore[misc]
    victim.start()
    cluster.wait_brokers({node.node_id: "running" for node in cluster.brokers})
    last_ms = max(found.applied_ms)
    return Run(killed_ms=killed_ms, found=found, applied_ms=last_ms, waits_ms=waits, survivors=len(survivors))


def create(cluster: Cluster, name: str, partitions: int) -> None:
    """RF 3, 100 partitions per topic, leaders spread evenly; the brokers learn of them from the log."""
    total = partitions // 100
    for low in range(0, total, 90):
        topics = [
            NewTopic(name=f"{name}-{at:05d}", partitions=100, replication_factor=3)
            for at in range(low, min(low + 90, total))
        ]
        refused = [result for result in cluster.create_topics(*topics) if result.error]
        if refused:
            raise RuntimeError(f"a topic was refused: {refused[0]}")


def delete_all(cluster: Cluster) -> None:
    names = list(cluster.topics())
    for low in range(0, len(names), 1000):
        cluster.delete_topics(*names[low : low + 1000])


def wait_applied(cluster: Cluster) -> None:
    """Until every controller and every real broker has what is committed now."""
    wait_all_caught_up(cluster)
    target = cluster.call(lambda client: client.list_brokers()).offset
    for node in cluster.brokers:

        def there(node: Node = node) -> bool:
            return client_loop().call(applied_offset(node)) >= target

        cluster.wait(there, f"{node.name} to reach offset {target}")


# --- simulated brokers


def simulated(case: str, partitions: int, runs: int) -> list[Run]:
    """Every run kills another broker; the one that all partitions name is killed once."""
    victims = [7] if case == "1M-all" else [7 + 10 * at for at in range(runs)]
    shape = Shape(partitions=partitions, common=7 if case == "1M-all" else None)
    with seeded(shape, real_brokers=1, properties=PROPERTIES) as cluster, shown(cluster):
        rest = [each for each in range(shape.brokers) if each not in victims]
        follow = rest[:FOLLOWERS_OF_ALL] if case == "1M-all" else rest
        alone = [simulated_task(cluster, shape, [victim]) for victim in victims]
        with fleets(
            simulated_task(cluster, shape, rest, fetches=False),
            simulated_task(cluster, shape, follow, heartbeats=False),
            *alone,
            ready=False,
        ) as (beating, fetching, *dying):
            start(cluster, [beating, fetching, *dying])
            wait_applied(cluster)
            time.sleep(2 * SETTLE_S)
            return [
                simulated_death(cluster, beating, fetching, process, victim)
                for process, victim in zip(dying, victims, strict=True)
            ]


def simulated_task(
    cluster: Cluster,
    shape: Shape,
    brokers: list[int],
    *,
    heartbeats: bool = True,
    fetches: bool = True,
    heartbeat_ms: int = HEARTBEAT_MS,
) -> Task:
    """Seeded brokers that send heartbeats, fetch or do both; those that fetch leave the registration to those
    that send heartbeats."""
    return Task(
        cluster_id=cluster.cluster_id,
        controllers=addresses(cluster.controllers),
        brokers=brokers,
        seeded=(shape.partitions, shape.brokers, shape.directories),
        heartbeats=heartbeats,
        registers=heartbeats,
        fetches=fetches,
        heartbeat_ms=heartbeat_ms,
        from_offset=shape.records,
        from_epoch=EPOCH,
    )


def simulated_death(
    cluster: Cluster, beating: FleetProcess, fetching: FleetProcess, process: FleetProcess, victim: int
) -> Run:
    active, start = cluster.leader(), cluster.quorum().high_watermark
    beating.tell(do="mark")
    killed_ms = now_ms()
    process.kill()
    found = fencing(active, cluster.brokers, victim, killed_ms, start)
    reached = fetching.tell(do="reach", offset=found.end_offset)
    last_ms = round((reached["last_s"] + time.time() - time.monotonic()) * 1000)
    report = beating.tell(do="report")
    if report["problem"] or report["fenced"]:
        raise RuntimeError(f"a healthy broker was fenced or lost: {report['fenced']}, {report['problem']}")
    survivors = len(fetching.task.brokers) + len(cluster.brokers)
    return Run(
        killed_ms=killed_ms,
        found=found,
        applied_ms=max(last_ms, *found.applied_ms),
        waits_ms=report["latencies_ms"],
        survivors=survivors,
    )


# --- figures


def figures_of(case: str, partitions: int, runs: list[Run]) -> list[Figure]:
    kafka = KAFKA.get(case, {})
    count = f"{case}: " if partitions == SIZES[case] else f"{case} with {partitions:,} partitions: "
    real_ones = case in {"10k", "100k"}
    last = "every surviving broker's image" if real_ones else "every survivor has fetched, a real one applied"
    found = [each.found for each in runs]
    parts = (
        ("detection: kill to decision", [r.found.decided_ms - r.killed_ms for r in runs], None, "detection"),
        ("decision: to the first batch's append", [f.first_ms - f.decided_ms for f in found], None, ""),
        ("first append to last append", [f.appended_ms - f.decided_ms for f in found], None, ""),
        ("first append to committed", [f.committed_ms - f.first_ms for f in found], None, "commit"),
        (
            "decision to everything committed",
            [f.committed_ms - f.decided_ms for f in found],
            COMMITTED_MS[case],
            "committed",
        ),
        (
            f"first append to {last}",
            [r.applied_ms - r.found.first_ms for r in runs],
            APPLIED_MS.get(case),
            "applied",
        ),
        (f"kill to {last}", [r.applied_ms - r.killed_ms for r in runs], None, "total"),
    )
    waits = [ms for each in runs for ms in each.waits_ms]
    return [
        Figure(name=f"{count}changes", value=statistics.median(f.changes for f in found), unit=""),
        Figure(name=f"{count}batches", value=statistics.median(f.batches for f in found), unit=""),
        Figure(name=f"{count}surviving brokers", value=runs[0].survivors, unit=""),
        *(
            figure
            for name, values, target, theirs in parts
            for figure in (
                Figure(
                    name=f"{count}{name}",
                    value=statistics.median(values),
                    unit="ms",
                    at_most=target,
                    kafka=kafka.get(theirs),
                ),
                *(
                    [Figure(name=f"{count}{name}, worst", value=max(values), unit="ms")]
                    if target is not None and len(values) > 1
                    else []
                ),
            )
        ),
        Figure(
            name=f"{count}healthy heartbeat, p99 of {len(waits)}", value=percentile(waits, 0.99), unit="ms"
        ),
        Figure(name=f"{count}healthy heartbeat, worst", value=max(waits), unit="ms", at_most=100),
    ]


def now_ms() -> int:
    return int(time.time() * 1000)

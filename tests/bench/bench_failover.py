"""From the end of the active controller to the next accepted write, with the default configuration.

One client per survivor sends it a small write every few milliseconds; the first success, committed by the new
quorum, stops the clock. Kill -9, SIGTERM and SIGSTOP; candidacies and epochs are those that the survivors
logged.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from tests.bench.bench_failover_clock import simulated_task
from tests.bench.figures import Figure, spread
from tests.bench.fleet import fleets
from tests.bench.quorum import (
    channel_to,
    create_at,
    one_topic,
    succeeded,
    three_controllers,
    wait_all_caught_up,
)
from tests.bench.seeding import Shape, seeded, start
from tests.e2e.cluster import Cluster, Node, client_loop
from tests.e2e.processes import wait_until

TRY_EVERY_S = 0.005
ATTEMPT_S = 1.0
GIVE_UP_S = 30.0
TARGETS_MS = {signal.SIGKILL: (1000, 2000), signal.SIGTERM: (300, 300), signal.SIGSTOP: (2000, 4000)}
_ROLE = re.compile(r"epoch (\d+): (\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """`epochs`: by how much the epoch increased. The two counts are how often survivors entered these
    roles."""

    took_ms: float
    epochs: int
    pre_votes: int
    candidacies: int


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--signals", default="SIGKILL,SIGTERM,SIGSTOP", help="signals, separated by commas")
    parser.add_argument(
        "--partitions",
        type=int,
        default=0,
        help="number of partitions, of 300 simulated brokers that send heartbeats",
    )


def run(options: argparse.Namespace) -> list[Figure]:
    idle = three_controllers()
    with loaded(options.partitions) if options.partitions else idle as cluster:
        figures: list[Figure] = []
        for name in options.signals.split(","):
            number = signal.Signals[name]
            found = [one_failover(cluster, number) for _ in range(options.runs)]
            figures += figures_of(name, number, found)
            if options.partitions and number is signal.SIGKILL:
                figures.append(loaded_figure(options.partitions, found))
        return figures


@contextmanager
def loaded(partitions: int) -> Iterator[Cluster]:
    """A quorum with this many partitions, whose brokers are simulated."""
    shape = Shape(partitions=partitions)
    with seeded(shape) as cluster:
        brokers = list(range(shape.brokers))
        task = simulated_task(cluster, shape, brokers, fetches=False, heartbeat_ms=2000)
        with fleets(task, ready=False) as running:
            start(cluster, running)
            yield cluster


def loaded_figure(partitions: int, found: list[Failover]) -> Figure:
    return Figure(
        name=f"kill -9 at {partitions:,} partitions, median",
        value=statistics.median(each.took_ms for each in found),
        unit="ms",
        at_most=1500,
        kafka="2,708 ms at 500,000",
    )


def figures_of(name: str, number: signal.Signals, found: list[Failover]) -> list[Figure]:
    median, worst = TARGETS_MS[number]
    label = {"SIGKILL": "kill -9", "SIGTERM": "SIGTERM", "SIGSTOP": "SIGSTOP"}[name]
    return [
        *spread(f"{label} to the next accepted write", [each.took_ms for each in found], "ms", median, worst),
        Figure(
            name=f"{label}: candidacies a failover, mean",
            value=statistics.fmean(each.candidacies for each in found),
            unit="",
        ),
        Figure(name=f"{label}: candidacies, most", value=max(each.candidacies for each in found), unit=""),
        Figure(
            name=f"{label}: epochs a failover, mean",
            value=statistics.fmean(each.epochs for each in found),
            unit="",
        ),
        Figure(
            name=f"{label}: rounds of pre-votes begun, mean",
            value=statistics.fmean(each.pre_votes for each in found),
            unit="",
        ),
    ]


def one_failover(cluster: Cluster, number: signal.Signals) -> Failover:
    """Ends (or pauses) the active controller once, measures, and completes the quorum again."""
    wait_all_caught_up(cluster)
    time.sleep(random.uniform(0.2, 0.8))  # so that any phase of the idle quorum's cycle is equally likely
    before = cluster.quorum()
    leader = cluster.controller(before.leader_id)
    survivors = [node for node in cluster.controllers if node is not leader]
    logged = {node.node_id: len(node.lines()) for node in survivors}
    took_ms = client_loop().call(until_accepted(leader, survivors, number), GIVE_UP_S + 5)
    after = cluster.wait_leader(after_epoch=before.leader_epoch)
    roles = [
        match[2]
        for node in survivors
        for line in node.lines()[logged[node.node_id] :]
        if (match := _ROLE.search(line)) and int(match[1]) <= after.leader_epoch
    ]
    heal(leader, number)
    return Failover(
        took_ms=took_ms,
        epochs=after.leader_epoch - before.leader_epoch,
        pre_votes=roles.count("prospective"),
        candidacies=roles.count("candidate"),
    )


def heal(leader: Node, number: signal.Signals) -> None:
    if number is signal.SIGSTOP:
        leader.resume()
        return
    leader.wait_exit()
    leader.start()
    wait_until(lambda: "listens on" in leader.output(), f"{leader.name} to listen")


async def until_accepted(leader: Node, survivors: list[Node], number: signal.Signals) -> float:
    """Sends the signal; returns the ms until a survivor has accepted a write."""
    channels = [channel_to(node) for node in survivors]
    calls = [create_at(channel) for channel in channels]
    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        leader.signal(number)
        start = time.perf_counter()
        tasks = [asyncio.create_task(_write_until_accepted(create)) for create in calls]
        done, rest = await asyncio.wait(tasks, timeout=GIVE_UP_S, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        if not done:
            raise RuntimeError(f"no write was accepted within {GIVE_UP_S:.0f} s of {number.name}")
        return (min(task.result() for task in done) - start) * 1e3
    finally:
        await asyncio.gather(*(channel.close(None) for channel in channels))


async def _write_until_accepted(create: Any) -> float:
    """When the first write was accepted (perf_counter)."""
    while True:
        try:
            answer = await create(one_topic(), timeout=ATTEMPT_S)
        except grpc.aio.AioRpcError:
            pass
        else:
            if succeeded(answer):
                return time.perf_counter()
        await asyncio.sleep(TRY_EVERY_S)

"""Topics created in Kafka's protocol over gRPC on three local controllers, RF 3: partitions per second,
accepted and committed.

The client sends one request after another to the active controller, as Apache Kafka was measured; three
simulated brokers that hold nothing send heartbeats from a process of their own. Every response is checked. A
round has all the cases; each case gives the median and the best of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time

from metaquorum.proto import forwarding_pb2 as pb
from tests.bench.bench_commit import leader_of
from tests.bench.figures import Figure
from tests.bench.fleet import Task, addresses, fleets
from tests.bench.quorum import channel_to, create_at, creation, succeeded, three_controllers
from tests.e2e.cluster import Cluster, client_loop

CASES = {
    "1 topic x 100 a request": (1, 100, 100, 20_000),
    "10 topics x 100 a request": (10, 100, 10, 60_000),
    "one request of 99 topics x 100": (99, 100, 1, 120_000),
    "one request of 100 topics x 100": (100, 100, 1, None),
    "single-partition topics": (1, 1, 300, 350),
}
"""Topics per request, partitions per topic, requests per round, and the target (partitions per second)."""

KAFKA = {
    "1 topic x 100 a request": "2,200 to 2,800",
    "10 topics x 100 a request": "18,000 to 21,000",
    "one request of 99 topics x 100": "75,000 to 111,000",
    "one request of 100 topics x 100": "refused",
    "single-partition topics": "32; 90 with its linger at 0",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", default="", help="only cases whose name contains this")


def run(options: argparse.Namespace) -> list[Figure]:
    with three_controllers(broker=False) as cluster:
        task = Task(
            cluster_id=cluster.cluster_id,
            controllers=addresses(cluster.controllers),
            brokers=[1, 2, 3],
            fetches=False,
        )
        with fleets(task):
            return client_loop().call(measure(cluster, options), 600)


async def measure(cluster: Cluster, options: argparse.Namespace) -> list[Figure]:
    leader, _ = await leader_of(cluster)
    channel = channel_to(leader)
    create = create_at(channel)
    chosen = {name: case for name, case in CASES.items() if options.case in name}
    rates: dict[str, list[float]] = {name: [] for name in chosen}
    try:
        for number in range(-1, options.rounds):
            for name, (topics, partitions, requests, _) in chosen.items():
                made = [
                    _request(f"{name.replace(' ', '-')}-{number}-{at}", topics, partitions)
                    for at in range(requests)
                ]
                start = time.perf_counter()
                for request in made:
                    answer = await create(request, timeout=30)
                    if not succeeded(answer):
                        raise RuntimeError(f"{name} was refused: {str(answer)[:300]}")
                took_s = time.perf_counter() - start
                if number >= 0:  # the first round warms up
                    rates[name].append(topics * partitions * requests / took_s)
    finally:
        await channel.close(None)
    return [figure for name, found in rates.items() for figure in figures_of(name, found)]


def _request(name: str, topics: int, partitions: int) -> pb.ForwardRequest:
    return creation([f"{name}-{at}" for at in range(topics)], partitions=partitions, replicas=3)


def figures_of(name: str, rates: list[float]) -> list[Figure]:
    wanted = CASES[name][3]
    return [
        Figure(
            name=f"{name}, median of {len(rates)}",
            value=statistics.median(rates),
            unit="partitions/s",
            at_least=1 if wanted is None else wanted,
            kafka=KAFKA[name],
        ),
        Figure(name=f"{name}, worst", value=min(rates), unit="partitions/s"),
        Figure(name=f"{name}, best", value=max(rates), unit="partitions/s"),
    ]

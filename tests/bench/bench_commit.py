"""One small metadata write through gRPC on three local controllers with sync on: latency, throughput, CPU."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from pathlib import Path

from metaquorum.runtime.client.admin import AdminClient
from tests.bench.figures import Figure, percentile
from tests.bench.quorum import channel_to, cpu_seconds, one_topic, stub_of, succeeded, three_controllers
from tests.e2e.cluster import Cluster, Node, client_loop

CLIENTS = 64
CHANNELS = 8
WARM_UP = 300


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--writes", type=int, default=3000, help="writes one after another")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long 64 clients write")


def run(options: argparse.Namespace) -> list[Figure]:
    with three_controllers() as cluster:
        disk_ms = sync_ms(cluster.directory)
        loop = client_loop()
        loop.call(one_after_another(cluster, WARM_UP), 120)
        pids = {node.node_id: node.pid for node in cluster.controllers}
        leader_id = cluster.quorum().leader_id
        figures = [
            Figure(name="one 200-byte append and fdatasync on this disk, median", value=disk_ms, unit="ms")
        ]
        before = {node_id: cpu_seconds(pid) for node_id, pid in pids.items()}
        latencies = loop.call(one_after_another(cluster, options.writes), 600)
        used = {node_id: cpu_seconds(pid) - before[node_id] for node_id, pid in pids.items()}
        figures += latency_figures("one after another", latencies, 2.5, 8.0)
        figures += cpu_figures("one after another", used, leader_id, len(latencies))
        loop.call(many_clients(cluster, 2.0), 120)
        before = {node_id: cpu_seconds(pid) for node_id, pid in pids.items()}
        own = time.process_time()
        busy, took_s = loop.call(many_clients(cluster, options.seconds), 600)
        own = time.process_time() - own
        used = {node_id: cpu_seconds(pid) - before[node_id] for node_id, pid in pids.items()}
        figures.append(
            Figure(
                name=f"writes a second, {CLIENTS} clients",
                value=len(busy) / took_s,
                unit="writes/s",
                at_least=2000,
            )
        )
        figures += latency_figures(f"{CLIENTS} clients", busy, None, None)
        figures += cpu_figures(f"{CLIENTS} clients", used, leader_id, len(busy))
        figures.append(
            Figure(
                name=f"{CLIENTS} clients: CPU of the bench's own process",
                value=own / len(busy) * 1e6,
                unit="us/write",
            )
        )
        return figures


def latency_figures(name: str, ms: list[float], median: float | None, p99: float | None) -> list[Figure]:
    return [
        Figure(
            name=f"{name}: commit, median of {len(ms)}",
            value=statistics.median(ms),
            unit="ms",
            at_most=median,
        ),
        Figure(name=f"{name}: commit, p99", value=percentile(ms, 0.99), unit="ms", at_most=p99),
        Figure(name=f"{name}: commit, worst", value=max(ms), unit="ms"),
    ]


def cpu_figures(name: str, used: dict[int, float], leader_id: int, writes: int) -> list[Figure]:
    return [
        Figure(
            name=f"{name}: CPU of controller {node_id}" + (" (active)" if node_id == leader_id else ""),
            value=seconds / writes * 1e6,
            unit="us/write",
        )
        for node_id, seconds in sorted(used.items())
    ]


def sync_ms(directory: Path, rounds: int = 200) -> float:
    """What the disk itself takes, to compare with."""
    path = directory / "sync-probe"
    took = []
    with path.open("wb", buffering=0) as file:
        for _ in range(rounds):
            start = time.perf_counter()
            file.write(bytes(200))
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - start) * 1e3)
    path.unlink()
    return statistics.median(took)


async def one_after_another(cluster: Cluster, writes: int) -> list[float]:
    """Latencies in ms, as the one client saw them."""
    leader, _ = await leader_of(cluster)
    channel = channel_to(leader)
    create = stub_of(channel).CreateTopics
    took = []
    try:
        for _ in range(writes):
            request = one_topic()
            start = time.perf_counter()
            answer = await create(request, timeout=10)
            took.append((time.perf_counter() - start) * 1e3)
            if not succeeded(answer):
                raise RuntimeError(f"a write was refused: {answer}")
    finally:
        await channel.close(None)
    return took


async def many_clients(cluster: Cluster, seconds: float) -> tuple[list[float], float]:
    """Latencies in ms of all writes of `CLIENTS` clients, and how long it took, in s."""
    leader, _ = await leader_of(cluster)
    channels = [channel_to(leader) for _ in range(CHANNELS)]
    took: list[float] = []
    start = time.perf_counter()
    until = start + seconds

    async def client(number: int) -> None:
        create = stub_of(channels[number % CHANNELS]).CreateTopics
        while (begun := time.perf_counter()) < until:
            answer = await create(one_topic(), timeout=10)
            took.append((time.perf_counter() - begun) * 1e3)
            if not succeeded(answer):
                raise RuntimeError(f"a write was refused: {answer}")

    try:
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
        return took, time.perf_counter() - start
    finally:
        await asyncio.gather(*(channel.close(None) for channel in channels))


async def leader_of(cluster: Cluster) -> tuple[Node, int]:
    """The active controller's process and its epoch; asked on the clients' loop."""
    async with AdminClient(cluster.bootstrap) as client:
        quorum = await client.describe_quorum()
    return cluster.controller(quorum.leader_id), quorum.leader_epoch

"""One small metadata write on three local controllers with sync on: latency, throughput and CPU.

Beside it, in the same run, a gRPC call that does nothing and, where etcd is on PATH, a write to three members
of it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio

from metaquorum.clients.kafka.connection import NodeConnection, connect
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.platforms import name_of_sync, sync_file
from metaquorum.wire.messages import CreateTopicsRequest
from tests.bench import etcd
from tests.bench.empty_call import EmptyServer, empty_call, empty_server
from tests.bench.figures import Figure, percentile
from tests.bench.quorum import (
    channel_to,
    cpu_seconds,
    create_at,
    next_name,
    one_topic,
    succeeded,
    three_controllers,
)
from tests.e2e.cluster import Cluster, Node, client_loop

CLIENTS = 64
CHANNELS = 8
WARM_UP = 300
ROUNDS = 4
"""How many times commits and empty calls alternate."""

EMPTY = "an empty call's server"
RATIO_AT_MOST = 3.1
RATE_AT_LEAST = 0.63
ETCD_RATIO_AT_MOST = 1.2
ETCD_RATE_AT_LEAST = 1.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--clients",
        choices=("kafka", "grpc"),
        default="kafka",
        help="the protocol of the clients",
    )
    parser.add_argument("--writes", type=int, default=3000, help="writes one after another")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long 64 clients write")


def run(options: argparse.Namespace) -> list[Figure]:
    kind = options.clients
    with ExitStack() as stack:
        empty, cluster = stack.enter_context(empty_server()), stack.enter_context(three_controllers())
        members = stack.enter_context(etcd.three_members()) if etcd.is_there() else []
        disk_ms = sync_ms(cluster.directory)
        loop = client_loop()
        loop.call(one_after_another(cluster, WARM_UP, kind), 120)
        loop.call(empty_after_another(empty.address, WARM_UP), 120)
        leader_id = cluster.quorum().leader_id
        etcd_leader = loop.call(etcd.leader_among(members), 60) if members else None
        alone, many = Measured(cluster, empty), Measured(cluster, empty)
        for _ in range(ROUNDS):
            with alone.counting():
                alone.empty += loop.call(empty_after_another(empty.address, options.writes // ROUNDS), 600)
                alone.writes += loop.call(one_after_another(cluster, options.writes // ROUNDS, kind), 600)
            if etcd_leader is not None:
                alone.etcd += loop.call(etcd_after_another(etcd_leader, options.writes // ROUNDS), 600)
        loop.call(many_clients(cluster, 2.0, kind), 120)
        for _ in range(ROUNDS):
            with many.counting():
                took, took_s = loop.call(many_empty(empty.address, options.seconds / ROUNDS), 600)
                many.empty += took
                many.empty_s += took_s
                took, took_s = loop.call(many_clients(cluster, options.seconds / ROUNDS, kind), 600)
            many.writes += took
            many.writes_s += took_s
            if etcd_leader is not None:
                took, took_s = loop.call(many_of_etcd(etcd_leader, options.seconds / ROUNDS), 600)
                many.etcd += took
                many.etcd_s += took_s
    return [
        Figure(
            name=f"one 200-byte append and {name_of_sync()} on this disk, median", value=disk_ms, unit="ms"
        ),
        *alone_figures(alone),
        *cpu_figures("one after another", alone, leader_id),
        *many_figures(many),
        *cpu_figures(f"{CLIENTS} clients", many, leader_id),
    ]


class Measured:
    """Latencies in ms of empty calls, of writes and of etcd's writes, how long all of each took in s, and the
    processor time in s of the processes that served them (but etcd's)."""

    def __init__(self, cluster: Cluster, empty: EmptyServer) -> None:
        self._pids = {f"controller {node.node_id}": node.pid for node in cluster.controllers}
        self._pids[EMPTY] = empty.pid
        self.empty: list[float] = []
        self.writes: list[float] = []
        self.etcd: list[float] = []
        self.etcd_s = 0.0
        self.empty_s = 0.0
        self.writes_s = 0.0
        self.used = dict.fromkeys(self._pids, 0.0)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Adds the processor time of what runs in the context. Processes without requests use a negligible
        amount."""
        before = {name: cpu_seconds(pid) for name, pid in self._pids.items()}
        yield
        for name, pid in self._pids.items():
            self.used[name] += cpu_seconds(pid) - before[name]


def alone_figures(measured: Measured) -> list[Figure]:
    ratio = statistics.median(measured.writes) / statistics.median(measured.empty)
    return [
        *latency_figures("one after another: empty call", measured.empty, None, None),
        *latency_figures("one after another: commit", measured.writes, 2.5, 8.0),
        Figure(
            name="one after another: commit in empty calls, medians",
            value=ratio,
            unit="times",
            at_most=RATIO_AT_MOST,
        ),
        *beside_etcd(measured),
    ]


def beside_etcd(measured: Measured) -> list[Figure]:
    """Nothing where etcd is not at hand."""
    if not measured.etcd:
        return []
    ratio = statistics.median(measured.writes) / statistics.median(measured.etcd)
    return [
        *latency_figures("one after another: etcd's put", measured.etcd, None, None),
        Figure(
            name="one after another: commit in etcd's puts, medians",
            value=ratio,
            unit="times",
            at_most=ETCD_RATIO_AT_MOST,
        ),
    ]


def many_figures(measured: Measured) -> list[Figure]:
    empty = len(measured.empty) / measured.empty_s
    writes = len(measured.writes) / measured.writes_s
    return [
        Figure(name=f"empty calls per second, {CLIENTS} clients", value=empty, unit="calls/s"),
        Figure(name=f"writes per second, {CLIENTS} clients", value=writes, unit="writes/s", at_least=2000),
        Figure(
            name=f"{CLIENTS} clients: writes per empty call",
            value=writes / empty,
            unit="times",
            at_least=RATE_AT_LEAST,
        ),
        *latency_figures(f"{CLIENTS} clients: commit", measured.writes, None, None),
        *rate_beside_etcd(measured, writes),
    ]


def rate_beside_etcd(measured: Measured, writes: float) -> list[Figure]:
    """Nothing where etcd is not at hand. `writes`: our writes per second."""
    if not measured.etcd:
        return []
    puts = len(measured.etcd) / measured.etcd_s
    return [
        Figure(name=f"etcd's puts per second, {CLIENTS} clients", value=puts, unit="puts/s"),
        Figure(
            name=f"{CLIENTS} clients: writes per put of etcd",
            value=writes / puts,
            unit="times",
            at_least=ETCD_RATE_AT_LEAST,
        ),
    ]


def latency_figures(name: str, ms: list[float], median: float | None, p99: float | None) -> list[Figure]:
    return [
        Figure(name=f"{name}, median of {len(ms)}", value=statistics.median(ms), unit="ms", at_most=median),
        Figure(name=f"{name}, p99", value=percentile(ms, 0.99), unit="ms", at_most=p99),
        Figure(name=f"{name}, worst", value=max(ms), unit="ms"),
    ]


def cpu_figures(name: str, measured: Measured, leader_id: int) -> list[Figure]:
    """Each controller's per write, and the empty server's per call for comparison."""
    return [
        Figure(
            name=f"{name}: CPU of {who}" + (" (active)" if who == f"controller {leader_id}" else ""),
            value=seconds / len(measured.empty if who == EMPTY else measured.writes) * 1e6,
            unit="us/call" if who == EMPTY else "us/write",
        )
        for who, seconds in sorted(measured.used.items())
    ]


def sync_ms(directory: Path, rounds: int = 200) -> float:
    """The time of a sync on the disk itself, for comparison."""
    path = directory / "sync-probe"
    took = []
    with path.open("wb", buffering=0) as file:
        for _ in range(rounds):
            start = time.perf_counter()
            file.write(bytes(200))
            sync_file(file.fileno())
            took.append((time.perf_counter() - start) * 1e3)
    path.unlink()
    return statistics.median(took)


Write = Callable[[], Coroutine[Any, Any, float]]
"""Creates a topic; returns how long that took, in ms."""


@asynccontextmanager
async def writers(cluster: Cluster, count: int, kind: str) -> AsyncIterator[list[Write]]:
    """Clients of the active controller. Over gRPC they share channels, in Kafka's protocol each has its own
    connection, on which one request after another is answered."""
    leader, _ = await leader_of(cluster)
    if kind == "grpc":
        channels = [channel_to(leader) for _ in range(min(count, CHANNELS))]
        stubs = [create_at(channel) for channel in channels]
        try:
            yield [partial(write, stubs[number % len(stubs)]) for number in range(count)]
        finally:
            await asyncio.gather(*(channel.close(None) for channel in channels))
        return
    opened = [
        await connect("127.0.0.1", leader.kafka_port, client_id="bench", answer_max_bytes=2**20, timeout_s=10)
        for _ in range(count)
    ]
    try:
        yield [partial(write_by_kafka, connection) for connection in opened]
    finally:
        for connection in opened:
            connection.close()


async def one_after_another(cluster: Cluster, writes: int, kind: str) -> list[float]:
    """Latencies in ms, as measured by a single client."""
    async with writers(cluster, 1, kind) as (create,):
        return [await create() for _ in range(writes)]


async def many_clients(cluster: Cluster, seconds: float, kind: str) -> tuple[list[float], float]:
    """Latencies in ms of all writes of `CLIENTS` clients, and how long they took, in s."""
    async with writers(cluster, CLIENTS, kind) as calls:
        return await all_clients(calls, seconds)


async def empty_after_another(address: str, calls: int) -> list[float]:
    """The same with empty calls."""
    channel = grpc.aio.insecure_channel(address)
    try:
        return [await ask_nothing(empty_call(channel)) for _ in range(calls)]
    finally:
        await channel.close(None)


async def etcd_after_another(leader: str, puts: int) -> list[float]:
    """The same with puts to etcd."""
    async with etcd.etcd_writers(leader, 1) as (put,):
        return [await put() for _ in range(puts)]


async def many_of_etcd(leader: str, seconds: float) -> tuple[list[float], float]:
    async with etcd.etcd_writers(leader, CLIENTS) as calls:
        return await all_clients(calls, seconds)


async def many_empty(address: str, seconds: float) -> tuple[list[float], float]:
    # gRPC shares connections between equal channels; with pools of their own there are as many as above.
    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(CHANNELS)]
    stubs = [empty_call(channel) for channel in channels]
    try:
        return await all_clients(
            [partial(ask_nothing, stubs[number % CHANNELS]) for number in range(CLIENTS)], seconds
        )
    finally:
        await asyncio.gather(*(channel.close(None) for channel in channels))


async def write(create: Any) -> float:
    request = one_topic()
    start = time.perf_counter()
    answer = await create(request, timeout=10)
    took_ms = (time.perf_counter() - start) * 1e3
    if not succeeded(answer):
        raise RuntimeError(f"a write was refused: {answer}")
    return took_ms


async def write_by_kafka(connection: NodeConnection) -> float:
    topic = CreateTopicsRequest.CreatableTopic(name=next_name(), num_partitions=1, replication_factor=1)
    body = CreateTopicsRequest(topics=(topic,), timeout_ms=30_000)
    start = time.perf_counter()
    answer = await connection.begin(body, version=connection.version("CreateTopics"))
    took_ms = (time.perf_counter() - start) * 1e3
    if any(each.error_code for each in answer.body.topics):
        raise RuntimeError(f"a write was refused: {answer.body}")
    return took_ms


async def ask_nothing(call: Any) -> float:
    start = time.perf_counter()
    await call(b"", timeout=10)
    return (time.perf_counter() - start) * 1e3


async def all_clients(calls: Sequence[Write], seconds: float) -> tuple[list[float], float]:
    """Latencies in ms of what each client calls during `seconds`, and how long all took, in s."""
    took: list[float] = []
    start = time.perf_counter()
    until = start + seconds

    async def client(call: Write) -> None:
        while time.perf_counter() < until:
            took.append(await call())

    await asyncio.gather(*map(client, calls))
    return took, time.perf_counter() - start


async def leader_of(cluster: Cluster) -> tuple[Node, int]:
    """The active controller's process and its epoch; requested on the clients' loop."""
    async with AdminClient(cluster.bootstrap) as client:
        quorum = await client.describe_quorum()
    return cluster.controller(quorum.leader_id), quorum.leader_epoch

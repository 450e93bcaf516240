"""A controller that is restarted with an image of many partitions: how long until it is ready.

The three directories are made with the library: once with a snapshot and a log after it, once with only a
log. The clock runs from the start of the process until it serves (it follows, can vote, and knows the high
watermark) and has applied everything up to the high watermark that the leader had at the start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.raft.effects import AppendLog, PersistQuorumState
from metaquorum.raft.store import ReplicaStore
from metaquorum.storage.batches.batch import Batches, hop_headers, iter_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.types import LogPosition
from tests.bench.bench_replay import log_of, one_record_log, replayed, values
from tests.bench.figures import Figure
from tests.bench.quorum import applied_offset, channel_to, cpu_seconds, wait_all_caught_up
from tests.e2e.cluster import Cluster, Node, client_loop

EPOCH = 2
"""The epoch of the last records that bench_replay makes."""

READY_S = 60.0
TARGETS = {True: (2, "3.4 to 6.3 s at 500,000"), False: (3, None)}
"""Seconds from the start of the process, with up to 500,000 partitions and with more; and Kafka's."""

NO_SNAPSHOTS = {
    "controller": {
        "metadata.log.max.record.bytes.between.snapshots": str(2**40),
        "metadata.log.max.snapshot.interval.ms": "0",
    }
}
"""Every start finds the files as they were made: otherwise the first one writes a snapshot, and later ones
load it."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--tail", type=int, default=20_000, help="one-record batches after the snapshot")
    parser.add_argument("--runs", type=int, default=5)


def run(options: argparse.Namespace) -> list[Figure]:
    log = log_of(values(options.partitions), 10_000)
    tail = one_record_log(options.tail, options.partitions, end_of(log))
    figures: list[Figure] = []
    for what, fill in (
        (f"snapshot and {options.tail:,} one-record batches", with_snapshot),
        ("log only", with_log),
    ):
        with made(log, tail, fill) as cluster:
            figures += measured(what, cluster, options.runs, options.partitions)
    return figures


def end_of(log: bytes) -> int:
    return hop_headers(log)[-1][2]


@contextlib.contextmanager
def made(log: bytes, tail: bytes, fill: Any) -> Iterator[Cluster]:
    """A running quorum whose three directories hold the same."""
    import tempfile

    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        Cluster(Path(directory), controllers=3, properties=NO_SNAPSHOTS) as cluster,
    ):
        first, *others = cluster.controllers
        store = ReplicaStore.open(PosixDisk(), str(first.data))
        fill(store, log, tail)
        store.persist_quorum_state(
            PersistQuorumState(token=1, epoch=EPOCH, leader_id=None, voted_id=None, voted_directory_id=None)
        )
        store.close()
        for other in others:
            shutil.copytree(first.metadata_log, other.metadata_log, dirs_exist_ok=True)
        cluster.start()
        wait_all_caught_up(cluster)
        yield cluster


def with_snapshot(store: ReplicaStore, log: bytes, tail: bytes) -> None:
    """As a node keeps it: the image in a snapshot, later records in a log that begins there."""
    position = LogPosition(1, end_of(log))
    store.write_snapshot(position, snapshot_batches(replayed(log).image, position=position))
    store.log.reset_to(position)
    append(store, tail)


def with_log(store: ReplicaStore, log: bytes, tail: bytes) -> None:
    append(store, log)
    append(store, tail)


def append(store: ReplicaStore, data: bytes) -> None:
    for batch in iter_batches(data):
        store.execute(AppendLog(batches=Batches.sealed(bytes(batch.data))))
    ticket = store.prepare_sync()
    ticket.run()
    store.sync_completed(ticket)


def measured(what: str, cluster: Cluster, runs: int, partitions: int) -> list[Figure]:
    wanted_s, kafka = TARGETS[partitions <= 500_000]
    times, cpu, resident = [], [], []
    for number in range(runs):
        quorum = cluster.quorum()
        followers = [node for node in cluster.controllers if node.node_id != quorum.leader_id]
        node = followers[number % len(followers)]
        node.kill()
        target = cluster.quorum().high_watermark
        start = time.perf_counter()
        node.start()
        client_loop().call(until_ready(node, target), READY_S + 5)
        times.append(time.perf_counter() - start)
        cpu.append(cpu_seconds(node.pid))
        resident.append(resident_mib(node.pid))
        wait_all_caught_up(cluster)
    return [
        Figure(
            name=f"{what}, {partitions:,} partitions: start to ready, median of {runs}",
            value=statistics.median(times),
            unit="s",
            at_most=wanted_s,
            kafka=kafka,
        ),
        Figure(name=f"{what}: worst", value=max(times), unit="s", at_most=wanted_s),
        Figure(name=f"{what}: CPU until ready, median", value=statistics.median(cpu), unit="s"),
        Figure(name=f"{what}: resident memory", value=max(resident), unit="MiB"),
    ]


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has ended")


async def until_ready(node: Node, target: int) -> None:
    """Until it serves and its image holds everything below `target`."""
    deadline = time.monotonic() + READY_S
    channel = channel_to(node)
    health: Any = health_pb2_grpc.HealthStub(channel)
    try:
        while time.monotonic() < deadline:
            with contextlib.suppress(grpc.aio.AioRpcError):
                state = await health.Check(health_pb2.HealthCheckRequest(service=""), timeout=1)
                if state.status == health_pb2.HealthCheckResponse.SERVING:
                    if await applied_offset(node) >= target:
                        return
            await asyncio.sleep(0.01)
        raise RuntimeError(f"{node.name} was not ready within {READY_S:.0f} s\n{node.output()}")
    finally:
        await channel.close(None)

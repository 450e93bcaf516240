"""Partition data: one producer with acks=all, fetches from the page cache, and latency at a steady rate.

A controller and three brokers with two directories each as processes, one topic of replication factor 3, the
project's own producer in this process. Each size is written with `log.flush.before.ack` true (a replica
counts when its disk has the record) and false (as Kafka). Every byte is written three times on this machine:
the figure of its disk is printed beside.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as api
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.runtime.client.admin import AdminClient, TopicDescription
from metaquorum.runtime.data_client.connections import GrpcConnections
from metaquorum.runtime.data_client.producer import Producer, ProducerConfig
from metaquorum.storage.batches.format import HEADER_BYTES, parse_header
from tests.bench.figures import Figure, percentile
from tests.bench.quorum import cpu_seconds
from tests.e2e.cluster import HOST, Cluster, client_loop

MB = 1_000_000
SIZES = ((100, 64 * 1024, 40.0), (1024, 256 * 1024, 100.0))
"""Bytes of a message, of a batch, and the target in MB/s of values."""

RATE = 1_000
LATENCY_P99_MS = 15.0
FETCH_MB_S = 400.0
CALL_S = 600.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=400, help="values to write of each size")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=15.0, help="of the steady rate")


def run(options: argparse.Namespace) -> list[Figure]:
    figures = [Figure(name="the disk: 256 KiB writes, each synced", value=disk_mb_s(), unit="MB/s")]
    for flush in (True, False):
        what = "synced before the ack" if flush else "not synced"
        with data_cluster(flush) as cluster:
            create(cluster, "steady", options.partitions)
            waits = client_loop().call(steady(cluster, "steady", options.seconds), CALL_S)
            target_ms = LATENCY_P99_MS
            name = f"{RATE} messages/s, {what}"
            figures += [
                Figure(name=f"{name}, p50", value=percentile(waits, 0.5), unit="ms"),
                Figure(name=f"{name}, p99", value=percentile(waits, 0.99), unit="ms", at_most=target_ms),
            ]
            for size, batch, target in SIZES:
                topic = f"size-{size}"
                create(cluster, topic, options.partitions)
                rate, cpu = client_loop().call(write(cluster, topic, size, batch, options.megabytes), CALL_S)
                name = f"{size} B in {batch // 1024} KiB batches, {what}"
                figures.append(Figure(name=name, value=rate, unit="MB/s", at_least=target))
                figures.append(Figure(name="  CPU of the three brokers meanwhile", value=cpu, unit="cores"))
            if flush:
                cluster.stop()
                cluster.start()
                rate = client_loop().call(fetch_all(cluster, "size-1024", options.partitions), CALL_S)
                name = "fetch, page cache, brokers just started"
                figures.append(Figure(name=name, value=rate, unit="MB/s", at_least=FETCH_MB_S))
            cluster.assert_no_bugs()
    return figures


@contextmanager
def data_cluster(flush: bool) -> Iterator[Cluster]:
    """A controller and three brokers, each with two directories for partitions."""
    properties = {"broker": {"log.flush.before.ack": str(flush).lower()}}
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        Cluster(Path(directory), controllers=1, brokers=3, properties=properties, log_dirs=2) as cluster,
    ):
        cluster.start()
        yield cluster


def create(cluster: Cluster, name: str, partitions: int, replicas: int = 3) -> None:
    """The topic, once every replica has its directory and every leader leads."""
    topic = NewTopic(name=name, partitions=partitions, replication_factor=replicas)
    cluster.call(lambda client: client.create_topics([topic]))
    client_loop().call(until_led(cluster, name, partitions), 120)


async def until_led(cluster: Cluster, topic: str, partitions: int) -> None:
    """Until a first message was acknowledged in every partition."""
    connections = GrpcConnections()
    async with Producer(connections, bootstrap(cluster)) as producer:
        for partition in range(partitions):
            await (await producer.send(topic, b"first", partition=partition))
    await connections.close()


def bootstrap(cluster: Cluster) -> list[tuple[str, int]]:
    return [(HOST, broker.port) for broker in cluster.brokers]


async def write(
    cluster: Cluster, topic: str, size: int, batch_bytes: int, megabytes: int
) -> tuple[float, float]:
    """(MB of values a second until the last one is acknowledged, cores that the brokers used)."""
    count = megabytes * MB // size
    block = [random.Random(7).randbytes(size) for _ in range(1000)]
    connections = GrpcConnections()
    config = ProducerConfig(batch_bytes=batch_bytes, buffer_bytes=64 * 1024 * 1024)
    async with Producer(connections, bootstrap(cluster), config) as producer:
        await producer.partitions(topic)
        used = sum(cpu_seconds(broker.pid) for broker in cluster.brokers)
        began = time.perf_counter()
        receipts = []
        for _ in range(count // len(block)):
            receipts += await producer.send_many(topic, block)
        await producer.flush()
        took_s = time.perf_counter() - began
        for receipt in receipts:
            await receipt
        used = sum(cpu_seconds(broker.pid) for broker in cluster.brokers) - used
    await connections.close()
    return count // len(block) * len(block) * size / MB / took_s, used / took_s


async def steady(cluster: Cluster, topic: str, seconds: float) -> list[float]:
    """ms from giving each message to its acknowledgement, a message of 100 bytes each millisecond."""
    connections = GrpcConnections()
    waits: list[float] = []
    value = random.Random(9).randbytes(100)
    pending: set[asyncio.Task[None]] = set()

    async def one(given_s: float) -> None:
        await (await producer.send(topic, value))
        waits.append((time.perf_counter() - given_s) * 1000)

    config = ProducerConfig(batch_bytes=16 * 1024, linger_ms=0)
    async with Producer(connections, bootstrap(cluster), config) as producer:
        await producer.partitions(topic)
        began = time.perf_counter()
        for number in range(int(seconds * RATE)):
            due = began + number / RATE
            delay = due - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            # Counted from when it was due: a producer that is held up does not make it look better.
            task = asyncio.get_running_loop().create_task(one(due))
            pending.add(task)
            task.add_done_callback(pending.discard)
        await asyncio.gather(*pending)
    await connections.close()
    return waits


async def fetch_all(cluster: Cluster, topic: str, partitions: int) -> float:
    """MB of batches a second, from every partition of the topic at once, one fetch under way in each."""
    answer = await topic_of(cluster, topic)
    connections = GrpcConnections()
    ports = {broker.node_id: broker.port for broker in cluster.brokers}

    async def read(partition: int) -> int:
        offset, total = 0, 0
        while True:
            wanted = api.FetchPartition(
                key=(answer.info.topic_id, partition), fetch_offset=offset, max_bytes=8 * 1024 * 1024
            )
            request = api.FetchRequest(
                max_wait_ms=0, min_bytes=0, max_bytes=16 * 1024 * 1024, partitions=(wanted,)
            )
            address = (HOST, ports[answer.partitions[partition].leader])
            found = await connections.fetch(address, request, timeout_ms=10_000)
            if isinstance(found, ApiError):
                raise found
            (part,) = found.partitions
            if part.error is not ErrorCode.NONE:
                raise RuntimeError(f"partition {partition}: {part.error.name} {part.message}")
            if not part.records:
                return total
            total += len(part.records)
            offset = next_offset(part.records)

    began = time.perf_counter()
    read_bytes = sum(await asyncio.gather(*(read(each) for each in range(partitions))))
    took_s = time.perf_counter() - began
    await connections.close()
    return read_bytes / MB / took_s


async def topic_of(cluster: Cluster, name: str) -> TopicDescription:
    async with AdminClient(cluster.bootstrap) as client:
        return (await client.describe_topics([name])).topics[0]


def next_offset(records: bytes) -> int:
    """Behind the last whole batch, found by hopping over headers."""
    position, following = 0, 0
    while position + HEADER_BYTES <= len(records):
        header = parse_header(records, position)
        if position + header.size_bytes > len(records):
            break
        following = header.next_offset
        position += header.size_bytes
    return following


def disk_mb_s(count: int = 400, size: int = 256 * 1024) -> float:
    data = os.urandom(size)
    with tempfile.TemporaryFile(prefix="bench-") as file:
        began = time.perf_counter()
        for _ in range(count):
            file.write(data)
            file.flush()
            os.fdatasync(file.fileno())
        return count * size / MB / (time.perf_counter() - began)

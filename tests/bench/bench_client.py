"""What the client of partition data costs by itself: encoding and decoding batches, and a producer and a
consumer against brokers that answer at once inside the process, without gRPC. In messages
a second of one core's time, so that other work on the machine does not count."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

from metaquorum.runtime.data_client.consumer import Consumer, Start, StartKind
from metaquorum.runtime.data_client.consuming.records import split_batches
from metaquorum.runtime.data_client.producer import Producer, ProducerConfig
from metaquorum.runtime.data_client.producing.batches import BatchBuilder
from tests.bench.figures import Figure
from tests.unit.runtime.fake_broker import FakeCluster

MESSAGES = 400_000
ROUNDS = 3
BATCH_BYTES = 64 * 1024
AT_LEAST = 400_000


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=MESSAGES)


def run(options: argparse.Namespace) -> list[Figure]:
    return asyncio.run(measure(options.messages))


async def measure(messages: int) -> list[Figure]:
    same = [b"%0100d" % number for number in range(messages)]
    mixed = [each[: 20 + number % 80] for number, each in enumerate(same)]
    figures: list[Figure] = []
    for name, values in (("100 bytes", same), ("20 to 99 bytes", mixed)):
        batches, rate = _best(lambda values=values: _encode(values), len(values))
        figures.append(_figure(f"encode messages of {name} in 64 KiB batches", rate))
        _, rate = _best(lambda batches=batches: _decode(batches), len(values))
        figures.append(_figure(f"check and decode messages of {name}", rate))
    produced, rate = await _produce(same)
    figures.append(_figure("produce messages of 100 bytes, no gRPC", rate))
    figures.append(_figure("consume messages of 100 bytes, no gRPC", await _consume(produced, len(same))))
    one_by_one = same[: messages // 4]
    figures.append(
        Figure(name="send() one by one, no gRPC", value=await _send(one_by_one), unit="messages/core s")
    )
    return figures


def _figure(name: str, rate: float) -> Figure:
    return Figure(name=name, value=rate, unit="messages/core s", at_least=AT_LEAST)


def _best(work: Any, count: int) -> tuple[Any, float]:
    """What it returned, and the best rate of a few rounds."""
    best, result = 0.0, None
    for _ in range(ROUNDS):
        started = time.process_time()
        result = work()
        best = max(best, count / (time.process_time() - started))
    return result, best


def _encode(values: list[bytes]) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at < len(values):
        builder = BatchBuilder(1_000, BATCH_BYTES)
        at += builder.extend(values, at, 1_000)
        found.append(builder.payload().sealed(1, 0, 0))
    return found


def _decode(batches: list[bytes]) -> int:
    return sum(len(batch.records()) for data in batches for batch in split_batches(data))


class _Quick(FakeCluster):
    """Stores and answers at once."""

    def produce(self, address: Any, request: Any, *, timeout_ms: int) -> Any:
        done = asyncio.get_running_loop().create_future()
        done.set_result(self._carry_out(address, request))
        return done


async def _produce(values: list[bytes]) -> tuple[_Quick, float]:
    cluster = _Quick()
    cluster.add_topic("t", 1)
    async with Producer(cluster, cluster.bootstrap, ProducerConfig(batch_bytes=BATCH_BYTES)) as producer:
        await (await producer.send("t", b"first"))
        started = time.process_time()
        await producer.send_many("t", values)
        await producer.flush()
        return cluster, len(values) / (time.process_time() - started)


async def _send(values: list[bytes]) -> float:
    cluster = _Quick()
    cluster.add_topic("t", 1)
    async with Producer(cluster, cluster.bootstrap, ProducerConfig(batch_bytes=BATCH_BYTES)) as producer:
        await (await producer.send("t", b"first"))
        started = time.process_time()
        for value in values:
            await producer.send("t", value)
        await producer.flush()
        return len(values) / (time.process_time() - started)


async def _consume(cluster: FakeCluster, count: int) -> float:
    async with Consumer(cluster, cluster.bootstrap) as consumer:
        started = time.process_time()
        await consumer.assign({("t", 0): Start(StartKind.EARLIEST)})
        seen = 0
        while seen < count:
            chunk = await consumer.poll(10_000)
            if chunk is None:
                raise RuntimeError(f"only {seen} of {count} messages came")
            seen += len(chunk.records)
        return count / (time.process_time() - started)

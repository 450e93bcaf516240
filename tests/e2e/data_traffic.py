"""A producer and a consumer that run while a cluster is hurt, and the account of what passed.

Every message is `partition:number`, numbered from 0 in each partition, with acks=all from the project's own
idempotent producer. `finish` is the check of KIP-112's system tests: everything that was acknowledged is read
once and in order (S3.31). Runs on the one client loop.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, field

from metaquorum.runtime.data_client.connections import GrpcConnections
from metaquorum.runtime.data_client.consumer import Consumer, ConsumerConfig, Start, StartKind
from metaquorum.runtime.data_client.producer import Producer, ProducerConfig
from tests.e2e.cluster import HOST, Cluster, client_loop
from tests.e2e.processes import wait_until

PROGRESS_S = 60.0
IN_FLIGHT_MAX = 2_000
_POLL_MS = 50


@dataclass(slots=True)
class Passed:
    """Messages by partition: given to the producer, acknowledged, and read."""

    sent: dict[int, int] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    longest_wait_s: float = 0.0

    @property
    def total(self) -> int:
        """Read so far."""
        return sum(self.read.values())


class Traffic:
    """From `start` to `finish`. `batch_ms`: how often each partition gets a message."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        partitions: int = 1,
        every_s: float = 0.005,
        delivery_timeout_ms: int = 120_000,
    ) -> None:
        self.passed = Passed()
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._every_s = every_s
        self._config = ProducerConfig(linger_ms=2, delivery_timeout_ms=delivery_timeout_ms)
        self._writes = True
        self._running: list[Future[None]] = []

    def start(self) -> Traffic:
        loop = client_loop().loop
        self._running = [
            asyncio.run_coroutine_threadsafe(work, loop) for work in (self._write(), self._read())
        ]
        self.flows()
        return self

    def flows(self, messages: int = 20) -> None:
        """Waits until so many more than now were acknowledged and read."""
        before = self.passed.total
        wait_until(
            lambda: self._alive() and self.passed.total >= before + messages,
            f"{messages} more messages of {self._topic} to pass",
            timeout_s=PROGRESS_S,
            details=lambda: self._cluster.report([str(self.passed)]),
        )

    def finish(self) -> Passed:
        """Stops, and compares: nothing that was acknowledged is missing, nothing came twice or in another
        order, and nothing that was sent failed."""
        self._writes = False
        for work in self._running:
            work.result(PROGRESS_S)
        passed = self.passed
        assert not passed.problems, passed.problems
        assert passed.sent == passed.acknowledged == passed.read, passed
        return passed

    def _alive(self) -> bool:
        for work in self._running:
            if work.done():
                work.result()
        assert not self.passed.problems, self.passed.problems
        return True

    def _bootstrap(self) -> list[tuple[str, int]]:
        return [(HOST, broker.port) for broker in self._cluster.brokers]

    async def _write(self) -> None:
        passed, connections = self.passed, GrpcConnections()
        slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        waiting: set[asyncio.Task[None]] = set()
        clock = asyncio.get_running_loop().time

        async def settle(receipt: object, partition: int, since_s: float) -> None:
            try:
                await receipt  # type: ignore[misc]
                passed.acknowledged[partition] = passed.acknowledged.get(partition, 0) + 1
                passed.longest_wait_s = max(passed.longest_wait_s, clock() - since_s)
            except Exception as error:
                passed.problems.append(f"a message of partition {partition}: {error}")
            finally:
                slots.release()

        async with Producer(connections, self._bootstrap(), self._config) as producer:
            while self._writes:
                for partition in range(self._partitions):
                    await slots.acquire()
                    number = passed.sent.get(partition, 0)
                    receipt = await producer.send(
                        self._topic, f"{partition}:{number}".encode(), partition=partition
                    )
                    passed.sent[partition] = number + 1
                    task = asyncio.get_running_loop().create_task(settle(receipt, partition, clock()))
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
                await asyncio.sleep(self._every_s)
            await asyncio.gather(*waiting)
        await connections.close()

    async def _read(self) -> None:
        passed, connections = self.passed, GrpcConnections()
        async with Consumer(connections, self._bootstrap(), ConsumerConfig(max_wait_ms=200)) as consumer:
            places = [(self._topic, each) for each in range(self._partitions)]
            await consumer.assign({place: Start(StartKind.EARLIEST) for place in places})
            # Once writing has ended and every answer is in, all that was acknowledged must come.
            while self._writes or not self._running[0].done() or passed.read != passed.acknowledged:
                chunk = await consumer.poll(_POLL_MS)
                if chunk is None:
                    continue
                for record in chunk.records:
                    expected = passed.read.get(chunk.partition, 0)
                    value = (record.value or b"").decode()
                    if value != f"{chunk.partition}:{expected}":
                        passed.problems.append(
                            f"offset {record.offset} of partition {chunk.partition} holds {value!r}, and"
                            f" {chunk.partition}:{expected} was to come"
                        )
                        return
                    passed.read[chunk.partition] = expected + 1
        await connections.close()

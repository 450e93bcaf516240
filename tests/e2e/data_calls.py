"""Produces and fetches at a cluster's brokers, each call to one node, for tests without a Kafka client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from metaquorum.clients.kafka.connection import ConnectionFailed
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image.types import PartitionInfo
from metaquorum.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse
from tests.broker_calls import BrokerCalls, Fetched, Produced, batch, calls_to, records
from tests.e2e.cluster import Cluster, Node, client_loop

T = TypeVar("T")
Directory = DescribeLogDirsResponse.DescribeLogDirsResult


class DataCalls:
    """Calls to a cluster's brokers, each to one node and sent once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._producers = 1_000_000

    def call(self, node: Node, ask: Callable[[BrokerCalls], Awaitable[T]]) -> T:
        """The response. Raises ConnectionFailed or TimeoutError."""

        async def asked() -> T:
            async with calls_to(node.kafka_port) as calls:
                return await ask(calls)

        return client_loop().call(asked())

    def leader(self, topic: str, partition: int = 0) -> Node:
        """The node that leads, according to the active controller."""
        leader = self.partition(topic, partition).leader
        return next(node for node in self._cluster.brokers if node.node_id == leader)

    def partition(self, topic: str, partition: int = 0) -> PartitionInfo:
        return self._cluster.partitions(topic)[partition]

    def directories(self, node: Node) -> dict[Path, Directory]:
        """The node's log directories as it describes them."""
        request = DescribeLogDirsRequest(topics=None, include_details=True)
        answer: DescribeLogDirsResponse = self.call(node, lambda calls: calls.ask(request))
        assert not answer.error_code, answer
        return {Path(each.log_dir): each for each in answer.results}

    def produce(self, node: Node, topic: str, values: Sequence[bytes], **fields: int) -> Produced:
        """One batch to partition 0, with further fields of its header."""
        return self.call(node, lambda calls: calls.produce(topic, batch(values, **fields)))

    def produce_until_taken(self, topic: str, values: Sequence[bytes]) -> Produced:
        """One batch to the leader, retried while the error is retriable. It has a producer of its own: a
        batch that was replicated before its leader failed is not stored twice."""
        self._producers += 1
        producer = {"producer_id": self._producers, "producer_epoch": 0, "base_sequence": 0}

        def taken() -> Produced | None:
            try:
                result = self.produce(self.leader(topic), topic, values, **producer)
            except (ConnectionFailed, TimeoutError, StopIteration):
                return None
            error = ErrorCode(result.error_code)
            if error.retriable or error is ErrorCode.BROKER_NOT_AVAILABLE:
                return None
            assert error is ErrorCode.NONE, result
            return result

        return self._cluster.wait(taken, f"a batch in {topic}")

    def fetch(self, node: Node, topic: str, offset: int, *, max_wait_ms: int = 0) -> Fetched:
        return self.call(node, lambda calls: calls.fetch_one(topic, offset, max_wait_ms=max_wait_ms))

    def read_all(self, node: Node, topic: str, *, up_to: int) -> list[tuple[int, bytes]]:
        """(offset, value) of every record below `up_to`, from the start, fetched until all are there."""
        found: list[tuple[int, bytes]] = []

        def read() -> bool:
            offset = found[-1][0] + 1 if found else 0
            part = self.fetch(node, topic, offset, max_wait_ms=500)
            assert part.error_code == ErrorCode.NONE, part
            found.extend(each for each in records(part.records) if each[0] >= offset)
            return bool(found) and found[-1][0] + 1 >= up_to

        self._cluster.wait(read, f"offset {up_to} of {topic} at {node.name}")
        return found

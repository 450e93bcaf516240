"""Produces and fetches over raw stubs of the Data service, for tests that want no client between.

Owns the batches that it sends and the reading of what comes back; asks again where an answer says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc.aio

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image.types import PartitionInfo
from metaquorum.metadata.requests import data as api
from metaquorum.proto import data_pb2 as pb
from metaquorum.proto.data_pb2_grpc import DataStub
from metaquorum.runtime.api import data as data_codec
from metaquorum.runtime.rpc.channels import open_channel
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from tests.e2e.cluster import Cluster, Node, client_loop

TIMEOUT_S = 10.0


class DataCalls:
    """Calls to a cluster's brokers, each to one node, each once. Answers are values."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def call(self, node: Node, method: str, request: Any) -> Any:
        """The answer's message. Raises AioRpcError."""

        async def ask() -> Any:
            host, _, port = node.address.rpartition(":")
            channel = open_channel(host, int(port), None)
            try:
                return await getattr(DataStub(channel), method)(request, timeout=TIMEOUT_S)
            finally:
                await channel.close()

        return client_loop().call(ask())

    def leader(self, topic: str, partition: int = 0) -> Node:
        """The node that leads, as the active controller has it."""
        leader = self.partition(topic, partition).leader
        return next(node for node in self._cluster.brokers if node.node_id == leader)

    def partition(self, topic: str, partition: int = 0) -> PartitionInfo:
        found = self._cluster.call(lambda client: client.describe_topics([topic]))
        return found.topics[0].partitions[partition]

    def produce(
        self, node: Node, topic: str, values: Sequence[bytes], *, acks: int = -1
    ) -> api.ProduceResult:
        """One batch to partition 0."""
        request = pb.ProduceRequest(
            acks=acks,
            timeout_ms=5_000,
            partitions=[
                pb.ProducePartition(topic=pb.TopicRef(name=topic), partition=0, records=batch(values))
            ],
        )
        answer = data_codec.PRODUCED.answer_from_pb(self.call(node, "Produce", request))
        if isinstance(answer, ApiError):
            raise answer
        return answer.results[0]

    def produce_until_taken(self, topic: str, values: Sequence[bytes]) -> api.ProduceResult:
        """One batch to whoever leads, repeated while an error is one that passes."""

        def taken() -> api.ProduceResult | None:
            try:
                result = self.produce(self.leader(topic), topic, values)
            except (grpc.aio.AioRpcError, StopIteration):
                return None
            except ApiError as error:
                if error.retriable or error.code is ErrorCode.BROKER_NOT_AVAILABLE:
                    return None
                raise
            if result.error.retriable or result.error is ErrorCode.BROKER_NOT_AVAILABLE:
                return None
            assert result.error is ErrorCode.NONE, result
            return result

        return self._cluster.wait(taken, f"a batch in {topic}")

    def fetch(self, node: Node, topic: str, offset: int, *, max_wait_ms: int = 0) -> api.FetchedPartition:
        request = pb.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=16 * 1024 * 1024,
            session_epoch=-1,
            partitions=[
                pb.FetchPartition(
                    topic=pb.TopicRef(name=topic), partition=0, fetch_offset=offset, max_bytes=8 * 1024 * 1024
                )
            ],
        )
        answer = data_codec.FETCHED.answer_from_pb(self.call(node, "Fetch", request))
        if isinstance(answer, ApiError):
            raise answer
        return answer.partitions[0]

    def read_all(self, node: Node, topic: str, *, up_to: int) -> list[tuple[int, bytes]]:
        """(offset, value) of every record below `up_to`, from the start, asked for until they are there."""
        found: list[tuple[int, bytes]] = []

        def read() -> bool:
            offset = found[-1][0] + 1 if found else 0
            part = self.fetch(node, topic, offset, max_wait_ms=500)
            assert part.error is ErrorCode.NONE, part
            found.extend(each for each in records(part.records) if each[0] >= offset)
            return bool(found) and found[-1][0] + 1 >= up_to

        self._cluster.wait(read, f"offset {up_to} of {topic} at {node.name}")
        return found


def batch(values: Sequence[bytes], **producer: int) -> bytes:
    return encode_batch(
        base_offset=0, leader_epoch=-1, timestamp_ms=1_700_000_000_000, values=list(values), **producer
    )


def records(data: bytes) -> list[tuple[int, bytes]]:
    return [
        (record.offset, record.value or b"")
        for found in iter_batches(data, file="fetched")
        for record in found.records()
    ]

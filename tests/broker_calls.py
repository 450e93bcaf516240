"""Calls of Kafka's protocol to one broker, each sent once, for tests that want no client between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from metaquorum.clients.kafka.connection import NodeConnection, connect
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from metaquorum.wire.messages import (
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)

TIMEOUT_S = 20.0
MAX_BYTES = 8 * 1024 * 1024
_BY_NAME, _BY_ID = 12, 16
"""Versions of Fetch: the last one that names topics, and one that gives their ids."""

Produced = ProduceResponse.PartitionProduceResponse
Fetched = FetchResponse.PartitionData
Listed = ListOffsetsResponse.ListOffsetsPartitionResponse


class BrokerCalls:
    """One connection. Topics are named, or in a fetch given by their id. `ask` takes any other request."""

    def __init__(self, connection: NodeConnection) -> None:
        self._connection = connection

    async def ask(self, body: Any, *, version: int | None = None) -> Any:
        """The answer's body. Raises ConnectionFailed or TimeoutError."""
        return (await self._connection.ask(body, version=version, timeout_s=TIMEOUT_S)).body

    async def produce(self, topic: str, records: bytes, *, partition: int = 0, acks: int = -1) -> Produced:
        part = ProduceRequest.PartitionProduceData(index=partition, records=records)
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=(part,))
        request = ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=(data,))
        answer: ProduceResponse = await self.ask(request, version=9)
        return answer.responses[0].partition_responses[0]

    async def fetch(
        self,
        topic: str | bytes | None,
        offset: int = 0,
        *,
        partition: int = 0,
        leader_epoch: int = -1,
        **more: Any,
    ) -> FetchResponse:
        """`topic` None: nothing is named, as in a session. `more`: fields of the request."""
        part = FetchRequest.FetchPartition(
            partition=partition,
            fetch_offset=offset,
            current_leader_epoch=leader_epoch,
            partition_max_bytes=MAX_BYTES,
        )
        named: dict[str, Any] = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
        topics = () if topic is None else (FetchRequest.FetchTopic(partitions=(part,), **named),)
        request = FetchRequest(
            **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 2 * MAX_BYTES, "topics": topics, **more}
        )
        answer: FetchResponse = await self.ask(
            request, version=_BY_NAME if isinstance(topic, str) else _BY_ID
        )
        return answer

    async def fetch_one(self, topic: str | bytes, offset: int = 0, **more: Any) -> Fetched:
        """The one partition of the answer, or the code with which the whole fetch was refused."""
        answer = await self.fetch(topic, offset, **more)
        if answer.error_code:
            return Fetched(error_code=answer.error_code, records=b"")
        return answer.responses[0].partitions[0]

    async def list_offset(
        self, topic: str, timestamp: int, *, partition: int = 0, leader_epoch: int = -1
    ) -> Listed:
        part = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=partition, timestamp=timestamp, current_leader_epoch=leader_epoch
        )
        asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=(part,))
        answer: ListOffsetsResponse = await self.ask(ListOffsetsRequest(topics=(asked,)))
        return answer.topics[0].partitions[0]

    async def init_producer_id(
        self, producer_id: int = -1, producer_epoch: int = -1
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(
            transactional_id=None, producer_id=producer_id, producer_epoch=producer_epoch
        )
        answer: InitProducerIdResponse = await self.ask(request)
        return answer


@asynccontextmanager
async def calls_to(port: int) -> AsyncIterator[BrokerCalls]:
    """A connection to the broker at this port of Kafka's protocol, for as long as the context lasts."""
    connection = await connect(
        "127.0.0.1",
        port,
        client_id="test",
        answer_max_bytes=4 * MAX_BYTES,
        timeout_s=TIMEOUT_S,
        looks_for_tls=False,
    )
    try:
        yield BrokerCalls(connection)
    finally:
        connection.close()


def batch(values: Sequence[bytes], **fields: int) -> bytes:
    """As a producer sends it."""
    return encode_batch(
        base_offset=0, leader_epoch=-1, timestamp_ms=1_700_000_000_000, values=list(values), **fields
    )


def records(data: Any) -> list[tuple[int, bytes]]:
    """(offset, value) of every record in what was fetched."""
    return [
        (record.offset, record.value or b"")
        for found in iter_batches(bytes(data or b""), file="fetched")
        for record in found.records()
    ]

"""Calls about transactions and producers: what coordinators and partition leaders report (KIP-664).

A transaction that its coordinator still knows is never ended.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from metaquorum.clients.admin.partition_logs import TopicPartition, by_leader, grouped
from metaquorum.clients.kafka.cluster import Coordinator, KafkaClient, PartitionLeader
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.wire.messages import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)

STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
)
_TRANSACTION = 1
"""The key type of transaction coordinators."""
PLACES_PER_REQUEST = 500
_WITH_DURATION = 1
_TRIES = 5
_PAUSE_S = 0.3


class TransactionListing(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


class DescribedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transactional id. `started_ms`: start of its last transaction, None if there was none. `places`:
    partitions that the transaction wrote to and that have no end marker yet."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    places: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        """True if the transaction has not ended."""
        return self.state == "Ongoing" or self.state.startswith("Prepare")


class PartitionProducer(msgspec.Struct, frozen=True, kw_only=True):
    """A producer's state at the leader of a partition. `open_from`: first offset of its open transaction,
    None if it has none. `coordinator_epoch` -1: it has not ended a transaction here."""

    partition: TopicPartition
    producer_id: int
    epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    open_from: int | None


async def list_transactions(
    client: KafkaClient,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    longer_than_ms: int = -1,
) -> list[TransactionListing]:
    """All transactional ids that coordinators know, by name. The filters are those of ListTransactions."""
    body = ListTransactionsRequest(
        state_filters=tuple(states), producer_id_filters=tuple(producer_ids), duration_filter=longer_than_ms
    )
    lowest = 0 if longer_than_ms < 0 else _WITH_DURATION
    transactions = [
        TransactionListing(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            state=transaction.transaction_state,
            coordinator=broker,
        )
        for broker, answer in await client.ask_every_broker(body, "its transactions", lowest=lowest)
        for transaction in answer.transaction_states
    ]
    return sorted(transactions, key=lambda each: each.transactional_id)


async def describe_transaction(client: KafkaClient, transactional_id: str) -> DescribedTransaction | None:
    """A transaction as its coordinator knows it; None if it does not know the id. Raises ApiError."""
    answer = await client.ask(
        DescribeTransactionsRequest(transactional_ids=(transactional_id,)),
        target=Coordinator(_TRANSACTION, transactional_id),
    )
    (state,) = answer.transaction_states
    if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return None
    client.refuse(state.error_code, f"transactional id {transactional_id}")
    return DescribedTransaction(
        transactional_id=transactional_id,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        state=state.transaction_state,
        timeout_ms=state.transaction_timeout_ms,
        started_ms=None if state.transaction_start_time_ms < 0 else state.transaction_start_time_ms,
        places=tuple((topic.topic, index) for topic in state.topics for index in topic.partitions),
    )


async def describe_producers(
    client: KafkaClient, places: Iterable[TopicPartition], *, broker: int | None = None
) -> list[PartitionProducer]:
    """The producers of partitions, from their leaders, or from the replicas on `broker`. Raises ApiError for
    a partition whose state is not available."""
    producers: list[PartitionProducer] = []
    if broker is not None:
        led = {broker: list(places)}
    else:
        led, refused = await by_leader(client, places)
        for (topic, index), code in refused.items():
            raise ApiError(code, f"{topic}-{index} has no leader, or does not exist")
    for node, held in led.items():
        target = PartitionLeader(*held[0]) if broker is None else node
        for first in range(0, len(held), PLACES_PER_REQUEST):
            producers += await _producers_at(client, target, held[first : first + PLACES_PER_REQUEST])
    return producers


async def _producers_at(
    client: KafkaClient, target: int | PartitionLeader, places: Sequence[TopicPartition]
) -> list[PartitionProducer]:
    message = DescribeProducersRequest
    body = message(
        topics=tuple(
            message.TopicRequest(name=topic, partition_indexes=tuple(indexes))
            for topic, indexes in grouped(places).items()
        )
    )
    answer = await client.ask(body, target=target)
    producers = []
    for topic in answer.topics:
        for part in topic.partitions:
            where = f"{topic.name}-{part.partition_index}"
            client.refuse(part.error_code, f"{where}: {part.error_message or 'not on this broker'}")
            producers += [
                _producer((topic.name, part.partition_index), each) for each in part.active_producers
            ]
    return producers


def _producer(partition: TopicPartition, state: Any) -> PartitionProducer:
    return PartitionProducer(
        partition=partition,
        producer_id=state.producer_id,
        epoch=state.producer_epoch,
        coordinator_epoch=state.coordinator_epoch,
        last_sequence=state.last_sequence,
        last_timestamp_ms=state.last_timestamp,
        open_from=None if state.current_txn_start_offset < 0 else state.current_txn_start_offset,
    )


async def find_hanging(
    client: KafkaClient, places: Sequence[TopicPartition], *, broker: int | None, silent_since_ms: int
) -> list[PartitionProducer]:
    """Hanging transactions: open at a partition, without a record since `silent_since_ms`, and without a
    coordinator that will end them, because it does not know the producer, or not that it wrote there."""
    producers = await describe_producers(client, places, broker=broker)
    suspects: dict[int, list[PartitionProducer]] = defaultdict(list)
    for producer in producers:
        if producer.open_from is not None and producer.last_timestamp_ms < silent_since_ms:
            suspects[producer.producer_id].append(producer)
    if not suspects:
        return []
    listed = await list_transactions(client, producer_ids=tuple(suspects))
    transactional_ids = {each.producer_id: each.transactional_id for each in listed}
    hanging = []
    for producer_id, opened in suspects.items():
        expected: tuple[TopicPartition, ...] = ()
        if producer_id in transactional_ids:
            description = await describe_transaction(client, transactional_ids[producer_id])
            expected = () if description is None else description.places
        hanging += [each for each in opened if each.partition not in expected]
    # A transaction that ended during these queries does not hang.
    again = await describe_producers(client, sorted({each.partition for each in hanging}), broker=broker)
    still = {(each.partition, each.producer_id, each.open_from) for each in again}
    left = [each for each in hanging if (each.partition, each.producer_id, each.open_from) in still]
    return sorted(left, key=lambda each: (each.partition, each.open_from))


async def abort_transaction(
    client: KafkaClient,
    partition: TopicPartition,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> None:
    """Writes an abort marker at the partition's leader. Raises ApiError."""
    message = WriteTxnMarkersRequest
    topic = message.WritableTxnMarkerTopic(name=partition[0], partition_indexes=(partition[1],))
    marker = message.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=(topic,),
        # -1 if the producer's first transaction hangs; the epoch of every coordinator is at least 0.
        coordinator_epoch=max(coordinator_epoch, 0),
    )
    code = ErrorCode.NONE
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE_S)
        _, refused = await by_leader(client, [partition])
        code = refused.get(partition, ErrorCode.NONE)
        if not refused:
            answer = await client.ask(message(markers=(marker,)), target=PartitionLeader(*partition))
            code = ErrorCode.of(answer.markers[0].topics[0].partitions[0].error_code)
        if not code.retriable:
            break
    client.refuse(code, f"{partition[0]}-{partition[1]}")

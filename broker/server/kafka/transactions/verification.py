"""Produces in transactions: verified by the coordinator before the first batch (KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from metaquorum.broker.coordinator.transaction import AddPartitions, TopicPartition
from metaquorum.broker.server.data.requests import Answer, DataRequests
from metaquorum.broker.server.kafka.groups import GroupCoordinators, last_of_each, partition_of
from metaquorum.broker.server.kafka.transactions.brokers import OtherBrokers
from metaquorum.broker.server.kafka.transactions.handlers import by_topic
from metaquorum.clients.kafka.connection import ConnectionFailed
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests import data as core
from metaquorum.storage.batches.format import BatchHeader
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import (
    AddPartitionsToTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

_VERIFY_VERSION = 4
_FENCED = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
_LATER = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Errors that do not last: producers retry NOT_ENOUGH_REPLICAS, in every version."""

Refusals = dict[core.PartitionKey, ApiError]


class TransactionVerifier:
    """Verifies with a transaction's coordinator, here or on another broker, that partitions are in it.
    `topic`: that of the coordinators."""

    def __init__(
        self,
        requests: DataRequests,
        brokers: OtherBrokers,
        image: Callable[[], MetadataImage],
        *,
        topic: str,
        broker_id: int,
    ) -> None:
        self._requests = requests
        self._brokers = brokers
        self._image = image
        self._topic = topic
        self._broker_id = broker_id

    async def verify(self, asked: AddPartitions) -> dict[TopicPartition, ErrorCode]:
        """One code per partition."""
        topics = self._image().topics
        topic = topics.topic_named(self._topic)
        count = 0 if topic is None else topics.partition_count_of(topic.topic_id)
        if topic is None or not count:
            return dict.fromkeys(asked.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        index = partition_of(asked.transactional_id, count)
        partition = topics.partition(topic.topic_id, index)
        if partition is None or partition.leader < 0:
            return dict.fromkeys(asked.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if partition.leader != self._broker_id:
            return await self._ask_other(partition.leader, asked)
        answer: Any = await self._requests.begin(
            core.CoordinatorRequest(topic=self._topic, partition=index, body=asked)
        )
        if isinstance(answer, ApiError):
            return dict.fromkeys(asked.partitions, answer.code)
        return dict(zip(asked.partitions, answer.body, strict=True))

    async def _ask_other(self, leader: int, asked: AddPartitions) -> dict[TopicPartition, ErrorCode]:
        message = AddPartitionsToTxnRequest
        topics = [
            message.AddPartitionsToTxnTopic(name=name, partitions=indexes)
            for name, indexes in by_topic(asked.partitions)
        ]
        transaction_body = message.AddPartitionsToTxnTransaction(
            transactional_id=asked.transactional_id,
            producer_id=asked.producer_id,
            producer_epoch=asked.producer_epoch,
            verify_only=True,
            topics=tuple(topics),
        )
        codes = dict.fromkeys(asked.partitions, ErrorCode.NETWORK_EXCEPTION)
        try:
            answer = await self._brokers.ask(
                leader, message(transactions=(transaction_body,)), version=_VERIFY_VERSION
            )
        except (ConnectionFailed, TimeoutError):
            return codes
        if answer.error_code:
            return dict.fromkeys(asked.partitions, ErrorCode.of(answer.error_code))
        for result in answer.results_by_transaction:
            for topic in result.topic_results:
                for part in topic.results_by_partition:
                    codes[topic.name, part.partition_index] = ErrorCode.of(part.partition_error_code)
        return codes


class TransactionalProduces:
    """`image` is called at each request."""

    def __init__(
        self, requests: DataRequests, verifier: TransactionVerifier, image: Callable[[], MetadataImage]
    ) -> None:
        self._requests = requests
        self._verifier = verifier
        self._image = image
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def begin(
        self, transactional_id: str, request: core.ProduceRequest
    ) -> tuple[Answer | None, Refusals]:
        """The answer to what may be written (None: nothing may), and why the rest may not."""
        headers = {part.key: header for part in request.partitions if (header := _transactional(part))}
        if not headers:
            return self._requests.begin(request), {}
        producer_id = next(iter(headers.values())).producer_id
        turn = self._turns.setdefault(producer_id, asyncio.Lock())
        async with turn:
            guards = await self._guards(headers)
            if isinstance(guards, ApiError):
                return None, {part.key: _later(guards.code) for part in request.partitions}
            refused = await self._refused(transactional_id, headers, guards)
            allowed = [
                replace(part, guard=guards.get(part.key))
                for part in request.partitions
                if part.key not in refused
            ]
            if not allowed:
                return None, refused
            return self._requests.begin(replace(request, partitions=tuple(allowed))), refused

    async def _guards(
        self, headers: Mapping[core.PartitionKey, BatchHeader]
    ) -> dict[core.PartitionKey, int] | ApiError:
        """Guards of the partitions that need the coordinator's verification."""
        answer: Any = await self._requests.begin(
            core.BeginVerification(
                partitions=tuple(
                    core.TransactionalPartition(
                        key=key, producer_id=header.producer_id, producer_epoch=header.producer_epoch
                    )
                    for key, header in headers.items()
                )
            )
        )
        if isinstance(answer, ApiError):
            return answer
        return {each.key: each.guard for each in answer.guards if each.guard is not None}

    async def _refused(
        self,
        transactional_id: str,
        headers: Mapping[core.PartitionKey, BatchHeader],
        guards: Mapping[core.PartitionKey, int],
    ) -> Refusals:
        topics = self._image().topics
        names = {
            key: topic.name
            for key, guard in guards.items()
            if guard != core.NOT_LED and (topic := topics.topic(key[0])) is not None
        }
        if not names:
            return {}
        header = headers[next(iter(names))]
        codes = await self._verifier.verify(
            AddPartitions(
                transactional_id=transactional_id,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                partitions=tuple((name, key[1]) for key, name in names.items()),
                verify_only=True,
            )
        )
        found = {key: codes[name, key[1]] for key, name in names.items()}
        return {key: _later(code) for key, code in found.items() if code is not ErrorCode.NONE}


def _transactional(part: core.ProducePartition) -> BatchHeader | None:
    """The header of a batch in a transaction; anything that is not a batch is refused later."""
    return next((header for header in part.batch.headers if header.is_transactional), None)


def _later(code: ErrorCode) -> ApiError:
    if code in _LATER:
        text = f"the transaction's coordinator did not answer ({code.name}): send the batch again"
        return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
    if code in _FENCED:
        text = (
            f"the producer is fenced ({code.name}): another producer with its transactional.id took over, or "
            "the transaction timed out; close this producer, and begin the transaction again with a new one"
        )
        if code is ErrorCode.PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return ApiError(code, text)
    text = (
        f"the transaction's coordinator refuses the partition ({code.name}): add it to the transaction first"
    )
    return ApiError(code, text)


# TxnOffsetCommit: offsets that count when their transaction commits (KIP-98, KIP-447).
# Which partitions exist, and the verification by the transaction's coordinator before offsets are stored:
# late ones would open a transaction that nothing ends.

_LOADING_SINCE = 2
"""The version from which clients know COORDINATOR_LOAD_IN_PROGRESS here."""

_FOR_CLIENTS = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}
"""The client did not ask the transaction's coordinator, so it must retry here."""


class TransactionOffsets:
    """`coordinators` are those of groups; `place` returns the partition of a group's offsets."""

    def __init__(
        self,
        coordinators: GroupCoordinators,
        verifier: TransactionVerifier,
        image: Callable[[], MetadataImage],
        partition_of: Callable[[str], TopicPartition],
    ) -> None:
        self._coordinators = coordinators
        self._verifier = verifier
        self._image = image
        self._partition_of = partition_of

    async def txn_offset_commit(self, request: Request, client: Client) -> TxnOffsetCommitResponse:
        body: TxnOffsetCommitRequest = request.body
        committed: dict[str, dict[int, Any]] = {}
        for topic in body.topics:
            for index, part in last_of_each(topic.partitions).items():
                if self._exists(topic.name, index):
                    committed.setdefault(topic.name, {})[index] = part
        codes: dict[TopicPartition, ErrorCode] = {}
        if committed:
            kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
            asked = tuple(
                kind(name=name, partitions=tuple(parts.values())) for name, parts in committed.items()
            )
            fixed = msgspec.structs.replace(body, topics=asked)
            codes = await self._committed(fixed, request, client)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return TxnOffsetCommitResponse(
            topics=tuple(
                TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                            partition_index=part.partition_index,
                            error_code=codes.get((topic.name, part.partition_index), unknown),
                        )
                        for part in topic.partitions
                    ),
                )
                for topic in body.topics
            )
        )

    def _exists(self, name: str, index: int) -> bool:
        topics = self._image().topics
        known = topics.topic_named(name)
        return known is not None and topics.partition(known.topic_id, index) is not None

    async def _committed(
        self, body: TxnOffsetCommitRequest, request: Request, client: Client
    ) -> dict[TopicPartition, ErrorCode]:
        places = [(topic.name, part.partition_index) for topic in body.topics for part in topic.partitions]
        answer: Any = await self._refusal(body)
        if answer is None:
            answer = await self._coordinators.ask(body.group_id, body, request, client)
        if not isinstance(answer, ErrorCode):
            return dict(zip(places, answer, strict=True))
        if answer is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and request.header.version < _LOADING_SINCE:
            answer = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return dict.fromkeys(places, answer)

    async def _refusal(self, body: TxnOffsetCommitRequest) -> ErrorCode | None:
        if not body.group_id or not body.transactional_id:
            return ErrorCode.INVALID_REQUEST if body.group_id else ErrorCode.INVALID_GROUP_ID
        partition = self._partition_of(body.group_id)
        codes = await self._verifier.verify(
            AddPartitions(
                transactional_id=body.transactional_id,
                producer_id=body.producer_id,
                producer_epoch=body.producer_epoch,
                partitions=(partition,),
                verify_only=True,
            )
        )
        code = codes[partition]
        return None if code is ErrorCode.NONE else _FOR_CLIENTS.get(code, code)

"""The transaction APIs of Kafka's protocol in front of the coordinators.

`GroupCoordinators` decides which partition of __transaction_state a request goes to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from metaquorum.broker.coordinator import transaction
from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.kafka.groups import GroupCoordinators, partition_of
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests import data as core
from metaquorum.network.deferred import pause, together
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

_FENCED_SINCE, _INIT_FENCED_SINCE = 2, 4
"""The versions from which clients know PRODUCER_FENCED (KIP-588)."""
_MANY = 4
"""The version of AddPartitionsToTxn from which brokers verify several transactions at once (KIP-890)."""
LOOKED_AT_ONCE = 1_024
"""Partitions that are looked up without a pause."""
_STATES = {each.shown for each in transaction.TransactionStatus}


class TransactionHandlers:
    """Each method is the handler of one API (`listeners.services`). `offsets_topic`: the name of the
    groups' topic, and its number of partitions if it does not exist yet."""

    def __init__(
        self,
        coordinators: GroupCoordinators,
        requests: DataRequests,
        image: Callable[[], MetadataImage],
        offsets_topic: tuple[str, int],
    ) -> None:
        self._coordinators = coordinators
        self._requests = requests
        self._image = image
        self._offsets_topic = offsets_topic

    # ---- InitProducerId

    async def init_producer_id(self, request: Request, client: Client) -> InitProducerIdResponse:
        body: InitProducerIdRequest = request.body
        if body.transactional_id == "" or (body.producer_id == -1) != (body.producer_epoch == -1):
            initialized: transaction.InitializedProducer | ErrorCode = ErrorCode.INVALID_REQUEST
        elif body.transactional_id is None:
            initialized = await self._fresh_id()
        else:
            initialized = await self._init(body, request, client)
        if isinstance(initialized, ErrorCode):
            return InitProducerIdResponse(
                error_code=_known_to(initialized, request.header.version, _INIT_FENCED_SINCE),
                producer_epoch=-1,
            )
        return InitProducerIdResponse(
            producer_id=initialized.producer_id, producer_epoch=initialized.producer_epoch
        )

    async def _init(
        self, body: InitProducerIdRequest, request: Request, client: Client
    ) -> transaction.InitializedProducer | ErrorCode:
        fresh: int | None = None
        while True:
            asked = transaction.InitProducer(
                transactional_id=body.transactional_id or "",
                timeout_ms=body.transaction_timeout_ms,
                producer_id=body.producer_id,
                producer_epoch=body.producer_epoch,
                fresh_id=fresh,
            )
            answer = await self._coordinators.ask(asked.transactional_id, asked, request, client)
            if not isinstance(answer, transaction.NeedsProducerId):
                found: transaction.InitializedProducer | ErrorCode = answer
                return found
            allocated = await self._fresh_id()
            if isinstance(allocated, ErrorCode):
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # clients retry
            fresh = allocated.producer_id

    async def _fresh_id(self) -> transaction.InitializedProducer | ErrorCode:
        answer: Any = await self._requests.begin(core.InitProducerIdRequest())
        if isinstance(answer, ApiError):
            # Clients retry the one, and give up on the other.
            fenced = answer.code is ErrorCode.BROKER_NOT_AVAILABLE
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if fenced else answer.code
        return transaction.InitializedProducer(answer.producer_id, answer.producer_epoch)

    # ---- AddPartitionsToTxn, AddOffsetsToTxn, EndTxn

    async def add_partitions_to_txn(self, request: Request, client: Client) -> AddPartitionsToTxnResponse:
        body: AddPartitionsToTxnRequest = request.body
        message = AddPartitionsToTxnResponse
        version = request.header.version
        if version < _MANY:
            transaction_body = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id=body.v3_and_below_transactional_id,
                producer_id=body.v3_and_below_producer_id,
                producer_epoch=body.v3_and_below_producer_epoch,
                verify_only=False,
                topics=body.v3_and_below_topics,
            )
            codes = await self._add(transaction_body, request, client)
            return message(results_by_topic_v3_and_below=_results(transaction_body, codes, version))
        answers = await together(*[self._add(one, request, client) for one in body.transactions])
        return message(
            results_by_transaction=tuple(
                message.AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id, topic_results=_results(one, codes, version)
                )
                for one, codes in zip(body.transactions, answers, strict=True)
            )
        )

    async def _add(
        self,
        addition: AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction,
        request: Request,
        client: Client,
    ) -> dict[transaction.TopicPartition, ErrorCode]:
        places = [(topic.name, index) for topic in addition.topics for index in topic.partitions]
        if not addition.transactional_id:
            return dict.fromkeys(places, ErrorCode.INVALID_REQUEST)
        unknown = set() if addition.verify_only else await self._unknown(places)
        if unknown:
            other = ErrorCode.OPERATION_NOT_ATTEMPTED
            return {
                each: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if each in unknown else other for each in places
            }
        asked = transaction.AddPartitions(
            transactional_id=addition.transactional_id,
            producer_id=addition.producer_id,
            producer_epoch=addition.producer_epoch,
            partitions=tuple(places),
            verify_only=addition.verify_only,
        )
        answer = await self._coordinators.ask(addition.transactional_id, asked, request, client)
        if isinstance(answer, ErrorCode):
            return dict.fromkeys(places, answer)
        return dict(zip(places, answer, strict=True))

    async def _unknown(self, places: list[transaction.TopicPartition]) -> set[transaction.TopicPartition]:
        """Those that do not exist; of many, some in each turn of the loop."""
        unknown = set()
        for place, partition in enumerate(places):
            if place % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await pause()
            if not self._exists(partition):
                unknown.add(partition)
        return unknown

    def _exists(self, partition: transaction.TopicPartition) -> bool:
        topics = self._image().topics
        topic = topics.topic_named(partition[0])
        return topic is not None and topics.partition(topic.topic_id, partition[1]) is not None

    async def add_offsets_to_txn(self, request: Request, client: Client) -> AddOffsetsToTxnResponse:
        body: AddOffsetsToTxnRequest = request.body
        if not body.transactional_id or not body.group_id:
            code = ErrorCode.INVALID_REQUEST if body.group_id else ErrorCode.INVALID_GROUP_ID
            return AddOffsetsToTxnResponse(error_code=code)
        asked = transaction.AddPartitions(
            transactional_id=body.transactional_id,
            producer_id=body.producer_id,
            producer_epoch=body.producer_epoch,
            partitions=(self.offsets_partition(body.group_id),),
        )
        code = await self._coordinators.ask(body.transactional_id, asked, request, client)
        return AddOffsetsToTxnResponse(error_code=_known_to(code, request.header.version, _FENCED_SINCE))

    def offsets_partition(self, group_id: str) -> transaction.TopicPartition:
        """The partition with the offsets of a group."""
        name, count = self._offsets_topic
        topics = self._image().topics
        topic = topics.topic_named(name)
        if topic is not None:
            count = topics.partition_count_of(topic.topic_id) or count
        return name, partition_of(group_id, count)

    async def end_txn(self, request: Request, client: Client) -> EndTxnResponse:
        body: EndTxnRequest = request.body
        if not body.transactional_id:
            return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
        asked = transaction.EndTransaction(
            transactional_id=body.transactional_id,
            producer_id=body.producer_id,
            producer_epoch=body.producer_epoch,
            committed=body.committed,
        )
        code = await self._coordinators.ask(body.transactional_id, asked, request, client)
        return EndTxnResponse(error_code=_known_to(code, request.header.version, _FENCED_SINCE))

    # ---- DescribeTransactions, ListTransactions

    async def describe_transactions(self, request: Request, client: Client) -> DescribeTransactionsResponse:
        body: DescribeTransactionsRequest = request.body
        found = [await self._describe(each, request, client) for each in body.transactional_ids]
        return DescribeTransactionsResponse(transaction_states=tuple(map(_described, found)))

    async def _describe(
        self, transactional_id: str, request: Request, client: Client
    ) -> transaction.TransactionDescription:
        if not transactional_id:
            return transaction.TransactionDescription(error=ErrorCode.INVALID_REQUEST, transactional_id="")
        asked = transaction.DescribeTransaction(transactional_id)
        answer = await self._coordinators.ask(transactional_id, asked, request, client)
        if isinstance(answer, ErrorCode):
            return transaction.TransactionDescription(error=answer, transactional_id=transactional_id)
        found: transaction.TransactionDescription = answer
        return found

    async def list_transactions(self, request: Request, client: Client) -> ListTransactionsResponse:
        body: ListTransactionsRequest = request.body
        message = ListTransactionsResponse
        unknown = tuple(each for each in body.state_filters if each not in _STATES)
        asked = transaction.ListTransactions(
            states=frozenset(body.state_filters),
            producer_ids=frozenset(body.producer_id_filters),
            min_duration_ms=body.duration_filter,
        )
        descriptions: list[transaction.TransactionDescription] = []
        for partition in self._coordinators.led():
            answer = await self._coordinators.ask_partition(partition, asked, request, client)
            if answer is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return message(error_code=answer)
            if not isinstance(answer, ErrorCode):
                descriptions += answer
        return message(
            unknown_state_filters=unknown,
            transaction_states=tuple(
                message.TransactionState(
                    transactional_id=description.transactional_id,
                    producer_id=description.producer_id,
                    transaction_state=description.state,
                )
                for description in descriptions
            ),
        )


def _known_to(code: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """Older clients know one code for every producer that was fenced."""
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def _results(
    addition: AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction,
    codes: dict[transaction.TopicPartition, ErrorCode],
    version: int,
) -> tuple[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult, ...]:
    message = AddPartitionsToTxnResponse
    shown = {code: _known_to(code, version, _FENCED_SINCE) for code in set(codes.values())}
    return tuple(
        [
            message.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    [
                        message.AddPartitionsToTxnPartitionResult(
                            partition_index=index, partition_error_code=shown[codes[topic.name, index]]
                        )
                        for index in topic.partitions
                    ]
                ),
            )
            for topic in addition.topics
        ]
    )


def _described(
    description: transaction.TransactionDescription,
) -> DescribeTransactionsResponse.TransactionState:
    message = DescribeTransactionsResponse
    if description.error is not ErrorCode.NONE:
        return message.TransactionState(
            error_code=description.error, transactional_id=description.transactional_id
        )
    return message.TransactionState(
        transactional_id=description.transactional_id,
        transaction_state=description.state,
        transaction_timeout_ms=description.timeout_ms,
        transaction_start_time_ms=description.start_ms,
        producer_id=description.producer_id,
        producer_epoch=description.producer_epoch,
        topics=tuple(
            message.TopicData(topic=name, partitions=indexes)
            for name, indexes in by_topic(description.partitions)
        ),
    )


def by_topic(places: Iterable[transaction.TopicPartition]) -> Sequence[tuple[str, tuple[int, ...]]]:
    """Partitions in the form of messages."""
    found: dict[str, list[int]] = {}
    for name, index in places:
        found.setdefault(name, []).append(index)
    return [(name, tuple(indexes)) for name, indexes in found.items()]

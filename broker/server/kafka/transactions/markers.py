"""Sends the markers of decided transactions to the leaders of their partitions, until each has one.

A deleted topic needs none. A coordinator that was replaced stops: the new one sends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from metaquorum.broker.coordinator.transaction import MarkersWritten, TopicPartition
from metaquorum.broker.replica.events import SendTxnMarkers
from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.kafka.transactions.brokers import OtherBrokers
from metaquorum.clients.kafka.connection import ConnectionFailed
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests import data as core
from metaquorum.network.deferred import Driven, together
from metaquorum.storage.batches.batch import Batches, EndMarker, encode_marker
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

FIRST_RETRY_S, LAST_RETRY_S = 0.02, 1.0
_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
_REPLACED = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)

Codes = dict[TopicPartition, ErrorCode]


async def write_markers(
    requests: DataRequests,
    image: MetadataImage,
    end: EndMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[TopicPartition],
    wall_ms: int,
    timeout_ms: int,
) -> Codes:
    """Appends one transaction's markers to partitions that this broker leads; one code per partition."""
    marker = encode_marker(end, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=wall_ms)
    batch = Batches.arrived(marker)
    codes = dict.fromkeys(partitions, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    topics = {name: image.topics.topic_named(name) for name, _ in codes}
    keys = {(topic.topic_id, index): (name, index) for name, index in codes if (topic := topics[name])}
    if not keys:
        return codes
    answer: Any = await requests.begin(
        core.ProduceRequest(
            acks=core.ACKS_ALL,
            timeout_ms=timeout_ms,
            partitions=tuple([core.ProducePartition(key=key, batch=batch) for key in keys]),
            by_coordinator=True,
        )
    )
    if isinstance(answer, ApiError):
        # Errors that refuse the whole request are short-lived: the coordinator retries.
        return codes | dict.fromkeys(keys.values(), ErrorCode.NOT_ENOUGH_REPLICAS)
    return codes | {keys[each.key]: each.error for each in answer.results}


class MarkerSender:
    """`topic`: that of the coordinators. `image` is called at each attempt."""

    def __init__(
        self,
        requests: DataRequests,
        brokers: OtherBrokers,
        image: Callable[[], MetadataImage],
        wall_ms: Callable[[], int],
        *,
        topic: str,
        broker_id: int,
        timeout_ms: int,
    ) -> None:
        self._requests = requests
        self._brokers = brokers
        self._image = image
        self._wall_ms = wall_ms
        self._topic = topic
        self._broker_id = broker_id
        self._timeout_ms = timeout_ms
        self._under_way: dict[str, Driven[None]] = {}

    def send(self, effect: SendTxnMarkers) -> None:
        """The requests are sent within this call."""
        name = effect.transactional_id
        before = self._under_way.pop(name, None)
        if before is not None:
            before.cancel()
        sending = Driven(self._send(effect))
        if sending.done():
            self._raise_later(sending)
            return
        self._under_way[name] = sending
        sending.then(lambda _: self._ended(name, sending))

    def _ended(self, name: str, sending: Driven[None]) -> None:
        if self._under_way.get(name) is sending:
            del self._under_way[name]
        self._raise_later(sending)

    def _raise_later(self, sending: Driven[None]) -> None:
        """The loop reports a bug: the caller has just brought an answer."""
        if sending.error is not None:
            asyncio.get_running_loop().call_soon(sending.result)

    def close(self) -> None:
        """Stops: the next coordinator sends what is missing."""
        for sending in list(self._under_way.values()):
            sending.cancel()
        self._under_way.clear()

    async def _send(self, effect: SendTxnMarkers) -> None:
        left = set(effect.partitions)
        retry_s = FIRST_RETRY_S
        while left:
            image = self._image()
            epoch = self._coordinator_epoch(image, effect.partition)
            if epoch is None:
                return
            by_leader: dict[int, list[TopicPartition]] = {}
            for broker_id in sorted(left):
                leader = _leader(image, broker_id)
                if leader is None:
                    left.discard(broker_id)
                else:
                    by_leader.setdefault(leader, []).append(broker_id)
            asked = [self._to(leader, parts, effect, epoch) for leader, parts in by_leader.items()]
            for codes in await together(*asked):
                if not _FENCED.isdisjoint(codes.values()):
                    return
                left.difference_update([each for each, code in codes.items() if code is ErrorCode.NONE])
            if left:
                await asyncio.sleep(retry_s)
                retry_s = min(LAST_RETRY_S, 2 * retry_s)
        await self._report(effect)

    async def _report(self, effect: SendTxnMarkers) -> None:
        body = MarkersWritten(
            transactional_id=effect.transactional_id,
            producer_id=effect.producer_id,
            producer_epoch=effect.producer_epoch,
        )
        request = core.CoordinatorRequest(topic=self._topic, partition=effect.partition, body=body)
        while True:
            answer: Any = await self._requests.begin(request)
            code = answer.code if isinstance(answer, ApiError) else answer.body
            if code is ErrorCode.NONE or code in _REPLACED:
                return
            if self._coordinator_epoch(self._image(), effect.partition) is None:
                return
            await asyncio.sleep(LAST_RETRY_S)

    def _coordinator_epoch(self, image: MetadataImage, index: int) -> int | None:
        """None if this broker is no longer the coordinator."""
        topic = image.topics.topic_named(self._topic)
        partition = None if topic is None else image.topics.partition(topic.topic_id, index)
        if partition is None or partition.leader != self._broker_id:
            return None
        return partition.leader_epoch

    async def _to(
        self, leader: int, partitions: list[TopicPartition], effect: SendTxnMarkers, epoch: int
    ) -> Codes:
        """One code per partition; none where the outcome is unknown."""
        if leader == self._broker_id:
            return await write_markers(
                self._requests,
                self._image(),
                EndMarker(effect.committed, epoch),
                producer_id=effect.producer_id,
                producer_epoch=effect.producer_epoch,
                partitions=partitions,
                wall_ms=self._wall_ms(),
                timeout_ms=self._timeout_ms,
            )
        try:
            answer = await self._brokers.ask(leader, _request(partitions, effect, epoch))
        except (ConnectionFailed, TimeoutError):
            return {}
        return {
            (topic.name, part.partition_index): ErrorCode.of(part.error_code)
            for marker in answer.markers
            for topic in marker.topics
            for part in topic.partitions
        }


def _leader(image: MetadataImage, named: TopicPartition) -> int | None:
    """None if the partition does not exist, or no longer does."""
    topic = image.topics.topic_named(named[0])
    partition = None if topic is None else image.topics.partition(topic.topic_id, named[1])
    return None if partition is None else partition.leader


def _request(partitions: list[TopicPartition], effect: SendTxnMarkers, epoch: int) -> WriteTxnMarkersRequest:
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    message = WriteTxnMarkersRequest
    topics = [
        message.WritableTxnMarkerTopic(name=name, partition_indexes=tuple(indexes))
        for name, indexes in by_topic.items()
    ]
    marker = message.WritableTxnMarker(
        producer_id=effect.producer_id,
        producer_epoch=effect.producer_epoch,
        transaction_result=effect.committed,
        topics=tuple(topics),
        coordinator_epoch=epoch,
    )
    return message(markers=(marker,))


class ProducerHandlers:
    """WriteTxnMarkers and DescribeProducers: requests to partitions' leaders about producers. `image` is
    called at each request. `wall_ms`: the time of day for markers. `timeout_ms`: how long a marker waits
    for the replicas in sync.
    """

    def __init__(
        self,
        requests: DataRequests,
        image: Callable[[], MetadataImage],
        *,
        wall_ms: Callable[[], int],
        timeout_ms: int,
    ) -> None:
        self._requests = requests
        self._image = image
        self._wall_ms = wall_ms
        self._timeout_ms = timeout_ms

    def _id_of(self, name: str) -> bytes | None:
        topic = self._image().topics.topic_named(name)
        return None if topic is None else topic.topic_id

    async def write_txn_markers(self, request: Request, client: Client) -> WriteTxnMarkersResponse:
        body: WriteTxnMarkersRequest = request.body
        return WriteTxnMarkersResponse(
            markers=tuple(await together(*[self._write(marker) for marker in body.markers]))
        )

    async def _write(
        self, marker: WriteTxnMarkersRequest.WritableTxnMarker
    ) -> WriteTxnMarkersResponse.WritableTxnMarkerResult:
        codes = await write_markers(
            self._requests,
            self._image(),
            EndMarker(marker.transaction_result, marker.coordinator_epoch),
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            partitions=[(topic.name, index) for topic in marker.topics for index in topic.partition_indexes],
            wall_ms=self._wall_ms(),
            timeout_ms=self._timeout_ms,
        )
        message = WriteTxnMarkersResponse
        return message.WritableTxnMarkerResult(
            producer_id=marker.producer_id,
            topics=tuple(
                message.WritableTxnMarkerTopicResult(
                    name=topic.name,
                    partitions=tuple(
                        message.WritableTxnMarkerPartitionResult(
                            partition_index=index, error_code=codes[topic.name, index]
                        )
                        for index in topic.partition_indexes
                    ),
                )
                for topic in marker.topics
            ),
        )

    async def describe_producers(self, request: Request, client: Client) -> DescribeProducersResponse:
        body: DescribeProducersRequest = request.body
        places = [(topic, self._id_of(topic.name)) for topic in body.topics]
        keys = [
            (topic_id, index)
            for topic, topic_id in places
            if topic_id is not None
            for index in topic.partition_indexes
        ]
        results: dict[core.PartitionKey, core.DescribedProducers] = {}
        missing = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic")
        if keys:
            answer: Any = await self._requests.begin(core.DescribeProducersRequest(partitions=tuple(keys)))
            if isinstance(answer, ApiError):
                missing = answer
            else:
                results = {each.key: each for each in answer.results}
        return DescribeProducersResponse(
            topics=tuple(
                DescribeProducersResponse.TopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        _described(index, results.get((topic_id or b"", index)), missing)
                        for index in topic.partition_indexes
                    ),
                )
                for topic, topic_id in places
            )
        )


def _described(
    index: int, answer: core.DescribedProducers | None, missing: ApiError
) -> DescribeProducersResponse.PartitionResponse:
    message = DescribeProducersResponse
    if answer is None:
        return message.PartitionResponse(
            partition_index=index, error_code=missing.code, error_message=missing.message
        )
    return message.PartitionResponse(
        partition_index=index,
        error_code=answer.error,
        error_message=answer.message,
        active_producers=tuple(
            message.ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp_ms,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.open_from,
            )
            for producer in answer.producers
        ),
    )

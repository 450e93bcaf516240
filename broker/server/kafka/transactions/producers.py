"""WriteTxnMarkers and DescribeProducers: requests to partitions' leaders about producers.

Owns names: these messages name topics, the core uses ids. Does not decide whether a marker is taken: the
leader does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.kafka.transactions.markers import write_markers
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests import data as core
from metaquorum.runtime.kafka.deferred import together
from metaquorum.runtime.kafka.services import Client
from metaquorum.storage.batches.markers import EndMarker
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


class ProducerHandlers:
    """See the module. `image` is called at each request. `wall_ms`: the time of day for markers.
    `timeout_ms`: how long a marker waits for the replicas in sync."""

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
    index: int, found: core.DescribedProducers | None, missing: ApiError
) -> DescribeProducersResponse.PartitionResponse:
    message = DescribeProducersResponse
    if found is None:
        return message.PartitionResponse(
            partition_index=index, error_code=missing.code, error_message=missing.message
        )
    return message.PartitionResponse(
        partition_index=index,
        error_code=found.error,
        error_message=found.message,
        active_producers=tuple(
            message.ProducerState(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_timestamp_ms,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_start_offset=each.open_from,
            )
            for each in found.producers
        ),
    )

"""DeleteRecords and OffsetForLeaderEpoch: requests to partitions' leaders about the ends of their logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.kafka.data_answers import last_of_each, refusal_of_all
from metaquorum.listeners.services import Client, Offered
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests import data as core
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

_NO_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class LogEndHandlers:
    """See the module. `image` is called at each request."""

    def __init__(self, requests: DataRequests, image: Callable[[], MetadataImage]) -> None:
        self._requests = requests
        self._image = image

    def _key(self, name: str, index: int) -> PartitionKey:
        """The core's name; for a topic that does not exist, one that no partition has."""
        topic = self._image().topics.topic_named(name)
        return (b"" if topic is None else topic.topic_id, index)

    def offered(self) -> Mapping[str, Offered]:
        return {
            "DeleteRecords": Offered(0, 2, self._delete_records),
            "OffsetForLeaderEpoch": Offered(0, 4, self._offset_for_leader_epoch),
        }

    async def _delete_records(self, request: Request, client: Client) -> DeleteRecordsResponse:
        """The last offset that is named for a partition counts, and there is one answer."""
        body: DeleteRecordsRequest = request.body
        topics = last_of_each(
            (topic.name, part.partition_index, part.offset)
            for topic in body.topics
            for part in topic.partitions
        )
        existing = tuple(
            core.DeleteRecordsPartition(key=key, offset=offset)
            for name, offsets in topics.items()
            for index, offset in offsets.items()
            if (key := self._key(name, index))[0]
        )
        results: dict[PartitionKey, core.DeletedRecords] = {}
        missing = _NO_TOPIC
        if existing:
            answer: Any = await self._requests.begin(
                core.DeleteRecordsRequest(timeout_ms=body.timeout_ms, partitions=existing)
            )
            if isinstance(answer, ApiError):
                missing = refusal_of_all(answer).code
            else:
                results = {each.key: each for each in answer.results}

        def result(name: str, index: int) -> DeleteRecordsResponse.DeleteRecordsPartitionResult:
            deleted = results.get(self._key(name, index))
            return DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=index,
                low_watermark=-1 if deleted is None else deleted.low_watermark,
                error_code=missing if deleted is None else deleted.error,
            )

        return DeleteRecordsResponse(
            topics=tuple(
                DeleteRecordsResponse.DeleteRecordsTopicResult(
                    name=name, partitions=tuple(result(name, index) for index in offsets)
                )
                for name, offsets in topics.items()
            )
        )

    async def _offset_for_leader_epoch(
        self, request: Request, client: Client
    ) -> OffsetForLeaderEpochResponse:
        """A partition that is named twice has two answers: each names an epoch."""
        body: OffsetForLeaderEpochRequest = request.body
        asked = [
            core.EpochPartition(
                key=self._key(topic.topic, part.partition),
                leader_epoch=part.leader_epoch,
                current_leader_epoch=part.current_leader_epoch,
            )
            for topic in body.topics
            for part in topic.partitions
        ]
        existing = tuple(each for each in asked if each.key[0])
        results: Iterator[core.EpochEnd] = iter(())
        missing: ErrorCode | None = None
        if existing:
            answer: Any = await self._requests.begin(core.OffsetForLeaderEpochRequest(partitions=existing))
            if isinstance(answer, ApiError):
                missing = refusal_of_all(answer).code
            else:
                results = iter(answer.results)
        ends = iter(
            [
                core.EpochEnd(key=each.key, error=missing or _NO_TOPIC)
                if missing is not None or not each.key[0]
                else next(results)
                for each in asked
            ]
        )

        def result(index: int, epoch_end: core.EpochEnd) -> OffsetForLeaderEpochResponse.EpochEndOffset:
            if epoch_end.error:
                return OffsetForLeaderEpochResponse.EpochEndOffset(
                    error_code=epoch_end.error, partition=index
                )
            return OffsetForLeaderEpochResponse.EpochEndOffset(
                partition=index, leader_epoch=epoch_end.leader_epoch, end_offset=epoch_end.end_offset
            )

        return OffsetForLeaderEpochResponse(
            topics=tuple(
                OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=tuple([result(part.partition, next(ends)) for part in topic.partitions]),
                )
                for topic in body.topics
            )
        )

"""DeleteRecords and OffsetForLeaderEpoch: requests to partitions' leaders about the ends of their logs.

Owns names: these messages name topics, the core uses ids. Does not decide what is deleted: the leader does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.kafka.data_answers import refusal_of_all
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests import log_ends as core
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.runtime.kafka.services import Client, Offered
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
        body: DeleteRecordsRequest = request.body
        asked = [
            core.DeleteRecordsPartition(key=self._key(topic.name, part.partition_index), offset=part.offset)
            for topic in body.topics
            for part in topic.partitions
        ]
        known = tuple(each for each in asked if each.key[0])
        found: dict[PartitionKey, core.DeletedRecords] = {}
        missing = _NO_TOPIC
        if known:
            answer: Any = await self._requests.begin(
                core.DeleteRecordsRequest(timeout_ms=body.timeout_ms, partitions=known)
            )
            if isinstance(answer, ApiError):
                missing = refusal_of_all(answer).code
            else:
                found = {each.key: each for each in answer.results}

        def result(name: str, index: int) -> DeleteRecordsResponse.DeleteRecordsPartitionResult:
            one = found.get(self._key(name, index))
            return DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=index,
                low_watermark=-1 if one is None else one.low_watermark,
                error_code=missing if one is None else one.error,
            )

        return DeleteRecordsResponse(
            topics=tuple(
                DeleteRecordsResponse.DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=tuple(result(topic.name, part.partition_index) for part in topic.partitions),
                )
                for topic in body.topics
            )
        )

    async def _offset_for_leader_epoch(
        self, request: Request, client: Client
    ) -> OffsetForLeaderEpochResponse:
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
        known = tuple(each for each in asked if each.key[0])
        found: dict[PartitionKey, core.EpochEnd] = {}
        missing = _NO_TOPIC
        if known:
            answer: Any = await self._requests.begin(core.OffsetForLeaderEpochRequest(partitions=known))
            if isinstance(answer, ApiError):
                missing = refusal_of_all(answer).code
            else:
                found = {each.key: each for each in answer.results}

        def result(name: str, index: int) -> OffsetForLeaderEpochResponse.EpochEndOffset:
            one = found.get(self._key(name, index))
            if one is None or one.error:
                code = missing if one is None else one.error
                return OffsetForLeaderEpochResponse.EpochEndOffset(error_code=code, partition=index)
            return OffsetForLeaderEpochResponse.EpochEndOffset(
                partition=index, leader_epoch=one.leader_epoch, end_offset=one.end_offset
            )

        return OffsetForLeaderEpochResponse(
            topics=tuple(
                OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=tuple(result(topic.topic, part.partition) for part in topic.partitions),
                )
                for topic in body.topics
            )
        )

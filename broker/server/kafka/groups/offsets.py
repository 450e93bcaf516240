"""OffsetCommit, OffsetFetch and OffsetDelete of Kafka's protocol in front of the groups' coordinators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from metaquorum.broker.coordinator.groups.group import FetchedOffset, FetchOffsets
from metaquorum.broker.server.kafka.groups.members import GroupCoordinators
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.network.deferred import together
from metaquorum.wire import messages
from metaquorum.wire.codec import Request

_IN_KAFKA, _TOP_LEVEL, _SEVERAL, _IDS = 1, 2, 8, 10
"""Versions: those that keep offsets in Kafka; of OffsetFetch, those with an error of the whole request, and
with several groups; those with topic ids instead of names."""

Part = tuple[str, int]


def last_of_each(parts: Iterable[Any]) -> dict[int, Any]:
    """The parts of a topic by their index; of several with one index, the last."""
    return {part.partition_index: part for part in parts}


class OffsetHandlers:
    """Each method is the handler of one API (`listeners.services`)."""

    def __init__(self, coordinators: GroupCoordinators, image: Callable[[], MetadataImage]) -> None:
        self._coordinators = coordinators
        self._image = image

    def _name(self, topic_id: bytes) -> str | None:
        topic = self._image().topics.topic(topic_id)
        return None if topic is None else topic.name

    def _exists(self, topic: str, partition: int) -> bool:
        topics = self._image().topics
        known = topics.topic_named(topic)
        return known is not None and topics.partition(known.topic_id, partition) is not None

    # ---- OffsetCommit

    async def offset_commit(self, request: Request, client: Client) -> messages.OffsetCommitResponse:
        body: messages.OffsetCommitRequest = request.body
        kinds = messages.OffsetCommitResponse
        asked, codes = self._known_parts(body, request.header.version)
        if asked:
            codes |= await self._committed(body, asked, request, client)
        answers = {
            key: kinds.OffsetCommitResponsePartition(partition_index=key[2], error_code=code)
            for key, code in codes.items()
        }
        return kinds(
            topics=tuple(
                kinds.OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=tuple(
                        [
                            answers[topic.name, topic.topic_id, part.partition_index]
                            for part in topic.partitions
                        ]
                    ),
                )
                for topic in body.topics
            )
        )

    def _known_parts(
        self, body: messages.OffsetCommitRequest, version: int
    ) -> tuple[tuple[Any, ...], dict[tuple[str, bytes, int], ErrorCode]]:
        """The partitions that exist, each once, with the last offset for it: so a request stores no more
        records than there are partitions. And the code of each, should it not exist."""
        codes: dict[tuple[str, bytes, int], ErrorCode] = {}
        topics: dict[tuple[str, bytes], dict[int, Any]] = {}
        for topic in body.topics:
            name = self._name(topic.topic_id) if version >= _IDS else topic.name
            missing = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if version < _IN_KAFKA:
                name, missing = None, ErrorCode.UNSUPPORTED_VERSION
            for index, part in last_of_each(topic.partitions).items():
                codes[topic.name, topic.topic_id, index] = missing
                if name is not None and self._exists(name, index):
                    topics.setdefault((name, topic.topic_id), {})[index] = part
        kind = messages.OffsetCommitRequest.OffsetCommitRequestTopic
        asked = tuple(
            kind(name=name, topic_id=topic_id, partitions=tuple(parts.values()))
            for (name, topic_id), parts in topics.items()
        )
        return asked, codes

    async def _committed(
        self, body: messages.OffsetCommitRequest, topics: tuple[Any, ...], request: Request, client: Client
    ) -> dict[tuple[str, bytes, int], ErrorCode]:
        """The result of each partition, under the name or id that the request has for it."""
        by_id = request.header.version >= _IDS
        fixed = messages.OffsetCommitRequest(
            group_id=body.group_id,
            generation_id_or_member_epoch=body.generation_id_or_member_epoch,
            member_id=body.member_id,
            group_instance_id=body.group_instance_id,
            retention_time_ms=body.retention_time_ms,
            topics=topics,
        )
        answer = await self._coordinators.ask(body.group_id, fixed, request, client)
        answered = topics if isinstance(answer, ErrorCode) else answer.topics
        return {
            ("" if by_id else topic.name, topic.topic_id, part.partition_index): (
                answer if isinstance(answer, ErrorCode) else ErrorCode(part.error_code)
            )
            for topic in answered
            for part in topic.partitions
        }

    # ---- OffsetFetch

    async def offset_fetch(self, request: Request, client: Client) -> messages.OffsetFetchResponse:
        body: messages.OffsetFetchRequest = request.body
        version = request.header.version
        if version >= _SEVERAL:
            groups = await together(
                *(self._fetch_group(group, body.require_stable, request, client) for group in body.groups)
            )
            return messages.OffsetFetchResponse(groups=tuple(groups))
        wanted = None
        if body.topics is not None:
            wanted = tuple((topic.name, index) for topic in body.topics for index in topic.partition_indexes)
        if version < _IN_KAFKA:
            fetched: Any = ErrorCode.UNSUPPORTED_VERSION
        else:
            fetched = await self._fetched(body.group_id, wanted, body.require_stable, request, client)
        code = ErrorCode.NONE
        if isinstance(fetched, ErrorCode):
            code, fetched = fetched, _failed(wanted or (), fetched)
            if version >= _TOP_LEVEL:
                return messages.OffsetFetchResponse(error_code=code)
        kinds = messages.OffsetFetchResponse
        return messages.OffsetFetchResponse(
            topics=tuple(
                kinds.OffsetFetchResponseTopic(
                    name=name,
                    partitions=tuple(kinds.OffsetFetchResponsePartition(**_fields(each)) for each in parts),
                )
                for name, parts in _by_topic(fetched).items()
            )
        )

    async def _fetch_group(
        self,
        group: messages.OffsetFetchRequest.OffsetFetchRequestGroup,
        require_stable: bool,
        request: Request,
        client: Client,
    ) -> messages.OffsetFetchResponse.OffsetFetchResponseGroup:
        kinds = messages.OffsetFetchResponse
        by_id = request.header.version >= _IDS
        wanted: tuple[Part, ...] | None = None
        unknown = []
        if group.topics is not None:
            names = [(self._name(each.topic_id) if by_id else each.name, each) for each in group.topics]
            wanted = tuple(
                (name, index) for name, each in names if name is not None for index in each.partition_indexes
            )
            unknown = [each for name, each in names if name is None]
        fetched = await self._fetched(group.group_id, wanted, require_stable, request, client)
        if isinstance(fetched, ErrorCode):
            return kinds.OffsetFetchResponseGroup(group_id=group.group_id, error_code=fetched)
        topics = []
        for name, parts in _by_topic(fetched).items():
            topic = self._image().topics.topic_named(name)
            if by_id and topic is None:
                continue
            topics.append(
                kinds.OffsetFetchResponseTopics(
                    name=name,
                    topic_id=bytes(16) if topic is None else topic.topic_id,
                    partitions=tuple(kinds.OffsetFetchResponsePartitions(**_fields(each)) for each in parts),
                )
            )
        for partition in unknown:
            missing = _failed(
                [("", index) for index in partition.partition_indexes], ErrorCode.UNKNOWN_TOPIC_ID
            )
            topics.append(
                kinds.OffsetFetchResponseTopics(
                    topic_id=partition.topic_id,
                    partitions=tuple(kinds.OffsetFetchResponsePartitions(**_fields(one)) for one in missing),
                )
            )
        return kinds.OffsetFetchResponseGroup(group_id=group.group_id, topics=tuple(topics))

    async def _fetched(
        self,
        group_id: str,
        wanted: tuple[Part, ...] | None,
        require_stable: bool,
        request: Request,
        client: Client,
    ) -> Any:
        once = None if wanted is None else tuple(dict.fromkeys(wanted))
        asked = FetchOffsets(group_id=group_id, partitions=once, require_stable=require_stable)
        return await self._coordinators.ask(group_id, asked, request, client)

    # ---- OffsetDelete

    async def offset_delete(self, request: Request, client: Client) -> messages.OffsetDeleteResponse:
        body: messages.OffsetDeleteRequest = request.body
        if not body.group_id:
            return messages.OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        kinds = messages.OffsetDeleteRequest
        existing = tuple(
            kinds.OffsetDeleteRequestTopic(
                name=topic.name,
                partitions=tuple(
                    part for part in topic.partitions if self._exists(topic.name, part.partition_index)
                ),
            )
            for topic in body.topics
        )
        asked = messages.OffsetDeleteRequest(group_id=body.group_id, topics=existing)
        answer = await self._coordinators.ask(body.group_id, asked, request, client)
        if isinstance(answer, ErrorCode) or answer.error_code:
            code = answer if isinstance(answer, ErrorCode) else answer.error_code
            return messages.OffsetDeleteResponse(error_code=code)
        codes = {
            (topic.name, part.partition_index): part.error_code
            for topic in answer.topics
            for part in topic.partitions
        }
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return messages.OffsetDeleteResponse(
            topics=tuple(
                messages.OffsetDeleteResponse.OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        messages.OffsetDeleteResponse.OffsetDeleteResponsePartition(
                            partition_index=part.partition_index,
                            error_code=codes.get((topic.name, part.partition_index), unknown),
                        )
                        for part in topic.partitions
                    ),
                )
                for topic in body.topics
            )
        )


def _failed(parts: Iterable[Part], error: ErrorCode) -> tuple[FetchedOffset, ...]:
    return tuple(FetchedOffset(topic=topic, partition=partition, error=error) for topic, partition in parts)


def _by_topic(offsets: Iterable[FetchedOffset]) -> dict[str, list[FetchedOffset]]:
    topics: dict[str, list[FetchedOffset]] = {}
    for each in offsets:
        topics.setdefault(each.topic, []).append(each)
    return topics


def _fields(offset: FetchedOffset) -> dict[str, Any]:
    return {
        "partition_index": offset.partition,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": offset.error,
    }

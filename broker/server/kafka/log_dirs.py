"""DescribeLogDirs and AlterReplicaLogDirs: a broker's directories, their contents, and moves between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

import msgspec

from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.listeners.services import Client, Offered
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests import data as core
from metaquorum.metadata.requests import data as moving
from metaquorum.network.deferred import pause
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

LOOKED_AT_ONCE = 1_024
"""Topics that are looked up without a pause."""
_AlteredPartition = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult


class LogDirHandlers:
    """See the module. `image` is called at each request."""

    def __init__(self, requests: DataRequests, image: Callable[[], MetadataImage]) -> None:
        self._requests = requests
        self._image = image

    def offered(self) -> Mapping[str, Offered]:
        return {
            "DescribeLogDirs": Offered(0, 4, self._describe_log_dirs),
            "AlterReplicaLogDirs": Offered(0, 2, self._alter_replica_log_dirs),
        }

    async def _alter_replica_log_dirs(self, request: Request, client: Client) -> AlterReplicaLogDirsResponse:
        """One answer per replica, even if it is named twice."""
        body: AlterReplicaLogDirsRequest = request.body
        places = {
            (topic.name, index): path.path
            for path in body.dirs
            for topic in path.topics
            for index in topic.partitions
        }
        wanted = tuple(
            moving.WantedDirectory(path=places[each], topic=each[0], partition=each[1]) for each in places
        )
        answer: Any = await self._requests.begin(moving.AlterReplicaLogDirsRequest(wanted=wanted))
        errors = [answer.code] * len(wanted) if isinstance(answer, ApiError) else answer.errors
        by_topic: dict[str, list[_AlteredPartition]] = {}
        for (topic, index), code in zip(places, errors, strict=True):
            by_topic.setdefault(topic, []).append(_AlteredPartition(partition_index=index, error_code=code))
        results = [
            AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(
                topic_name=topic, partitions=tuple(parts)
            )
            for topic, parts in by_topic.items()
        ]
        return AlterReplicaLogDirsResponse(results=tuple(results))

    async def _describe_log_dirs(self, request: Request, client: Client) -> DescribeLogDirsResponse:
        """The replicas of the named partitions, or all. A bad directory has its error."""
        body: DescribeLogDirsRequest = request.body
        wanted: set[core.PartitionKey] | None = None
        if body.topics is not None:
            topics, wanted = self._image().topics, set()
            for place, topic in enumerate(body.topics):
                if place % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                    await pause()
                if (found := topics.topic_named(topic.topic)) is not None:
                    wanted.update([(found.topic_id, index) for index in topic.partitions])
        topic_ids = None if wanted is None else tuple({topic_id for topic_id, _ in wanted})
        answer: Any = await self._requests.begin(core.DescribeLogDirsRequest(topic_ids=topic_ids))
        if isinstance(answer, ApiError):
            return DescribeLogDirsResponse(error_code=answer.code)
        return DescribeLogDirsResponse(
            results=tuple(_directory(each, wanted, body.include_details) for each in answer.directories)
        )


def _directory(
    directory: core.LogDirDescription, wanted: set[core.PartitionKey] | None, details: bool
) -> DescribeLogDirsResponse.DescribeLogDirsResult:
    replicas = [each for each in directory.replicas if wanted is None or each.key in wanted]
    topics = tuple(
        _topic(name, found, details) for name, found in groupby(replicas, key=lambda each: each.topic)
    )
    plain = DescribeLogDirsResponse.DescribeLogDirsResult(
        error_code=directory.error,
        log_dir=directory.path,
        # As in Kafka: what cannot be read is not described.
        topics=() if directory.error else topics,
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
    )
    if not details:
        return plain
    return msgspec.structs.replace(
        plain,
        error_message=directory.message,
        directory_id=directory.directory_id or bytes(16),
        offline_topics=topics if directory.error else (),
    )


def _topic(
    name: str, replicas: Iterable[core.ReplicaDescription], details: bool
) -> DescribeLogDirsResponse.DescribeLogDirsTopic:
    return DescribeLogDirsResponse.DescribeLogDirsTopic(
        name=name,
        partitions=tuple(
            DescribeLogDirsResponse.DescribeLogDirsPartition(
                partition_index=replica.key[1],
                partition_size=replica.size_bytes,
                offset_lag=replica.lag,
                is_future_key=replica.future,
                start_offset=replica.start_offset if details else -1,
                high_watermark=replica.high_watermark if details else -1,
                end_offset=replica.end_offset if details else -1,
            )
            for replica in replicas
        ),
    )

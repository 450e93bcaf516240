"""DescribeLogDirs: a broker's directories and what is in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests import data as core
from metaquorum.runtime.kafka.services import Client, Offered
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse


class LogDirHandlers:
    """See the module. `image` is asked for at each request."""

    def __init__(self, requests: DataRequests, image: Callable[[], MetadataImage]) -> None:
        self._requests = requests
        self._image = image

    def offered(self) -> Mapping[str, Offered]:
        return {"DescribeLogDirs": Offered(0, 4, self._describe_log_dirs)}

    async def _describe_log_dirs(self, request: Request, client: Client) -> DescribeLogDirsResponse:
        """The replicas of the partitions named, or all. A bad directory has its error."""
        body: DescribeLogDirsRequest = request.body
        wanted: set[core.PartitionKey] | None = None
        if body.topics is not None:
            topics = self._image().topics
            wanted = {
                (found.topic_id, index)
                for each in body.topics
                if (found := topics.topic_named(each.topic)) is not None
                for index in each.partitions
            }
        topic_ids = None if wanted is None else tuple({topic_id for topic_id, _ in wanted})
        answer: Any = await self._requests.begin(core.DescribeLogDirsRequest(topic_ids=topic_ids))
        if isinstance(answer, ApiError):
            return DescribeLogDirsResponse(error_code=answer.code)
        return DescribeLogDirsResponse(results=tuple(_directory(each, wanted) for each in answer.directories))


def _directory(
    directory: core.LogDirDescription, wanted: set[core.PartitionKey] | None
) -> DescribeLogDirsResponse.DescribeLogDirsResult:
    replicas = [each for each in directory.replicas if wanted is None or each.key in wanted]
    if directory.error:
        replicas = []  # as in Kafka: what cannot be read is not described
    return DescribeLogDirsResponse.DescribeLogDirsResult(
        error_code=directory.error,
        log_dir=directory.path,
        topics=tuple(
            DescribeLogDirsResponse.DescribeLogDirsTopic(
                name=name,
                partitions=tuple(
                    DescribeLogDirsResponse.DescribeLogDirsPartition(
                        partition_index=each.key[1], partition_size=each.size_bytes, offset_lag=each.lag
                    )
                    for each in found
                ),
            )
            for name, found in groupby(replicas, key=lambda each: each.topic)
        ),
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
    )

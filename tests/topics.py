"""Topics for tests to which they are a means: created and deleted in Kafka's protocol over gRPC, as commands
do it without a broker, and read from what the quorum has committed."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from metaquorum.clients.admin import topics as kafka
from metaquorum.clients.kafka.grpc_way import ControllersClient
from metaquorum.clients.kafka.live_log import LiveSource, LogSpool, copy_log
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.metadata.image import MetadataImage, PartitionInfo
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.requests.common import NewTopic, TopicResult
from metaquorum.testing.memory_disk import MemoryDisk

TIMEOUT_MS = 15_000


class _Controllers(ControllersClient):
    """Knows the versions of this release, and need not ask for them."""

    async def version(self, api: str) -> int:
        return FORWARDED[api].max_version

    async def ask(self, body: Any, **_: Any) -> Any:
        name = type(body).__name__.removesuffix("Request")
        return await self._send(body, FORWARDED[name].max_version)


async def create_topics(
    client: AdminClient, topics: Sequence[NewTopic], *, timeout_ms: int = TIMEOUT_MS
) -> tuple[TopicResult, ...]:
    """One result per topic, in Kafka's protocol over the client's connection to the active controller."""
    return await kafka.create_topics(_Controllers(client, timeout_ms=timeout_ms), topics)


async def delete_topics(
    client: AdminClient, names: Sequence[str], *, timeout_ms: int = TIMEOUT_MS
) -> tuple[TopicResult, ...]:
    return await kafka.delete_topics(_Controllers(client, timeout_ms=timeout_ms), names)


async def committed_image(client: AdminClient, *, timeout_ms: int = TIMEOUT_MS) -> MetadataImage:
    """What the active controller's log leads to, with everything that was answered before this call."""
    while True:
        offset = (await client.list_brokers()).offset  # a linearizable read
        disk = MemoryDisk(random.Random(0), 1 << 30, lambda: time.time_ns() // 1_000_000)
        source = LiveSource(addresses=[client.address], timeout_ms=timeout_ms)
        copied = await copy_log(source, LogSpool(disk, "copy"), rng=random.Random(0))
        if copied.end_offset >= offset:
            return state_at(open_log(disk, "copy")).image


def partitions_in(image: MetadataImage, topic: str) -> list[PartitionInfo]:
    """Its partitions by index; none if there is no such topic."""
    known = image.topics.topic_named(topic)
    return [] if known is None else image.topics.partitions_of(known.topic_id)


async def partitions_of(client: AdminClient, topic: str) -> list[PartitionInfo]:
    return partitions_in(await committed_image(client), topic)

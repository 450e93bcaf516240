"""A controller's metrics, read from its node between two of its inputs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from metaquorum.controller.node import ControllerNode
from metaquorum.metadata.image import TopicsImage
from metaquorum.metadata.image.chunk import LEADER, LISTS, N_ISR, N_REPLICAS, TOPIC, Chunk
from metaquorum.node.driver import Driver
from metaquorum.observability.metrics import catalogue as names
from metaquorum.observability.metrics.families import (
    Family,
    applied_age_ms,
    image_families,
    one,
    quorum_families,
    work_families,
)
from metaquorum.observability.metrics.service import node_info
from metaquorum.observability.metrics.statistics import NodeStatistics
from metaquorum.rpc.requests import WaitingRequests


class ControllerFigures:
    """A `Source`, with the process's own metrics. `role` is the process's; `controllers` has the ids that
    this node can reach."""

    def __init__(
        self,
        node: ControllerNode,
        driver: Driver,
        requests: WaitingRequests,
        stats: NodeStatistics,
        *,
        role: str,
        controllers: Container[int],
    ) -> None:
        self._role = role
        self._node = node
        self._driver = driver
        self._requests = requests
        self._stats = stats
        self._controllers = controllers
        self._partitions = PartitionCounts()

    async def prepare(self) -> None:
        """Counts partitions of the committed image that changed since the last page."""
        await self._partitions.count(self._node.ledger.committed.image.topics)

    def families(self, now_ms: int, wall_ms: int) -> Iterable[Family]:
        node, stats = self._node, self._stats
        config = node.config
        yield node_info(config.node_id, self._role, config.cluster_id)
        yield from quorum_families(node.raft, self._controllers, stats, now_ms)
        yield from image_families(node.ledger.committed.image.features.metadata_version, stats, now_ms)
        yield from self._queue()
        yield from self._cluster()
        yield from self._offsets(wall_ms)
        yield one(names.METADATA_ERRORS, stats.load_errors)
        yield one(names.EXPIRED_SESSIONS, node.counters.timed_out_heartbeats)
        yield one(names.PENDING_BATCHES, len(node.ledger.pending))
        yield one(names.WAITING_REQUESTS, len(self._requests))
        yield from work_families(stats)

    def _queue(self) -> Iterable[Family]:
        stats, loop = self._stats, self._driver.statistics
        yield one(names.QUEUE_TIME, stats.queue_ms)
        yield one(names.PROCESSING_TIME, stats.processing_ms)
        yield one(names.OPERATIONS_STARTED, loop.events)
        yield one(names.OPERATIONS_TIMED_OUT, sum(stats.requests.abandoned.values()))
        yield one(names.TIMED_OUT_HEARTBEATS, stats.requests.abandoned.get("BrokerHeartbeat", 0))
        yield one(names.INBOX, self._driver.waiting)
        yield one(names.REFUSED, loop.refused)
        yield one(names.GAPS, loop.gaps)

    def _cluster(self) -> Iterable[Family]:
        image, counts = self._node.ledger.committed.image, self._partitions.latest
        fenced = sum(broker.fenced for broker in image.brokers.values())
        yield one(names.ACTIVE_CONTROLLERS, float(self._node.active is not None))
        yield one(names.NEW_CONTROLLERS, self._stats.elections.leaders_seen)
        yield one(names.FENCED_BROKERS, fenced)
        yield one(names.ACTIVE_BROKERS, len(image.brokers) - fenced)
        yield one(names.TOPICS, len(image.topics))
        yield one(names.PARTITIONS, image.topics.partition_count)
        yield one(names.OFFLINE_PARTITIONS, counts.leaderless)
        yield one(names.IMBALANCE, counts.not_preferred)
        yield one(names.ALL_UNDER_REPLICATED, counts.under_replicated)

    def _offsets(self, wall_ms: int) -> Iterable[Family]:
        ledger, is_active = self._node.ledger, self._node.active is not None
        timestamp_ms = ledger.newest.provenance.timestamp_ms
        yield one(names.APPLIED_OFFSET, ledger.newest_state.end_offset - 1)
        yield one(names.COMMITTED_OFFSET, ledger.committed_offset - 1)
        yield one(names.APPLIED_TIMESTAMP, timestamp_ms)
        yield one(names.APPLIED_LAG, 0 if is_active else applied_age_ms(timestamp_ms, wall_ms))


# Counts over all partitions of an image, cached by chunk: only changed chunks are counted again.
#
# An image shares every unchanged chunk with the one before it, and a chunk is never modified, so that its
# identity tells whether a count is still valid. The cache keeps the chunks of the last counted image alive
# until the next count.

SLICE_MS = 1.0
"""How long to count before the loop gets a turn; a chunk takes about 10 us."""

CHUNKS_PER_LOOK = 16
"""Number of chunks between two checks of the clock."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one image's partitions."""

    leaderless: int = 0
    """Without a leader."""
    not_preferred: int = 0
    """The leader is not the first replica; leaderless ones count, as in Kafka."""
    under_replicated: int = 0
    """The ISR is smaller than the replica set."""


class PartitionCounts:
    """Call `count` before you read `latest`."""

    def __init__(self) -> None:
        self.latest = Counts()
        self._chunks: list[Chunk] = []
        self._counted = np.zeros((3, 0), dtype=np.int64)
        self._topics: TopicsImage | None = None

    async def count(self, topics: TopicsImage) -> None:
        """Updates `latest` to `topics`, in slices of a millisecond."""
        if topics is self._topics:
            return
        begun = time.perf_counter()
        chunks = topics.columns.chunks
        self._resize(len(chunks))
        seen = self._chunks
        changed = [index for index, chunk in enumerate(chunks) if seen[index] is not chunk]
        for done, index in enumerate(changed):
            seen[index] = chunks[index]
            self._counted[:, index] = count_chunk(chunks[index])
            if done % CHUNKS_PER_LOOK == 0 and (time.perf_counter() - begun) * 1000 >= SLICE_MS:
                await asyncio.sleep(0)
                begun = time.perf_counter()
        leaderless, not_preferred, under_replicated = self._counted.sum(axis=1).tolist()
        self.latest = Counts(
            leaderless=leaderless, not_preferred=not_preferred, under_replicated=under_replicated
        )
        self._topics = topics

    def _resize(self, length: int) -> None:
        """Makes room for `length` chunks; new ones are not counted yet."""
        old = self._counted
        if length != len(self._chunks):
            kept = min(length, len(self._chunks))
            self._counted = np.zeros((3, length), dtype=np.int64)
            self._counted[:, :kept] = old[:, :kept]
            self._chunks = self._chunks[:kept] + [_NO_CHUNK] * (length - kept)


_NO_CHUNK = Chunk(np.zeros((LISTS, 0), dtype=np.int32), 0, 0)


def count_chunk(chunk: Chunk) -> npt.NDArray[np.int64]:
    """(leaderless, not preferred, under-replicated) partitions of one chunk."""
    data = chunk.data
    live = data[TOPIC] >= 0
    leader = data[LEADER]
    preferred = data[LISTS] if chunk.replica_width else leader
    return np.array(
        (
            np.count_nonzero((leader < 0) & live),
            np.count_nonzero((leader != preferred) & live),
            np.count_nonzero((data[N_ISR] < data[N_REPLICAS]) & live),
        ),
        dtype=np.int64,
    )

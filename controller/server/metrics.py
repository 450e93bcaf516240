"""A controller's metrics, read from its node between two of its inputs."""

from __future__ import annotations

from collections.abc import Container, Iterable

from metaquorum.controller.node import ControllerNode
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
from metaquorum.observability.metrics.partition_counts import PartitionCounts
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

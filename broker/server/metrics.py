"""A broker's metrics, read from its node between two of its inputs."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from metaquorum.broker.node import BrokerNode
from metaquorum.broker.replica.requests.describe import LocalReplicaStatus
from metaquorum.metadata.requests.status import BrokerStatus
from metaquorum.node.driver import Driver
from metaquorum.observability.metrics import catalogue as names
from metaquorum.observability.metrics.families import (
    Family,
    applied_age_ms,
    image_families,
    labelled,
    one,
    quorum_families,
    work_families,
)
from metaquorum.observability.metrics.service import node_info
from metaquorum.observability.metrics.statistics import NodeStatistics, TrafficStatistics
from metaquorum.raft.core import RaftCore


class BrokerFigures:
    """A `Source`. `controllers` has the ids that this broker can reach; `directories`: those of `log.dirs`;
    `alone`: no other source of the page shows the process's own metrics."""

    def __init__(
        self,
        node: BrokerNode,
        raft: RaftCore,
        driver: Driver,
        stats: NodeStatistics,
        *,
        cluster_id: str,
        controllers: Container[int],
        directories: Sequence[str],
        alone: bool,
    ) -> None:
        self._node = node
        self._raft = raft
        self._driver = driver
        self._stats = stats
        self._cluster_id = cluster_id
        self._controllers = controllers
        self._directories = tuple(directories)
        self._alone = alone

    async def prepare(self) -> None:
        """Nothing to prepare."""

    def families(self, now_ms: int, wall_ms: int) -> Iterable[Family]:
        node, stats = self._node, self._stats
        status = node.status(now_ms=now_ms)
        if self._alone:
            yield from self._process(status.node_id, now_ms)
        yield from self._metadata(wall_ms)
        yield from _standing(status)
        if node.replicas is not None:
            replicas = node.replicas.status()
            yield from _replica_families(replicas)
            yield from _traffic(stats.traffic, replicas)
            yield from self._directory_families(replicas)

    def _process(self, node_id: int, now_ms: int) -> Iterable[Family]:
        stats, loop = self._stats, self._driver.statistics
        yield node_info(node_id, "broker", self._cluster_id)
        yield from quorum_families(self._raft, self._controllers, stats, now_ms)
        yield from image_families(self._node.metadata_version, stats, now_ms)
        yield one(names.INBOX, self._driver.waiting)
        yield one(names.REFUSED, loop.refused)
        yield one(names.GAPS, loop.gaps)
        yield from work_families(stats)

    def _metadata(self, wall_ms: int) -> Iterable[Family]:
        provenance = self._node.provenance
        yield one(names.BROKER_APPLIED_OFFSET, provenance.offset - 1)
        yield one(names.BROKER_APPLIED_TIMESTAMP, provenance.timestamp_ms)
        yield one(names.BROKER_APPLIED_LAG, applied_age_ms(provenance.timestamp_ms, wall_ms))
        yield one(names.BROKER_LOAD_ERRORS, self._stats.load_errors)
        yield one(names.BROKER_APPLY_ERRORS, self._stats.apply_errors)

    def _directory_families(self, replicas: LocalReplicaStatus) -> Iterable[Family]:
        bad = frozenset(replicas.offline_directories)
        yield one(names.OFFLINE_DIRECTORIES, len(bad))
        yield one(names.OFFLINE_DIRECTORIES_KIP, len(bad))
        yield one(names.OFFLINE_DIRECTORIES_ALIAS, len(bad))
        states = {path: float(path in bad) for path in dict.fromkeys((*self._directories, *bad))}
        yield labelled(names.DIRECTORY_OFFLINE, states)


def _standing(status: BrokerStatus) -> Iterable[Family]:
    yield one(names.BROKER_STATE, int(status.process_state))
    yield one(names.BROKER_FENCED, float(status.fenced))
    yield one(names.BROKER_EPOCH, status.broker_epoch)
    yield one(names.BROKER_LEASE, status.lease_left_ms)


def _replica_families(replicas: LocalReplicaStatus) -> Iterable[Family]:
    yield one(names.LEADER_COUNT, replicas.leaders)
    yield one(names.PARTITION_COUNT, replicas.replicas)
    yield one(names.OFFLINE_REPLICAS, replicas.offline)
    yield one(names.UNASSIGNED_REPLICAS, replicas.unassigned)
    yield one(names.UNDER_REPLICATED, replicas.under_replicated)
    yield one(names.UNDER_MIN_ISR, replicas.under_min_isr)
    yield one(names.AT_MIN_ISR, replicas.at_min_isr)
    yield one(names.ISR_SHRINKS, replicas.isr_shrinks)
    yield one(names.ISR_EXPANDS, replicas.isr_expands)
    yield one(names.MAX_LAG, replicas.max_lag)
    waiting = {"Produce": float(replicas.waiting_produces), "Fetch": float(replicas.waiting_fetches)}
    yield labelled(names.PURGATORY, waiting)


def _traffic(traffic: TrafficStatistics, replicas: LocalReplicaStatus) -> Iterable[Family]:
    yield one(names.BYTES_IN, traffic.bytes_in)
    yield one(names.MESSAGES_IN, traffic.records_in)
    yield one(names.BYTES_OUT, traffic.bytes_out)
    yield one(names.REPLICATION_IN, replicas.replicated_bytes)
    yield one(names.REPLICATION_OUT, traffic.replication_bytes_out)
    yield one(names.FAILED_PRODUCES, traffic.failed_produces)
    yield one(names.FAILED_FETCHES, traffic.failed_fetches)

"""A broker's metrics, read from its node between two of its inputs.

Owns which value is which metric. Must not change the node, and does not count requests: `data.request_times`
does.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from metaquorum.broker.node import BrokerNode
from metaquorum.broker.replica.status import LocalReplicaStatus
from metaquorum.metadata.requests.broker_status import BrokerStatus
from metaquorum.raft.core import RaftCore
from metaquorum.runtime.driver.driver import Driver
from metaquorum.runtime.metrics import broker_catalogue as of_brokers
from metaquorum.runtime.metrics import catalogue as names
from metaquorum.runtime.metrics.families import (
    Family,
    applied_age_ms,
    image_families,
    labelled,
    one,
    quorum_families,
    work_families,
)
from metaquorum.runtime.metrics.node import NodeStatistics
from metaquorum.runtime.metrics.service import node_info
from metaquorum.runtime.metrics.statistics import TrafficStatistics


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
        yield one(of_brokers.BROKER_APPLIED_OFFSET, provenance.offset - 1)
        yield one(of_brokers.BROKER_APPLIED_TIMESTAMP, provenance.timestamp_ms)
        yield one(of_brokers.BROKER_APPLIED_LAG, applied_age_ms(provenance.timestamp_ms, wall_ms))
        yield one(of_brokers.BROKER_LOAD_ERRORS, self._stats.load_errors)
        yield one(of_brokers.BROKER_APPLY_ERRORS, self._stats.apply_errors)

    def _directory_families(self, replicas: LocalReplicaStatus) -> Iterable[Family]:
        bad = frozenset(replicas.offline_directories)
        yield one(of_brokers.OFFLINE_DIRECTORIES, len(bad))
        yield one(of_brokers.OFFLINE_DIRECTORIES_KIP, len(bad))
        yield one(of_brokers.OFFLINE_DIRECTORIES_ALIAS, len(bad))
        states = {path: float(path in bad) for path in dict.fromkeys((*self._directories, *bad))}
        yield labelled(of_brokers.DIRECTORY_OFFLINE, states)


def _standing(status: BrokerStatus) -> Iterable[Family]:
    yield one(of_brokers.BROKER_STATE, int(status.process_state))
    yield one(of_brokers.BROKER_FENCED, float(status.fenced))
    yield one(of_brokers.BROKER_EPOCH, status.broker_epoch)
    yield one(of_brokers.BROKER_LEASE, status.lease_left_ms)


def _replica_families(replicas: LocalReplicaStatus) -> Iterable[Family]:
    yield one(of_brokers.LEADER_COUNT, replicas.leaders)
    yield one(of_brokers.PARTITION_COUNT, replicas.replicas)
    yield one(of_brokers.OFFLINE_REPLICAS, replicas.offline)
    yield one(of_brokers.UNASSIGNED_REPLICAS, replicas.unassigned)
    yield one(of_brokers.UNDER_REPLICATED, replicas.under_replicated)
    yield one(of_brokers.UNDER_MIN_ISR, replicas.under_min_isr)
    yield one(of_brokers.AT_MIN_ISR, replicas.at_min_isr)
    yield one(of_brokers.ISR_SHRINKS, replicas.isr_shrinks)
    yield one(of_brokers.ISR_EXPANDS, replicas.isr_expands)
    yield one(of_brokers.MAX_LAG, replicas.max_lag)
    waiting = {"Produce": float(replicas.waiting_produces), "Fetch": float(replicas.waiting_fetches)}
    yield labelled(of_brokers.PURGATORY, waiting)


def _traffic(traffic: TrafficStatistics, replicas: LocalReplicaStatus) -> Iterable[Family]:
    yield one(of_brokers.BYTES_IN, traffic.bytes_in)
    yield one(of_brokers.MESSAGES_IN, traffic.records_in)
    yield one(of_brokers.BYTES_OUT, traffic.bytes_out)
    yield one(of_brokers.REPLICATION_IN, replicas.replicated_bytes)
    yield one(of_brokers.REPLICATION_OUT, traffic.replication_bytes_out)
    yield one(of_brokers.FAILED_PRODUCES, traffic.failed_produces)
    yield one(of_brokers.FAILED_FETCHES, traffic.failed_fetches)

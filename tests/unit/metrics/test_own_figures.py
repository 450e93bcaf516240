"""Each figure of a page is the count that its name says: no two counts are alike here."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from metaquorum.broker.replica.requests.describe import LocalReplicaStatus
from metaquorum.broker.server import metrics as of_brokers
from metaquorum.controller.server.metrics import ControllerFigures, Counts
from metaquorum.metadata.image import Provenance
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.metadata.requests.status import BrokerState, BrokerStatus, ProcessState
from metaquorum.observability.metrics.families import Family, image_families
from metaquorum.observability.metrics.statistics import LoopStatistics, NodeStatistics, TrafficStatistics
from tests.unit.controller.node_quorum import WALL_AT_0, Machine, Quorum

REPLICAS, TRAFFIC = "kafka_server_ReplicaManager_", "kafka_server_BrokerTopicMetrics_"
CONTROLLER = "kafka_controller_KafkaController_"
LOOP, OWN, LOADER = "metaquorum_loop_", "metaquorum_controller_", "kafka_server_MetadataLoader_"
SNAPSHOT = "kafka_server_SnapshotEmitter_LatestSnapshotGenerated"


def figures(families: Iterable[Family]) -> dict[str, Any]:
    """By the name that a page shows, and the labels."""
    return {
        ",".join((family.metric.shown_name, *labels)): value
        for family in families
        for labels, value in family.samples
    }


def test_the_replicas_and_the_traffic_of_a_broker() -> None:
    fields = [name for name in LocalReplicaStatus.__struct_fields__ if name != "offline_directories"]
    status = LocalReplicaStatus(**{name: at for at, name in enumerate(fields, start=10)})
    assert figures(of_brokers._replica_families(status)) == {
        REPLICAS + "LeaderCount": status.leaders,
        REPLICAS + "PartitionCount": status.replicas,
        REPLICAS + "OfflineReplicaCount": status.offline,
        "metaquorum_broker_unassigned_replicas": status.unassigned,
        REPLICAS + "UnderReplicatedPartitions": status.under_replicated,
        REPLICAS + "UnderMinIsrPartitionCount": status.under_min_isr,
        REPLICAS + "AtMinIsrPartitionCount": status.at_min_isr,
        REPLICAS + "IsrShrinksPerSec_total": status.isr_shrinks,
        REPLICAS + "IsrExpandsPerSec_total": status.isr_expands,
        "kafka_server_ReplicaFetcherManager_MaxLag": status.max_lag,
        "kafka_server_DelayedOperationPurgatory_PurgatorySize,Produce": status.waiting_produces,
        "kafka_server_DelayedOperationPurgatory_PurgatorySize,Fetch": status.waiting_fetches,
    }
    traffic = TrafficStatistics(
        bytes_in=1, records_in=2, bytes_out=3, replication_bytes_out=4, failed_produces=5, failed_fetches=6
    )
    assert figures(of_brokers._traffic(traffic, status)) == {
        TRAFFIC + "BytesInPerSec_total": 1,
        TRAFFIC + "MessagesInPerSec_total": 2,
        TRAFFIC + "BytesOutPerSec_total": 3,
        TRAFFIC + "ReplicationBytesOutPerSec_total": 4,
        TRAFFIC + "FailedProduceRequestsPerSec_total": 5,
        TRAFFIC + "FailedFetchRequestsPerSec_total": 6,
        TRAFFIC + "ReplicationBytesInPerSec_total": status.replicated_bytes,
    }


def test_what_a_broker_has_applied() -> None:
    """The offset is that of the last record, not the one after it."""
    stats = NodeStatistics(0)
    stats.load_errors, stats.apply_errors = 2, 3

    def shown(provenance: Provenance) -> dict[str, Any]:
        node, unused = cast(Any, SimpleNamespace(provenance=provenance)), cast(Any, None)
        of_broker = of_brokers.BrokerFigures(
            node, unused, unused, stats, cluster_id="c", controllers=(), directories=(), alone=False
        )
        return figures(of_broker._metadata(9_000))

    name = "kafka_server_broker_metadata_metrics_"
    assert shown(Provenance(8, 1, 5_000)) == {
        name + "last_applied_record_offset": 7,
        name + "last_applied_record_timestamp": 5_000,
        name + "last_applied_record_lag_ms": 4_000,
        name + "metadata_load_error_count": 2,
        name + "metadata_apply_error_count": 3,
    }
    assert [*shown(Provenance()).values()] == [-1, -1, -1, 2, 3]


def test_where_a_broker_stands() -> None:
    def standing(**fields: Any) -> list[float]:
        status = BrokerStatus(
            node_id=1,
            incarnation_id=bytes(16),
            state=BrokerState.FENCED,
            process_state=ProcessState.RUNNING,
            applied_offset=3,
            high_watermark=4,
            log_end_offset=5,
            catch_up_offset=6,
            leader_id=7,
            quorum_epoch=8,
            failures=9,
            last_problem="",
            **fields,
        )
        shown = figures(of_brokers._standing(status))
        names = [f"metaquorum_broker_{name}" for name in ("fenced", "epoch", "lease_left_ms")]
        assert set(shown) == {"kafka_server_KafkaServer_BrokerState", *names}
        return [*shown.values()]

    assert standing(fenced=True, broker_epoch=41, lease_left_ms=1_234) == [3, 1, 41, 1_234]
    assert standing(fenced=False, broker_epoch=None, lease_left_ms=None) == [3, 0, -1, -1]


class _Loop(NamedTuple):
    """What of a driver is shown."""

    statistics: LoopStatistics
    waiting: int


def page_of(machine: Machine, stats: NodeStatistics, counts: Counts) -> dict[str, Any]:
    loop: Any = _Loop(LoopStatistics(events=31, steps=32, syncs=33, gaps=34, refused=35), 36)
    waiting: Any = range(37)
    shown = ControllerFigures(machine.node, loop, waiting, stats, role="controller", controllers={1, 2})
    shown._partitions.latest = counts
    return figures(shown.families(machine.quorum.now_ms, WALL_AT_0 + 90_000))


def test_what_a_controller_counts() -> None:
    quorum = Quorum(size=3)
    machine = quorum.elect()
    for broker_id in range(101, 106):
        quorum.start_broker(broker_id)
    quorum.register(106)
    quorum.create("t", *((101, 102),) * 7)
    quorum.create("u", (101, 102))
    for other in quorum.followers:
        quorum.disconnect(other.node_id)
    for _ in range(3):
        machine.write(NoOpRecord())
    quorum.advance(10)
    machine.node.counters.timed_out_heartbeats = 38
    stats = NodeStatistics(0)
    stats.load_errors = 39
    stats.requests.abandoned.update(BrokerHeartbeat=2, CreateTopics=3)
    stats.elections.leaders_seen = 43
    page = page_of(machine, stats, Counts(leaderless=1, not_preferred=5, under_replicated=9))

    committed, end = machine.node.ledger.committed_offset, machine.end_offset
    assert committed == end - 3
    assert {name: page[name] for name in page if name.startswith((CONTROLLER, LOOP, OWN))} == {
        CONTROLLER + "ActiveControllerCount": 1,
        CONTROLLER + "NewActiveControllersCount": 43,
        CONTROLLER + "FencedBrokerCount": 1,
        CONTROLLER + "ActiveBrokerCount": 5,
        CONTROLLER + "GlobalTopicCount": 2,
        CONTROLLER + "GlobalPartitionCount": 8,
        CONTROLLER + "OfflinePartitionsCount": 1,
        CONTROLLER + "PreferredReplicaImbalanceCount": 5,
        CONTROLLER + "MetadataErrorCount": 39,
        CONTROLLER + "LastAppliedRecordOffset": end - 1,
        CONTROLLER + "LastCommittedRecordOffset": committed - 1,
        CONTROLLER + "LastAppliedRecordTimestamp": machine.node.ledger.newest.provenance.timestamp_ms,
        CONTROLLER + "LastAppliedRecordLagMs": 0,
        CONTROLLER + "TimedOutBrokerHeartbeatCount": 2,
        CONTROLLER + "EventQueueOperationsStartedCount": 31,
        CONTROLLER + "EventQueueOperationsTimedOutCount": 5,
        LOOP + "inbox_events": 36,
        LOOP + "refused_events_total": 35,
        LOOP + "gaps_total": 34,
        OWN + "expired_sessions_total": 38,
        OWN + "pending_batches": 3,
        OWN + "waiting_requests": 37,
        OWN + "under_replicated_partitions": 9,
    }
    assert page["kafka_server_raft_metrics_number_unknown_voter_connections"] == 1
    follower = page_of(quorum.followers[0], NodeStatistics(0), Counts())
    applied = quorum.followers[0].node.ledger.newest.provenance.timestamp_ms
    assert follower[CONTROLLER + "ActiveControllerCount"] == 0
    assert follower[CONTROLLER + "LastAppliedRecordLagMs"] == WALL_AT_0 + 90_000 - applied > 0


def test_the_snapshots_of_a_node() -> None:
    stats = NodeStatistics(1_000)
    names = [
        *(LOADER + name for name in ("CurrentMetadataVersion", "HandleLoadSnapshotCount")),
        *(SNAPSHOT + name for name in ("Bytes", "AgeMs")),
    ]

    def shown() -> dict[str, Any]:
        return figures(image_families(25, stats, 61_500))

    assert shown() == dict(zip(names, (25, 0, 0, 60_500), strict=True))
    stats.snapshot_loaded(700)
    assert shown() == dict(zip(names, (25, 1, 700, 60_500), strict=True))
    stats.snapshot_written(900, 61_000)
    stats.snapshot_loaded(800)
    assert shown() == dict(zip(names, (25, 2, 900, 500), strict=True))

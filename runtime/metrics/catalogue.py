"""Every figure that a process shows: its name, what it means, and its unit.

Owns the rule by which Kafka's names become Prometheus names, and the table behind docs/metrics.md.
A figure that is not in the table cannot be shown. Knows no values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]

CONTROLLER = "controller"
BROKER = "broker"
BOTH = (CONTROLLER, BROKER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One figure, with Kafka's name if Kafka has it. A counter is shown as `name` + `_total`."""

    name: str
    kind: Kind
    unit: str
    text: str
    roles: tuple[str, ...] = BOTH
    labels: tuple[str, ...] = ()

    @property
    def shown_name(self) -> str:
        return f"{self.name}_total" if self.kind == "counter" else self.name


def prometheus_name(domain: str, group: str, name: str) -> str:
    """`kafka.controller`, `KafkaController`, `ActiveControllerCount`: joined with `_` as they are written,
    and every run of characters that a Prometheus name must not have becomes one `_`."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", f"{domain}_{group}_{name}")


def kafka_metric(
    domain: str,
    group: str,
    name: str,
    unit: str,
    text: str,
    *,
    kind: Kind = "gauge",
    roles: tuple[str, ...] = BOTH,
    labels: tuple[str, ...] = (),
) -> Metric:
    """A gauge `<type=..., name=...>` of Kafka."""
    return Metric(
        name=prometheus_name(domain, group, name),
        kind=kind,
        unit=unit,
        text=text,
        roles=roles,
        labels=labels,
    )


def attribute_metric(group: str, name: str, unit: str, text: str, **more: tuple[str, ...]) -> Metric:
    """An attribute of an MBean `kafka.server:type=...`, as Kafka's newer metrics are."""
    return Metric(
        name=prometheus_name("kafka.server", group, name),
        kind="gauge",
        unit=unit,
        text=text,
        roles=more.get("roles", BOTH),
        labels=more.get("labels", ()),
    )


def _raft(name: str, unit: str, text: str, **more: tuple[str, ...]) -> Metric:
    return attribute_metric("raft-metrics", name, unit, text, **more)


def _controller(name: str, unit: str, text: str, **more: Kind) -> Metric:
    return kafka_metric(
        "kafka.controller",
        "KafkaController",
        name,
        unit,
        text,
        roles=(CONTROLLER,),
        kind=more.get("kind", "gauge"),
    )


def _broker(name: str, unit: str, text: str) -> Metric:
    return attribute_metric("broker-metadata-metrics", name, unit, text, roles=(BROKER,))


def _replica(name: str, unit: str, text: str, kind: Kind = "gauge") -> Metric:
    return kafka_metric("kafka.server", "ReplicaManager", name, unit, text, roles=(BROKER,), kind=kind)


def _traffic(name: str, unit: str, text: str) -> Metric:
    return kafka_metric("kafka.server", "BrokerTopicMetrics", name, unit, text, roles=(BROKER,), kind="counter")


STATES = ("leader", "candidate", "prospective", "voted", "follower", "observer", "unattached", "resigned")

CURRENT_STATE = _raft(
    "current-state",
    "0 or 1",
    "1 for the current state of this node: "
    + ", ".join(STATES)
    + ". `prospective` starts a pre-vote (KIP-996).",
    labels=("state",),
)
CURRENT_LEADER = _raft("current-leader", "node id", "The leader of the quorum. -1: unknown.")
CURRENT_VOTE = _raft("current-vote", "node id", "The node that this node voted for in this epoch. -1: none.")
CURRENT_EPOCH = _raft("current-epoch", "epoch", "The epoch of the quorum.")
HIGH_WATERMARK = _raft("high-watermark", "offset", "Everything below is committed. -1: unknown.")
LOG_END_OFFSET = _raft("log-end-offset", "offset", "The offset of the next record of the metadata log.")
LOG_END_EPOCH = _raft(
    "log-end-epoch", "epoch", "The epoch of the last record of the metadata log. -1: the log is empty."
)
UNKNOWN_VOTERS = _raft(
    "number-unknown-voter-connections", "voters", "Voters whose address this node does not know."
)
_WINDOW = " Over the last 30 to 60 s. NaN: none."
COMMIT_AVG = _raft(
    "commit-latency-avg",
    "ms",
    "The average time from the append of a batch on this leader to its commit." + _WINDOW,
)
COMMIT_MAX = _raft("commit-latency-max", "ms", "The maximum of that time." + _WINDOW)
ELECTION_AVG = _raft(
    "election-latency-avg", "ms", "The average time from a candidacy to a known leader." + _WINDOW
)
ELECTION_MAX = _raft("election-latency-max", "ms", "The maximum of that time." + _WINDOW)
FETCH_RATE = _raft(
    "fetch-records-rate",
    "1/s",
    "Records of the metadata log fetched from the leader, over the last 30 to 60 s.",
)
APPEND_RATE = _raft(
    "append-records-rate", "1/s", "Records that this node appended as leader, over the last 30 to 60 s."
)
IDLE_RATIO = _raft("poll-idle-ratio-avg", "0 to 1", "The fraction of time in which the node's loop was idle.")

METADATA_VERSION = kafka_metric(
    "kafka.server", "MetadataLoader", "CurrentMetadataVersion", "level", "The finalized metadata.version."
)
LOAD_SNAPSHOTS = kafka_metric(
    "kafka.server",
    "MetadataLoader",
    "HandleLoadSnapshotCount",
    "snapshots",
    "Snapshots loaded since this node started, including the one at its start.",
)
SNAPSHOT_BYTES = kafka_metric(
    "kafka.server",
    "SnapshotEmitter",
    "LatestSnapshotGeneratedBytes",
    "bytes",
    "The size of the newest snapshot that this process wrote or, if none, loaded. 0: none.",
)
SNAPSHOT_AGE = kafka_metric(
    "kafka.server",
    "SnapshotEmitter",
    "LatestSnapshotGeneratedAgeMs",
    "ms",
    "The age of the newest snapshot that this process wrote, or its uptime.",
)

ACTIVE_CONTROLLERS = _controller(
    "ActiveControllerCount",
    "0 or 1",
    "1: this is the active controller. The sum over all controllers must be 1.",
)
QUEUE_TIME = Metric(
    name=prometheus_name("kafka.controller", "ControllerEventManager", "EventQueueTimeMs"),
    kind="histogram",
    unit="ms",
    text="The time that an event waited in the node's inbox.",
    roles=(CONTROLLER,),
)
PROCESSING_TIME = Metric(
    name=prometheus_name("kafka.controller", "ControllerEventManager", "EventQueueProcessingTimeMs"),
    kind="histogram",
    unit="ms",
    text="The time that an event took, without syncs.",
    roles=(CONTROLLER,),
)
FENCED_BROKERS = _controller("FencedBrokerCount", "brokers", "Registered brokers that are fenced.")
ACTIVE_BROKERS = _controller("ActiveBrokerCount", "brokers", "Registered brokers that are not fenced.")
TOPICS = _controller("GlobalTopicCount", "topics", "Topics of the cluster.")
PARTITIONS = _controller("GlobalPartitionCount", "partitions", "Partitions of the cluster.")
OFFLINE_PARTITIONS = _controller("OfflinePartitionsCount", "partitions", "Partitions without a leader.")
IMBALANCE = _controller(
    "PreferredReplicaImbalanceCount", "partitions", "Partitions whose leader is not the preferred replica."
)
METADATA_ERRORS = _controller(
    "MetadataErrorCount",
    "errors",
    "Failures to read or replay committed metadata, and damaged snapshots that were fetched again.",
)
APPLIED_OFFSET = _controller(
    "LastAppliedRecordOffset",
    "offset",
    "The last record in this controller's state; on the active controller including uncommitted records. "
    "-1: none.",
)
COMMITTED_OFFSET = _controller(
    "LastCommittedRecordOffset", "offset", "The last committed record that this controller knows. -1: none."
)
APPLIED_TIMESTAMP = _controller(
    "LastAppliedRecordTimestamp", "ms since 1970", "The timestamp of the last applied record. -1: none."
)
APPLIED_LAG = _controller(
    "LastAppliedRecordLagMs",
    "ms",
    "The age of the last applied record; 0 on the active controller. -1: none.",
)
TIMED_OUT_HEARTBEATS = _controller(
    "TimedOutBrokerHeartbeatCount",
    "requests",
    "Heartbeats that timed out at the broker before this controller answered.",
)
OPERATIONS_STARTED = _controller(
    "EventQueueOperationsStartedCount", "events", "Events that this node has started to handle."
)
OPERATIONS_TIMED_OUT = _controller(
    "EventQueueOperationsTimedOutCount",
    "requests",
    "Requests that timed out at the caller before this controller answered.",
)
NEW_CONTROLLERS = _controller(
    "NewActiveControllersCount", "elections", "Elections of a leader that this node has seen."
)

BROKER_APPLIED_OFFSET = _broker(
    "last-applied-record-offset", "offset", "The last metadata record that this broker applied. -1: none."
)
BROKER_APPLIED_TIMESTAMP = _broker(
    "last-applied-record-timestamp", "ms since 1970", "The timestamp of that record. -1: none."
)
BROKER_APPLIED_LAG = _broker("last-applied-record-lag-ms", "ms", "The age of that record. -1: none.")
BROKER_LOAD_ERRORS = _broker(
    "metadata-load-error-count",
    "errors",
    "Failures to read or replay committed metadata, and damaged snapshots that were fetched again.",
)
BROKER_APPLY_ERRORS = _broker(
    "metadata-apply-error-count",
    "errors",
    "New images that could not be applied to this broker's replicas.",
)

LEADER_COUNT = _replica("LeaderCount", "partitions", "Partitions that this broker leads.")
PARTITION_COUNT = _replica(
    "PartitionCount", "replicas", "Replicas of this broker, including those in offline directories."
)
OFFLINE_REPLICAS = _replica(
    "OfflineReplicaCount", "replicas", "Replicas of this broker in offline directories (KIP-112)."
)
UNDER_REPLICATED = _replica(
    "UnderReplicatedPartitions",
    "partitions",
    "Partitions led here with fewer in-sync replicas than replicas.",
)
UNDER_MIN_ISR = _replica(
    "UnderMinIsrPartitionCount",
    "partitions",
    "Partitions led here with fewer in-sync replicas than min.insync.replicas.",
)
AT_MIN_ISR = _replica(
    "AtMinIsrPartitionCount",
    "partitions",
    "Partitions led here with exactly min.insync.replicas in-sync replicas.",
)
UNASSIGNED_REPLICAS = Metric(
    name="metaquorum_broker_unassigned_replicas",
    kind="gauge",
    unit="replicas",
    text="Replicas of this broker whose directory is not committed yet.",
    roles=(BROKER,),
)
MAX_LAG = kafka_metric(
    "kafka.server",
    "ReplicaFetcherManager",
    "MaxLag",
    "offsets",
    "The lag of the replica that is furthest behind its leader.",
    roles=(BROKER,),
)
PURGATORY = kafka_metric(
    "kafka.server",
    "DelayedOperationPurgatory",
    "PurgatorySize",
    "requests",
    "Requests that wait for replication or for new records.",
    roles=(BROKER,),
    labels=("delayedOperation",),
)
ISR_SHRINKS = _replica("IsrShrinksPerSec", "changes", "Times that this broker shrank an ISR.", "counter")
ISR_EXPANDS = _replica("IsrExpandsPerSec", "changes", "Times that this broker expanded an ISR.", "counter")
OFFLINE_DIRECTORIES = kafka_metric(
    "kafka.log",
    "LogManager",
    "OfflineLogDirectoryCount",
    "directories",
    "Offline log directories. 0 on a healthy broker.",
    roles=(BROKER,),
)
OFFLINE_DIRECTORIES_KIP = kafka_metric(
    "kafka.server",
    "LogManager",
    "OfflineLogDirectoryCount",
    "directories",
    "The same, under the name in KIP-112.",
    roles=(BROKER,),
)
OFFLINE_DIRECTORIES_ALIAS = kafka_metric(
    "kafka.server",
    "LogManager",
    "OfflineLogDirectoriesCount",
    "directories",
    "The same, under the name in KIP-112's text for operators.",
    roles=(BROKER,),
)
DIRECTORY_OFFLINE = kafka_metric(
    "kafka.log",
    "LogManager",
    "LogDirectoryOffline",
    "0 or 1",
    "1: this directory is offline.",
    roles=(BROKER,),
    labels=("logDirectory",),
)
BYTES_IN = _traffic("BytesInPerSec", "bytes", "Produced records that were appended.")
BYTES_OUT = _traffic("BytesOutPerSec", "bytes", "Records that were sent to consumers.")
REPLICATION_IN = _traffic(
    "ReplicationBytesInPerSec", "bytes", "Records that were fetched from leaders and appended."
)
REPLICATION_OUT = _traffic("ReplicationBytesOutPerSec", "bytes", "Records that were sent to followers.")
FAILED_PRODUCES = _traffic(
    "FailedProduceRequestsPerSec", "partitions", "Partitions of produce requests that failed."
)
FAILED_FETCHES = _traffic(
    "FailedFetchRequestsPerSec", "partitions", "Partitions of fetch requests that failed."
)
MESSAGES_IN = _traffic("MessagesInPerSec", "records", "Produced records that were appended.")

REQUEST_TIME = kafka_metric(
    "kafka.network",
    "RequestMetrics",
    "TotalTimeMs",
    "ms",
    "The time from the arrival of a request to its answer, including waits; by request.",
    kind="histogram",
    labels=("request",),
)
REQUEST_ERRORS = kafka_metric(
    "kafka.network",
    "RequestMetrics",
    "ErrorsPerSec",
    "requests",
    "Requests answered with an error, by request and code.",
    kind="counter",
    labels=("request", "error"),
)
FLUSH_TIME = kafka_metric(
    "kafka.log",
    "LogFlushStats",
    "LogFlushRateAndTimeMs",
    "ms",
    "The time that a sync took; `directory` is a log directory, or `metadata` for the metadata log.",
    kind="histogram",
    labels=("directory",),
)

INFO = Metric(
    name="metaquorum_node_info",
    kind="gauge",
    unit="1",
    text="Always 1; the labels identify the node.",
    labels=("node_id", "role", "cluster_id", "version"),
)
COMMIT_TIME = Metric(
    name="metaquorum_raft_commit_ms",
    kind="histogram",
    unit="ms",
    text="The time from the append of a batch on this leader to its commit.",
)
ELECTION_TIME = Metric(
    name="metaquorum_raft_election_ms",
    kind="histogram",
    unit="ms",
    text="The time from a candidacy to a known leader.",
)
LOST_RECORDS = Metric(
    name="metaquorum_raft_lost_committed_records",
    kind="gauge",
    unit="records",
    text="Committed records that another node knows of but this leader lacks. Above 0, a controller's "
    "directory was replaced by an older copy or emptied.",
)
FETCHED_RECORDS = Metric(
    name="metaquorum_raft_fetched_records",
    kind="counter",
    unit="records",
    text="Records of the metadata log fetched from the leader.",
)
APPENDED_RECORDS = Metric(
    name="metaquorum_raft_appended_records",
    kind="counter",
    unit="records",
    text="Records that this node appended as leader.",
)
EXPIRED_SESSIONS = Metric(
    name="metaquorum_controller_expired_sessions",
    kind="counter",
    unit="brokers",
    text="Unfenced brokers whose session expired on this controller.",
    roles=(CONTROLLER,),
)
PENDING_BATCHES = Metric(
    name="metaquorum_controller_pending_batches",
    kind="gauge",
    unit="batches",
    text="Batches waiting for their commit.",
    roles=(CONTROLLER,),
)
WAITING_REQUESTS = Metric(
    name="metaquorum_controller_waiting_requests",
    kind="gauge",
    unit="requests",
    text="Requests without an answer yet.",
    roles=(CONTROLLER,),
)
ALL_UNDER_REPLICATED = Metric(
    name="metaquorum_controller_under_replicated_partitions",
    kind="gauge",
    unit="partitions",
    text="Partitions of the cluster with fewer in-sync replicas than replicas.",
    roles=(CONTROLLER,),
)
BROKER_STATE = Metric(
    name=prometheus_name("kafka.server", "KafkaServer", "BrokerState"),
    kind="gauge",
    unit="state",
    text="Kafka's number of the state: 1 starting, 2 recovery, 3 running, 6 controlled shutdown, 7 ended.",
    roles=(BROKER,),
)
BROKER_FENCED = Metric(
    name="metaquorum_broker_fenced",
    kind="gauge",
    unit="0 or 1",
    text="1: this broker does not serve clients.",
    roles=(BROKER,),
)
BROKER_EPOCH = Metric(
    name="metaquorum_broker_epoch",
    kind="gauge",
    unit="epoch",
    text="The broker epoch. -1: not registered.",
    roles=(BROKER,),
)
BROKER_LEASE = Metric(
    name="metaquorum_broker_lease_left_ms",
    kind="gauge",
    unit="ms",
    text="The remaining time of the lease. -1: none.",
    roles=(BROKER,),
)
INBOX = Metric(
    name="metaquorum_loop_inbox_events", kind="gauge", unit="events", text="Events waiting in the inbox."
)
REFUSED = Metric(
    name="metaquorum_loop_refused_events",
    kind="counter",
    unit="events",
    text="Events refused because the inbox was full.",
)
GAPS = Metric(
    name="metaquorum_loop_gaps",
    kind="counter",
    unit="pauses",
    text=(
        "Stalls of this process of more than 200 ms: the machine is overloaded, or the process was paused."
    ),
)
SCRAPE_TIME = Metric(
    name="metaquorum_scrape_ms",
    kind="gauge",
    unit="ms",
    text="The loop time that the previous page took.",
)

GROUPS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    (
        "The quorum",
        (
            *(CURRENT_STATE, CURRENT_LEADER, CURRENT_VOTE, CURRENT_EPOCH, HIGH_WATERMARK, LOG_END_OFFSET),
            *(LOG_END_EPOCH, UNKNOWN_VOTERS, COMMIT_AVG, COMMIT_MAX, ELECTION_AVG, ELECTION_MAX),
            *(FETCH_RATE, APPEND_RATE, IDLE_RATIO),
            *(COMMIT_TIME, ELECTION_TIME, LOST_RECORDS, FETCHED_RECORDS, APPENDED_RECORDS),
        ),
    ),
    ("The metadata's image", (METADATA_VERSION, LOAD_SNAPSHOTS, SNAPSHOT_BYTES, SNAPSHOT_AGE)),
    (
        "Controllers",
        (
            *(ACTIVE_CONTROLLERS, QUEUE_TIME, PROCESSING_TIME, FENCED_BROKERS, ACTIVE_BROKERS, TOPICS),
            *(PARTITIONS, OFFLINE_PARTITIONS, IMBALANCE, METADATA_ERRORS, APPLIED_OFFSET, COMMITTED_OFFSET),
            *(APPLIED_TIMESTAMP, APPLIED_LAG, TIMED_OUT_HEARTBEATS, OPERATIONS_STARTED),
            *(OPERATIONS_TIMED_OUT, NEW_CONTROLLERS, EXPIRED_SESSIONS, PENDING_BATCHES, WAITING_REQUESTS),
            ALL_UNDER_REPLICATED,
        ),
    ),
    (
        "Brokers",
        (
            *(BROKER_APPLIED_OFFSET, BROKER_APPLIED_TIMESTAMP, BROKER_APPLIED_LAG, BROKER_LOAD_ERRORS),
            *(BROKER_APPLY_ERRORS, BROKER_STATE, BROKER_FENCED, BROKER_EPOCH, BROKER_LEASE),
        ),
    ),
    (
        "Replicas and log directories",
        (
            *(
                LEADER_COUNT,
                PARTITION_COUNT,
                OFFLINE_REPLICAS,
                UNDER_REPLICATED,
                UNDER_MIN_ISR,
                AT_MIN_ISR,
                UNASSIGNED_REPLICAS,
            ),
            *(ISR_SHRINKS, ISR_EXPANDS, OFFLINE_DIRECTORIES, OFFLINE_DIRECTORIES_KIP),
            *(OFFLINE_DIRECTORIES_ALIAS, DIRECTORY_OFFLINE, MAX_LAG, PURGATORY),
            *(BYTES_IN, BYTES_OUT, REPLICATION_IN, REPLICATION_OUT, MESSAGES_IN),
            *(FAILED_PRODUCES, FAILED_FETCHES),
        ),
    ),
    ("Requests and disks", (REQUEST_TIME, REQUEST_ERRORS, FLUSH_TIME)),
    ("The process", (INFO, INBOX, REFUSED, GAPS, SCRAPE_TIME)),
)
METRICS: dict[str, Metric] = {metric.name: metric for _, group in GROUPS for metric in group}

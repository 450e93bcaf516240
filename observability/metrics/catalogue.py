"""Every metric of a process: its name, meaning and unit. What is not in this table cannot be shown."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Kind = Literal["gauge", "counter", "histogram"]

CONTROLLER = "controller"
BROKER = "broker"
BOTH = (CONTROLLER, BROKER)


class Metric(msgspec.Struct, frozen=True):
    """One metric, with Kafka's name if Kafka has it. A counter is shown as `name` + `_total`."""

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
    """The Prometheus name of an MBean, such as `kafka.controller`, `KafkaController`,
    `ActiveControllerCount`: the parts joined with `_`, with each run of characters that Prometheus does not
    allow replaced by one `_`."""
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
    """A metric of Kafka with an MBean `type=...,name=...`, by default a gauge."""
    return Metric(
        name=prometheus_name(domain, group, name), kind=kind, unit=unit, text=text, roles=roles, labels=labels
    )


def attribute_metric(group: str, name: str, unit: str, text: str, **more: tuple[str, ...]) -> Metric:
    """A metric that is an attribute of an MBean `kafka.server:type=...`, as Kafka's newer metrics are."""
    return Metric(
        name=prometheus_name("kafka.server", group, name),
        kind="gauge",
        unit=unit,
        text=text,
        roles=more.get("roles", BOTH),
        labels=more.get("labels", ()),
    )


def _broker(name: str, unit: str, text: str) -> Metric:
    return attribute_metric("broker-metadata-metrics", name, unit, text, roles=(BROKER,))


def _replica(name: str, unit: str, text: str, kind: Kind = "gauge") -> Metric:
    return kafka_metric("kafka.server", "ReplicaManager", name, unit, text, roles=(BROKER,), kind=kind)


def _traffic(name: str, unit: str, text: str) -> Metric:
    return kafka_metric(
        "kafka.server", "BrokerTopicMetrics", name, unit, text, roles=(BROKER,), kind="counter"
    )


BROKER_APPLIED_OFFSET = _broker(
    "last-applied-record-offset", "offset", "Last metadata record that this broker applied. -1: none."
)
BROKER_APPLIED_TIMESTAMP = _broker(
    "last-applied-record-timestamp", "ms since 1970", "Timestamp of that record. -1: none."
)
BROKER_APPLIED_LAG = _broker("last-applied-record-lag-ms", "ms", "Age of that record. -1: none.")
BROKER_LOAD_ERRORS = _broker(
    "metadata-load-error-count",
    "errors",
    "Failures to replay committed metadata, and damaged fetched snapshots.",
)
BROKER_APPLY_ERRORS = _broker(
    "metadata-apply-error-count", "errors", "Images that could not be applied to replicas."
)

LEADER_COUNT = _replica("LeaderCount", "partitions", "Partitions that this broker leads.")
PARTITION_COUNT = _replica("PartitionCount", "replicas", "Replicas, including those in offline directories.")
OFFLINE_REPLICAS = _replica("OfflineReplicaCount", "replicas", "Replicas in offline directories (KIP-112).")
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
    "metaquorum_broker_unassigned_replicas",
    "gauge",
    "replicas",
    "Replicas whose directory is not committed yet.",
    roles=(BROKER,),
)
MAX_LAG = kafka_metric(
    "kafka.server",
    "ReplicaFetcherManager",
    "MaxLag",
    "offsets",
    "Lag of the replica that is furthest behind its leader.",
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
    "The same, under its name in KIP-112.",
    roles=(BROKER,),
)
OFFLINE_DIRECTORIES_ALIAS = kafka_metric(
    "kafka.server",
    "LogManager",
    "OfflineLogDirectoriesCount",
    "directories",
    "The same, under its other name in KIP-112.",
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
    "Time from a request to its answer, including waits.",
    kind="histogram",
    labels=("request",),
)
REQUEST_ERRORS = kafka_metric(
    "kafka.network",
    "RequestMetrics",
    "ErrorsPerSec",
    "requests",
    "Requests answered with an error.",
    kind="counter",
    labels=("request", "error"),
)
FLUSH_TIME = kafka_metric(
    "kafka.log",
    "LogFlushStats",
    "LogFlushRateAndTimeMs",
    "ms",
    "Time that a sync took; `directory` is a log directory, or `metadata` for the metadata log.",
    kind="histogram",
    labels=("directory",),
)


BROKER_STATE = Metric(
    name=prometheus_name("kafka.server", "KafkaServer", "BrokerState"),
    kind="gauge",
    unit="state",
    text="Kafka's number of the state: 1 starting, 2 recovery, 3 running, 6 controlled shutdown, 7 ended.",
    roles=(BROKER,),
)
BROKER_FENCED = Metric(
    "metaquorum_broker_fenced", "gauge", "0 or 1", "1: this broker does not serve clients.", roles=(BROKER,)
)
BROKER_EPOCH = Metric(
    "metaquorum_broker_epoch", "gauge", "epoch", "Broker epoch. -1: not registered.", roles=(BROKER,)
)
BROKER_LEASE = Metric(
    "metaquorum_broker_lease_left_ms",
    "gauge",
    "ms",
    "Remaining time of the lease. -1: none.",
    roles=(BROKER,),
)

BROKER_GROUPS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
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


STATES = ("leader", "candidate", "prospective", "voted", "follower", "observer", "unattached", "resigned")

CURRENT_STATE = _raft(
    "current-state",
    "0 or 1",
    "1 for the current state of this node: "
    + ", ".join(STATES)
    + ". `prospective` starts a pre-vote (KIP-996).",
    labels=("state",),
)
CURRENT_LEADER = _raft("current-leader", "node id", "Leader of the quorum. -1: unknown.")
CURRENT_VOTE = _raft("current-vote", "node id", "Node that this node voted for in this epoch. -1: none.")
CURRENT_EPOCH = _raft("current-epoch", "epoch", "Epoch of the quorum.")
HIGH_WATERMARK = _raft("high-watermark", "offset", "Everything below is committed. -1: unknown.")
LOG_END_OFFSET = _raft("log-end-offset", "offset", "Offset of the next record of the metadata log.")
LOG_END_EPOCH = _raft(
    "log-end-epoch", "epoch", "Epoch of the last record of the metadata log. -1: the log is empty."
)
UNKNOWN_VOTERS = _raft("number-unknown-voter-connections", "voters", "Voters without a known address.")
_WINDOW = " Over the last 30 to 60 s. NaN: none."
COMMIT_AVG = _raft(
    "commit-latency-avg",
    "ms",
    "Average time from the append of a batch on this leader to its commit." + _WINDOW,
)
COMMIT_MAX = _raft("commit-latency-max", "ms", "Maximum of that time." + _WINDOW)
ELECTION_AVG = _raft(
    "election-latency-avg", "ms", "Average time from a candidacy to a known leader." + _WINDOW
)
ELECTION_MAX = _raft("election-latency-max", "ms", "Maximum of that time." + _WINDOW)
FETCH_RATE = _raft("fetch-records-rate", "1/s", "Records fetched from the leader, over the last 30 to 60 s.")
APPEND_RATE = _raft(
    "append-records-rate", "1/s", "Records that this node appended as leader, over the last 30 to 60 s."
)
IDLE_RATIO = _raft("poll-idle-ratio-avg", "0 to 1", "Fraction of time in which the node's loop was idle.")

METADATA_VERSION = kafka_metric(
    "kafka.server", "MetadataLoader", "CurrentMetadataVersion", "level", "Finalized metadata.version."
)
LOAD_SNAPSHOTS = kafka_metric(
    "kafka.server",
    "MetadataLoader",
    "HandleLoadSnapshotCount",
    "snapshots",
    "Snapshots loaded since the start, including the one at the start.",
)
SNAPSHOT_BYTES = kafka_metric(
    "kafka.server",
    "SnapshotEmitter",
    "LatestSnapshotGeneratedBytes",
    "bytes",
    "Size of the newest snapshot that this process wrote or, if none, loaded. 0: none.",
)
SNAPSHOT_AGE = kafka_metric(
    "kafka.server",
    "SnapshotEmitter",
    "LatestSnapshotGeneratedAgeMs",
    "ms",
    "Age of the newest snapshot that this process wrote, or its uptime.",
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
    text="Time that an event waited in the node's inbox.",
    roles=(CONTROLLER,),
)
PROCESSING_TIME = Metric(
    name=prometheus_name("kafka.controller", "ControllerEventManager", "EventQueueProcessingTimeMs"),
    kind="histogram",
    unit="ms",
    text="Time that an event took, without syncs.",
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
    "MetadataErrorCount", "errors", "Failures to replay committed metadata, and damaged fetched snapshots."
)
APPLIED_OFFSET = _controller(
    "LastAppliedRecordOffset",
    "offset",
    "Last record in this controller's state, on the active controller even if not committed. -1: none.",
)
COMMITTED_OFFSET = _controller(
    "LastCommittedRecordOffset", "offset", "Last committed record that this controller knows. -1: none."
)
APPLIED_TIMESTAMP = _controller(
    "LastAppliedRecordTimestamp", "ms since 1970", "Timestamp of the last applied record. -1: none."
)
APPLIED_LAG = _controller(
    "LastAppliedRecordLagMs", "ms", "Age of the last applied record; 0 on the active controller. -1: none."
)
TIMED_OUT_HEARTBEATS = _controller(
    "TimedOutBrokerHeartbeatCount", "requests", "Heartbeats that timed out before this controller answered."
)
OPERATIONS_STARTED = _controller("EventQueueOperationsStartedCount", "events", "Events taken from the inbox.")
OPERATIONS_TIMED_OUT = _controller(
    "EventQueueOperationsTimedOutCount",
    "requests",
    "Requests that timed out before this controller answered.",
)
NEW_CONTROLLERS = _controller("NewActiveControllersCount", "elections", "Elections that this node has seen.")


INFO = Metric(
    "metaquorum_node_info",
    "gauge",
    "1",
    "Always 1; the labels identify the node.",
    labels=("node_id", "role", "cluster_id", "version"),
)
COMMIT_TIME = Metric(
    "metaquorum_raft_commit_ms",
    "histogram",
    "ms",
    "Time from the append of a batch on this leader to its commit.",
)
ELECTION_TIME = Metric(
    "metaquorum_raft_election_ms", "histogram", "ms", "Time from a candidacy to a known leader."
)
LOST_RECORDS = Metric(
    "metaquorum_raft_lost_committed_records",
    "gauge",
    "records",
    "Committed records that another node knows of but this leader lacks. Above 0, a controller's "
    "directory was replaced by an older copy or emptied.",
)
FETCHED_RECORDS = Metric(
    "metaquorum_raft_fetched_records", "counter", "records", "Records fetched from the leader."
)
APPENDED_RECORDS = Metric(
    "metaquorum_raft_appended_records", "counter", "records", "Records that this node appended as leader."
)
EXPIRED_SESSIONS = Metric(
    "metaquorum_controller_expired_sessions",
    "counter",
    "brokers",
    "Unfenced brokers whose session expired on this controller.",
    roles=(CONTROLLER,),
)
PENDING_BATCHES = Metric(
    "metaquorum_controller_pending_batches",
    "gauge",
    "batches",
    "Batches waiting for their commit.",
    roles=(CONTROLLER,),
)
WAITING_REQUESTS = Metric(
    "metaquorum_controller_waiting_requests",
    "gauge",
    "requests",
    "Requests without an answer yet.",
    roles=(CONTROLLER,),
)
ALL_UNDER_REPLICATED = Metric(
    "metaquorum_controller_under_replicated_partitions",
    "gauge",
    "partitions",
    "Partitions of the cluster with fewer in-sync replicas than replicas.",
    roles=(CONTROLLER,),
)
INBOX = Metric("metaquorum_loop_inbox_events", "gauge", "events", "Events waiting in the inbox.")
REFUSED = Metric(
    "metaquorum_loop_refused_events", "counter", "events", "Events refused because the inbox was full."
)
GAPS = Metric(
    "metaquorum_loop_gaps",
    "counter",
    "pauses",
    "Stalls of this process of more than 200 ms: the machine is overloaded, or the process was paused.",
)
SCRAPE_TIME = Metric("metaquorum_scrape_ms", "gauge", "ms", "Loop time that the previous page took.")

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
    *BROKER_GROUPS,
    ("The process", (INFO, INBOX, REFUSED, GAPS, SCRAPE_TIME)),
)
METRICS: dict[str, Metric] = {metric.name: metric for _, group in GROUPS for metric in group}

"""Every figure that a process shows: its name, what it means, its unit, and Kafka's MBean of it.

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
    """One figure. `mbean`: Kafka's, or "" for one of our own. A counter is shown as `name` + `_total`."""

    name: str
    kind: Kind
    unit: str
    text: str
    mbean: str = ""
    roles: tuple[str, ...] = BOTH
    labels: tuple[str, ...] = ()

    @property
    def shown_name(self) -> str:
        return f"{self.name}_total" if self.kind == "counter" else self.name


def prometheus_name(domain: str, group: str, name: str) -> str:
    """`kafka.controller`, `KafkaController`, `ActiveControllerCount`: joined with `_` as they are written,
    and every run of characters that a Prometheus name must not have becomes one `_`."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", f"{domain}_{group}_{name}")


def _kafka(
    domain: str,
    group: str,
    name: str,
    unit: str,
    text: str,
    *,
    kind: Kind = "gauge",
    roles: tuple[str, ...] = BOTH,
    labels: tuple[str, ...] = (),
    tags: str = "",
) -> Metric:
    """A gauge `<type=..., name=...>` of Kafka."""
    return Metric(
        name=prometheus_name(domain, group, name),
        kind=kind,
        unit=unit,
        text=text,
        mbean=f"{domain}:type={group},name={name}{tags}",
        roles=roles,
        labels=labels,
    )


def _attribute(group: str, name: str, unit: str, text: str, **more: tuple[str, ...]) -> Metric:
    """An attribute of an MBean `kafka.server:type=...`, as Kafka's newer metrics are."""
    return Metric(
        name=prometheus_name("kafka.server", group, name),
        kind="gauge",
        unit=unit,
        text=text,
        mbean=f"kafka.server:type={group}, attribute {name}",
        roles=more.get("roles", BOTH),
        labels=more.get("labels", ()),
    )


def _raft(name: str, unit: str, text: str, **more: tuple[str, ...]) -> Metric:
    return _attribute("raft-metrics", name, unit, text, **more)


def _controller(name: str, unit: str, text: str, **more: Kind) -> Metric:
    return _kafka(
        "kafka.controller",
        "KafkaController",
        name,
        unit,
        text,
        roles=(CONTROLLER,),
        kind=more.get("kind", "gauge"),
    )


def _broker(name: str, unit: str, text: str) -> Metric:
    return _attribute("broker-metadata-metrics", name, unit, text, roles=(BROKER,))


def _replica(name: str, unit: str, text: str, kind: Kind = "gauge") -> Metric:
    return _kafka("kafka.server", "ReplicaManager", name, unit, text, roles=(BROKER,), kind=kind)


def _traffic(name: str, unit: str, text: str) -> Metric:
    return _kafka("kafka.server", "BrokerTopicMetrics", name, unit, text, roles=(BROKER,), kind="counter")


STATES = ("leader", "candidate", "prospective", "voted", "follower", "observer", "unattached", "resigned")

CURRENT_STATE = _raft(
    "current-state",
    "0 or 1",
    "1 for the state that this node is in: "
    + ", ".join(STATES)
    + ". `prospective` asks for pre-votes (KIP-996).",
    labels=("state",),
)
CURRENT_LEADER = _raft("current-leader", "node id", "The quorum's leader; -1: none is known.")
CURRENT_VOTE = _raft("current-vote", "node id", "Who has this node's vote in this epoch; -1: nobody.")
CURRENT_EPOCH = _raft("current-epoch", "epoch", "The quorum's epoch.")
HIGH_WATERMARK = _raft("high-watermark", "offset", "All below is committed; -1: not known yet.")
LOG_END_OFFSET = _raft("log-end-offset", "offset", "Where the next record of the metadata log goes.")
LOG_END_EPOCH = _raft(
    "log-end-epoch", "epoch", "The epoch of the metadata log's last record; -1: it is empty."
)
UNKNOWN_VOTERS = _raft(
    "number-unknown-voter-connections", "voters", "Voters whose address this node does not know."
)
_WINDOW = " Of the last 30 to 60 s; NaN: there was none."
COMMIT_AVG = _raft(
    "commit-latency-avg", "ms", "From a batch's append on this leader to its commit, on average." + _WINDOW
)
COMMIT_MAX = _raft("commit-latency-max", "ms", "The longest such time." + _WINDOW)
ELECTION_AVG = _raft(
    "election-latency-avg", "ms", "From standing for election to a known leader, on average." + _WINDOW
)
ELECTION_MAX = _raft("election-latency-max", "ms", "The longest such time." + _WINDOW)
FETCH_RATE = _raft(
    "fetch-records-rate",
    "1/s",
    "Records of the metadata log fetched from the leader. Of the last 30 to 60 s.",
)
APPEND_RATE = _raft(
    "append-records-rate", "1/s", "Records appended by this node as the leader. Of the last 30 to 60 s."
)
IDLE_RATIO = _raft(
    "poll-idle-ratio-avg", "0 to 1", "The part of the time in which the node's loop had nothing to do."
)

METADATA_VERSION = _kafka(
    "kafka.server", "MetadataLoader", "CurrentMetadataVersion", "level", "The finalized metadata.version."
)
LOAD_SNAPSHOTS = _kafka(
    "kafka.server",
    "MetadataLoader",
    "HandleLoadSnapshotCount",
    "snapshots",
    "Snapshots that became this node's image since it started, the one that it started from included.",
)
SNAPSHOT_BYTES = _kafka(
    "kafka.server",
    "SnapshotEmitter",
    "LatestSnapshotGeneratedBytes",
    "bytes",
    "The size of the newest snapshot that this process wrote, or else that it loaded; 0: there is none.",
)
SNAPSHOT_AGE = _kafka(
    "kafka.server",
    "SnapshotEmitter",
    "LatestSnapshotGeneratedAgeMs",
    "ms",
    "Since this process wrote a snapshot, or since it started.",
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
    text="How long an event waited in the node's inbox.",
    mbean="kafka.controller:type=ControllerEventManager,name=EventQueueTimeMs",
    roles=(CONTROLLER,),
)
PROCESSING_TIME = Metric(
    name=prometheus_name("kafka.controller", "ControllerEventManager", "EventQueueProcessingTimeMs"),
    kind="histogram",
    unit="ms",
    text="How long an event took, what it had done included (syncs are not: they run beside).",
    mbean="kafka.controller:type=ControllerEventManager,name=EventQueueProcessingTimeMs",
    roles=(CONTROLLER,),
)
FENCED_BROKERS = _controller("FencedBrokerCount", "brokers", "Registered brokers that are fenced.")
ACTIVE_BROKERS = _controller("ActiveBrokerCount", "brokers", "Registered brokers that are not fenced.")
TOPICS = _controller("GlobalTopicCount", "topics", "Topics of the cluster.")
PARTITIONS = _controller("GlobalPartitionCount", "partitions", "Partitions of the cluster.")
OFFLINE_PARTITIONS = _controller("OfflinePartitionsCount", "partitions", "Partitions without a leader.")
IMBALANCE = _controller(
    "PreferredReplicaImbalanceCount", "partitions", "Partitions that their first replica does not lead."
)
METADATA_ERRORS = _controller(
    "MetadataErrorCount",
    "errors",
    "Committed metadata that could not be read or replayed, and damaged snapshots that were fetched again.",
)
APPLIED_OFFSET = _controller(
    "LastAppliedRecordOffset",
    "offset",
    "The last record in this controller's state; of the active one also what waits for its commit. -1: none.",
)
COMMITTED_OFFSET = _controller(
    "LastCommittedRecordOffset", "offset", "The last committed record that this controller knows. -1: none."
)
APPLIED_TIMESTAMP = _controller(
    "LastAppliedRecordTimestamp", "ms since 1970", "When the last applied record was written. -1: none."
)
APPLIED_LAG = _controller(
    "LastAppliedRecordLagMs",
    "ms",
    "Now less the time of the last applied record; 0 on the active controller, -1: nothing is applied.",
)
TIMED_OUT_HEARTBEATS = _controller(
    "TimedOutBrokerHeartbeatCount",
    "requests",
    "Heartbeats whose broker stopped to wait before this controller had answered.",
)
OPERATIONS_STARTED = _controller(
    "EventQueueOperationsStartedCount", "events", "Events that this node has begun to handle."
)
OPERATIONS_TIMED_OUT = _controller(
    "EventQueueOperationsTimedOutCount",
    "requests",
    "Requests whose caller stopped to wait before this controller had answered.",
)
NEW_CONTROLLERS = _controller(
    "NewActiveControllersCount", "elections", "Elections of a leader that this node has learned of."
)

BROKER_APPLIED_OFFSET = _broker(
    "last-applied-record-offset", "offset", "The last metadata record that this broker applied. -1: none."
)
BROKER_APPLIED_TIMESTAMP = _broker(
    "last-applied-record-timestamp", "ms since 1970", "When that record was written. -1: none."
)
BROKER_APPLIED_LAG = _broker(
    "last-applied-record-lag-ms", "ms", "Now less that time. -1: nothing is applied."
)
BROKER_LOAD_ERRORS = _broker(
    "metadata-load-error-count",
    "errors",
    "Committed metadata that could not be read or replayed, and damaged snapshots that were fetched again.",
)
BROKER_APPLY_ERRORS = _broker(
    "metadata-apply-error-count",
    "errors",
    "New images that could not be carried out on this broker's replicas.",
)

LEADER_COUNT = _replica("LeaderCount", "partitions", "Partitions that this broker leads.")
PARTITION_COUNT = _replica(
    "PartitionCount", "replicas", "Replicas of this broker, those in bad directories included."
)
OFFLINE_REPLICAS = _replica(
    "OfflineReplicaCount", "replicas", "Replicas of this broker in its bad directories (KIP-112)."
)
UNDER_REPLICATED = _replica(
    "UnderReplicatedPartitions", "partitions", "Led here, with fewer replicas in sync than there are."
)
UNDER_MIN_ISR = _replica(
    "UnderMinIsrPartitionCount",
    "partitions",
    "Led here, with fewer replicas in sync than min.insync.replicas.",
)
AT_MIN_ISR = _replica(
    "AtMinIsrPartitionCount",
    "partitions",
    "Led here, with just as many replicas in sync as min.insync.replicas asks for.",
)
UNASSIGNED_REPLICAS = Metric(
    name="metaquorum_broker_unassigned_replicas",
    kind="gauge",
    unit="replicas",
    text="Replicas of this broker whose directory is not committed yet.",
    roles=(BROKER,),
)
MAX_LAG = _kafka(
    "kafka.server",
    "ReplicaFetcherManager",
    "MaxLag",
    "offsets",
    "How far the replica that is furthest behind its leader is.",
    roles=(BROKER,),
    tags=",clientId=Replica",
)
PURGATORY = _kafka(
    "kafka.server",
    "DelayedOperationPurgatory",
    "PurgatorySize",
    "requests",
    "Requests that wait for their records to be replicated, or for new records.",
    roles=(BROKER,),
    labels=("delayedOperation",),
    tags=",delayedOperation=...",
)
ISR_SHRINKS = _replica("IsrShrinksPerSec", "changes", "ISRs that this broker has made smaller.", "counter")
ISR_EXPANDS = _replica("IsrExpandsPerSec", "changes", "ISRs that this broker has made larger.", "counter")
OFFLINE_DIRECTORIES = _kafka(
    "kafka.log",
    "LogManager",
    "OfflineLogDirectoryCount",
    "directories",
    "Configured log directories that are bad. 0 in a sound broker.",
    roles=(BROKER,),
)
OFFLINE_DIRECTORIES_KIP = _kafka(
    "kafka.server",
    "LogManager",
    "OfflineLogDirectoryCount",
    "directories",
    "The same, by the name that KIP-112 gives it.",
    roles=(BROKER,),
)
OFFLINE_DIRECTORIES_ALIAS = _kafka(
    "kafka.server",
    "LogManager",
    "OfflineLogDirectoriesCount",
    "directories",
    "The same, by the name in KIP-112's text for operators.",
    roles=(BROKER,),
)
DIRECTORY_OFFLINE = _kafka(
    "kafka.log",
    "LogManager",
    "LogDirectoryOffline",
    "0 or 1",
    "1: this directory is bad.",
    roles=(BROKER,),
    labels=("logDirectory",),
    tags=",logDirectory=...",
)
BYTES_IN = _traffic(
    "BytesInPerSec", "bytes", "Records that producers' requests brought and that were appended."
)
BYTES_OUT = _traffic("BytesOutPerSec", "bytes", "Records that were sent to consumers.")
REPLICATION_IN = _traffic(
    "ReplicationBytesInPerSec", "bytes", "Records that were fetched from leaders and appended."
)
REPLICATION_OUT = _traffic("ReplicationBytesOutPerSec", "bytes", "Records that were sent to followers.")
FAILED_PRODUCES = _traffic(
    "FailedProduceRequestsPerSec", "partitions", "Partitions of produce requests that met an error."
)
FAILED_FETCHES = _traffic(
    "FailedFetchRequestsPerSec", "partitions", "Partitions of fetch requests that met an error."
)
MESSAGES_IN = _traffic(
    "MessagesInPerSec", "records", "Records that producers' requests brought and that were appended."
)

REQUEST_TIME = _kafka(
    "kafka.network",
    "RequestMetrics",
    "TotalTimeMs",
    "ms",
    "From a request's arrival to its answer, what it waited for included; by the name of the request.",
    kind="histogram",
    labels=("request",),
    tags=",request=...",
)
REQUEST_ERRORS = _kafka(
    "kafka.network",
    "RequestMetrics",
    "ErrorsPerSec",
    "requests",
    "Requests that were answered with an error, by request and code.",
    kind="counter",
    labels=("request", "error"),
    tags=",request=...,error=...",
)
FLUSH_TIME = _kafka(
    "kafka.log",
    "LogFlushStats",
    "LogFlushRateAndTimeMs",
    "ms",
    "How long a sync took; `directory` is a log directory, or `metadata` for the metadata log.",
    kind="histogram",
    labels=("directory",),
)

INFO = Metric(
    name="metaquorum_node_info",
    kind="gauge",
    unit="1",
    text="Always 1; the labels say who this is.",
    labels=("node_id", "role", "cluster_id", "version"),
)
COMMIT_TIME = Metric(
    name="metaquorum_raft_commit_ms",
    kind="histogram",
    unit="ms",
    text="From a batch's append on this leader to its commit.",
)
ELECTION_TIME = Metric(
    name="metaquorum_raft_election_ms",
    kind="histogram",
    unit="ms",
    text="From standing for election to a known leader.",
)
LOST_RECORDS = Metric(
    name="metaquorum_raft_lost_committed_records",
    kind="gauge",
    unit="records",
    text="Committed records that another node knows of and this leader does not have; anything but 0 means"
    " that a controller's directory was replaced by an older copy or emptied.",
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
    text="Records appended by this node as the leader.",
)
EXPIRED_SESSIONS = Metric(
    name="metaquorum_controller_expired_sessions",
    kind="counter",
    unit="brokers",
    text="Unfenced brokers whose session ran out on this controller.",
    roles=(CONTROLLER,),
)
PENDING_BATCHES = Metric(
    name="metaquorum_controller_pending_batches",
    kind="gauge",
    unit="batches",
    text="Batches that wait for their commit.",
    roles=(CONTROLLER,),
)
WAITING_REQUESTS = Metric(
    name="metaquorum_controller_waiting_requests",
    kind="gauge",
    unit="requests",
    text="Requests whose answer is outstanding.",
    roles=(CONTROLLER,),
)
ALL_UNDER_REPLICATED = Metric(
    name="metaquorum_controller_under_replicated_partitions",
    kind="gauge",
    unit="partitions",
    text="Partitions of the cluster with fewer replicas in sync than there are.",
    roles=(CONTROLLER,),
)
BROKER_STATE = Metric(
    name=prometheus_name("kafka.server", "KafkaServer", "BrokerState"),
    kind="gauge",
    unit="state",
    text="Kafka's number of the state: 1 starting, 2 recovery, 3 running, 6 controlled shutdown, 7 ended.",
    mbean="kafka.server:type=KafkaServer,name=BrokerState",
    roles=(BROKER,),
)
BROKER_FENCED = Metric(
    name="metaquorum_broker_fenced",
    kind="gauge",
    unit="0 or 1",
    text="1: this broker answers no clients.",
    roles=(BROKER,),
)
BROKER_EPOCH = Metric(
    name="metaquorum_broker_epoch",
    kind="gauge",
    unit="epoch",
    text="The epoch of this broker's registration; -1: it is not registered.",
    roles=(BROKER,),
)
BROKER_LEASE = Metric(
    name="metaquorum_broker_lease_left_ms",
    kind="gauge",
    unit="ms",
    text="How long its lease still runs; -1: it has none.",
    roles=(BROKER,),
)
INBOX = Metric(
    name="metaquorum_loop_inbox_events", kind="gauge", unit="events", text="Events that wait for the node."
)
REFUSED = Metric(
    name="metaquorum_loop_refused_events",
    kind="counter",
    unit="events",
    text="Events that were refused because the inbox was full.",
)
GAPS = Metric(
    name="metaquorum_loop_gaps",
    kind="counter",
    unit="pauses",
    text="Pauses of this process of more than 200 ms: the machine is overloaded, or it was stopped.",
)
SCRAPE_TIME = Metric(
    name="metaquorum_scrape_ms",
    kind="gauge",
    unit="ms",
    text="How long the page before this one took the loop, in all its slices.",
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

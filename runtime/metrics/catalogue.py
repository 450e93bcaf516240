"""Every metric of a process: its name, meaning and unit.

Owns the table behind docs/metrics.md; `broker_catalogue` is its part on brokers. A metric that is not in the
table cannot be shown. Knows no values.
"""

from __future__ import annotations

from metaquorum.runtime.metrics.broker_catalogue import BROKER_GROUPS
from metaquorum.runtime.metrics.metric import (
    CONTROLLER,
    Kind,
    Metric,
    attribute_metric,
    kafka_metric,
    prometheus_name,
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
FETCH_RATE = _raft(
    "fetch-records-rate",
    "1/s",
    "Records fetched from the leader, over the last 30 to 60 s.",
)
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
    "MetadataErrorCount",
    "errors",
    "Failures to replay committed metadata, and damaged fetched snapshots.",
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
    "LastAppliedRecordLagMs",
    "ms",
    "Age of the last applied record; 0 on the active controller. -1: none.",
)
TIMED_OUT_HEARTBEATS = _controller(
    "TimedOutBrokerHeartbeatCount",
    "requests",
    "Heartbeats that timed out before this controller answered.",
)
OPERATIONS_STARTED = _controller("EventQueueOperationsStartedCount", "events", "Events taken from the inbox.")
OPERATIONS_TIMED_OUT = _controller(
    "EventQueueOperationsTimedOutCount",
    "requests",
    "Requests that timed out before this controller answered.",
)
NEW_CONTROLLERS = _controller("NewActiveControllersCount", "elections", "Elections that this node has seen.")


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
    text="Time from the append of a batch on this leader to its commit.",
)
ELECTION_TIME = Metric(
    name="metaquorum_raft_election_ms",
    kind="histogram",
    unit="ms",
    text="Time from a candidacy to a known leader.",
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
    text="Records fetched from the leader.",
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
    text="Loop time that the previous page took.",
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
    *BROKER_GROUPS,
    ("The process", (INFO, INBOX, REFUSED, GAPS, SCRAPE_TIME)),
)
METRICS: dict[str, Metric] = {metric.name: metric for _, group in GROUPS for metric in group}

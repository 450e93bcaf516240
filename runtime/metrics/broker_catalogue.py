"""The metrics of brokers: their lifecycle, replicas, log directories and requests.

Owns this part of `catalogue`: names, meanings and units. Knows no values, and no metrics that controllers
have too.
"""

from __future__ import annotations

from metaquorum.runtime.metrics.metric import (
    BROKER,
    Kind,
    Metric,
    attribute_metric,
    kafka_metric,
    prometheus_name,
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
    "metadata-apply-error-count",
    "errors",
    "Images that could not be applied to replicas.",
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
    name="metaquorum_broker_unassigned_replicas",
    kind="gauge",
    unit="replicas",
    text="Replicas whose directory is not committed yet.",
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
    text="Broker epoch. -1: not registered.",
    roles=(BROKER,),
)
BROKER_LEASE = Metric(
    name="metaquorum_broker_lease_left_ms",
    kind="gauge",
    unit="ms",
    text="Remaining time of the lease. -1: none.",
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

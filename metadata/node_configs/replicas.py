"""The configuration of a broker's replicas; names are Kafka's keys in snake case."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from metaquorum.metadata.node_configs.broker import CONTROLLER_REQUEST_TIMEOUT_MS
from metaquorum.metadata.settings.broker_keys import broker_default


class ReplicaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in ms, sizes in bytes. `inter_broker_listener`: the name of the listener through which
    followers reach leaders. `log_flush_before_ack`: a replica counts towards acks=all, and a follower
    acknowledges a record, only when the record is durable; False is what Kafka does.
    `log_dir_assignment_timeout_ms`: how long a lost directory may go unreported before the broker stops
    (S3.6).
    """

    broker_id: int
    inter_broker_listener: str = "PLAINTEXT"
    log_flush_before_ack: bool = True
    replica_lag_time_max_ms: int = 30_000
    replica_fetch_max_bytes: int = 1024 * 1024
    replica_fetch_response_max_bytes: int = 10 * 1024 * 1024
    replica_fetch_min_bytes: int = 1
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_backoff_ms: int = 1_000
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    replica_request_timeout_ms: int = 30_000
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_backoff_ms: int = broker_default("log.cleaner.backoff.ms")
    log_dir_assignment_timeout_ms: int = 30_000
    controller_request_timeout_ms: int = CONTROLLER_REQUEST_TIMEOUT_MS
    fetch_max_bytes: int = 55 * 1024 * 1024
    max_incremental_fetch_session_cache_slots: int = 1_000
    replica_selector_is_rack_aware: bool = False
    producer_id_expiration_ms: int = broker_default("producer.id.expiration.ms")
    produce_purgatory_max_requests: int = 10_000
    fetch_purgatory_max_requests: int = 10_000
    log_tail_cache_max_bytes: int = 32 * 1024 * 1024
    """The memory for recent appends to partitions that this broker leads."""
    replication_quota_window_num: int = 11
    replication_quota_window_ms: int = 1_000
    topic_defaults: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The broker's configuration file for topics that set nothing, by the broker's names of the keys
    (log.retention.hours)."""

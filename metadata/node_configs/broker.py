"""The configuration of a broker's core; names are Kafka's keys in snake case, where a key fills the field."""

from __future__ import annotations

import msgspec

from metaquorum.metadata.broker_ids import key_problem
from metaquorum.metadata.node_configs.metadata_replica import MetadataReplicaConfig
from metaquorum.metadata.records.types import BrokerEndpoint, BrokerFeature
from metaquorum.metadata.settings.broker_keys import broker_default

CONTROLLER_REQUEST_TIMEOUT_MS = 1_000
"""Of every request to the controllers, also those about replicas."""

OBSERVER_REPLICA = MetadataReplicaConfig(apply_slice_bytes=1024 * 1024)
"""No client waits for an observer's fetches and votes, so it replays in larger steps than a voter."""


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in ms, sizes in bytes; the broker's identity, and what its registration says about it.

    `registration_lease_timeout_ms` (the draft of KIP-631) is an upper bound of the lease: each answer of the
    controller states a session timeout, and the shorter of the two counts. `controller_request_timeout_ms`
    must be well below the lease, or one lost answer ends it. `self_fencing_enable` False: a serving broker
    continues when its lease ends, as Kafka's do; what the controller says to it still counts.
    """

    node_id: int
    cluster_id: str
    endpoints: tuple[BrokerEndpoint, ...]
    features: tuple[BrokerFeature, ...] = ()
    directories: tuple[bytes, ...] = ()
    rack: str | None = None
    binding_key: str | None = None
    min_insync_replicas: int = broker_default("min.insync.replicas")
    initial_broker_registration_timeout_ms: int = 60_000
    broker_heartbeat_interval_ms: int = 2_000
    registration_lease_timeout_ms: int = 18_000
    self_fencing_enable: bool = True
    controller_request_timeout_ms: int = CONTROLLER_REQUEST_TIMEOUT_MS
    retry_backoff_ms: int = 50
    retry_backoff_max_ms: int = 1_000
    controlled_shutdown_poll_ms: int = 100
    controlled_shutdown_timeout_ms: int = 30_000
    metadata_replica: MetadataReplicaConfig = OBSERVER_REPLICA

    def problems(self) -> list[str]:
        """What is wrong with these values, one line per problem, naming the key. Empty if they are valid."""
        positive = {
            "initial.broker.registration.timeout.ms": self.initial_broker_registration_timeout_ms,
            "broker.heartbeat.interval.ms": self.broker_heartbeat_interval_ms,
            "registration.lease.timeout.ms": self.registration_lease_timeout_ms,
            "controller.request.timeout.ms": self.controller_request_timeout_ms,
            "retry.backoff.ms": self.retry_backoff_ms,
            "controlled.shutdown.poll.ms": self.controlled_shutdown_poll_ms,
            "controlled.shutdown.timeout.ms": self.controlled_shutdown_timeout_ms,
        }
        lines = [f"{key} is {value}: set it to 1 or more" for key, value in positive.items() if value < 1]
        if self.node_id < 0:
            lines.append(f"node.id is {self.node_id}: set it to 0 or more")
        if self.retry_backoff_max_ms < self.retry_backoff_ms:
            lines.append("retry.backoff.max.ms is below retry.backoff.ms: raise it")
        if self.broker_heartbeat_interval_ms >= self.registration_lease_timeout_ms:
            lines.append(
                f"broker.heartbeat.interval.ms ({self.broker_heartbeat_interval_ms}) must be below "
                f"registration.lease.timeout.ms ({self.registration_lease_timeout_ms}), or the lease "
                "ends between two heartbeats"
            )
        if self.controller_request_timeout_ms >= self.registration_lease_timeout_ms:
            lines.append(
                f"controller.request.timeout.ms ({self.controller_request_timeout_ms}) must be below "
                f"registration.lease.timeout.ms ({self.registration_lease_timeout_ms}), or one lost "
                "answer costs the lease"
            )
        problem = None if self.binding_key is None else key_problem(self.binding_key)
        if problem is not None:
            lines.append(f"broker.id.binding.key: {problem}")
        if not self.endpoints:
            lines.append("listeners is empty: a broker needs at least one listener")
        return lines

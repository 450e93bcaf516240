"""The configuration of a controller node. 0 switches off periodic work where noted."""

from __future__ import annotations

from dataclasses import dataclass, field

from metaquorum.metadata.node_configs.metadata_replica import MetadataReplicaConfig
from metaquorum.metadata.records.types import ControllerEndpoint, Record
from metaquorum.metadata.settings.broker_keys import broker_default
from metaquorum.metadata.settings.resource_keys import GroupBounds

VOTER_REPLICA = MetadataReplicaConfig()
_GROUP_BOUNDS = GroupBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """`bootstrap` is the content of bootstrap.checkpoint from `storage format`, without its control records:
    the first active controller writes it to an empty log, in one batch, before it serves clients."""

    cluster_id: str
    node_id: int
    bootstrap: tuple[Record, ...] = ()
    broker_session_timeout_ms: int = 9_000
    """broker.session.timeout.ms: how long a lease lasts without a heartbeat (S2.11)."""
    broker_metadata_lag_timeout_ms: int = 30_000
    """broker.metadata.lag.timeout.ms: fenced when behind and applying nothing for this long (S2.21)."""
    metadata_max_idle_interval_ms: int = 500
    """metadata.max.idle.interval.ms: the silence after which a NoOp record is written (KIP-835); 0: never."""
    metadata_log_causes_enable: bool = True
    """metadata.log.causes.enable: each batch begins with its cause: a caller or a rule."""
    metadata_replica: MetadataReplicaConfig = VOTER_REPLICA
    """How it follows the metadata log."""
    min_insync_replicas: int | None = None
    """min.insync.replicas, which eligible.leader.replicas.version writes for the cluster; None: not set."""
    endpoints: tuple[ControllerEndpoint, ...] = ()
    """Where this controller listens, as it registers it (KIP-919)."""
    delegation_token_secret_key: str | None = field(default=None, repr=False)
    """delegation.token.secret.key: the same on all controllers; None turns tokens off (KIP-48)."""
    delegation_token_max_lifetime_ms: int = 604_800_000
    """delegation.token.max.lifetime.ms: no token lives longer, however often it is renewed."""
    delegation_token_expiry_time_ms: int = 86_400_000
    """delegation.token.expiry.time.ms: how long a token lives without being renewed."""
    delegation_token_expiry_check_interval_ms: int = 3_600_000
    """delegation.token.expiry.check.interval.ms: how often expired tokens are removed."""
    reserved_broker_max_id: int = 1_000
    """reserved.broker.max.id: generated ids are above it (S0.10)."""
    broker_id_reuse_grace_ms: int = 300_000
    """broker.id.reuse.grace.ms: how long an id must be unused before another broker may take it over
    (S0.22)."""
    broker_id_gc_interval_ms: int = 60_000
    """broker.id.gc.interval.ms: how often unused bindings are removed (S0.18); 0: never."""
    num_partitions: int = 1
    """num.partitions: for a topic created without a number of partitions."""
    default_replication_factor: int = 1
    """default.replication.factor: for a topic created without a replication factor."""
    auto_leader_rebalance_enable: bool = True
    """auto.leader.rebalance.enable: leadership returns to preferred replicas automatically."""
    leader_imbalance_check_interval_ms: int = 300_000
    """leader.imbalance.check.interval.seconds: how often leaders are balanced; 0: never."""
    unclean_leader_election_enable: bool = broker_default("unclean.leader.election.enable")
    """unclean.leader.election.enable: for topics without a value, if the cluster's default has none
    either."""
    controller_quota_window_num: int = 11
    """controller.quota.window.num: the windows of a client's controller_mutation_rate (KIP-599)."""
    controller_quota_window_size_seconds: int = 1
    """controller.quota.window.size.seconds: the length of such a window."""
    group_bounds: GroupBounds = _GROUP_BOUNDS
    """group.consumer.min.* and max.*: the allowed values of a group's settings."""
    records_per_request_max: int = 50_000
    """A request that would write more is refused with POLICY_VIOLATION."""
    records_per_slice_max: int = 5_000
    """The most partition changes that fencing, unfencing and similar work write in one batch and step."""
    answers_max: int = 10_000
    """Requests that wait for a commit or a read; more are refused as retriable (THROTTLING_QUOTA_EXCEEDED).
    """
    waiting_requests_max: int = 1_000
    """Requests that wait while a new leader catches up; more are refused as retriable."""

    @property
    def controller_quota_span_ms(self) -> int:
        """A client may use the controller_mutation_rate of this time at once."""
        return 1_000 * self.controller_quota_window_num * self.controller_quota_window_size_seconds

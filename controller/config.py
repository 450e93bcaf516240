"""What a controller node is configured with. Owns names, units and defaults; reads no file.

Durations are in ms and sizes in bytes, as the names say; 0 switches a periodic thing off where noted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metaquorum.metadata.records.parts import ControllerEndpoint
from metaquorum.metadata.records.types import Record
from metaquorum.metadata.replica import MetadataReplicaConfig
from metaquorum.metadata.settings.group_keys import GroupBounds

VOTER_REPLICA = MetadataReplicaConfig()
_GROUP_BOUNDS = GroupBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """`bootstrap` is what `storage format` left in bootstrap.checkpoint, without its control records: the
    first active controller writes it on an empty log, in one batch, before it serves anyone."""

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
    """metadata.log.causes.enable: each batch begins with who or what caused it."""
    metadata_replica: MetadataReplicaConfig = VOTER_REPLICA
    """How it follows the metadata log."""
    endpoints: tuple[ControllerEndpoint, ...] = ()
    """Where this controller listens, as it registers it (KIP-919)."""
    delegation_token_secret_key: str | None = field(default=None, repr=False)
    """delegation.token.secret.key: the same on all controllers; None: there are no tokens (KIP-48)."""
    delegation_token_max_lifetime_ms: int = 604_800_000
    """delegation.token.max.lifetime.ms: no token lives longer, however often it is renewed."""
    delegation_token_expiry_time_ms: int = 86_400_000
    """delegation.token.expiry.time.ms: how long a token lives without being renewed."""
    delegation_token_expiry_check_interval_ms: int = 3_600_000
    """delegation.token.expiry.check.interval.ms: how often tokens that are over are removed."""
    reserved_broker_max_id: int = 1_000
    """reserved.broker.max.id: ids that are generated are above it (S0.10)."""
    broker_id_reuse_grace_ms: int = 300_000
    """broker.id.reuse.grace.ms: how long no broker must have had an id before another may take it over
    (S0.22)."""
    broker_id_gc_interval_ms: int = 60_000
    """broker.id.gc.interval.ms: how often bindings that are garbage are removed (S0.18); 0: never."""
    num_partitions: int = 1
    """num.partitions: for a topic that names no number of partitions."""
    default_replication_factor: int = 1
    """default.replication.factor: for a topic that names no replication factor."""
    auto_leader_rebalance_enable: bool = True
    """auto.leader.rebalance.enable: leadership goes back to preferred replicas by itself."""
    leader_imbalance_check_interval_ms: int = 300_000
    """leader.imbalance.check.interval.seconds: how often leaders are balanced; 0: never."""
    unclean_leader_election_enable: bool = False
    """unclean.leader.election.enable: for topics that set nothing, nor the cluster's default."""
    controller_quota_span_ms: int = 11_000
    """controller.quota.window.num times controller.quota.window.size.seconds: a client may use up the
    controller_mutation_rate of this time at once (KIP-599)."""
    group_bounds: GroupBounds = _GROUP_BOUNDS
    """group.consumer.min.* and max.*: what may be set on a group."""
    records_per_request_max: int = 50_000
    """A request that would write more is refused with POLICY_VIOLATION."""
    records_per_slice_max: int = 5_000
    """The most partition changes that fencing, unfencing and the like write in one batch and step."""
    answers_max: int = 10_000
    """Requests that wait for a commit or a read; more are refused as retriable (THROTTLING_QUOTA_EXCEEDED).
    """
    waiting_requests_max: int = 1_000
    """Requests that wait while a new leader catches up; more are refused as retriable."""

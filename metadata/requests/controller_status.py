"""A controller node's status, for `metaquorum controller status`.

Owns the values and the counters. Does not read a node: `controller.node_status` does.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.storage.files.known_committed import CommittedLoss


class BrokerControlState(Enum):
    """SHUTDOWN: fenced, allowed to stop, and its lease released."""

    UNREGISTERED = "unregistered"
    FENCED = "fenced"
    ACTIVE = "active"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN = "shutdown"


class Counters(msgspec.Struct):
    """Counts since the process started. Names follow K21 if Kafka has the same count."""

    requests: int = 0
    heartbeats: int = 0
    timed_out_heartbeats: int = 0
    refused_busy: int = 0
    batches_appended: int = 0
    records_appended: int = 0
    batches_replayed_bytes: int = 0
    activations: int = 0
    leaderships_lost: int = 0
    answers_dropped: int = 0
    snapshots_written: int = 0
    snapshots_loaded: int = 0

    def note_appended(self, records: int) -> None:
        """The active controller appended one batch."""
        self.batches_appended += 1
        self.records_appended += records


class BrokerControlStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One broker. Only the active controller knows `lease_remaining_ms` and `applied_offset`."""

    broker_id: int
    epoch: int
    state: BrokerControlState
    rack: str | None
    listeners: tuple[str, ...]
    lease_remaining_ms: int | None
    applied_offset: int | None


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Every offset is exclusive. `is_active`: this node currently decides requests. `applied_offset` is
    `committed_offset` or, on an active controller, the end of what it has appended and bases decisions on.
    `voted_id`: the candidate that got its vote in this epoch. `sessions`: brokers that it has heard from as
    the active controller. `kraft_version` is the one in force here; the other two bound what it supports.
    `endpoints`: where other controllers reach it."""

    node_id: int
    directory_id: bytes
    cluster_id: str
    kraft_version: int
    min_kraft_version: int
    max_kraft_version: int
    role: str
    epoch: int
    leader_id: int | None
    voted_id: int | None
    is_observer: bool
    is_active: bool
    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    synced_offset: int
    committed_offset: int
    applied_offset: int
    last_snapshot_offset: int
    metadata_version: int
    pending_batches: int
    answers_waiting: int
    work: tuple[str, ...]
    topics: int
    partitions: int
    sessions: int
    brokers: tuple[BrokerControlStatus, ...] = ()
    losses: tuple[CommittedLoss, ...] = ()
    endpoints: tuple[VoterEndpoint, ...] = ()
    counters: Counters = msgspec.field(default_factory=Counters)

    @property
    def votes_by_configuration(self) -> bool:
        """Whether it is a voter of a quorum of static voters (kraft.version 0)."""
        return self.kraft_version == 0 and not self.is_observer

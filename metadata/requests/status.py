"""The status of a node at one moment, as values: a broker's view of itself, and a controller's."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType

import msgspec

from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.storage.files.known_committed import CommittedLoss


class ProcessState(IntEnum):
    """Kafka's public numbers for the state of a broker process."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class _Meaning(msgspec.Struct, frozen=True):
    process_state: ProcessState
    serves: bool
    text: str


class BrokerState(Enum):
    """A process state plus a condition that Kafka's numbers leave out: fenced or not.

    `RUNNING` and `FENCED` are both Kafka's RUNNING (3); `PENDING_CONTROLLED_SHUTDOWN` and
    `PENDING_SHUTDOWN_FENCED` are both its PENDING_CONTROLLED_SHUTDOWN (6).
    """

    NOT_RUNNING = "NOT_RUNNING"
    STARTING = "STARTING"
    RECOVERY = "RECOVERY"
    RUNNING = "RUNNING"
    FENCED = "FENCED"
    PENDING_CONTROLLED_SHUTDOWN = "PENDING_CONTROLLED_SHUTDOWN"
    PENDING_SHUTDOWN_FENCED = "PENDING_SHUTDOWN_FENCED"
    SHUTTING_DOWN = "SHUTTING_DOWN"

    @property
    def process_state(self) -> ProcessState:
        return MEANINGS[self].process_state

    @property
    def serves(self) -> bool:
        """Whether clients are served (S2.17), if the lease allows: `BrokerSession.serves` checks that too."""
        return MEANINGS[self].serves

    @property
    def meaning(self) -> str:
        return MEANINGS[self].text

    @property
    def wants_shutdown(self) -> bool:
        return self.process_state is ProcessState.PENDING_CONTROLLED_SHUTDOWN

    @property
    def ended(self) -> bool:
        return self is BrokerState.SHUTTING_DOWN


MEANINGS: Mapping[BrokerState, _Meaning] = MappingProxyType(
    {
        BrokerState.NOT_RUNNING: _Meaning(ProcessState.NOT_RUNNING, False, "created, not started"),
        BrokerState.STARTING: _Meaning(
            ProcessState.STARTING, False, "not registered: follows the metadata log, then registers"
        ),
        BrokerState.RECOVERY: _Meaning(
            ProcessState.RECOVERY, False, "registered and fenced: waits to be unfenced for the first time"
        ),
        BrokerState.RUNNING: _Meaning(
            ProcessState.RUNNING, True, "registered, unfenced, with a lease: serves clients"
        ),
        BrokerState.FENCED: _Meaning(
            ProcessState.RUNNING, False, "fenced after it has served: renews its registration or lease"
        ),
        BrokerState.PENDING_CONTROLLED_SHUTDOWN: _Meaning(
            ProcessState.PENDING_CONTROLLED_SHUTDOWN,
            True,
            "stopping: serves until the controller has moved its leaderships",
        ),
        BrokerState.PENDING_SHUTDOWN_FENCED: _Meaning(
            ProcessState.PENDING_CONTROLLED_SHUTDOWN,
            False,
            "stopping without a lease: serves no clients, retries",
        ),
        BrokerState.SHUTTING_DOWN: _Meaning(
            ProcessState.SHUTTING_DOWN, False, "the last state: the process exits"
        ),
    }
)


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`lease_left_ms` is None without a lease. Offsets are exclusive ends; `high_watermark` is -1 if unknown.
    `failures`: consecutive requests without a useful answer. `last_problem` is empty while the broker
    serves."""

    node_id: int
    incarnation_id: bytes
    state: BrokerState
    process_state: ProcessState
    fenced: bool
    broker_epoch: int | None
    lease_left_ms: int | None
    applied_offset: int
    high_watermark: int
    log_end_offset: int
    catch_up_offset: int | None
    leader_id: int | None
    quorum_epoch: int
    failures: int
    last_problem: str


# A controller node's status, for `metaquorum controller status`.


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

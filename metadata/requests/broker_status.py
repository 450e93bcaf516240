"""A broker's view of itself at one moment: its state, and the answer to DescribeBroker.

Owns the names, numbers and meanings of states. Does not know when a broker changes its state: the broker
does. How the active controller sees a broker is in `controller_status`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType

import msgspec


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

"""A broker as it sees itself at one moment. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.broker.lifecycle import BrokerState, ProcessState


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """`lease_left_ms` None: no lease. Offsets are exclusive ends; `high_watermark` -1: unknown. `failures`:
    requests in a row without a useful answer; `last_problem` is empty while it serves."""

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

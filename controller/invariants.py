"""Invariants of a controller node after every input, for tests and the simulator."""

from __future__ import annotations

from metaquorum.controller.node import ControllerNode
from metaquorum.metadata.errors import InvariantViolation


def check_node(node: ControllerNode) -> None:
    """Raises InvariantViolation naming the broken invariant."""
    _check_ledger(node)
    _check_office(node)
    _check_bounds(node)


def _require(holds: bool, law: str) -> None:
    if not holds:
        raise InvariantViolation(law)


def _check_ledger(node: ControllerNode) -> None:
    ledger, raft = node.ledger, node.raft
    _require(
        ledger.committed_offset <= max(raft.high_watermark, node.replica.snapshots.last_offset),
        f"committed state ends at {ledger.committed_offset}, above the high watermark {raft.high_watermark}",
    )
    end = ledger.committed_offset
    for entry in ledger.pending:
        _require(entry.end_offset > end, f"pending batches must ascend: {entry.end_offset} follows {end}")
        _require(entry.state.end_offset == entry.end_offset, "a pending state must end where its batch ends")
        _require(
            entry.end_offset > raft.high_watermark, f"batch {entry.end_offset} is committed and still pending"
        )
        end = entry.end_offset
    _require(
        ledger.replies_waiting == sum(len(entry.replies) for entry in ledger.pending),
        "the number of waiting answers is miscounted",
    )
    _require(
        not (ledger.pending and node.replica.is_reading),
        "a node with pending batches of its own must not replay others' batches",
    )


def _check_office(node: ControllerNode) -> None:
    ledger, raft = node.ledger, node.raft
    if node.active is None:
        _require(not ledger.pending, "a node that is not active has nothing pending")
        _require(not node.sessions.fencing, "a node that is not active fences no broker")
    elif not node.stopped:
        _require(raft.is_leader, "an active controller leads")
        _require(
            ledger.newest_state.end_offset == node.decided_end_offset,
            f"the newest state ends at {ledger.newest_state.end_offset}, the log with what was decided at "
            f"{node.decided_end_offset}",
        )
        for broker_id in node.sessions.fencing:
            _require(
                any(work.broker_id == broker_id for work in node.active.work),
                f"broker {broker_id} is marked as being fenced, but no work is under way for it",
            )


def _check_bounds(node: ControllerNode) -> None:
    config = node.config
    most = config.answers_max + config.waiting_requests_max
    _require(node.ledger.replies_waiting <= most, "waiting answers are not bounded")
    _require(
        node.active is None or len(node.active.work) <= 5 * (len(node.ledger.newest.brokers) + 1),
        "work is not bounded by the number of brokers",
    )

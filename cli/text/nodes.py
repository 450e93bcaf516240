"""The status that controllers and brokers report of themselves, as text and as JSON.

A metric has Kafka's name (raft-metrics, controller metrics) only if it counts what Kafka's counts.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import asdict

from metaquorum.cli.text.quorum import losses_json
from metaquorum.clients.quorum.broker_status import BrokerAnswer
from metaquorum.clients.quorum.nodes import NodeAnswer
from metaquorum.metadata.requests.status import (
    BrokerControlState,
    BrokerControlStatus,
    BrokerStatus,
    NodeStatus,
)
from metaquorum.metadata.text.addresses import address_text
from metaquorum.rpc.messages.node import NodeReport
from metaquorum.storage.uuids import uuid_to_text

NOBODY = -1
"""Kafka's value for no leader and no vote."""


def metrics(status: NodeStatus) -> dict[str, int | str]:
    """Figures by their names in Kafka 3.7. Offsets of *records* are inclusive; the high watermark
    and log end are exclusive."""
    fenced = sum(_is_fenced(broker) for broker in status.brokers)
    state = _raft_state(status)
    votes = state in ("leader", "candidate", "voted")
    return {
        "current-state": state,
        "current-leader": NOBODY if status.leader_id is None else status.leader_id,
        "current-vote": status.voted_id if votes and status.voted_id is not None else NOBODY,
        "current-epoch": status.epoch,
        "high-watermark": status.high_watermark,
        "log-end-offset": status.log_end_offset,
        "CurrentMetadataVersion": status.metadata_version,
        "ActiveControllerCount": int(status.is_active),
        "FencedBrokerCount": fenced,
        "ActiveBrokerCount": len(status.brokers) - fenced,
        "GlobalTopicCount": status.topics,
        "GlobalPartitionCount": status.partitions,
        "LastAppliedRecordOffset": status.applied_offset - 1,
        "LastCommittedRecordOffset": status.committed_offset - 1,
    }


def _raft_state(status: NodeStatus) -> str:
    """Kafka's name of a state. Kafka distinguishes observers from followers and voters that voted from
    others, and calls a resigned leader unattached."""
    match status.role:
        case "follower" if status.is_observer:
            return "observer"
        case "unattached" if status.voted_id is not None:
            return "voted"
        case "resigned":
            return "unattached"
        case role:
            return role


def _is_fenced(broker: BrokerControlStatus) -> bool:
    return broker.state in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN)


def brokers_by_state(status: NodeStatus) -> dict[str, int]:
    return dict(sorted(Counter(broker.state.value for broker in status.brokers).items()))


def node_json(answer: NodeAnswer) -> dict[str, Any]:
    """A controller as JSON: `error` if the address did not answer, otherwise all
    that the controller reports."""
    values: dict[str, Any] = {"address": address_text(*answer.address)}
    if answer.report is None:
        return values | {"error": answer.problem}
    status = answer.report.status
    return values | {
        "nodeId": status.node_id,
        "clusterId": status.cluster_id,
        "role": status.role,
        "observer": status.is_observer,
        "epoch": status.epoch,
        "leaderId": status.leader_id,
        "active": status.is_active,
        "logStartOffset": status.log_start_offset,
        "logEndOffset": status.log_end_offset,
        "syncedOffset": status.synced_offset,
        "highWatermark": status.high_watermark,
        "committedOffset": status.committed_offset,
        "appliedOffset": status.applied_offset,
        "lastSnapshotOffset": status.last_snapshot_offset,
        "pendingBatches": status.pending_batches,
        "answersWaiting": status.answers_waiting,
        "work": status.work,
        "lostCommitted": losses_json(status.losses),
        "sessions": status.sessions,
        "brokersByState": brokers_by_state(status),
        "brokers": [_broker_json(broker) for broker in status.brokers],
        "metrics": metrics(status),
        "counters": asdict(status.counters),
        "loop": asdict(answer.report.loop),
    }


def _broker_json(broker: BrokerControlStatus) -> dict[str, Any]:
    return {
        "brokerId": broker.broker_id,
        "epoch": broker.epoch,
        "state": broker.state.value,
        "rack": broker.rack,
        "listeners": broker.listeners,
        "leaseRemainingMs": broker.lease_remaining_ms,
        "appliedOffset": broker.applied_offset,
    }


def node_text(answer: NodeAnswer) -> str:
    """A block of `name: value` lines, or one line for an address that did not answer."""
    if answer.report is None:
        return f"{address_text(*answer.address)}: {answer.problem}"
    rows = _rows(address_text(*answer.address), answer.report)
    rows += [("LOST", loss) for loss in answer.report.status.losses]
    return "\n".join(f"{name + ':':<18}{value}" for name, value in rows)


def _rows(address: str, report: NodeReport) -> list[tuple[str, object]]:
    status, counters, loop = report.status, report.status.counters, report.loop
    states = ", ".join(f"{count} {state}" for state, count in brokers_by_state(status).items()) or "none"
    observes = ", observes only" if status.is_observer else ""
    active = ", active" if status.is_active else ""
    return [
        ("Node", f"{status.node_id} at {address}, cluster {status.cluster_id}"),
        ("Role", f"{status.role}{observes}{active}, epoch {status.epoch}"),
        ("Leader", "unknown" if status.leader_id is None else status.leader_id),
        ("Vote", "none" if status.voted_id is None else status.voted_id),
        ("Log", f"{status.log_start_offset} to {status.log_end_offset}, synced to {status.synced_offset}"),
        ("HighWatermark", "unknown" if status.high_watermark < 0 else status.high_watermark),
        ("State", f"committed to {status.committed_offset}, applied to {status.applied_offset}"),
        ("LastSnapshot", status.last_snapshot_offset),
        ("Waiting", f"{status.pending_batches} batches, {status.answers_waiting} answers"),
        ("Work", "; ".join(status.work) or "none"),
        ("Brokers", f"{states}; {status.sessions} sessions"),
        ("Topics", f"{status.topics} with {status.partitions} partitions"),
        ("Requests", f"{counters.requests}, {counters.heartbeats} heartbeats, {counters.refused_busy} busy"),
        (
            "Loop",
            f"{loop.events} events, {loop.steps} steps, {loop.syncs} syncs, {loop.gaps} gaps"
            f" (longest {loop.longest_gap_ms} ms), {loop.refused} refused",
        ),
    ]


def status_text(answer: BrokerAnswer) -> str:
    """A block of lines for a broker, or the line that says why there is no answer."""
    address = address_text(*answer.address)
    status = answer.status
    if status is None:
        return f"{address}: {answer.problem}"
    number = f"{status.process_state.name} {status.process_state.value}"
    left_ms = status.lease_left_ms
    lines = [
        ("Broker", f"{status.node_id} at {address}, cluster {answer.cluster_id}"),
        ("State", f"{status.state.name} (Kafka: {number}): {status.state.meaning}"),
        ("Epoch", "not registered" if status.broker_epoch is None else str(status.broker_epoch)),
        ("Lease", "none" if left_ms is None else f"{left_ms} ms left"),
        ("Applied", f"offset {status.applied_offset}, {_behind(status)}"),
        ("Quorum", f"leader {_known(status.leader_id)}, epoch {status.quorum_epoch}"),
    ]
    if status.last_problem:
        lines.append(("Waits for", status.last_problem))
    return "\n".join(f"{name + ':':<11}{value}" for name, value in lines)


def _behind(status: BrokerStatus) -> str:
    if status.high_watermark < 0:
        return "the high watermark is unknown"
    return f"{max(0, status.high_watermark - status.applied_offset)} behind the high watermark"


def _known(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def status_json(answer: BrokerAnswer) -> dict[str, Any]:
    """The status as JSON. `metrics` has the figures under Kafka's names."""
    address = address_text(*answer.address)
    status = answer.status
    if status is None:
        return {"address": f"{address}", "error": answer.problem}
    return {
        "address": f"{address}",
        "brokerId": status.node_id,
        "clusterId": answer.cluster_id,
        "incarnationId": uuid_to_text(status.incarnation_id),
        "state": status.state.value,
        "fenced": status.fenced,
        "brokerEpoch": status.broker_epoch,
        "leaseLeftMs": status.lease_left_ms,
        "appliedOffset": status.applied_offset,
        "highWatermark": status.high_watermark,
        "logEndOffset": status.log_end_offset,
        "catchUpOffset": status.catch_up_offset,
        "leaderId": status.leader_id,
        "quorumEpoch": status.quorum_epoch,
        "failures": status.failures,
        "waitsFor": status.last_problem or None,
        "metrics": {
            "BrokerState": status.process_state.value,
            "last-applied-record-offset": status.applied_offset - 1,
        },
    }

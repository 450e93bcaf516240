"""The status that brokers report of themselves, as text and as JSON.

Owns the lines and keys. Knows values only; a broker as controllers see it is in `brokers`.
"""

from __future__ import annotations

from typing import Any

from metaquorum.metadata.requests.broker_status import BrokerStatus
from metaquorum.metadata.text.addresses import address_text
from metaquorum.runtime.client.broker_status import BrokerAnswer
from metaquorum.storage.uuids import uuid_to_text


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

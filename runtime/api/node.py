"""What a controller says of itself, between values and protobuf, both directions.

Owns the mapping only. Counters and the loop's statistics have the same field names on both sides, so a new
one is written in two places: its class and `proto/admin.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from metaquorum.controller.brokers.lifecycle import BrokerState
from metaquorum.controller.status import BrokerStatus, Counters, NodeStatus
from metaquorum.proto import admin_pb2 as admin
from metaquorum.runtime.api.api import losses_from_pb, losses_to_pb
from metaquorum.runtime.loop_statistics import LoopStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One controller: its state machine, and the loop that drives it."""

    status: NodeStatus
    loop: LoopStatistics


def node_to_pb(report: NodeReport) -> admin.DescribeNodeResponse:
    status = report.status
    return admin.DescribeNodeResponse(
        node_id=status.node_id,
        cluster_id=status.cluster_id,
        role=status.role,
        epoch=status.epoch,
        leader_id=status.leader_id,
        voted_id=status.voted_id,
        is_observer=status.is_observer,
        is_active=status.is_active,
        high_watermark=status.high_watermark,
        log_start_offset=status.log_start_offset,
        log_end_offset=status.log_end_offset,
        synced_offset=status.synced_offset,
        committed_offset=status.committed_offset,
        applied_offset=status.applied_offset,
        last_snapshot_offset=status.last_snapshot_offset,
        metadata_version=status.metadata_version,
        pending_batches=status.pending_batches,
        answers_waiting=status.answers_waiting,
        work=status.work,
        topics=status.topics,
        partitions=status.partitions,
        sessions=status.sessions,
        brokers=[_broker_to_pb(each) for each in status.brokers],
        counters=admin.NodeCounters(**_numbers(status.counters)),
        loop=admin.LoopStatistics(**_numbers(report.loop)),
        losses=losses_to_pb(status.losses),
    )


def node_from_pb(answer: admin.DescribeNodeResponse) -> NodeReport:
    """Raises ValueError for a broker in a state that this program does not know."""
    status = NodeStatus(
        node_id=answer.node_id,
        cluster_id=answer.cluster_id,
        role=answer.role,
        epoch=answer.epoch,
        leader_id=answer.leader_id if answer.HasField("leader_id") else None,
        voted_id=answer.voted_id if answer.HasField("voted_id") else None,
        is_observer=answer.is_observer,
        is_active=answer.is_active,
        high_watermark=answer.high_watermark,
        log_start_offset=answer.log_start_offset,
        log_end_offset=answer.log_end_offset,
        synced_offset=answer.synced_offset,
        committed_offset=answer.committed_offset,
        applied_offset=answer.applied_offset,
        last_snapshot_offset=answer.last_snapshot_offset,
        metadata_version=answer.metadata_version,
        pending_batches=answer.pending_batches,
        answers_waiting=answer.answers_waiting,
        work=tuple(answer.work),
        topics=answer.topics,
        partitions=answer.partitions,
        sessions=answer.sessions,
        brokers=tuple(_broker_from_pb(each) for each in answer.brokers),
        losses=losses_from_pb(answer.losses),
        counters=Counters(**{each.name: getattr(answer.counters, each.name) for each in fields(Counters)}),
    )
    loop = LoopStatistics(**{each.name: getattr(answer.loop, each.name) for each in fields(LoopStatistics)})
    return NodeReport(status=status, loop=loop)


def _numbers(value: Counters | LoopStatistics) -> dict[str, int]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _broker_to_pb(broker: BrokerStatus) -> admin.BrokerStatus:
    return admin.BrokerStatus(
        broker_id=broker.broker_id,
        epoch=broker.epoch,
        state=broker.state.value,
        rack=broker.rack,
        listeners=broker.listeners,
        lease_remaining_ms=broker.lease_remaining_ms,
        applied_offset=broker.applied_offset,
    )


def _broker_from_pb(broker: admin.BrokerStatus) -> BrokerStatus:
    return BrokerStatus(
        broker_id=broker.broker_id,
        epoch=broker.epoch,
        state=BrokerState(broker.state),
        rack=broker.rack if broker.HasField("rack") else None,
        listeners=tuple(broker.listeners),
        lease_remaining_ms=broker.lease_remaining_ms if broker.HasField("lease_remaining_ms") else None,
        applied_offset=broker.applied_offset if broker.HasField("applied_offset") else None,
    )

"""What a controller node tells of itself and of the quorum. Reads a node, changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaquorum.controller.brokers.brokers import broker_state
from metaquorum.controller.brokers.lifecycle import BrokerState
from metaquorum.controller.status import BrokerStatus, NodeStatus
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import BrokerRegistration
from metaquorum.metadata.requests.common import DescribeQuorumResponse, ReadImageResponse, ReplicaStatus
from metaquorum.raft.protocol.progress import ReplicaState

if TYPE_CHECKING:
    from metaquorum.controller.node import ControllerNode


def describe_quorum(node: ControllerNode) -> DescribeQuorumResponse:
    """KIP-836, as the leader sees it; the leader first. Precondition: this node leads."""
    raft = node.raft
    replicas = raft.describe(node.now_ms)
    return DescribeQuorumResponse(
        cluster_id=node.config.cluster_id,
        leader_id=node.config.node_id,
        leader_epoch=raft.epoch,
        high_watermark=raft.high_watermark,
        voters=tuple([_replica(node, replica) for replica in replicas if replica.is_voter]),
        observers=tuple([_replica(node, replica) for replica in replicas if not replica.is_voter]),
        losses=raft.losses,
    )


def _replica(node: ControllerNode, replica: ReplicaState) -> ReplicaStatus:
    leads = replica.node_id == node.config.node_id
    known = max(replica.log_end_offset, 0)
    return ReplicaStatus(
        node_id=replica.node_id,
        directory_id=replica.directory_id,
        log_end_offset=replica.log_end_offset,
        lag=max(0, node.raft.log_end_offset - known),
        last_fetch_ms=replica.last_fetch_ms,
        last_caught_up_ms=replica.last_caught_up_ms,
        status="Leader" if leads else "Follower" if replica.is_voter else "Observer",
    )


def not_controller(node: ControllerNode) -> ApiError:
    """What everybody is told who asks a node that is not the active controller."""
    own, leader_id = node.config.node_id, node.raft.leader_id
    if leader_id is None or leader_id == own:
        text = f"controller {own} is not the active one: no leader is known, retry with any controller"
        return ApiError(ErrorCode.NOT_CONTROLLER, text)
    return ApiError(
        ErrorCode.NOT_CONTROLLER, f"controller {own} is not the active one: ask node {leader_id}", leader_id
    )


def image_response(node: ControllerNode) -> ReadImageResponse:
    """The committed image as this node has it, and how far it goes."""
    image = node.ledger.committed.image
    return ReadImageResponse(
        image=image, offset=image.provenance.offset, leader_id=node.raft.leader_id, epoch=node.raft.epoch
    )


def furthest_voter(node: ControllerNode) -> int | None:
    """The other voter whose log is longest; None: there is no other."""
    others = [
        replica
        for replica in node.raft.describe(node.now_ms)
        if replica.is_voter and replica.node_id != node.config.node_id
    ]
    best = max(others, key=lambda replica: (replica.log_end_offset, -replica.node_id), default=None)
    return None if best is None else best.node_id


def node_status(node: ControllerNode) -> NodeStatus:
    """As of the node's last input; brokers as the committed image has them."""
    raft, ledger, active = node.raft, node.ledger, node.active
    image = ledger.committed.image
    return NodeStatus(
        node_id=node.config.node_id,
        cluster_id=node.config.cluster_id,
        role=raft.role,
        epoch=raft.epoch,
        leader_id=raft.leader_id,
        voted_id=raft.voted_id,
        is_observer=raft.is_observer,
        is_active=active is not None,
        high_watermark=raft.high_watermark,
        log_start_offset=raft.log_start_offset,
        log_end_offset=raft.log_end_offset,
        synced_offset=raft.synced_offset,
        committed_offset=ledger.committed_offset,
        applied_offset=ledger.newest_state.end_offset,
        last_snapshot_offset=node.replica.snapshots.last_offset,
        metadata_version=image.features.metadata_version,
        pending_batches=len(ledger.pending),
        answers_waiting=ledger.replies_waiting,
        work=() if active is None else tuple([str(work) for work in active.work.values()]),
        topics=len(image.topics),
        partitions=image.topics.partition_count,
        sessions=len(node.sessions),
        brokers=tuple([_broker(node, broker_id, known) for broker_id, known in image.brokers.items()]),
        losses=raft.losses,
        counters=node.counters,
    )


def _broker(node: ControllerNode, broker_id: int, known: BrokerRegistration) -> BrokerStatus:
    sessions = node.sessions
    session = sessions.get(broker_id)
    leads = node.active is not None
    return BrokerStatus(
        broker_id=broker_id,
        epoch=known.epoch,
        state=state_of(node, broker_id),
        rack=known.rack,
        listeners=tuple(
            [f"{endpoint.name}://{endpoint.host}:{endpoint.port}" for endpoint in known.endpoints]
        ),
        lease_remaining_ms=sessions.remaining_ms(broker_id, node.now_ms) if leads else None,
        applied_offset=session.applied_offset if leads and session is not None else None,
    )


def state_of(node: ControllerNode, broker_id: int) -> BrokerState:
    """A broker's state, as committed, with what this node knows of it if it is active."""
    session = node.sessions.get(broker_id)
    return broker_state(
        node.ledger.committed.image.brokers,
        broker_id,
        fencing=broker_id in node.sessions.fencing,
        told_to_stop=session is not None and session.told_to_stop,
    )

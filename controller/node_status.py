"""What a controller node reports about itself, for operators.

Owns the mapping from a node's parts to its status. Reads a node between two of its inputs, and must not
change it. Metrics are in `server.metrics`.
"""

from __future__ import annotations

from metaquorum.controller.brokers.brokers import broker_state
from metaquorum.controller.node import ControllerNode
from metaquorum.metadata.image import BrokerRegistration
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.requests.controller_status import BrokerControlState, BrokerControlStatus, NodeStatus
from metaquorum.metadata.text.addresses import listener_text


def node_status(node: ControllerNode) -> NodeStatus:
    """The state after the node's last input; brokers are those of the committed image."""
    raft, ledger, active = node.raft, node.ledger, node.active
    image, identity = ledger.committed.image, raft.state.identity
    return NodeStatus(
        node_id=node.config.node_id,
        directory_id=identity.directory_id,
        cluster_id=node.config.cluster_id,
        kraft_version=raft.kraft_version,
        min_kraft_version=identity.versions.lowest,
        max_kraft_version=identity.versions.highest,
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
        work=() if active is None else tuple([str(work) for work in active.work]),
        topics=len(image.topics),
        partitions=image.topics.partition_count,
        sessions=len(node.sessions),
        brokers=tuple([_broker(node, broker_id, known) for broker_id, known in image.brokers.items()]),
        losses=raft.losses,
        endpoints=tuple(
            [VoterEndpoint(endpoint.name, endpoint.host, endpoint.port) for endpoint in node.config.endpoints]
        ),
        counters=node.counters,
    )


def _broker(node: ControllerNode, broker_id: int, known: BrokerRegistration) -> BrokerControlStatus:
    sessions = node.sessions
    session = sessions.get(broker_id)
    leads = node.active is not None
    return BrokerControlStatus(
        broker_id=broker_id,
        epoch=known.epoch,
        state=state_of(node, broker_id),
        rack=known.rack,
        listeners=tuple([listener_text(each.name, each.host, each.port) for each in known.endpoints]),
        lease_remaining_ms=sessions.remaining_ms(broker_id, node.now_ms) if leads else None,
        applied_offset=session.applied_offset if leads and session is not None else None,
    )


def state_of(node: ControllerNode, broker_id: int) -> BrokerControlState:
    """A broker's committed state, with what this node knows of it if it is active."""
    session = node.sessions.get(broker_id)
    return broker_state(
        node.ledger.committed.image.brokers,
        broker_id,
        fencing=broker_id in node.sessions.fencing,
        told_to_stop=session is not None and session.told_to_stop,
    )

"""What a broker reports about itself, assembled from its parts."""

from __future__ import annotations

from metaquorum.broker.session import BrokerSession
from metaquorum.metadata.requests.status import BrokerStatus
from metaquorum.raft.core import RaftCore


def broker_status(
    session: BrokerSession, raft: RaftCore, own: tuple[int, bytes], *, applied_offset: int, now_ms: int
) -> BrokerStatus:
    """`own`: node id and incarnation id; `applied_offset`: everything below it is in the broker's image."""
    lease_ms, serves = session.lease.end_ms, now_ms < session.serves_before_ms
    return BrokerStatus(
        node_id=own[0],
        incarnation_id=own[1],
        state=session.state,
        process_state=session.state.process_state,
        fenced=not serves,
        broker_epoch=session.broker_epoch,
        lease_left_ms=None if lease_ms is None else max(0, lease_ms - now_ms),
        applied_offset=applied_offset,
        high_watermark=raft.high_watermark,
        log_end_offset=raft.log_end_offset,
        catch_up_offset=session.startup.catch_up_offset,
        leader_id=raft.leader_id,
        quorum_epoch=raft.epoch,
        failures=session.exchange.failures,
        last_problem="" if serves else session.exchange.last_problem,
    )

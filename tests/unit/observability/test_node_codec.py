"""What a controller says of itself survives protobuf whole, absent and zero told apart."""

from __future__ import annotations

import pytest
from msgspec.structs import fields, replace

from metaquorum.metadata.requests.status import (
    BrokerControlState,
    BrokerControlStatus,
    Counters,
    NodeStatus,
)
from metaquorum.observability.metrics.statistics import LoopStatistics
from metaquorum.proto import admin_pb2 as admin
from metaquorum.rpc.messages.tables import NODE, NodeReport

BROKER = BrokerControlStatus(
    broker_id=1,
    epoch=2**40,
    state=BrokerControlState.CONTROLLED_SHUTDOWN,
    rack="",
    listeners=("PLAINTEXT://a:1", "SSL://a:2"),
    lease_remaining_ms=0,
    applied_offset=-1,
)
UNSEEN = replace(BROKER, broker_id=2, rack=None, lease_remaining_ms=None, applied_offset=None)

# Every number differs from every other, so no two fields can be mixed up unseen.
STATUS = NodeStatus(
    node_id=3000,
    directory_id=bytes(range(16)),
    cluster_id="Xk7gN1qkQ3uWm5dJ3v5c2A",
    kraft_version=31,
    min_kraft_version=32,
    max_kraft_version=33,
    role="leader",
    epoch=5,
    leader_id=0,
    voted_id=3001,
    is_observer=False,
    is_active=True,
    high_watermark=90,
    log_start_offset=10,
    log_end_offset=2**50,
    synced_offset=95,
    committed_offset=89,
    applied_offset=99,
    last_snapshot_offset=11,
    metadata_version=19,
    pending_batches=4,
    answers_waiting=6,
    work=("fence 1", "move 2"),
    topics=7,
    partitions=21,
    sessions=1,
    brokers=(BROKER, UNSEEN),
    counters=Counters(*range(101, 101 + len(fields(Counters)))),
)
LOOP = LoopStatistics(*range(201, 201 + len(fields(LoopStatistics))))


@pytest.mark.parametrize(
    "status",
    [
        STATUS,
        replace(
            STATUS, leader_id=None, voted_id=None, high_watermark=-1, is_active=False, brokers=(), work=()
        ),
        replace(STATUS, role="follower", voted_id=0, is_observer=True),
    ],
    ids=["active", "doubting", "observer"],
)
def test_a_report_comes_back_as_it_was(status: NodeStatus) -> None:
    sent = NODE.to_pb(NodeReport(status=status, loop=LOOP)).SerializeToString()
    assert NODE.from_pb(admin.DescribeNodeResponse.FromString(sent)) == NodeReport(status=status, loop=LOOP)


@pytest.mark.parametrize(
    ("message", "values"), [(admin.NodeCounters, Counters), (admin.LoopStatistics, LoopStatistics)]
)
def test_no_figure_is_left_behind(message: type, values: type) -> None:
    assert [field.name for field in message.DESCRIPTOR.fields] == [each.name for each in fields(values)]  # type: ignore[attr-defined]


def test_a_state_from_the_future_is_refused() -> None:
    with pytest.raises(ValueError, match="hibernating"):
        NODE.from_pb(admin.DescribeNodeResponse(brokers=[admin.BrokerStatus(state="hibernating")]))

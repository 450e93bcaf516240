"""A controller's report about itself, between values and protobuf."""

from __future__ import annotations

import msgspec

from metaquorum.metadata.requests.status import NodeStatus
from metaquorum.observability.metrics.statistics import LoopStatistics
from metaquorum.proto import admin_pb2 as pb
from metaquorum.rpc.messages.admin import ENDPOINTS
from metaquorum.rpc.messages.codec import MessageCodec
from metaquorum.rpc.messages.shapes import FieldRule


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One controller: its state machine, and the loop that drives it."""

    status: NodeStatus
    loop: LoopStatistics


NODE = MessageCodec(
    NodeReport,
    pb.DescribeNodeResponse,
    status=FieldRule(spread=(), nested={"endpoints": ENDPOINTS}),
)
"""`from_pb` raises ValueError for a broker in a state that this release does not know."""

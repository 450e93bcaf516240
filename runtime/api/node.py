"""A controller's report about itself, between values and protobuf.

Owns this codec. Does not have a broker's status: `brokers` does.
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.requests.controller_status import NodeStatus
from metaquorum.proto import admin_pb2 as pb
from metaquorum.runtime.api.admin import ENDPOINTS
from metaquorum.runtime.api.codec import MessageCodec
from metaquorum.runtime.api.shapes import FieldRule
from metaquorum.runtime.driver.scheduler import LoopStatistics


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

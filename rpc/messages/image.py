"""Brokers, topics and partitions of an image, and the offset they were read at, between values and
protobuf."""

from __future__ import annotations

import msgspec

from metaquorum.metadata.image.types import NO_LEADER, BrokerRegistration, PartitionInfo
from metaquorum.proto import metadata_pb2 as pb
from metaquorum.rpc.messages.codec import MessageCodec
from metaquorum.rpc.messages.shapes import FieldRule


class ReadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Where a response comes from: it includes everything below `offset`."""

    offset: int
    node_id: int
    leader_id: int | None
    epoch: int
    linearizable: bool


READ_INFO = MessageCodec(ReadInfo, pb.ReadInfo)
BROKER = MessageCodec(
    BrokerRegistration,
    pb.Broker,
    epoch="broker_epoch",
    is_migrating_zk_broker=FieldRule(local=True),
)
PARTITION = MessageCodec(
    PartitionInfo, pb.Partition, topic_id=FieldRule(given=True), leader=FieldRule(absent=NO_LEADER)
)
"""The enclosing message has the topic: `from_pb(message, topic_id)`."""

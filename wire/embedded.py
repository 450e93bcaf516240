"""What consumers put into the bytes that the group protocol carries: subscriptions and assignments.

A message begins with an int16 version. Newer versions only add fields at the end, so that one above the
highest that is known is read as that one.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from metaquorum.wire.generator import compile_decoder
from metaquorum.wire.table import read_structure

_HIGHEST = 3
_VERSION = struct.Struct(">h")
_SUBSCRIPTION = """
  Topics []string
  UserData bytes? = null
  OwnedPartitions []TopicPartition 1+
    Topic string
    Partitions []int32
  GenerationId int32 2+ ignorable = -1
  RackId string? 3+ ignorable = null
"""


_ASSIGNMENT = """
  AssignedPartitions []TopicPartition
    Topic string
    Partitions []int32
  UserData bytes? = null
"""


def assigned_partitions(data: bytes) -> tuple[list[tuple[str, int]], bytes] | None:
    """The partitions of a consumer's assignment, and its user data (ConsumerProtocolAssignment); None: it is
    none."""
    found = _decode("ConsumerProtocolAssignment", _ASSIGNMENT, data)
    if found is None:
        return None
    parts = [(each.topic, index) for each in found.assigned_partitions for index in each.partitions]
    return parts, found.user_data or b""


def subscribed_topics(data: bytes) -> tuple[str, ...] | None:
    """The topics of a consumer's subscription (KIP-429: ConsumerProtocolSubscription); None: it is none."""
    found = _decode("ConsumerProtocolSubscription", _SUBSCRIPTION, data)
    return None if found is None else found.topics


@cache
def _schema(name: str, text: str) -> Any:
    return read_structure(name, text)


@cache
def _decoder(name: str, text: str, version: int) -> Any:
    return compile_decoder(_schema(name, text), version, flexible=False)


def _decode(name: str, text: str, data: bytes) -> Any:
    try:
        (version,) = _VERSION.unpack_from(data)
        if version < 0:
            return None
        value, end = _decoder(name, text, min(version, _HIGHEST))(data, _VERSION.size, len(data))
    except (struct.error, IndexError, ValueError):
        return None
    return value if end <= len(data) else None

"""The messages that consumers put into the bytes of the group protocol: subscriptions and assignments.

A message begins with an int16 version. Newer versions only add fields at the end, so a version above the
highest known one is read as the highest known.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from metaquorum.wire.generator import compile_decoder, compile_writer
from metaquorum.wire.schema import StructSchema
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


class Embedded(NamedTuple):
    """A message and the version as which it was read."""

    schema: StructSchema
    version: int
    value: Any


def consumer_assignment(data: bytes) -> Embedded | None:
    """A ConsumerProtocolAssignment; None if the bytes are not one."""
    return _decode("ConsumerProtocolAssignment", _ASSIGNMENT, data)


def consumer_subscription(data: bytes) -> Embedded | None:
    """A ConsumerProtocolSubscription (KIP-429); None if the bytes are not one."""
    return _decode("ConsumerProtocolSubscription", _SUBSCRIPTION, data)


def embedded_version(data: bytes) -> int:
    """The version at the start of a message, unchanged; 0 if there is none."""
    return int(_VERSION.unpack_from(data)[0]) if len(data) >= _VERSION.size else 0


def assigned_partitions(data: bytes) -> tuple[list[tuple[str, int]], bytes] | None:
    """The partitions of a consumer's assignment, and its user data; None if the bytes are not one."""
    assignment = consumer_assignment(data)
    if assignment is None:
        return None
    assigned = assignment.value.assigned_partitions
    return [
        (each.topic, index) for each in assigned for index in each.partitions
    ], assignment.value.user_data or b""


def encode_assignment(partitions: Mapping[str, Iterable[int]], version: int) -> bytes:
    """A ConsumerProtocolAssignment of partitions by topic, in `version` or the highest known one."""
    version = max(0, min(version, _HIGHEST))
    schema = _schema("ConsumerProtocolAssignment", _ASSIGNMENT)
    parts = schema.cls.TopicPartition
    value = schema.cls(
        assigned_partitions=tuple(
            parts(topic=topic, partitions=tuple(sorted(indexes)))
            for topic, indexes in sorted(partitions.items())
        )
    )
    out = bytearray(_VERSION.pack(version))
    _writer("ConsumerProtocolAssignment", _ASSIGNMENT, version)(value, out)
    return bytes(out)


def subscribed_topics(data: bytes) -> tuple[str, ...] | None:
    """The topics of a consumer's subscription; None if the bytes are not one. Reads no more than version 0,
    with which every version begins: as in Kafka, what a client makes of the rest does not matter here."""
    found = _decode("ConsumerProtocolSubscription", _SUBSCRIPTION, data, highest=0)
    return None if found is None else found.value.topics


@cache
def _schema(name: str, text: str) -> StructSchema:
    return read_structure(name, text)


@cache
def _decoder(name: str, text: str, version: int) -> Any:
    return compile_decoder(_schema(name, text), version, flexible=False)


@cache
def _writer(name: str, text: str, version: int) -> Any:
    return compile_writer(_schema(name, text), version, flexible=False)


def _decode(name: str, text: str, data: bytes, *, highest: int = _HIGHEST) -> Embedded | None:
    try:
        (version,) = _VERSION.unpack_from(data)
        if version < 0:
            return None
        version = min(version, highest)
        value, end = _decoder(name, text, version)(data, _VERSION.size, len(data))
    except (struct.error, IndexError, ValueError):
        return None
    return Embedded(_schema(name, text), version, value) if end <= len(data) else None

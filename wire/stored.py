"""Records of `__consumer_offsets` and `__transaction_state`: a key that identifies its type, and a value, or
none to delete it.

The records of the new group protocol (KIP-848, keys from 3 on) have the form of Kafka 3.8 and later: 3.7's
was a preview. In `TABLE`, a block begins with `NAME in TOPIC key A-B value C-D flexible E+`; the fields of
the key and of the value follow in the form of `wire.table`. A record's key and its value each begin with an
int16 version. The versions of keys are disjoint within a topic, so that the version of a key identifies the
type; keys are never flexible.
"""

from __future__ import annotations

import re
import struct
from functools import cache
from typing import Any

import msgspec

from metaquorum.wire.errors import ENCODE_ERRORS, DecodeError, EncodeError
from metaquorum.wire.explain import misfit
from metaquorum.wire.generator import compile_decoder, compile_writer
from metaquorum.wire.schema import StructSchema
from metaquorum.wire.table import read_structure

TABLE = """
OffsetCommit in __consumer_offsets key 0-1 value 0-4 flexible 4+
key
  Group string
  Topic string
  Partition int32
value
  Offset int64
  LeaderEpoch int32 3+ ignorable = -1
  Metadata string
  CommitTimestamp int64
  ExpireTimestamp int64 1-1 ignorable = -1

GroupMetadata in __consumer_offsets key 2-2 value 0-4 flexible 4+
key
  Group string
value
  ProtocolType string
  Generation int32
  Protocol string?
  Leader string?
  CurrentStateTimestamp int64 2+ ignorable = -1
  Members []MemberMetadata
    MemberId string
    GroupInstanceId string? 3+ ignorable = null
    ClientId string
    ClientHost string
    RebalanceTimeout int32 1+ ignorable = -1
    SessionTimeout int32
    Subscription bytes
    Assignment bytes

ConsumerGroupMetadata in __consumer_offsets key 3-3 value 0-0 flexible 0+
key
  GroupId string
value
  Epoch int32

ConsumerGroupPartitionMetadata in __consumer_offsets key 4-4 value 0-0 flexible 0+
key
  GroupId string
value
  Topics []TopicMetadata
    TopicId uuid
    TopicName string
    NumPartitions int32
    PartitionMetadata []PartitionMetadata
      Partition int32
      Racks []string

ConsumerGroupMemberMetadata in __consumer_offsets key 5-5 value 0-0 flexible 0+
key
  GroupId string
  MemberId string
value
  InstanceId string?
  RackId string?
  ClientId string
  ClientHost string
  SubscribedTopicNames []string
  SubscribedTopicRegex string?
  RebalanceTimeoutMs int32 = -1
  ServerAssignor string?
  ClassicMemberMetadata ClassicMemberMetadata? tag 0 = null
    SessionTimeoutMs int32
    SupportedProtocols []ClassicProtocol
      Name string
      Metadata bytes

ConsumerGroupTargetAssignmentMetadata in __consumer_offsets key 6-6 value 0-0 flexible 0+
key
  GroupId string
value
  AssignmentEpoch int32

ConsumerGroupTargetAssignmentMember in __consumer_offsets key 7-7 value 0-0 flexible 0+
key
  GroupId string
  MemberId string
value
  TopicPartitions []TopicPartition
    TopicId uuid
    Partitions []int32

ConsumerGroupCurrentMemberAssignment in __consumer_offsets key 8-8 value 0-0 flexible 0+
key
  GroupId string
  MemberId string
value
  MemberEpoch int32
  PreviousMemberEpoch int32
  State int8
  AssignedPartitions []TopicPartitions
    TopicId uuid
    Partitions []int32
  PartitionsPendingRevocation []TopicPartitions

ConsumerGroupRegularExpression in __consumer_offsets key 16-16 value 0-0 flexible 0+
key
  GroupId string
  RegularExpression string
value
  Topics []string
  Version int64
  Timestamp int64

TransactionLog in __transaction_state key 0-0 value 0-1 flexible 1+
key
  TransactionalId string
value
  ProducerId int64
  ProducerEpoch int16
  TransactionTimeoutMs int32
  TransactionStatus int8
  TransactionPartitions []PartitionsSchema?
    Topic string
    PartitionIds []int32
  TransactionLastUpdateTimestampMs int64
  TransactionStartTimestampMs int64
"""


DECODED_TOPICS = ("__consumer_offsets", "__transaction_state")
"""The internal topics whose records the table describes."""

_HEAD = re.compile(r"^(\w+) in (\w+) key (\d+)-(\d+) value (\d+)-(\d+) flexible (\d+)\+$", re.MULTILINE)
_VERSION = struct.Struct(">h")
_DECODE_ERRORS = (IndexError, struct.error, ValueError)


class StoredType(msgspec.Struct, frozen=True, eq=False):
    """One type of record. `flexible_since` is the first flexible version of its value."""

    name: str
    topic: str
    key_versions: range
    value_versions: range
    flexible_since: int
    key: StructSchema
    value: StructSchema


class StoredRecord(msgspec.Struct, frozen=True):
    """A decoded record. `value` None deletes what was stored under the key. The versions are those of the
    record as read, or to be written; `value_version` has no meaning without a value."""

    key: Any
    value: Any
    key_version: int
    value_version: int = 0


@cache
def stored_types() -> tuple[StoredType, ...]:
    """Every type of the table."""
    types = []
    heads = [*_HEAD.finditer(TABLE)]
    ends = [*(head.start() for head in heads[1:]), len(TABLE)]
    for head, end in zip(heads, ends, strict=True):
        name, topic = head[1], head[2]
        low, high, first, last, flexible = map(int, head.groups()[2:])
        key, _, value = TABLE[head.end() : end].strip("\n").partition("\nvalue")
        types.append(
            StoredType(
                name,
                topic,
                range(low, high + 1),
                range(first, last + 1),
                flexible,
                read_structure(f"{name}Key", key.removeprefix("key")),
                read_structure(f"{name}Value", value),
            )
        )
    return tuple(types)


@cache
def stored_structures() -> dict[str, StructSchema]:
    """The keys and values of all types by the names of their classes."""
    return {each.name: each for kind in stored_types() for each in (kind.key, kind.value)}


def decode_stored(topic: str, key: bytes, value: bytes | None) -> StoredRecord | None:
    """A record of an internal topic; None for a type that the table does not have, as a newer Kafka may write
    (Kafka's readers skip it too).

    Raises DecodeError for bytes that are not such a record, and for a value of an unknown version.
    """
    key_version = _version(key, f"the key of a record in {topic}")
    kind = _types_by_key(topic).get(key_version)
    if kind is None:
        return None
    decoded_key = _decode(kind.key, key, key_version, flexible=False)
    if value is None:
        return StoredRecord(decoded_key, None, key_version)
    version = _version(value, kind.value.name)
    if version not in kind.value_versions:
        raise DecodeError(
            f"{kind.value.name} version {version} is unknown; this release reads "
            f"{kind.value_versions[0]} to {kind.value_versions[-1]}"
        )
    decoded = _decode(kind.value, value, version, flexible=version >= kind.flexible_since)
    return StoredRecord(decoded_key, decoded, key_version, version)


def encode_stored(record: StoredRecord) -> tuple[bytes, bytes | None]:
    """Key and value as bytes. Raises EncodeError if a value does not fit its field or version."""
    kind = _types_by_class()[type(record.key)]
    key = _encode(kind.key, record.key, record.key_version, kind.key_versions, flexible=False)
    if record.value is None:
        return key, None
    if type(record.value) is not kind.value.cls:
        raise EncodeError(f"{type(record.value).__name__} does not belong to {kind.key.name}")
    version = record.value_version
    flexible = version >= kind.flexible_since
    return key, _encode(kind.value, record.value, version, kind.value_versions, flexible=flexible)


def _version(data: bytes, what: str) -> int:
    if len(data) < _VERSION.size:
        raise DecodeError(f"{what} has {len(data)} bytes: it must begin with a version of 2 bytes")
    (version,) = _VERSION.unpack_from(data)
    return int(version)


def _decode(schema: StructSchema, data: bytes, version: int, *, flexible: bool) -> Any:
    try:
        value, end = _decoder(schema, version, flexible)(data, _VERSION.size, len(data))
    except _DECODE_ERRORS as error:
        raise DecodeError(f"{schema.name} version {version}: {error}") from None
    if end != len(data):
        raise DecodeError(f"{schema.name} version {version} ends at byte {end} of {len(data)}")
    return value


def _encode(schema: StructSchema, value: Any, version: int, versions: range, *, flexible: bool) -> bytes:
    if version not in versions:
        raise EncodeError(f"{schema.name} has no version {version}; write {versions[0]} to {versions[-1]}")
    out = bytearray(_VERSION.pack(version))
    try:
        _writer(schema, version, flexible)(value, out)
    except EncodeError:
        raise
    except ENCODE_ERRORS as error:
        for field in schema.fields:
            why = misfit(field, getattr(value, field.name), version)
            if why is not None:
                raise EncodeError(f"{schema.name} version {version}: {field.name} {why}") from None
        raise EncodeError(f"{schema.name} version {version}: {error}") from None
    return bytes(out)


@cache
def _types_by_key(topic: str) -> dict[int, StoredType]:
    return {version: kind for kind in stored_types() if kind.topic == topic for version in kind.key_versions}


@cache
def _types_by_class() -> dict[type[Any], StoredType]:
    return {kind.key.cls: kind for kind in stored_types()}


@cache
def _decoder(schema: StructSchema, version: int, flexible: bool) -> Any:
    return compile_decoder(schema, version, flexible)


@cache
def _writer(schema: StructSchema, version: int, flexible: bool) -> Any:
    return compile_writer(schema, version, flexible)

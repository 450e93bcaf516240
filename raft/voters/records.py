"""The records that Raft itself writes and reads, as bytes: leader changes, kraft.version, voters.

Owns their encoding and how they are found in batches; everything else in a batch is skipped. Does not know
which record is in force: `history` does. All have version 0, the only one that Kafka 3.7 to 3.9 read. Source:
KIP-595, KIP-853; LeaderChangeMessage.json, KRaftVersionRecord.json, VotersRecord.json.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from metaquorum.raft.voters.voter_set import NEWEST_KRAFT_VERSION, Endpoint, VersionRange, VoterNode, VoterSet
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.encode import control_key, encode_batch, parse_control_key
from metaquorum.storage.batches.parsed import Batches
from metaquorum.storage.errors import BatchError
from metaquorum.storage.uuids import UUID_BYTES, ZERO_UUID

LEADER_CHANGE_TYPE = 2
KRAFT_VERSION_TYPE = 5
VOTERS_TYPE = 6
"""Control types in a record's key."""
_VERSION = 0
_NO_TAGS = b"\x00"
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_U16 = struct.Struct(">H")
_RANGE = struct.Struct(">hh")
_MAX_VARINT_BYTES = 5


class ControlValue(msgspec.Struct, frozen=True):
    """A control record that has no offset yet."""

    control_type: int
    value: bytes


class VoterChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change that one record at `offset` makes: to the level of kraft.version, or to the voters."""

    offset: int
    kraft_version: int | None = None
    voters: VoterSet | None = None


# ---- to bytes ------------------------------------------------------------------------------------


def leader_change_record(
    *, leader_id: int, voter_ids: Iterable[int], granting_ids: Iterable[int]
) -> ControlValue:
    """The record that begins an epoch and lets a new leader commit without a client. `granting_ids` voted
    for it, itself included."""
    value = _I16.pack(_VERSION) + _I32.pack(leader_id) + _voter_ids(voter_ids) + _voter_ids(granting_ids)
    return ControlValue(LEADER_CHANGE_TYPE, value + _NO_TAGS)


def _voter_ids(ids: Iterable[int]) -> bytes:
    listed = [_I32.pack(node_id) + _NO_TAGS for node_id in sorted(ids)]
    return _uvarint(len(listed) + 1) + b"".join(listed)


def kraft_version_record(level: int) -> ControlValue:
    """The record that finalizes a level of kraft.version."""
    return ControlValue(KRAFT_VERSION_TYPE, _RANGE.pack(_VERSION, level) + _NO_TAGS)


def voters_record(voters: VoterSet) -> ControlValue:
    """The record that names all voters from its offset on."""
    parts = [_I16.pack(_VERSION), _uvarint(len(voters) + 1)]
    for voter in voters.nodes:
        parts += (
            _I32.pack(voter.node_id),
            voter.directory_id or ZERO_UUID,
            _uvarint(len(voter.endpoints) + 1),
            *(_endpoint(endpoint) for endpoint in voter.endpoints),
            _RANGE.pack(voter.versions.lowest, voter.versions.highest) + _NO_TAGS,
            _NO_TAGS,
        )
    return ControlValue(VOTERS_TYPE, b"".join(parts) + _NO_TAGS)


def _endpoint(endpoint: Endpoint) -> bytes:
    return _string(endpoint.name) + _string(endpoint.host) + _U16.pack(endpoint.port) + _NO_TAGS


def _string(text: str) -> bytes:
    content = text.encode()
    return _uvarint(len(content) + 1) + content


def _uvarint(value: int) -> bytes:
    """An unsigned varint, as compact arrays and strings start with: their length plus one."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append((value & 0x7F) | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_control_batch(
    records: Sequence[ControlValue], *, base_offset: int, epoch: int, timestamp_ms: int
) -> bytes:
    """One sealed control batch."""
    return encode_batch(
        base_offset=base_offset,
        leader_epoch=epoch,
        timestamp_ms=timestamp_ms,
        values=[record.value for record in records],
        keys=[control_key(record.control_type) for record in records],
        is_control=True,
    )


# ---- from bytes ----------------------------------------------------------------------------------


def voter_changes(batches: Batches) -> list[VoterChange]:
    """The voter changes in these batches, in order. Raises BatchError for a record that is damaged or that
    a newer release wrote."""
    if not any(header.is_control for header in batches.headers):
        return []
    return [change for batch in batches.split() if batch.header.is_control for change in changes_of(batch)]


def changes_of(batch: RecordBatch) -> Iterator[VoterChange]:
    """The voter changes in one control batch. Raises the errors of `voter_changes`."""
    for record in batch.records():
        control_type = parse_control_key(record.key)[1]
        if control_type not in (KRAFT_VERSION_TYPE, VOTERS_TYPE):
            continue
        try:
            reader = _Reader(record.value or b"")
            if control_type == KRAFT_VERSION_TYPE:
                yield VoterChange(offset=record.offset, kraft_version=_read_level(reader))
            else:
                yield VoterChange(offset=record.offset, voters=_read_voters(reader))
        except (BatchError, ValueError) as error:
            name = "KRaftVersionRecord" if control_type == KRAFT_VERSION_TYPE else "VotersRecord"
            raise BatchError(
                f"the {name} at offset {record.offset} {error}; start the release that wrote it"
            ) from error


def _read_level(reader: _Reader) -> int:
    reader.version()
    level = reader.i16()
    if not 0 <= level <= NEWEST_KRAFT_VERSION:
        raise BatchError(f"sets kraft.version {level}, and this release knows 0 to {NEWEST_KRAFT_VERSION}")
    reader.end()
    return level


def _read_voters(reader: _Reader) -> VoterSet:
    reader.version()
    voters = []
    for _ in range(reader.length()):
        node_id, directory_id = reader.i32(), reader.take(UUID_BYTES)
        endpoints = []
        for _ in range(reader.length()):
            endpoints.append(Endpoint(reader.string(), reader.string(), reader.u16()))
            reader.skip_tags()
        lowest, highest = reader.i16(), reader.i16()
        reader.skip_tags()
        reader.skip_tags()
        voters.append(
            VoterNode(
                node_id=node_id,
                directory_id=None if directory_id == ZERO_UUID else directory_id,
                endpoints=tuple(endpoints),
                versions=VersionRange(lowest, highest),
            )
        )
    reader.end()
    if not voters:
        raise BatchError("names no voter")
    return VoterSet(voters)


class _Reader:
    """Reads a value from front to back. Raises BatchError if it ends early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise BatchError(f"ends after {len(self._data)} bytes, in the middle of a field")
        self._at, start = end, self._at
        return self._data[start:end]

    def i16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def i32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def u16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise BatchError("has a length that does not end")

    def length(self) -> int:
        """The length of a compact array or string; never null here."""
        length = self.uvarint() - 1
        if length < 0:
            raise BatchError("has null instead of a list or a text")
        return length

    def string(self) -> str:
        return self.take(self.length()).decode()

    def version(self) -> None:
        version = self.i16()
        if version != _VERSION:
            raise BatchError(f"has version {version}, and this release reads version {_VERSION}")

    def skip_tags(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            self.take(self.uvarint())

    def end(self) -> None:
        self.skip_tags()
        if self._at < len(self._data):
            raise BatchError(f"continues past its end, at byte {self._at} of {len(self._data)}")

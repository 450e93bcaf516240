"""The voters of a quorum: a set as a value, its majorities, which set is in force at which offset of a log,
and the records that name it (KIP-853).

The newest record in the log counts, committed or not, and a truncation undoes it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from metaquorum.storage.batches.batch import Batches, RecordBatch
from metaquorum.storage.batches.encode import control_key, encode_batch, parse_control_key
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.uuids import UUID_BYTES, ZERO_UUID, uuid_to_text

NEWEST_KRAFT_VERSION = 1
"""1: the voters are records in the log (KIP-853). 0: they are configuration."""


class Endpoint(msgspec.Struct, frozen=True):
    """Where a voter listens; `name` is the listener's name."""

    name: str
    host: str
    port: int


class VersionRange(msgspec.Struct, frozen=True):
    """The levels of kraft.version that a node supports, both ends included."""

    lowest: int = 0
    highest: int = 0

    def __contains__(self, level: int) -> bool:
        return self.lowest <= level <= self.highest


OWN_VERSIONS = VersionRange(0, NEWEST_KRAFT_VERSION)
"""The levels that this release supports."""


class VoterNode(msgspec.Struct, frozen=True, kw_only=True):
    """One voter. `directory_id` None means any directory (a configured voter that is not pinned)."""

    node_id: int
    directory_id: bytes | None
    endpoints: tuple[Endpoint, ...] = ()
    versions: VersionRange = VersionRange()

    def is_replica(self, node_id: int, directory_id: bytes) -> bool:
        """True if this node with this directory is that voter."""
        return self.node_id == node_id and self.directory_id in (None, directory_id)

    def __str__(self) -> str:
        directory = "" if self.directory_id is None else f":{uuid_to_text(self.directory_id)}"
        return f"{self.node_id}{directory}"


class PreferredCandidate(msgspec.Struct, frozen=True):
    """A voter that a resigning leader proposes as leader. `directory_id` is the one that acknowledged its
    log; empty if the voter was not heard from and no voters record names it."""

    node_id: int
    directory_id: bytes

    def is_replica(self, node_id: int, directory_id: bytes) -> bool:
        """True if this names the node with this directory."""
        return self.node_id == node_id and self.directory_id in (b"", directory_id)


class VoterSet:
    """Voters by node id, each id once. Immutable; iterates over the ids in rising order."""

    __slots__ = ("_voters", "nodes")

    def __init__(self, voters: Iterable[VoterNode] = ()) -> None:
        """Raises ValueError if two voters have the same id."""
        listed = sorted(voters, key=lambda voter: voter.node_id)
        self._voters = {voter.node_id: voter for voter in listed}
        if len(self._voters) < len(listed):
            raise ValueError(f"two voters have one id: {', '.join(map(str, listed))}")
        self.nodes = tuple(listed)
        """By rising id."""

    def __iter__(self) -> Iterator[int]:
        return iter(self._voters)

    def __len__(self) -> int:
        return len(self._voters)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._voters

    def __getitem__(self, node_id: int) -> VoterNode:
        return self._voters[node_id]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(tuple(self._voters.values()))

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self._voters.values())) + "}"

    __repr__ = __str__

    def get(self, node_id: int) -> VoterNode | None:
        """The voter with this id; None if the node does not vote."""
        return self._voters.get(node_id)

    def is_voter(self, node_id: int, directory_id: bytes) -> bool:
        """True if this node with this directory votes."""
        voter = self._voters.get(node_id)
        return voter is not None and voter.directory_id in (None, directory_id)

    def with_voter(self, voter: VoterNode) -> VoterSet:
        """The set with this voter added, or with its entry replaced."""
        return VoterSet({**self._voters, voter.node_id: voter}.values())

    def without(self, node_id: int) -> VoterSet:
        """The set without the voter with this id."""
        return VoterSet(voter for voter in self._voters.values() if voter.node_id != node_id)

    def majorities_meet(self, other: VoterSet) -> bool:
        """True if every majority of one set shares a voter with every majority of the other: at most one
        voter differs. The same id with another directory counts as two voters: one removed and one added."""
        return len(self._keys() ^ other._keys()) <= 1

    def _keys(self) -> set[tuple[int, bytes | None]]:
        return {(voter.node_id, voter.directory_id) for voter in self._voters.values()}


def majority(voter_count: int) -> int:
    """The smallest number of voters for which any two sets share a member."""
    return voter_count // 2 + 1


def has_majority(granted: Collection[int], voter_ids: Collection[int]) -> bool:
    """True if more than half of `voter_ids` are in `granted`; ids of nodes that are not voters do not
    count."""
    return len(set(granted) & set(voter_ids)) >= majority(len(voter_ids))


def cannot_win(rejected: Collection[int], voter_ids: Collection[int]) -> bool:
    """True if the voters that have not refused are not a majority."""
    return len(set(voter_ids) - set(rejected)) < majority(len(voter_ids))


def majority_value(values: Iterable[int | None]) -> int | None:
    """The largest value that a majority has reached, one value per voter; None is below every value."""
    ordered = sorted([-1 if value is None else value for value in values], reverse=True)
    if not ordered:
        return None
    reached = ordered[majority(len(ordered)) - 1]
    return None if reached < 0 else reached


EntryT = TypeVar("EntryT")

CONFIGURED = -1
"""The offset of voters that no record of the log names: configured ones, or those of the checkpoint that
formatting wrote (its records count as offset -1)."""


class VotersAt(msgspec.Struct, frozen=True):
    """The level of kraft.version and the voters that a log names up to some offset (None if it names
    none). A snapshot that ends there carries them."""

    kraft_version: int = 0
    voters: VoterSet | None = None


CONFIGURED_VOTERS = VotersAt()
"""The value for a log or snapshot that names neither."""


class VoterHistory:
    """The voter sets of one log from its newest snapshot on, by offset. `configured` is in force while the
    log names no voters."""

    newest: VoterSet
    """The voters in force, whose majorities count. An attribute, like the next two, because they are read
    dozens of times per input and change only with a record."""
    newest_offset: int | None
    """Offset of the record of the newest set; None if configured voters are in force."""
    kraft_version: int
    """The level that the newest record sets."""

    def __init__(self, configured: VoterSet, changes: Iterable[VoterChange] = ()) -> None:
        self._configured = configured
        self._levels: list[tuple[int, int]] = [(CONFIGURED, 0)]
        self._sets: tuple[tuple[int, VoterSet], ...] = ()
        self.note_all(changes)

    @property
    def previous(self) -> VoterSet:
        """The voters that a truncation of the newest record would restore."""
        return self._sets[-2][1] if len(self._sets) > 1 else self._configured

    def _changed(self) -> None:
        self.newest_offset, self.newest = self._sets[-1] if self._sets else (None, self._configured)
        self.kraft_version = self._levels[-1][1]

    def note_all(self, changes: Iterable[VoterChange]) -> None:
        """Adds the changes of records that were appended."""
        for change in changes:
            if change.kraft_version is not None:
                self._levels.append((change.offset, change.kraft_version))
            if change.voters is not None:
                self._sets = (*self._sets, (change.offset, change.voters))
        self._changed()

    def truncate(self, end_offset: int) -> None:
        """The log now ends at `end_offset`: changes at or above it are undone."""
        self._levels = [entry for entry in self._levels if entry[0] < end_offset]
        self._sets = tuple([entry for entry in self._sets if entry[0] < end_offset])
        self._changed()

    def trim(self, end_offset: int) -> None:
        """Lookups below `end_offset` will not come again: only the set in force there is kept of what is
        below it, and the newest set does not change."""
        self._levels = _from_newest_below(self._levels, end_offset)
        self._sets = tuple(_from_newest_below(self._sets, end_offset))

    def reset(self, end_offset: int, said: VotersAt) -> None:
        """The log restarts after a snapshot that ends at `end_offset` and carries `said`."""
        self._levels = [(end_offset - 1, said.kraft_version)]
        self._sets = () if said.voters is None else ((end_offset - 1, said.voters),)
        self._changed()

    def at(self, end_offset: int) -> VotersAt:
        """What the log below `end_offset` names; not for offsets below the last `trim` or `reset`."""
        level = [level for offset, level in self._levels if offset < end_offset]
        sets = [voters for offset, voters in self._sets if offset < end_offset]
        return VotersAt(level[-1] if level else 0, sets[-1] if sets else None)

    def is_salvaged(self, offset: int, epochs: EpochTable) -> bool:
        """True if `log salvage` wrote the set at `offset`: the record of kraft.version is before it, where
        an epoch begins. A leader begins its epoch with a LeaderChange."""
        begins = any(start_offset == offset - 1 for _, start_offset in epochs.entries)
        return begins and any(at == offset - 1 for at, _ in self._levels)

    @property
    def entries(self) -> tuple[tuple[int, VoterSet], ...]:
        """The offset of each set that the log still names, in order; the same object while nothing
        changes."""
        return self._sets


def _from_newest_below(entries: Sequence[tuple[int, EntryT]], end_offset: int) -> list[tuple[int, EntryT]]:
    kept = sum(1 for offset, _ in entries if offset < end_offset)
    return [*entries[max(0, kept - 1) :]]


# The records that Raft itself writes and reads. All have version 0, the only one that Kafka 3.7 to 3.9
# read. Source: KIP-595, KIP-853; LeaderChangeMessage.json, KRaftVersionRecord.json, VotersRecord.json.

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
        self._position = 0

    def take(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._data):
            raise BatchError(f"ends after {len(self._data)} bytes, in the middle of a field")
        self._position, start = end, self._position
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
        if self._position < len(self._data):
            raise BatchError(f"continues past its end, at byte {self._position} of {len(self._data)}")

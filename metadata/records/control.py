"""The control records of the quorum's log: leader changes, snapshot marks, kraft.version and voters.

They are in control batches, with a key of two int16 (version 0, type); the value is a message whose first
field is `version`. The conventions of `records` apply here too.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias, Union

import msgspec

from metaquorum.metadata.records.fields import (
    Int16,
    Int32,
    Int64,
    String,
    UInt16,
    UnknownTags,
    Uuid,
    Wire,
)
from metaquorum.storage.uuids import ZERO_UUID


class LeaderVoter(msgspec.Struct, frozen=True, gc=False):
    """A voter in a leader change; the directory id exists only in version 1."""

    voter_id: Int32
    voter_directory_id: Annotated[Uuid, Wire(since=1)] = ZERO_UUID
    unknown_tags: UnknownTags = ()


class VoterEndpoint(msgspec.Struct, frozen=True, gc=False):
    """Where a voter can be reached."""

    name: String
    host: String
    port: UInt16
    unknown_tags: UnknownTags = ()


class KRaftVersionFeature(msgspec.Struct, frozen=True, gc=False):
    """The kraft.version levels that a voter supports, both ends included."""

    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0
    unknown_tags: UnknownTags = ()


class Voter(msgspec.Struct, frozen=True, gc=False):
    """A member of the voter set (KIP-853)."""

    voter_id: Int32
    voter_directory_id: Uuid
    endpoints: tuple[VoterEndpoint, ...] = ()
    kraft_version_feature: Annotated[KRaftVersionFeature, Wire(kafka_name="kRaftVersionFeature")] = (
        KRaftVersionFeature()
    )
    unknown_tags: UnknownTags = ()


class LeaderChangeMessage(msgspec.Struct, frozen=True, gc=False):
    """The first record of an epoch (KIP-595). `version` 1 carries the voters' directory ids."""

    control_type: ClassVar[int] = 2
    type_name: ClassVar[str] = "LEADER_CHANGE"
    latest_version: ClassVar[int] = 1

    leader_id: Int32
    voters: tuple[LeaderVoter, ...] = ()
    granting_voters: tuple[LeaderVoter, ...] = ()
    version: Annotated[Int16, Wire(position=0)] = 0
    unknown_tags: UnknownTags = ()


class SnapshotHeaderRecord(msgspec.Struct, frozen=True, gc=False):
    """The first record of a snapshot (KIP-630): when the last record inside it was appended, in ms."""

    control_type: ClassVar[int] = 3
    type_name: ClassVar[str] = "SNAPSHOT_HEADER"
    latest_version: ClassVar[int] = 0

    last_contained_log_timestamp: Int64
    version: Annotated[Int16, Wire(position=0)] = 0
    unknown_tags: UnknownTags = ()


class SnapshotFooterRecord(msgspec.Struct, frozen=True, gc=False):
    """The last record of a snapshot (KIP-630); a snapshot without it is incomplete."""

    control_type: ClassVar[int] = 4
    type_name: ClassVar[str] = "SNAPSHOT_FOOTER"
    latest_version: ClassVar[int] = 0

    version: Int16 = 0
    unknown_tags: UnknownTags = ()


class KRaftVersionRecord(msgspec.Struct, frozen=True, gc=False):
    """The finalized kraft.version (KIP-853)."""

    control_type: ClassVar[int] = 5
    type_name: ClassVar[str] = "KRAFT_VERSION"
    latest_version: ClassVar[int] = 0

    kraft_version: Annotated[Int16, Wire(kafka_name="kRaftVersion")]
    version: Annotated[Int16, Wire(position=0)] = 0
    unknown_tags: UnknownTags = ()


class VotersRecord(msgspec.Struct, frozen=True, gc=False):
    """The whole voter set from here on (KIP-853)."""

    control_type: ClassVar[int] = 6
    type_name: ClassVar[str] = "KRAFT_VOTERS"
    latest_version: ClassVar[int] = 0

    voters: tuple[Voter, ...] = ()
    version: Annotated[Int16, Wire(position=0)] = 0
    unknown_tags: UnknownTags = ()


QuorumRecord = LeaderChangeMessage | KRaftVersionRecord | VotersRecord
"""Records about the quorum: its leader, its version, its voters."""


class UnknownControlRecord(msgspec.Struct, frozen=True, gc=False):
    """A control record that this code has no schema for; the tools show it and continue."""

    type_name: ClassVar[str] = "UNKNOWN_CONTROL_RECORD"

    control_type: int
    key: bytes
    value: bytes


ControlRecord: TypeAlias = Union[  # noqa: UP007 -- see metadata.records.Record
    LeaderChangeMessage,
    SnapshotHeaderRecord,
    SnapshotFooterRecord,
    KRaftVersionRecord,
    VotersRecord,
]
"""Any control record that the quorum writes."""

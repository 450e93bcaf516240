"""Feature levels: metadata.version and others, and which record version is written at which level.

Level 1 is 3.0-IV1, 29 is 4.2-IV1 (KIP-584, KIP-778). Reading is tolerant: a log may name newer levels and
features; only writing requires a known level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from metaquorum.metadata.errors import UnsupportedVersionError
from metaquorum.metadata.records import types as records
from metaquorum.metadata.records.control import UnknownControlRecord
from metaquorum.metadata.records.types import BrokerRegistrationChangeRecord, Record

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
ELR_VERSION = "eligible.leader.replicas.version"

METADATA_VERSION_NAMES: dict[int, str] = dict(
    enumerate(
        (
            *("3.0-IV1", "3.1-IV0", "3.2-IV0", "3.3-IV0", "3.3-IV1", "3.3-IV2", "3.3-IV3", "3.4-IV0"),
            *("3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1"),
            *("3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0"),
            *("4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1"),
        ),
        start=1,
    )
)
"""Name of every metadata.version level that this program can write. No record changed from 25 to 29."""

_LATER_NAMES = {30: "4.3-IV0", 31: "4.4-IV0", 32: "4.4-IV1", 33: "4.4-IV2", 34: "4.5-IV0"}
"""Levels at which records have fields that this program does not write: it reads the fields that it knows.
From 4.3-IV0 on, brokers register with cordoned directories (KIP-1066), which stay in the unknown tags."""

MIN_METADATA_VERSION = 1
MAX_METADATA_VERSION = max(METADATA_VERSION_NAMES)

MIN_FINALIZED_METADATA_VERSION = 4
"""3.3-IV0, the first level that the log itself records; a log without one is at level 1."""

DEFAULT_METADATA_VERSION = 19
"""3.7-IV4, the level written by default, so that the tools of Kafka 3.7 and later can open our files."""


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """A feature that a cluster can finalize, with the levels that this program knows."""

    name: str
    min_level: int
    max_level: int


KNOWN_FEATURES: tuple[Feature, ...] = (
    Feature(name=METADATA_VERSION, min_level=MIN_METADATA_VERSION, max_level=MAX_METADATA_VERSION),
    Feature(name=KRAFT_VERSION, min_level=0, max_level=1),
    Feature(name=TRANSACTION_VERSION, min_level=0, max_level=2),
    Feature(name=GROUP_VERSION, min_level=0, max_level=1),
    Feature(name=ELR_VERSION, min_level=0, max_level=1),
)
"""Level 0 means not finalized. kraft.version is in control records, the others are in FeatureLevelRecords."""

FOREIGN_FEATURES: dict[str, int] = {"share.version": 1, "streams.version": 1}
"""Features of group types that this program does not have, which Kafka 4.2 finalizes in every new cluster.
Brokers can work at these levels, because nothing else depends on them; they cannot be finalized here."""

LEVEL_DIRECTORIES = 17
"""metadata.version 3.7-IV2: registrations and partitions have log directories (KIP-858)."""

LEVEL_ELR_RECORDS = 23
"""metadata.version 4.0-IV1: partition records can carry eligible leader replicas (KIP-966)."""

LEVEL_DYNAMIC_VOTERS = 21
"""metadata.version 3.9-IV0: every node can read voter sets (KIP-853)."""

_NEEDS_METADATA_VERSION: dict[tuple[str, int], int] = {
    (KRAFT_VERSION, 1): LEVEL_DYNAMIC_VOTERS,
    (ELR_VERSION, 1): LEVEL_ELR_RECORDS,
}


_RELEASE_LEVELS: dict[str, tuple[tuple[int, int], ...]] = {
    GROUP_VERSION: ((22, 1),),
    TRANSACTION_VERSION: ((24, 2),),
    ELR_VERSION: ((26, 1),),
}
"""From which metadata.version on a new cluster of Kafka's has which level of another feature."""


def release_levels(metadata_version: int) -> dict[str, int]:
    """The levels of other features that a release finalizes in a new cluster, as Kafka's formatter does."""
    return {
        name: max(level for first, level in steps if first <= metadata_version)
        for name, steps in _RELEASE_LEVELS.items()
        if steps[0][0] <= metadata_version
    }


def needed_metadata_version(name: str, level: int) -> int:
    """The lowest metadata.version at which a feature can have a level (KIP-1022)."""
    return _NEEDS_METADATA_VERSION.get((name, level), MIN_METADATA_VERSION)


# (first level, record version), ascending, of every type.
VERSION_STEPS: dict[type[Any], tuple[tuple[int, int], ...]] = {
    **dict.fromkeys(
        (
            *(records.UnregisterBrokerRecord, records.FenceBrokerRecord, records.UnfenceBrokerRecord),
            *(records.TopicRecord, records.RemoveTopicRecord, records.ConfigRecord),
            *(records.ClientQuotaRecord, records.ProducerIdsRecord),
            *(records.AccessControlEntryRecord, records.RemoveAccessControlEntryRecord),
        ),
        ((MIN_METADATA_VERSION, 0),),
    ),
    records.BrokerRecord: ((1, 0), (7, 1), (8, 2), (17, 3)),
    records.PartitionRecord: ((1, 0), (17, 1), (23, 2)),
    records.PartitionChangeRecord: ((1, 0), (17, 1), (23, 2)),
    records.FeatureLevelRecord: ((MIN_FINALIZED_METADATA_VERSION, 0),),
    records.NoOpRecord: ((5, 0),),
    records.BrokerRegistrationChangeRecord: ((6, 0), (7, 1), (17, 2)),
    records.ZkMigrationStateRecord: ((8, 0),),
    records.UserScramCredentialRecord: ((11, 0),),
    records.RemoveUserScramCredentialRecord: ((11, 0),),
    records.BeginTransactionRecord: ((13, 0),),
    records.EndTransactionRecord: ((13, 0),),
    records.AbortTransactionRecord: ((13, 0),),
    records.DelegationTokenRecord: ((14, 0),),
    records.RemoveDelegationTokenRecord: ((14, 0),),
    records.ControllerRecord: ((15, 0),),
    records.ClearElrRecord: ((LEVEL_ELR_RECORDS, 0),),
    records.UnregisterControllerRecord: ((33, 0),),
}


def metadata_version_name(level: int) -> str:
    """The name of a level, "3.7-IV4" for 19; an unknown level is named by its number."""
    return METADATA_VERSION_NAMES.get(level) or _LATER_NAMES.get(level, f"level {level}")


def is_newer(record: object) -> bool:
    """Whether a newer release wrote the record: this one does not know its type, its version, or the
    metadata.version that it sets."""
    if isinstance(record, records.FeatureLevelRecord):
        return record.name == METADATA_VERSION and not is_known(record.feature_level)
    return isinstance(record, records.UnknownRecord | UnknownControlRecord)


def is_known(level: int) -> bool:
    """Whether this release knows what a metadata.version means for readers. 0: none is set."""
    return level == 0 or level in METADATA_VERSION_NAMES or level in _LATER_NAMES


def parse_metadata_version(text: str) -> int:
    """The level for "3.7-IV4", "3.7" (the last level of that release) or "19".

    Raises ValueError, which lists the forms.
    """
    if text.isascii() and text.isdigit() and int(text) in METADATA_VERSION_NAMES:
        return int(text)
    levels = [
        level for level, name in METADATA_VERSION_NAMES.items() if text == name or text == name.split("-")[0]
    ]
    if not levels:
        raise ValueError(
            f"{text!r} is not a metadata.version: write a release such as 3.7, a name such as 3.7-IV4, or "
            f"a level from {MIN_METADATA_VERSION} to {MAX_METADATA_VERSION}"
        )
    return max(levels)


def record_version_for(record_type: type[Any], metadata_version: int) -> int:
    """The highest version in which records of a type are written at a level.

    Raises UnsupportedVersionError if the level is unknown or does not have that type yet.
    """
    if metadata_version not in METADATA_VERSION_NAMES:
        raise UnsupportedVersionError(
            f"this release does not know metadata.version {metadata_version}, only {MIN_METADATA_VERSION} "
            f"to {MAX_METADATA_VERSION}: it can read this log, but not write it; use a newer release"
        )
    steps = VERSION_STEPS[record_type]
    reached = [version for level, version in steps if level <= metadata_version]
    if not reached:
        raise UnsupportedVersionError(
            f"{record_type.__name__} cannot be written at metadata.version "
            f"{metadata_version_name(metadata_version)}; raise it to {metadata_version_name(steps[0][0])}"
        )
    return reached[-1]


def write_version(record: Record, metadata_version: int) -> int:
    """The version in which one record is written at a level: that of its type, except for
    BrokerRegistrationChangeRecord, for which Kafka writes the lowest version that can carry the record.

    Raises UnsupportedVersionError as `record_version_for` does.
    """
    highest = record_version_for(type(record), metadata_version)
    if not isinstance(record, BrokerRegistrationChangeRecord):
        return highest
    if record.log_dirs is not None:
        return min(2, highest)
    return 0 if record.in_controlled_shutdown is None else min(1, highest)


if TYPE_CHECKING:
    pass

_CHANGES_METADATA = frozenset({3, 22, 24, 25}).union(
    level for steps in VERSION_STEPS.values() for level, _ in steps
)
"""Levels of metadata.version with a record, or a version of one, that the level before cannot carry, and
those of which Kafka says the same (didMetadataChange) or, of 24 and 25, guarantees nothing."""


class FeatureDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A feature: the levels that this program supports, and the finalized one (0 if none)."""

    name: str
    min_level: int
    max_level: int
    finalized_level: int


def loses_metadata(level: int, lower: int) -> bool:
    """Whether a downgrade from `level` to `lower` could lose what was written at the higher level."""
    return any(step in _CHANGES_METADATA for step in range(max(lower, MIN_METADATA_VERSION) + 1, level + 1))

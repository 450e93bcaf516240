"""Formats a node's directories: `meta.properties` v1 and `bootstrap.checkpoint`, as Kafka 3.7 writes them.

If the voters are dynamic, the metadata directory also gets the checkpoint with the first voter set. Owns the
check before (nothing is written if one directory may not be formatted) and the order of writing (the identity
last, so that a crash in between leaves an unformatted directory). Does not read configurations (`configured`)
or ask a running quorum. Sources: KIP-631, KIP-778 (bootstrap.checkpoint), KIP-858 (directory.id), KIP-853,
Kafka's StorageTool and BootstrapDirectory.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from metaquorum.cli.errors import Failure
from metaquorum.cli.formatting.releases import DEFAULT_RELEASE, level_of_release
from metaquorum.cli.formatting.scram import first_credentials
from metaquorum.metadata.features import (
    KRAFT_VERSION,
    METADATA_VERSION,
    metadata_version_name,
    needed_metadata_version,
)
from metaquorum.metadata.first_checkpoint import first_checkpoint
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.metadata.records.control import SnapshotFooterRecord, SnapshotHeaderRecord, Voter
from metaquorum.metadata.records.types import FeatureLevelRecord, UserScramCredentialRecord
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.interface import join, make_durable_directory, write_atomically
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.meta_properties import (
    MetaProperties,
    load_meta_properties,
    store_meta_properties,
)
from metaquorum.storage.files.snapshots import (
    BOOTSTRAP_FILE,
    BOOTSTRAP_SNAPSHOT,
    SnapshotWriter,
    snapshot_name,
)
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.uuids import is_reserved_directory, random_uuid, uuid_from_text

# Left by an interrupted format, or in every new file system.
_HARMLESS = frozenset(
    {BOOTSTRAP_FILE, BOOTSTRAP_FILE + ".tmp", META_PROPERTIES + ".tmp", "lost+found", ".lock"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatPlan:
    """What to write. `directory_ids`: one per directory, as text; None: random. `voters`: the first voter set
    (empty: static voters, or another node's set), written to the directory at `metadata_index`, which gets
    this node's directory id of the set. `scram`: the first credentials as typed, with passwords."""

    directories: tuple[str, ...]
    cluster_id: str
    node_id: int
    directory_ids: tuple[str, ...] | None = None
    release: str = DEFAULT_RELEASE
    features: Mapping[str, int] = field(default_factory=dict)
    ignore_formatted: bool = False
    voters: tuple[Voter, ...] = ()
    scram: tuple[str, ...] = field(default=(), repr=False)
    metadata_index: int = 0


class FormatResult(msgspec.Struct, frozen=True, kw_only=True):
    """One directory afterwards. `written`: False if it was already formatted. `voters`: the ids of the
    voter set that was written."""

    directory: str
    directory_id: bytes | None
    written: bool
    voters: tuple[int, ...] = ()


def apply_plan(plan: FormatPlan) -> list[FormatResult]:
    """Formats every directory of the plan. Raises Failure, then without touching any."""
    _check(plan)
    features = {METADATA_VERSION: level_of_release(plan.release), **plan.features}
    credentials = first_credentials(plan.scram, features[METADATA_VERSION])
    bootstrap = bootstrap_checkpoint(features, _now_ms(), credentials)
    found = [_identity_to_keep(plan, directory) for directory in plan.directories]
    results = []
    for at, (directory, present, directory_id) in enumerate(
        zip(plan.directories, found, _directory_ids(plan), strict=True)
    ):
        if present is not None:
            results.append(
                FormatResult(directory=directory, directory_id=present.directory_id, written=False)
            )
            continue
        voters = plan.voters if at == plan.metadata_index else ()
        _write(plan, directory, directory_id, bootstrap, voters)
        ids = tuple(voter.voter_id for voter in voters)
        results.append(FormatResult(directory=directory, directory_id=directory_id, written=True, voters=ids))
    return results


def _directory_ids(plan: FormatPlan) -> list[bytes]:
    rng = random.SystemRandom()
    given = [uuid_from_text(text) for text in plan.directory_ids or ()]
    ids = given or [random_uuid(rng) for _ in plan.directories]
    for voter in plan.voters:
        if voter.voter_id == plan.node_id:
            ids[plan.metadata_index] = voter.voter_directory_id
    return ids


def _check(plan: FormatPlan) -> None:
    """Refuses what can be refused without reading a disk."""
    if not plan.directories:
        raise Failure("no directory to format; give --directory, or log.dirs in the configuration")
    if len({Path(one).absolute() for one in plan.directories}) != len(plan.directories):
        raise Failure("a directory is listed twice; list each one once")
    try:
        if is_reserved_directory(uuid_from_text(plan.cluster_id)):
            raise ValueError(f"{plan.cluster_id} is reserved")
        for text in plan.directory_ids or ():
            if is_reserved_directory(uuid_from_text(text)):
                raise ValueError(f"{text} is reserved")
        level = level_of_release(plan.release)
    except ValueError as error:
        raise Failure(
            f"{error}; make an id with: metaquorum storage random-uuid" if "id" in str(error) else str(error)
        ) from error
    for name, wanted in plan.features.items():
        needed = needed_metadata_version(name, wanted)
        if level < needed:
            raise Failure(
                f"--feature {name}={wanted} needs metadata.version {metadata_version_name(needed)};"
                f" give --release-version {metadata_version_name(needed)} or a later one"
            )
    if plan.node_id < 0:
        raise Failure(f"node id {plan.node_id} is negative; give 0 or more")


def _identity_to_keep(plan: FormatPlan, directory: str) -> MetaProperties | None:
    """The identity of a directory that is already formatted and may stay so; None: it may be written."""
    disk = PosixDisk()
    if not disk.exists(directory):
        return None
    if not disk.is_directory(directory):
        raise Failure(f"{directory} is a file; give a directory")
    if disk.exists(join(directory, META_PROPERTIES)):
        present = load_meta_properties(disk, directory)
        if present.cluster_id != plan.cluster_id:
            raise Failure(
                f"{directory} belongs to cluster {present.cluster_id}, not {plan.cluster_id}; give another "
                "directory, or empty this one if it is no longer needed"
            )
        if present.node_id != plan.node_id:
            raise Failure(
                f"{directory} belongs to node {present.node_id}, not {plan.node_id}; give another directory"
            )
        if not plan.ignore_formatted:
            raise Failure(f"{directory} is already formatted; use --ignore-formatted to leave it unchanged")
        return present
    others = [
        name
        for name in disk.list_directory(directory)
        if name not in _HARMLESS and not _is_unfinished_log(disk, directory, name)
    ]
    if others:
        raise Failure(
            f"{directory} has no {META_PROPERTIES} but is not empty (it contains {others[0]}); move that "
            "away or give another directory"
        )
    return None


def _is_unfinished_log(disk: PosixDisk, directory: str, name: str) -> bool:
    """Whether an interrupted format left it: a log directory with only the first checkpoint in it."""
    path = join(directory, name)
    if name != METADATA_DIRECTORY or not disk.is_directory(path):
        return False
    first = snapshot_name(BOOTSTRAP_SNAPSHOT)
    return all(found.startswith(first) for found in disk.list_directory(path))


def _write(
    plan: FormatPlan,
    directory: str,
    directory_id: bytes,
    bootstrap: bytes,
    voters: tuple[Voter, ...],
) -> None:
    disk = PosixDisk()
    make_durable_directory(disk, directory)
    write_atomically(disk, join(directory, BOOTSTRAP_FILE), bootstrap)
    if voters:
        log_directory = join(directory, METADATA_DIRECTORY)
        disk.make_directory(log_directory)
        writer = SnapshotWriter(disk, log_directory, BOOTSTRAP_SNAPSHOT)
        writer.append(first_checkpoint(voters, timestamp_ms=_now_ms()))
        writer.freeze()
    properties = MetaProperties(cluster_id=plan.cluster_id, node_id=plan.node_id, directory_id=directory_id)
    store_meta_properties(disk, directory, properties)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def bootstrap_checkpoint(
    features: Mapping[str, int], timestamp_ms: int, credentials: Sequence[UserScramCredentialRecord] = ()
) -> bytes:
    """The bytes of `bootstrap.checkpoint`: header, one FeatureLevelRecord per feature, the credentials,
    footer.

    Leader epoch 0 and offsets from 0, as Kafka's BatchFileWriter writes them. Level 0 means that a feature is
    disabled; it is not written. kraft.version has a record of its own, beside the voter set.
    """
    ordered = sorted(features.items(), key=lambda item: (item[0] != METADATA_VERSION, item[0]))
    values = [
        encode(FeatureLevelRecord(name, level), 0)
        for name, level in ordered
        if level > 0 and name != KRAFT_VERSION
    ]
    values += [encode(record, 0) for record in credentials]
    header_key, header_value = encode_control(SnapshotHeaderRecord(last_contained_log_timestamp=0))
    footer_key, footer_value = encode_control(SnapshotFooterRecord())
    return b"".join(
        (
            _batch(0, timestamp_ms, [header_value], [header_key]),
            _batch(1, timestamp_ms, values, None),
            _batch(1 + len(values), timestamp_ms, [footer_value], [footer_key]),
        )
    )


def _batch(base_offset: int, timestamp_ms: int, values: list[bytes], keys: list[bytes] | None) -> bytes:
    return encode_batch(
        base_offset=base_offset,
        leader_epoch=0,
        timestamp_ms=timestamp_ms,
        values=values,
        keys=keys,
        is_control=keys is not None,
    )

"""Opens a node's metadata directory when its process starts: whose it is, what it holds, and its image.

Checks precede any change, each with one line that says what to do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from metaquorum.config.node import NodeConfig
from metaquorum.errors import StartError
from metaquorum.metadata.columnar.partition_records import read_frames
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.features import MAX_METADATA_VERSION, METADATA_VERSION, metadata_version_name
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.codec import decode_control
from metaquorum.metadata.records.control import KRaftVersionRecord, VotersRecord
from metaquorum.metadata.records.schema import SCHEMA_BY_API_KEY
from metaquorum.metadata.records.types import FeatureLevelRecord, Record
from metaquorum.metadata.settings.keys import BROKER
from metaquorum.metadata.snapshot import QuorumRecord, SnapshotLoadError, load_snapshot, snapshot_batches
from metaquorum.node.machine import OWN_PROCESS, Machine
from metaquorum.raft import stored_voters
from metaquorum.raft.config import Identity, Voter
from metaquorum.raft.store import ReplicaStore
from metaquorum.raft.stored_voters import read_voters
from metaquorum.raft.voters import VoterChange, VotersAt, changes_of, kraft_version_record, voters_record
from metaquorum.storage.batches.batch import RecordBatch, iter_batches
from metaquorum.storage.batches.encode import control_key
from metaquorum.storage.disk.interface import Disk, join, read_file
from metaquorum.storage.errors import BatchError, CorruptLogError, FileMissingError, StorageError
from metaquorum.storage.files.meta_properties import (
    MetaProperties,
    add_missing_ids,
    identity_of,
    load_meta_properties,
)
from metaquorum.storage.files.quorum_state import load_quorum_state
from metaquorum.storage.files.snapshots import BOOTSTRAP_FILE, latest_snapshot, snapshot_path
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.reader import LogReader
from metaquorum.storage.types import LogPosition

MANY_RECORDS = 16
"""A batch of at least this many records is read as columns."""

_log = logging.getLogger(__name__)


class SnapshotFiles:
    """Converts images to snapshot files and back, for the driver's worker."""

    def __init__(self, disk: Disk = OWN_PROCESS.disk) -> None:
        self._disk = disk

    def encode(
        self, image: MetadataImage, position: LogPosition, timestamp_ms: int, voters: VotersAt
    ) -> Iterable[bytes]:
        quorum = quorum_records(voters)
        return snapshot_batches(image, position=position, timestamp_ms=timestamp_ms, quorum=quorum)

    def load(self, path: Path, position: LogPosition) -> MetadataImage:
        content = read_file(self._disk, str(path))
        return load_snapshot(iter_batches(content, file=str(path)), position=position)


def quorum_records(said: VotersAt) -> tuple[QuorumRecord, ...]:
    """The voters in a snapshot, as the records that Raft would write."""
    if said.voters is None:
        return ()
    values = (kraft_version_record(said.kraft_version), voters_record(said.voters))
    found = [decode_control(control_key(each.control_type), each.value) for each in values]
    return tuple(each for each in found if isinstance(each, KRaftVersionRecord | VotersRecord))


class OpenReplica(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a node starts from."""

    store: ReplicaStore
    identity: Identity
    image: MetadataImage
    bootstrap: tuple[Record, ...]


def add_directory_ids(config: NodeConfig, machine: Machine = OWN_PROCESS) -> None:
    """Adds a `directory.id` to each directory of this node that was formatted without one, before it is
    opened. Leaves errors in directories to the checks."""
    disk, own = machine.disk, str(config.metadata_log_dir)
    identity = identity_of(disk, own)
    if identity is not None and identity.node_id == config.node_id:
        paths = dict.fromkeys((own, *map(str, config.log_dirs)))
        add_missing_ids(disk, identity, paths, machine.new_rng(), _log.info)


def check_metadata_directory(config: NodeConfig, disk: Disk = OWN_PROCESS.disk) -> MetaProperties:
    """The identity of the metadata directory; reads only. Raises StartError or StorageError."""
    return check_directories(replace(config, log_dirs=(config.metadata_log_dir,)), disk)


def check_directories(config: NodeConfig, disk: Disk = OWN_PROCESS.disk) -> MetaProperties:
    """The identity of the metadata directory, once all of `log.dirs` are checked; reads only. Raises
    StartError or StorageError."""
    identities: dict[Path, MetaProperties] = {}
    for path in dict.fromkeys((config.metadata_log_dir, *config.log_dirs)):
        if not disk.is_directory(str(path)):
            if disk.exists(str(path)):
                raise StartError(f"{path} is a file: give a directory in log.dirs (or metadata.log.dir)")
            raise StartError(
                f"{path} does not exist: format it with metaquorum storage format, or correct log.dirs"
            )
        identities[path] = load_meta_properties(disk, str(path))
    own = identities[config.metadata_log_dir]
    for path, identity in identities.items():
        check_identity(config, own, str(path), identity)
    ids = [identities[path].directory_id or b"" for path in config.log_dirs]
    if len(set(ids)) != len(ids):
        raise StartError("two directories of log.dirs have the same directory.id: one is a copy; reformat it")
    return own


def check_identity(config: NodeConfig, own: MetaProperties, path: str, identity: MetaProperties) -> None:
    """Raises StartError for a directory of another node or cluster. `own`: the metadata directory's."""
    if identity.node_id != config.node_id:
        raise StartError(
            f"{path} belongs to node {identity.node_id}, but node.id is {config.node_id}: correct node.id, "
            "or give this node's own directory"
        )
    if identity.cluster_id is None or identity.cluster_id != own.cluster_id:
        raise StartError(
            f"{path} belongs to cluster {identity.cluster_id}, but {config.metadata_log_dir} to "
            f"{own.cluster_id}: give directories of one cluster"
        )
    if identity.directory_id is None:
        raise StartError(f"{path} has no directory.id: reformat it with metaquorum storage format")


def open_replica(config: NodeConfig, own: MetaProperties, disk: Disk = OWN_PROCESS.disk) -> OpenReplica:
    """Locks the metadata directory, recovers its log and loads its newest snapshot. Raises StorageError or
    StartError."""
    started = time.monotonic()
    # Everything read-only comes first: if it finds damage, the directory is unchanged.
    bootstrap = read_bootstrap(disk, str(config.metadata_log_dir))
    replica_directory = join(str(config.metadata_log_dir), METADATA_DIRECTORY)
    newest = latest_snapshot(disk, replica_directory) if disk.is_directory(replica_directory) else None
    image, from_offset, is_dynamic = MetadataImage(), 0, False
    if newest is not None:
        path, from_offset = snapshot_path(replica_directory, newest), newest.offset
        image = _load_newest(disk, Path(path), newest)
        _check_level(path, image.features.metadata_version)
        is_dynamic = _voters_in(disk, path).voters is not None
    changes = _verify(disk, replica_directory, from_offset)
    is_dynamic = is_dynamic or any(change.voters is not None for change in changes)
    static = () if is_dynamic else config.voters
    _check_voters(disk, replica_directory, config, is_dynamic=is_dynamic)
    store = ReplicaStore.open(
        disk,
        str(config.metadata_log_dir),
        config.log,
        _log.warning,
        voter_ids=tuple(voter.node_id for voter in static),
        voter_changes=changes,
        may_vote=config.role != BROKER,
        retention_bytes=config.retention.max_bytes,
        retention_ms=config.retention.max_ms,
    )
    if _is_among(static, config):
        stored_voters.remember(disk, replica_directory, config.voters)
        _warn_of_unpinned(config)
    _log.info(
        "opened %s: log %d to %d, image at %d, in %d ms",
        config.metadata_log_dir,
        store.log.start_offset,
        store.log.end_offset,
        image.provenance.offset,
        round((time.monotonic() - started) * 1000),
    )
    return OpenReplica(
        store=store,
        identity=Identity(
            cluster_id=own.cluster_id or "",
            node_id=config.node_id,
            directory_id=own.directory_id or b"",
            endpoints=config.voter_endpoints,
            may_vote=config.role != BROKER,
        ),
        image=image,
        bootstrap=bootstrap,
    )


def _load_newest(disk: Disk, path: Path, position: LogPosition) -> MetadataImage:
    """Raises StartError, with the way out, for a checkpoint that is damaged or not complete."""
    try:
        return SnapshotFiles(disk).load(path, position)
    except (CorruptLogError, BatchError, SnapshotLoadError) as error:
        reason = error.reason if isinstance(error, SnapshotLoadError) else str(error)
        raise StartError(
            f"{path} is damaged: {reason}; no byte was changed. If the log and an older checkpoint cover it, "
            "metaquorum log repair DIRECTORY --past-corruption --to NEW writes the directory without it; else"
            " copy the file from another node"
        ) from error


def _voters_in(disk: Disk, path: str) -> VotersAt:
    """The voters in a snapshot. Raises StartError if this release cannot read them."""
    try:
        return read_voters(disk, path)
    except BatchError as error:
        raise StartError(f"{path}: {error}; no byte was changed") from error


def _is_among(voters: tuple[Voter, ...], config: NodeConfig) -> bool:
    return any(voter.node_id == config.node_id for voter in voters)


def _check_voters(disk: Disk, replica_directory: str, config: NodeConfig, *, is_dynamic: bool) -> None:
    """Checks that a static voter has the same voters as at its last start; if the log names the voters, the
    configured ones are not used. Raises StartError or CorruptFileError."""
    if is_dynamic:
        if config.voters:
            _log.warning(
                "%s: controller.quorum.voters is no longer used: the metadata log has the voters "
                "(kraft.version 1); remove it, and name some controllers in "
                "controller.quorum.bootstrap.servers",
                config.path,
            )
        return
    stored = stored_voters.load_voters(disk, replica_directory)
    if stored is None and disk.is_directory(replica_directory):
        # Kafka remembers them in its quorum-state, without the ids of directories.
        quorum = load_quorum_state(disk, replica_directory)
        stored = dict.fromkeys(quorum.voters) if quorum is not None and quorum.voters else None
    if stored is not None and config.role != BROKER and not config.voters:
        raise StartError(
            f"{config.path}: controller.quorum.voters is missing, but this controller belongs to a quorum "
            "with static voters (kraft.version 0): name every controller there again"
        )
    if stored is None or not _is_among(config.voters, config):
        return
    change = stored_voters.change_of_voters(stored, config.voters)
    if change is not None:
        raise StartError(change)


def _warn_of_unpinned(config: NodeConfig) -> None:
    unpinned = [str(voter.node_id) for voter in config.voters if voter.directory_id is None]
    if unpinned:
        _log.warning(
            "controller.quorum.voters has no directory id for node %s: after losing its disk it would "
            "still vote, and committed records could be lost; write id@host:port:directory-id "
            "(metaquorum storage info shows the id)",
            ", ".join(unpinned),
        )


def _verify(disk: Disk, replica_directory: str, from_offset: int) -> list[VoterChange]:
    """Checks every checksum and record type in the log to be replayed, before this node contacts its peers:
    an error found later would stop it too, but with an election in between. Returns the voter changes in
    it. Raises CorruptLogError, or StartError for a record that this release does not know."""
    if not disk.is_directory(replica_directory):
        return []
    if not any(name.endswith(".log") for name in disk.list_directory(replica_directory)):
        return []
    changes: list[VoterChange] = []
    reader = LogReader(disk, replica_directory, start_offset=from_offset)
    try:
        for batch in reader.batches():
            if batch.header.is_control:
                changes += _voter_changes(batch)
            else:
                _check_known(batch)
    finally:
        reader.close()
    return changes


def _voter_changes(batch: RecordBatch) -> list[VoterChange]:
    """The voter changes in a batch. Raises StartError for a voters record, or a kraft.version, that this
    release does not know."""
    try:
        return list(changes_of(batch))
    except BatchError as error:
        raise StartError(f"{batch.file}: {error}; no byte was changed") from error


def _check_known(batch: RecordBatch) -> None:
    """Raises StartError for a record of a type or version that this release does not know. Checks long
    batches as columns, to avoid decoding their records twice."""
    frames = read_frames(batch.data, batch.header) if batch.header.records_count >= MANY_RECORDS else None
    try:
        if frames is None:
            for decoded in decode_batch(batch):
                if isinstance(decoded.record, FeatureLevelRecord) and decoded.record.name == METADATA_VERSION:
                    _check_level(batch.file, decoded.record.feature_level)
            return
        for kind in np.unique(frames.keys.astype(np.int64) << 8 | frames.versions).tolist():
            schema = SCHEMA_BY_API_KEY.get(kind >> 8)
            if schema is None or kind & 0xFF not in schema.versions:
                decode_batch(batch)
    except RecordDecodeError as error:
        raise StartError(f"{batch.file}: {error}; no byte was changed") from error


def _check_level(file: str, level: int | None) -> None:
    """Raises StartError for a metadata.version whose records this release cannot write."""
    if level is not None and level > MAX_METADATA_VERSION:
        raise StartError(
            f"{file}: the cluster's metadata.version is {metadata_version_name(level)}, and this release "
            f"knows those up to {metadata_version_name(MAX_METADATA_VERSION)}: use a newer release; no byte "
            "was changed"
        )


def read_bootstrap(disk: Disk, directory: str) -> tuple[Record, ...]:
    """The records that `storage format` wrote for the first active controller; none if there is no such
    file."""
    path = join(directory, BOOTSTRAP_FILE)
    try:
        content = read_file(disk, path)
    except FileMissingError:
        return ()
    records: list[Record] = []
    try:
        for batch in iter_batches(content, file=path):
            if not batch.header.is_control:
                records += [decoded.record for decoded in decode_batch(batch)]  # type: ignore[misc]
    except (StorageError, RecordDecodeError) as error:
        raise StartError(f"{path} cannot be read: {error}; reformat the directory") from error
    return tuple(records)

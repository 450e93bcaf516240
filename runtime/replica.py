"""Opening a node's metadata directory when its process starts: whose it is, what it holds, its image.

Owns the checks that come before anything is changed, each with one line that says what to do.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from metaquorum.metadata.columnar.frames import read_frames
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.control import KRaftVersionRecord, VotersRecord
from metaquorum.metadata.records.schema import SCHEMA_BY_API_KEY
from metaquorum.metadata.records.types import Record
from metaquorum.metadata.snapshot import load_snapshot, snapshot_batches
from metaquorum.raft.config import Identity
from metaquorum.raft.store import voter_memory
from metaquorum.raft.store.store import ReplicaStore
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.errors import StartError
from metaquorum.storage.batches.batch import RecordBatch, iter_batches
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import FileMissingError, StorageError
from metaquorum.storage.files.meta_properties import MetaProperties, load_meta_properties
from metaquorum.storage.files.quorum_state import FILE_NAME as QUORUM_STATE_FILE
from metaquorum.storage.files.quorum_state import load_quorum_state
from metaquorum.storage.files.snapshots import BOOTSTRAP_FILE, latest_snapshot, snapshot_path
from metaquorum.storage.log.log import METADATA_DIRECTORY
from metaquorum.storage.log.reader import LogReader
from metaquorum.storage.types import LogPosition

MANY_RECORDS = 16
"""From so many records on a batch is looked at as columns."""

DYNAMIC_VOTERS = (
    "belongs to a quorum with dynamic voters (kraft.version 1), which this release can read with "
    "`metaquorum log` but cannot run: start it with the software that wrote it; no byte was changed"
)

_log = logging.getLogger(__name__)


class SnapshotFiles:
    """Images to snapshot files and back, for the driver's worker."""

    def encode(self, image: MetadataImage, position: LogPosition, timestamp_ms: int) -> Iterable[bytes]:
        return snapshot_batches(image, position=position, timestamp_ms=timestamp_ms)

    def load(self, path: Path, position: LogPosition) -> MetadataImage:
        content = read_file(PosixDisk(), str(path))
        batches = list(iter_batches(content, file=str(path)))
        for batch in batches:
            if batch.header.is_control:
                _check_no_voters(batch)
        return load_snapshot(batches, position=position)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReplica:
    """Everything that a node starts from. `directories`: the ids of all log directories, in order."""

    store: ReplicaStore
    identity: Identity
    image: MetadataImage
    bootstrap: tuple[Record, ...]
    directories: tuple[bytes, ...]


def check_metadata_directory(config: NodeConfig) -> MetaProperties:
    """The identity of the directory without which a node cannot start; reads only. Raises StartError."""
    own, _ = check_directories(replace(config, log_dirs=(config.metadata_log_dir,)))
    return own


def check_directories(config: NodeConfig) -> tuple[MetaProperties, tuple[bytes, ...]]:
    """The identity of the metadata directory and the ids of `log.dirs`; reads only. Raises StartError."""
    disk = PosixDisk()
    found: dict[Path, MetaProperties] = {}
    for path in dict.fromkeys((config.metadata_log_dir, *config.log_dirs)):
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise StartError(f"{path} {what}: format it with metaquorum storage format, or correct log.dirs")
        found[path] = load_meta_properties(disk, str(path))
    own = found[config.metadata_log_dir]
    for path, identity in found.items():
        check_identity(config, own, str(path), identity)
    ids = [found[path].directory_id or b"" for path in config.log_dirs]
    if len(set(ids)) != len(ids):
        raise StartError("two directories of log.dirs have the same directory.id: one is a copy; reformat it")
    return own, tuple(ids)


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


def open_replica(config: NodeConfig, own: MetaProperties, directories: tuple[bytes, ...]) -> OpenReplica:
    """Locks the metadata directory, recovers its log and loads its newest snapshot. Raises StorageError."""
    disk = PosixDisk()
    started = time.monotonic()
    # All that is only read comes first: damage that is found here leaves the directory as it was.
    bootstrap = read_bootstrap(disk, str(config.metadata_log_dir))
    replica_directory = join(str(config.metadata_log_dir), METADATA_DIRECTORY)
    _check_voters(disk, replica_directory, config)
    _check_static_voters(disk, replica_directory)
    image = _newest_image(disk, replica_directory)
    _verify(disk, replica_directory, image.provenance.offset)
    store = ReplicaStore.open(
        disk,
        str(config.metadata_log_dir),
        config.log,
        _log.warning,
        voter_ids=tuple(voter.node_id for voter in config.voters),
        retention_bytes=config.retention.max_bytes,
        retention_ms=config.retention.max_ms,
    )
    if _is_voter(config):
        voter_memory.remember(disk, replica_directory, config.voters)
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
            cluster_id=own.cluster_id or "", node_id=config.node_id, directory_id=own.directory_id or b""
        ),
        image=image,
        bootstrap=bootstrap,
        directories=directories,
    )


def _is_voter(config: NodeConfig) -> bool:
    return any(voter.node_id == config.node_id for voter in config.voters)


def _check_voters(disk: PosixDisk, replica_directory: str, config: NodeConfig) -> None:
    """A voter starts with the voters that it started with before. Raises StartError or CorruptFileError."""
    if not _is_voter(config):
        return
    known = voter_memory.load_voters(disk, replica_directory)
    change = None if known is None else voter_memory.change_of_voters(known, config.voters)
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


def _check_static_voters(disk: PosixDisk, replica_directory: str) -> None:
    """A quorum with dynamic voters (kraft.version 1, KIP-853) keeps them in its log, which this release only
    reads with its tools: a node that went by its configuration would lose them. Raises StartError."""
    path = join(replica_directory, QUORUM_STATE_FILE)
    if not disk.exists(path):
        return
    load_quorum_state(disk, replica_directory)  # damage has its own words
    if json.loads(read_file(disk, path))["data_version"] >= 1:
        raise StartError(f"{path} {DYNAMIC_VOTERS}")


def _check_no_voters(batch: RecordBatch) -> None:
    """Raises StartError for a control record that makes the voters dynamic."""
    for decoded in decode_batch(batch, tolerant=True):
        record = decoded.record
        if isinstance(record, VotersRecord) or (
            isinstance(record, KRaftVersionRecord) and record.kraft_version >= 1
        ):
            raise StartError(f"{batch.file} {DYNAMIC_VOTERS}")


def _newest_image(disk: PosixDisk, replica_directory: str) -> MetadataImage:
    """The image in the newest snapshot, or an empty one. Raises CorruptLogError or ReplayError."""
    if not disk.is_directory(replica_directory):
        return MetadataImage()
    newest = latest_snapshot(disk, replica_directory)
    if newest is None:
        return MetadataImage()
    return SnapshotFiles().load(Path(snapshot_path(replica_directory, newest)), newest)


def _verify(disk: PosixDisk, replica_directory: str, from_offset: int) -> None:
    """Every checksum and every record's type of what is going to be replayed, before this node says a word
    to its peers. What shows after it joined would stop it just the same, with an election in between. Raises
    CorruptLogError, or StartError for a record from the future."""
    if not disk.is_directory(replica_directory):
        return
    if not any(name.endswith(".log") for name in disk.list_directory(replica_directory)):
        return
    reader = LogReader(disk, replica_directory, start_offset=from_offset)
    try:
        for batch in reader.batches():
            if batch.header.is_control:
                _check_no_voters(batch)
            else:
                _check_known(batch)
    finally:
        reader.close()


def _check_known(batch: RecordBatch) -> None:
    """Raises StartError for a record of a type or version that this release does not know. Long batches are
    looked at in numpy: their records are not decoded twice."""
    frames = read_frames(batch.data, batch.header) if batch.header.records_count >= MANY_RECORDS else None
    try:
        if frames is None:
            decode_batch(batch)
            return
        for kind in np.unique(frames.keys.astype(np.int64) << 8 | frames.versions).tolist():
            schema = SCHEMA_BY_API_KEY.get(kind >> 8)
            if schema is None or kind & 0xFF not in schema.versions:
                decode_batch(batch)
    except RecordDecodeError as error:
        raise StartError(f"{batch.file}: {error}; no byte was changed") from error


def read_bootstrap(disk: PosixDisk, directory: str) -> tuple[Record, ...]:
    """What `storage format` left for the first active controller; nothing if there is no such file."""
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

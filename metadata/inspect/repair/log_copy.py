"""Writes a new node directory beside the original: segments, snapshots, identity.

The layout of the new directory and the order in which it becomes durable: the identity (`meta.properties`) is
written last, so that a node cannot start from an incomplete directory. The source is only read. No
`recovery-point` is written: the first start verifies the whole log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from metaquorum.metadata.errors import InspectError, RecordDecodeError, ReplayError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.log import MetadataLog, damage_line
from metaquorum.metadata.snapshot import load_snapshot
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import Disk, DiskFile, join, parent_of, read_file, write_atomically
from metaquorum.storage.errors import BatchError, FileMissingError, StorageError
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.meta_properties import MetaProperties, readable_meta_properties
from metaquorum.storage.files.quorum_state import QuorumState, load_quorum_state
from metaquorum.storage.files.snapshots import BOOTSTRAP_FILE, snapshot_name
from metaquorum.storage.log.config import METADATA_DIRECTORY, PARTITION_METADATA_FILE
from metaquorum.storage.log.epochs import FILE_NAME as EPOCHS_FILE
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import METADATA_TOPIC_ID

COPY_BYTES = 1 << 20


class NodeFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A node's directory as found: its log, and the files beside it (None: absent).

    `home` is the directory with the identity; for a bare log directory it is the log's own. If the identity
    is damaged, `identity` has what can be read and `identity_problem` says what is wrong.
    """

    home: str
    log: MetadataLog
    identity: MetaProperties | None
    quorum: QuorumState | None
    identity_problem: str | None = None


def node_files(log: MetadataLog) -> NodeFiles:
    """The files that belong to a log. Raises InspectError for a single file, CorruptFileError
    for its quorum-state."""
    if not log.is_directory:
        raise InspectError(
            f"{log.path} is a single file; give the node's directory, or its {METADATA_DIRECTORY}"
        )
    disk, directory = log.disk, log.directory
    home = next(
        (one for one in (parent_of(directory), directory) if disk.exists(join(one, META_PROPERTIES))),
        directory,
    )
    identity, problem = None, None
    if disk.exists(join(home, META_PROPERTIES)):
        identity, problem = readable_meta_properties(disk, home)
    return NodeFiles(
        home=home,
        log=log,
        identity=identity,
        quorum=load_quorum_state(disk, directory),
        identity_problem=problem,
    )


def stored_epochs(log: MetadataLog) -> EpochTable:
    """The leader epochs in a directory's table; empty if it is absent or cannot be read."""
    path = join(log.directory, EPOCHS_FILE)
    try:
        return EpochTable.decode(read_file(log.disk, path), path)
    except StorageError:
        return EpochTable()


class NodeWriter:
    """One new node directory. Segments are written in order; `finish` makes everything durable."""

    def __init__(self, disk: Disk, home: str, epochs: EpochTable) -> None:
        """Makes the directories. Raises InspectError if `home` exists and is not empty,
        DiskError if the disk fails."""
        if disk.exists(home) and (not disk.is_directory(home) or disk.list_directory(home)):
            raise InspectError(f"{home} exists and is not empty; give a directory that does not exist yet")
        self.home = home
        self.directory = join(home, METADATA_DIRECTORY)
        self._disk = disk
        self._epochs = epochs
        self._file: DiskFile | None = None
        disk.make_directory(self.directory)

    def begin_segment(self, base_offset: int) -> None:
        """Makes the previous segment durable and begins the next one."""
        self._end_segment()
        self._file = self._disk.open_append(join(self.directory, segment_name(base_offset)))

    def append(self, batch: RecordBatch) -> None:
        """Appends a batch to the current segment. Raises StorageError if its epoch decreases."""
        if self._file is None:
            raise RuntimeError("a batch came before the first segment")
        self._epochs = self._epochs.append(batch.header.leader_epoch, batch.header.base_offset)
        self._file.append(batch.data)

    def copy_snapshot(self, source: MetadataLog, position: LogPosition) -> None:
        """Copies a snapshot of `source`, byte for byte."""
        self.copy_file(source.snapshot(position).path, join(self.directory, snapshot_name(position)))

    def copy_file(self, source: str, target: str) -> bool:
        """Copies a file, byte for byte and durably. Returns False if it does not exist."""
        try:
            file = self._disk.open_read(source)
        except FileMissingError:
            return False
        copy = self._disk.open_append(target)
        try:
            for position in range(0, file.size(), COPY_BYTES):
                copy.append(file.read_at(position, COPY_BYTES))
            copy.sync()
        finally:
            copy.close()
            file.close()
        return True

    def write_file(self, path: str, content: bytes) -> None:
        """Writes a small file below the new directory, durably."""
        write_atomically(self._disk, path, content)

    def copy_beside(self, source: NodeFiles, names: tuple[str, ...]) -> None:
        """Copies the named small files of the log's directory, if present, and the bootstrap records."""
        for name in names:
            self.copy_file(join(source.log.directory, name), join(self.directory, name))
        self.copy_file(join(source.home, BOOTSTRAP_FILE), join(self.home, BOOTSTRAP_FILE))

    def finish(self, identity: bytes | None) -> None:
        """Writes the epoch table, partition.metadata and, last, the identity (meta.properties)."""
        self._end_segment()
        write_atomically(self._disk, join(self.directory, EPOCHS_FILE), self._epochs.encode())
        described = join(self.directory, PARTITION_METADATA_FILE)
        if not self._disk.exists(described):
            write_atomically(self._disk, described, f"version: 0\ntopic_id: {METADATA_TOPIC_ID}".encode())
        self._disk.sync_directory(self.directory)
        if identity is not None:
            write_atomically(self._disk, join(self.home, META_PROPERTIES), identity)
        self._disk.sync_directory(self.home)
        self._disk.sync_directory(parent_of(self.home))

    def close(self) -> None:
        """Closes the open file without making it durable, after a failure."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _end_segment(self) -> None:
        if self._file is not None:
            self._file.sync()
            self.close()


# Whether a snapshot is usable, by its file alone: not whether it continues the log beside it.


def whole_snapshot(log: MetadataLog, position: LogPosition) -> MetadataImage | None:
    """The image in a snapshot; None if it is damaged or incomplete."""
    reader = log.snapshot(position).reader()
    try:
        return load_snapshot(_whole(reader), position=position, on_error=_ignore)
    except (StorageError, ReplayError, RecordDecodeError):
        return None
    finally:
        reader.close()


def _whole(items: Iterable[RecordBatch | Damage]) -> Iterator[RecordBatch]:
    for item in items:
        if isinstance(item, Damage):
            raise BatchError(damage_line(item))
        yield item


def _ignore(error: ReplayError) -> None:
    """An unknown record, or one that was already poison, is not damage to the file."""

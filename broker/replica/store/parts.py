"""The parts of a directory's store: its options, its replicas, and the other side's view of settings and
logs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from metaquorum.broker.replica.disk_work import LogSettings, ReplicaLog
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.disk.file_pool import FilePool, OpenFiles
from metaquorum.storage.disk.interface import Disk, FileSystem, Lock
from metaquorum.storage.errors import DiskError, FileMissingError, LogFailedError
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.log import SyncTicket
from metaquorum.storage.log.timed_segment import TimedSegment
from metaquorum.storage.partition.partition_log import INDEX_INTERVAL_BYTES, Checkpoint, PartitionLog
from metaquorum.storage.partition.replica_directory import load_log_starts, store_log_starts

# Where the logs of one directory start for their readers, if that is not at the base of a segment.
# `log-start-offset-checkpoint`: read when a directory is opened, and durable before a new start is
# reported, so deleted records never come back, neither here nor in Kafka. An entry of a log that now
# starts at a segment is too low and does no harm, as in Kafka. An entry that is too high would hide later
# records, so it is removed before there can be any.

Name = tuple[str, int]
"""Topic and partition."""


class LogStarts:
    """The entries of one directory's file, in their state on the disk."""

    def __init__(self) -> None:
        self._entries: dict[Name, int] = {}

    def load(self, disk: Disk, directory: str) -> None:
        """Raises CorruptFileError, DiskError."""
        self._entries = load_log_starts(disk, directory)

    def apply(self, name: Name, log: PartitionLog) -> None:
        """Applies the entry to a log that was just opened."""
        log.start_at(self._entries.get(name, 0))

    def settle(self, disk: Disk, directory: str, logs: Iterable[tuple[Name, PartitionLog]]) -> None:
        """Lowers the entries above the ends of these logs: what is appended to them now was not deleted.
        Durable on return; raises DiskError."""
        too_high = [each for each in logs if self._entries.get(each[0], 0) > each[1].log_start_offset]
        self.change(disk, directory, [(name, log, log.log_start_offset) for name, log in too_high])

    def change(self, disk: Disk, directory: str, logs: Iterable[tuple[Name, PartitionLog, int]]) -> None:
        """Each log is about to start at the given offset. Durable on return; raises DiskError."""
        entries = dict(self._entries)
        for name, log, start in logs:
            if log.begins_at(start):
                entries.pop(name, None)
            else:
                entries[name] = start
        self._store(disk, directory, entries)

    def forget(self, disk: Disk, directory: str, names: Iterable[Name]) -> None:
        """These names no longer belong to the same logs. Durable on return; raises DiskError."""
        gone = set(names)
        self._store(disk, directory, {name: at for name, at in self._entries.items() if name not in gone})

    def _store(self, disk: Disk, directory: str, entries: dict[Name, int]) -> None:
        if entries != self._entries:
            store_log_starts(disk, directory, entries)
            self._entries = entries


# Partitions' recovery points are written by checkpoints, never by a sync that an append waits for.
_NEVER_BYTES = 1 << 62


class ExpectedIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose directory it must be. `directory_id` None: any."""

    cluster_id: str
    node_id: int
    directory_id: bytes | None = None


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`max_open_files`: how many segment files may be open at once, a bound that only running reads can
    exceed; `open_files`: the bound of all directories of the process. `checkpoint_bytes`: appended since the
    last checkpoint, from which on one is due.
    `index_bytes_at_stop`: how much a clean shutdown reads at most to build missing index files of segments.
    `cleaner_key_bytes`: memory for the keys of one pass of the cleaner."""

    max_open_files: int = 512
    open_files: OpenFiles | None = None
    checkpoint_bytes: int = 256 * 1024 * 1024
    producer_id_expiration_ms: int = 86_400_000
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    index_bytes_at_stop: int = 1024 * 1024 * 1024
    cleaner_key_bytes: int = 115 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class StoredReplica:
    """A replica whose log is open. `size_bytes` of all its segments. `future`: it is being copied here."""

    key: PartitionKey
    topic: str
    incarnation: int
    log: PartitionLog
    settings: LogSettings
    size_bytes: int
    future: bool = False


@dataclass(slots=True, kw_only=True)
class RemovedReplica:
    """A directory whose files will be deleted. `due_ms` None: the delay begins at the next tick."""

    name: str
    delay_ms: int
    due_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class Opened:
    """The result of opening a directory, from which the store is made. `unpointed`: replicas whose recovery
    point is below their end. `damaged`: the names of directories whose replicas are not open. `log_starts`:
    the contents of `log-start-offset-checkpoint`."""

    disk: Disk
    path: str
    directory_id: bytes
    lock: Lock | None
    file_system: FileSystem
    pool: FilePool
    options: StoreOptions
    settings: LogSettings
    rng: random.Random
    on_warning: Callable[[str], None]
    replicas: dict[PartitionKey, StoredReplica] = field(default_factory=dict)
    removed: list[RemovedReplica] = field(default_factory=list)
    unpointed: dict[PartitionKey, StoredReplica] = field(default_factory=dict)
    damaged: dict[PartitionKey, str] = field(default_factory=dict)
    log_starts: LogStarts = field(default_factory=LogStarts)

    def replica(self, key: PartitionKey, incarnation: int) -> StoredReplica | None:
        """The replica, if it exists under this incarnation."""
        found = self.replicas.get(key)
        return found if found is not None and found.incarnation == incarnation else None


def log_config(settings: LogSettings, options: StoreOptions) -> LogConfig:
    """The configuration of a partition's log, by its topic's settings."""
    return LogConfig(
        segment_bytes=settings.segment_bytes,
        segment_ms=settings.segment_ms,
        recovery_point_interval_bytes=_NEVER_BYTES,
        index_interval_bytes=options.index_interval_bytes,
    )


def as_found(log: PartitionLog, high_watermark: int = -1) -> ReplicaLog:
    """The log as the manager starts from it; the high watermark is brought within the log."""
    epochs = log.epochs
    start = log.log_start_offset
    if start > log.start_offset:
        epochs = epochs.truncate_start(start)
    if log.start_epoch < 0 and log.start_offset == log.end_offset:
        epochs = EpochTable()  # it was emptied to start elsewhere: nothing is known of what came before
    return ReplicaLog(
        start_offset=start,
        end_offset=log.end_offset,
        high_watermark=min(max(high_watermark, start), log.end_offset),
        size_bytes=log.size_bytes,
        epochs=epochs,
        producers=log.producers.copy(),
    )


def to_be_indexed(
    replicas: dict[PartitionKey, StoredReplica], bytes_at_most: int
) -> dict[PartitionKey, StoredReplica]:
    """Replicas that lack index files, and can get them without reading for too long."""
    unindexed: dict[PartitionKey, StoredReplica] = {}
    for key, replica in replicas.items():
        needed = replica.log.unindexed_bytes
        if needed is not None and needed <= bytes_at_most:
            bytes_at_most -= needed
            unindexed[key] = replica
    return unindexed


# One sync of a log directory: all logs that were appended to since the last one, made durable together.
#
# Prepared and noted by the thread that owns the directory's store, run by another.

CHECKPOINTS_AT_ONCE = 1_000
"""How many logs' small files are written before they are synced: more would only need more memory."""


class MissingIsBad:
    """A missing file that was there before makes the directory as bad as one that cannot be read. A context;
    one serves all work of a directory."""

    __slots__ = ("_directory",)

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileMissingError):
            text = f"{error.path} has disappeared; restore the disk"
            raise DiskError(self._directory, "use of its files", text) from error
        if isinstance(error, LogFailedError):
            raise DiskError(self._directory, "use of a log", str(error)) from error


class DirectorySync:
    """What one sync makes durable."""

    def __init__(
        self,
        path: str,
        file_system: FileSystem,
        *,
        tickets: list[tuple[PartitionKey, int, SyncTicket]],
        checkpoints: Sequence[Checkpoint | None],
    ) -> None:
        self.tickets = tickets
        self.checkpoints = [checkpoint for checkpoint in checkpoints if checkpoint is not None]
        self._path = path
        self._file_system = file_system

    def run(self) -> None:
        """Makes it durable: one sync per file, or, from eight files on, one of the whole file system if the
        kernel offers that. Raises DiskError: the directory is bad."""
        with MissingIsBad(self._path):
            self._sync_segments()
            for start in range(0, len(self.checkpoints), CHECKPOINTS_AT_ONCE):
                self._write_checkpoints(self.checkpoints[start : start + CHECKPOINTS_AT_ONCE])

    @property
    def is_checkpoint(self) -> bool:
        """Whether no log waits for it."""
        return not self.tickets

    def split(self) -> tuple[DirectorySync, DirectorySync]:
        """The sync of the logs, and the checkpoint after it: later syncs may run beside the checkpoint."""
        logs = DirectorySync(self._path, self._file_system, tickets=self.tickets, checkpoints=[])
        files = DirectorySync(self._path, self._file_system, tickets=[], checkpoints=self.checkpoints)
        return logs, files

    def _sync_segments(self) -> None:
        files = []
        for _, _, ticket in self.tickets:
            if isinstance(ticket.segment, TimedSegment) and not ticket.segment.pooled.closed:
                ticket.segment.pooled.begin_sync()
                files.append(ticket.segment.pooled)
        try:
            self._file_system.sync(files, ())
        except BaseException:
            for file in files:
                file.failed_sync()
            raise

    def _write_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        staged = [file for checkpoint in checkpoints for file in checkpoint.stage()]
        self._file_system.sync(staged, ())
        for file in staged:
            file.close()
        for step in Checkpoint.STEPS:
            placed = [one.log.directory for one in checkpoints if one.place(step)]
            if placed:
                self._file_system.sync((), placed)

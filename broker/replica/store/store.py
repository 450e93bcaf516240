"""One log directory of a broker: carries out the replica manager's work, over a `Disk`.

Threads: one thread (`io`) calls everything; `DirectorySync.run` may be called by another (`sync`), one at a
time, and beside it by a third for a checkpoint that was split from its sync; `execute` of a `ReadPartition`
or `FindOffset` may be called by any other at any time. Every DiskError means that the directory is bad: the
caller reports `DirectoryFailed` and calls `abandon`. Any other StorageError, unless it is answered, is a bug
of the caller that gave the work.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import assert_never

from msgspec.structs import replace

from metaquorum.broker.replica.disk_work import (
    AbandonDirectory,
    AppendPartition,
    ChangeLogSettings,
    CheckpointHighWatermarks,
    CompactPartition,
    CreateReplica,
    CutPartition,
    DirectoryMeasured,
    DiskWork,
    EnforceRetention,
    FindOffset,
    FoundDirectory,
    LogAppended,
    LogCut,
    LogSettings,
    LogsSynced,
    OffsetFound,
    PartitionRead,
    PromoteReplica,
    ReadPartition,
    RemoveReplica,
    ReplicaCreated,
    ReplicaLogTrimmed,
    ReplicaPromoted,
    ReplicaRemoved,
    TrimTo,
)
from metaquorum.broker.replica.events import DataEvent
from metaquorum.broker.replica.store.cleaner import DirectoryCleaner
from metaquorum.broker.replica.store.open import open_directory
from metaquorum.broker.replica.store.parts import (
    DirectorySync,
    ExpectedIdentity,
    MissingIsBad,
    Opened,
    RemovedReplica,
    StoredReplica,
    StoreOptions,
    as_found,
    log_config,
    to_be_indexed,
)
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.disk.interface import Disk, join, name_of
from metaquorum.storage.errors import (
    CorruptLogError,
    DiskError,
    FileMissingError,
    OffsetOutOfRange,
    StorageError,
)
from metaquorum.storage.log.config import PARTITION_METADATA_FILE
from metaquorum.storage.log.segment import segment_bases
from metaquorum.storage.log.timed_segment import INDEX_SUFFIX, index_name
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.partition.pooled_log import FoundRecord
from metaquorum.storage.partition.replica_directory import (
    STRAY_SUFFIX,
    encode_partition_metadata,
    future_name,
    removed_name,
    replica_name,
    store_high_watermarks,
)

__all__ = ["DirectoryStore", "DirectorySync", "ExpectedIdentity", "StoreOptions"]


class DirectoryStore:
    """An open log directory. Make one with `open`."""

    def __init__(self, opened: Opened) -> None:
        self.directory_id = opened.directory_id
        self.path = opened.path
        self._missing_is_bad = MissingIsBad(opened.path)
        self._opened = opened
        self._disk = opened.disk
        self._options = opened.options
        self._replicas = opened.replicas
        # Appended to since the last sync was prepared, and changed since the last checkpoint was.
        self._dirty: dict[PartitionKey, StoredReplica] = {}
        self._changed: dict[PartitionKey, StoredReplica] = opened.unpointed
        self._appended_bytes, self._abandoned = 0, False
        self.cleaner = DirectoryCleaner(opened, self._trimmed)

    @staticmethod
    def open(  # noqa: PLR0913
        disk: Disk,
        path: str,
        expected: ExpectedIdentity,
        on_warning: Callable[[str], None] = lambda text: None,
        *,
        rng: random.Random,
        settings: LogSettings | None = None,
        options: StoreOptions | None = None,
        locked: bool = False,
        first_incarnation: int = 1,
        progress: Callable[[int, int], None] = lambda done, of: None,
    ) -> tuple[DirectoryStore | None, FoundDirectory]:
        """Locks the directory, checks whose it is and opens every replica in it.

        Returns None and a `FoundDirectory` with its `problem` if the directory cannot be used (an I/O error,
        an unreadable meta.properties). Replicas whose logs are damaged are reported and not opened. Raises
        LogDirectoryLockedError if another process has the directory, and CorruptFileError if it belongs to
        another broker or another cluster: the broker must not start.
        `settings` apply until ChangeLogSettings brings a topic's own. `locked`: the caller holds the lock of
        this directory (the metadata log is in it). Replicas get incarnations from `first_incarnation` on.
        `progress(done, of)` is called after every replica. `rng` names removed directories.
        """
        opened, replicas = open_directory(
            disk,
            path,
            expected,
            on_warning,
            rng=rng,
            settings=settings or LogSettings(),
            options=options or StoreOptions(),
            locked=locked,
            first_incarnation=first_incarnation,
            progress=progress,
        )
        return (None if opened is None else DirectoryStore(opened)), replicas

    # --- work

    def execute(self, work: DiskWork) -> list[DataEvent]:
        """Carries out one work item and returns its reports. Raises DiskError. Work on a replica or an
        incarnation that this store does not have, or no longer, reports nothing; a read reports that nothing
        is there."""
        with self._missing_is_bad:
            return self._execute(work)

    def _execute(self, work: DiskWork) -> list[DataEvent]:  # noqa: C901, PLR0911
        match work:
            case AppendPartition():
                return self._append(work)
            case ReadPartition():
                return [read_partition(self._opened, work)]
            case FindOffset():
                return [find_offset(self._opened, work)]
            case CreateReplica() | RemoveReplica() | TrimTo():
                return self._together([work])
            case PromoteReplica():
                return self._promote(work)
            case CutPartition():
                return self._cut(work)
            case ChangeLogSettings():
                replica = self._replica(work)
                if replica is not None:
                    replica.settings = work.settings
                    replica.log.configure(log_config(work.settings, self._options))
                return []
            case EnforceRetention():
                return self._enforce_retention(work)
            case CompactPartition():
                self.cleaner.ask(work)
                return []
            case CheckpointHighWatermarks():
                store_high_watermarks(self._disk, self.path, work.high_watermarks)
                return []
            case AbandonDirectory():
                self.abandon()
                return []
            case _:
                assert_never(work)

    def execute_all(self, works: Sequence[DiskWork]) -> list[DataEvent]:
        """The same in order, but consecutive creations, removals and trims share their syncs, and consecutive
        appends their writes."""
        events: list[DataEvent] = []
        with self._missing_is_bad:
            for kind, group in groupby(works, key=type):
                if kind in (CreateReplica, RemoveReplica, TrimTo):
                    events += self._together(list(group))
                    continue
                for work in joined(group) if kind is AppendPartition else group:  # type: ignore[arg-type]
                    events += self._execute(work)
        return events

    def _together(self, works: Sequence[DiskWork]) -> list[DataEvent]:
        """Work of one kind, which shares its syncs."""
        created = [work for work in works if isinstance(work, CreateReplica)]
        removed = [work for work in works if isinstance(work, RemoveReplica)]
        if created:
            return self._create(created)
        return self._remove(removed) if removed else self._trim([w for w in works if isinstance(w, TrimTo)])

    def _replica(
        self, work: AppendPartition | ChangeLogSettings | EnforceRetention | PromoteReplica
    ) -> StoredReplica | None:
        return self._opened.replica(work.key, work.incarnation)

    def _append(self, work: AppendPartition) -> list[DataEvent]:
        replica = self._replica(work)
        if replica is None:
            return []
        log, headers = replica.log, work.batches.headers
        if headers and headers[0].base_offset < log.start_offset == log.end_offset:
            # The leader's log starts within this batch.
            self.cleaner.lower(replica, headers[0].base_offset)
            log.start_over(headers[0].base_offset)
        end = log.append(work.batches)
        replica.size_bytes += len(work.batches.data)
        self._appended_bytes += len(work.batches.data)
        self._changed[work.key] = replica
        if work.sync:
            self._dirty[work.key] = replica
        return [
            LogAppended(
                directory_id=self.directory_id,
                key=work.key,
                incarnation=work.incarnation,
                end_offset=end,
                size_bytes=replica.size_bytes,
            )
        ]

    def _cut(self, work: CutPartition) -> list[DataEvent]:
        replica = self._replicas.get(work.key)
        if replica is None or work.incarnation < replica.incarnation:
            return []
        replica.incarnation = work.incarnation
        self._dirty.pop(work.key, None)
        self._changed[work.key] = replica
        log = replica.log
        self.cleaner.lower(replica, work.end_offset)
        if work.start_over:
            log.start_over(work.end_offset)
        else:
            log.truncate_to(work.end_offset)
            log.sync()
        self._opened.log_starts.settle(self._disk, self.path, [((replica.topic, work.key[1]), log)])
        replica.size_bytes = log.size_bytes
        return [
            LogCut(
                directory_id=self.directory_id,
                key=work.key,
                incarnation=work.incarnation,
                log=as_found(log),
            )
        ]

    def _enforce_retention(self, work: EnforceRetention) -> list[DataEvent]:
        replica = self._replica(work)
        went = replica is not None and enforce_retention(self._opened, replica, work)
        return [self._trimmed(replica)] if replica is not None and went else []

    def _trim(self, works: list[TrimTo]) -> list[DataEvent]:
        return [self._trimmed(replica) for replica in trim_replicas(self._opened, works)]

    def _trimmed(self, replica: StoredReplica) -> ReplicaLogTrimmed:
        replica.size_bytes = replica.log.size_bytes
        self._changed[replica.key] = replica
        return ReplicaLogTrimmed(
            directory_id=self.directory_id,
            key=replica.key,
            incarnation=replica.incarnation,
            start_offset=replica.log.log_start_offset,
            size_bytes=replica.size_bytes,
        )

    def _create(self, works: list[CreateReplica]) -> list[DataEvent]:
        self.cleaner.forget((work.topic, work.key[1]) for work in works)
        return [
            ReplicaCreated(directory_id=self.directory_id, key=one.key, incarnation=one.incarnation)
            for one in create_replicas(self._opened, works)
        ]

    def _promote(self, work: PromoteReplica) -> list[DataEvent]:
        replica = self._replica(work)
        if replica is None:
            return []
        self._dirty.pop(work.key, None)
        promote_replica(self._opened, replica)
        self._changed[work.key] = replica
        return [
            ReplicaPromoted(
                directory_id=self.directory_id,
                key=work.key,
                incarnation=work.incarnation,
                log=as_found(replica.log),
            )
        ]

    def _remove(self, works: list[RemoveReplica]) -> list[DataEvent]:
        events: list[DataEvent] = []
        renamed: list[tuple[str, int]] = []
        for work in works:
            replica = self._replicas.get(work.key)
            if replica is not None and work.incarnation < replica.incarnation:
                continue
            if replica is not None:
                self._dirty.pop(work.key, None)
                self._changed.pop(work.key, None)
                rename_away(self._opened, replica)
                renamed.append((replica.topic, work.key[1]))
            elif rename_damaged_away(self._opened, work.key):
                self._disk.sync_directory(self.path)
            events.append(
                ReplicaRemoved(directory_id=self.directory_id, key=work.key, incarnation=work.incarnation)
            )
        if renamed:
            self._disk.sync_directory(self.path)
            self._opened.log_starts.forget(self._disk, self.path, renamed)
        return events

    def tick(self, now_ms: int) -> bool:
        """Deletes the files of one removed replica whose delay is over (monotonic clock). Returns True if
        more are due. Call about once per second. Raises DiskError."""
        with self._missing_is_bad:
            return delete_one(self._opened, now_ms)

    # --- durability

    @property
    def checkpoint_due(self) -> bool:
        """Much was appended since the last one (a crash has it verified), or the cleaner waits for one."""
        return self._appended_bytes >= self._options.checkpoint_bytes or self.cleaner.wants_checkpoint

    def prepare_sync(self, *, checkpoint: bool = False, last: bool = False) -> DirectorySync | None:
        """A sync of everything appended with `sync` since the last one; None if nothing was. With
        `checkpoint` it covers everything that was appended, and also writes recovery points and producers'
        snapshots: when `checkpoint_due`, or every minute, never before an ack that a client waits for.
        `last`: the store is about to be closed, so segments without index files get them."""
        replicas = self._changed if checkpoint else self._dirty
        unindexed = to_be_indexed(self._replicas, self._options.index_bytes_at_stop) if last else {}
        if checkpoint:
            replicas = {**self._changed, **self._dirty, **unindexed}
            self._changed, self._appended_bytes = {}, 0
            self.cleaner.wants_checkpoint = False
        if not replicas:
            return None
        self._dirty = {}
        return DirectorySync(
            self.path,
            self._opened.file_system,
            tickets=[
                (replica.key, replica.incarnation, replica.log.prepare_sync())
                for replica in replicas.values()
            ],
            checkpoints=[one.log.checkpoint(indexes=key in unindexed) for key, one in replicas.items()]
            if checkpoint
            else [],
        )

    def sync_completed(self, sync: DirectorySync) -> LogsSynced:
        """Takes note that `sync.run()` returned."""
        ends = []
        for key, incarnation, ticket in sync.tickets:
            replica = self._replicas.get(key)
            if replica is not None and replica.incarnation == incarnation and replica.log is ticket.log:
                end = replica.log.sync_completed(ticket)
                ends.append((key, incarnation, end, replica.size_bytes))
        for checkpoint in sync.checkpoints:
            checkpoint.log.checkpointed(checkpoint)
        return LogsSynced(directory_id=self.directory_id, ends=tuple(ends))

    def measure(self) -> DirectoryMeasured:
        """Total and free bytes of the file system."""
        return DirectoryMeasured(
            directory_id=self.directory_id,
            total_bytes=self._disk.total_bytes(self.path),
            usable_bytes=self._disk.free_bytes(self.path),
        )

    def abandon(self) -> None:
        """Closes all files, ignoring errors of the disk; the lock is kept until `close`."""
        self._abandoned = True
        for replica in self._replicas.values():
            try:
                replica.log.close()
            except DiskError:
                continue  # it is bad: that is why it is abandoned
        self._replicas.clear()
        self._dirty, self._changed = {}, {}
        self._opened.removed.clear()

    def close(self, *, clean: bool) -> None:
        """Closes the directory and releases its lock. With `clean` everything is synced and checkpointed
        first, so that the next open has nothing to verify. Raises DiskError."""
        try:
            if clean and not self._abandoned:
                sync = self.prepare_sync(checkpoint=True, last=True)
                if sync is not None:
                    sync.run()
                    self.sync_completed(sync)
        finally:
            self.abandon()
            self._opened.file_system.close()
            if self._opened.lock is not None:
                self._opened.lock.release()
                self._opened.lock = None


# Appends that wait together for a log directory: consecutive ones to one replica become one write.

JOINED_MAX_BYTES = 64 * 1024
"""A larger write gains nothing, and segments end where they would without it."""


def joined(works: Iterable[AppendPartition]) -> list[AppendPartition]:
    """The same batches in fewer appends, in order per replica."""
    open_by_key: dict[PartitionKey, list[AppendPartition]] = {}
    sizes: dict[PartitionKey, int] = {}
    groups: list[list[AppendPartition]] = []
    for work in works:
        key, size = work.key, len(work.batches.data)
        group = open_by_key.get(key)
        if (
            group is None
            or sizes[key] + size > JOINED_MAX_BYTES
            or (group[-1].incarnation, group[-1].sync) != (work.incarnation, work.sync)
        ):
            group = open_by_key[key] = []
            groups.append(group)
            sizes[key] = 0
        group.append(work)
        sizes[key] += size
    return [each[0] if len(each) == 1 else _one(each) for each in groups]


def _one(works: list[AppendPartition]) -> AppendPartition:
    data = b"".join([work.batches.data for work in works])
    headers = tuple([header for work in works for header in work.batches.headers])
    return replace(works[0], batches=Batches(data, headers))


# Reads of a log directory's replicas.
# Must not change the store or its logs: any thread may call this at any time.
#
# A read that names a replica or an incarnation that is not there, or no longer, finds nothing.


def read_partition(opened: Opened, work: ReadPartition) -> PartitionRead:
    """Whole batches, or a report that the bytes there are damaged. Raises DiskError."""
    replica = opened.replica(work.key, work.incarnation)
    if replica is None:
        return PartitionRead(token=work.token, data=None)
    try:
        data = replica.log.read_range(work.from_offset, work.to_offset, work.max_bytes)
    except OffsetOutOfRange:
        return PartitionRead(token=work.token, data=None)
    except CorruptLogError as error:
        opened.on_warning(str(error))
        return PartitionRead(token=work.token, data=None, problem=str(error))
    return PartitionRead(token=work.token, data=data)


def find_offset(opened: Opened, work: FindOffset) -> OffsetFound:
    """The first record that is not older, or a report that the bytes there are damaged. Raises DiskError."""
    replica = opened.replica(work.key, work.incarnation)
    problem: str | None = None
    record: FoundRecord | None = None
    try:
        if replica is not None:
            record = replica.log.find_offset(work.timestamp_ms, work.below_offset)
    except CorruptLogError as error:
        opened.on_warning(str(error))
        problem = str(error)
    if record is None:
        return OffsetFound(token=work.token, offset=None, timestamp_ms=-1, leader_epoch=-1, problem=problem)
    return OffsetFound(
        token=work.token,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        leader_epoch=record.leader_epoch,
    )


# What is removed from the start of a log: old segments, and what is below a start that was requested.


def enforce_retention(opened: Opened, replica: StoredReplica, work: EnforceRetention) -> bool:
    """Returns whether segments were removed because they were too old or too many. Raises DiskError."""
    log, settings = replica.log, replica.settings
    log.producers.expire(work.wall_ms - opened.options.producer_id_expiration_ms)
    # A log keeps nothing below its start, whatever its policy.
    went = bool(log.delete_segments_before(log.log_start_offset))
    try:
        log.roll_if_due(work.wall_ms)
        if not settings.deletes:
            return went
        return went | log.enforce_retention(
            retention_bytes=settings.retention_bytes,
            retention_ms=settings.retention_ms,
            below_offset=work.below_offset,
            wall_ms=work.wall_ms,
            on_warning=opened.on_warning,
        )
    except CorruptLogError as error:
        opened.on_warning(f"{error}; the files of this replica are kept")
        return False


def trim_replicas(opened: Opened, works: Iterable[TrimTo]) -> list[StoredReplica]:
    """Returns those that now start later. If no segment begins at a new start, the directory's file names it
    before it is reported. Raises DiskError."""
    starts: dict[PartitionKey, tuple[StoredReplica, int]] = {}
    for work in works:
        replica = opened.replica(work.key, work.incarnation)
        if replica is not None:
            start = min(work.start_offset, replica.log.end_offset)
            if start > replica.log.log_start_offset:
                starts[work.key] = (replica, max(start, starts.get(work.key, (replica, 0))[1]))
    if not starts:
        return []
    changed = [((one.topic, one.key[1]), one.log, start) for one, start in starts.values()]
    opened.log_starts.change(opened.disk, opened.path, changed)
    for replica, start in starts.values():
        replica.log.delete_segments_before(start)
        replica.log.start_at(start)
    return [replica for replica, _ in starts.values()]


# Creation and removal of replicas in a log directory; a crash in between leaves nothing half done.
#
# A crash during a creation leaves a directory without a readable `partition.metadata` and without records,
# which opening removes, or a whole replica; during a removal it leaves the old name or the new one.


def create_replicas(opened: Opened, works: Sequence[CreateReplica]) -> list[StoredReplica]:
    """Makes all of them with one sync; durable on return. What is in the way is kept under another name.

    Raises StorageError for a replica that already exists, DiskError.
    """
    made, files = [], []
    opened.log_starts.forget(opened.disk, opened.path, [(work.topic, work.key[1]) for work in works])
    for work in works:
        name = replica_name(work.topic, work.key[1])
        if work.key in opened.replicas:
            raise StorageError(f"{opened.path} already holds a replica of {name}; remove it first")
        if work.future:
            name = future_name(work.topic, work.key[1], opened.rng)
        directory = join(opened.path, name)
        _make_way(opened, directory, work.key)
        opened.disk.make_directory(directory)
        file = opened.pool.file(join(directory, PARTITION_METADATA_FILE), size=0)
        file.append(encode_partition_metadata(work.key[0]))
        file.begin_sync()
        files.append(file)
        made.append(_open_new(opened, directory, work))
        opened.replicas[work.key] = made[-1]
    opened.file_system.sync(files, [*(one.log.directory for one in made), opened.path])
    for file in files:
        file.close()
    return made


def _open_new(opened: Opened, directory: str, work: CreateReplica) -> StoredReplica:
    log = PartitionLog.load(
        opened.disk,
        directory,
        log_config(work.settings, opened.options),
        opened.pool,
        opened.file_system,
        opened.on_warning,
        names=[],
    )
    return StoredReplica(
        key=work.key,
        topic=work.topic,
        incarnation=work.incarnation,
        log=log,
        settings=work.settings,
        size_bytes=0,
        future=work.future,
    )


def promote_replica(opened: Opened, replica: StoredReplica) -> None:
    """Gives a future replica the replica's name. Everything in it becomes durable first: a start relies on
    the name. Durable on return."""
    before, log = replica.log.directory, replica.log
    after = join(opened.path, replica_name(replica.topic, replica.key[1]))
    ticket = (replica.key, replica.incarnation, log.prepare_sync())
    DirectorySync(opened.path, opened.file_system, tickets=[ticket], checkpoints=[]).run()
    log.close()
    _make_way(opened, after, replica.key)
    opened.disk.rename(before, after)
    opened.disk.sync_directory(opened.path)
    config = log_config(replica.settings, opened.options)
    replica.log = log = PartitionLog.load(
        opened.disk, after, config, opened.pool, opened.file_system, opened.on_warning
    )
    opened.log_starts.apply((replica.topic, replica.key[1]), log)
    opened.file_system.sync([segment.pooled for segment in log.segment_files()], [log.directory])
    log.needs_sync = False
    replica.future = False
    replica.size_bytes = log.size_bytes


def _make_way(opened: Opened, directory: str, key: PartitionKey) -> None:
    if opened.disk.exists(directory):
        name = name_of(directory)
        damaged = opened.damaged.pop(key, None) == name
        _set_aside(opened, directory, name, "is damaged" if damaged else "is unknown")


def _set_aside(opened: Opened, directory: str, name: str, why: str) -> None:
    aside = removed_name(name, opened.rng, STRAY_SUFFIX)
    opened.disk.rename(directory, join(opened.path, aside))
    opened.disk.sync_directory(opened.path)
    opened.on_warning(f"{directory} {why} and occupied the place of a new replica: it is kept as {aside}")


def rename_away(opened: Opened, replica: StoredReplica) -> None:
    """Renames a replica to a name that no replica has; durable once the directory is synced."""
    del opened.replicas[replica.key]
    replica.log.close()
    _rename(opened, name_of(replica.log.directory), replica.settings.file_delete_delay_ms)


def rename_damaged_away(opened: Opened, key: PartitionKey) -> bool:
    """The same for a damaged one. Returns False if there is none."""
    name = opened.damaged.pop(key, None)
    if name is not None:
        _rename(opened, name, opened.settings.file_delete_delay_ms)
    return name is not None


def _rename(opened: Opened, before: str, delay_ms: int) -> None:
    name = removed_name(before, opened.rng)
    opened.disk.rename(join(opened.path, before), join(opened.path, name))
    _index_for_kafka(opened, join(opened.path, name))
    opened.removed.append(RemovedReplica(name=name, delay_ms=delay_ms))


def _index_for_kafka(opened: Opened, directory: str) -> None:
    """Gives each segment without one an empty index: Kafka opens removed replicas, too, and logs an ERROR for
    each segment without. It needs not survive a crash."""
    names = frozenset(opened.disk.list_directory(directory))
    for base in segment_bases(names):
        index = index_name(base, INDEX_SUFFIX)
        if index not in names:
            opened.disk.open_append(join(directory, index)).close()


def delete_one(opened: Opened, now_ms: int) -> bool:
    """Deletes the files of one removed replica whose delay is over. Returns True if more are due. Raises
    DiskError."""
    for removed in opened.removed:
        if removed.due_ms is None:
            removed.due_ms = now_ms + removed.delay_ms
    due = [removed for removed in opened.removed if (removed.due_ms or 0) <= now_ms]
    if not due:
        return False
    opened.removed.remove(due[0])
    directory = join(opened.path, due[0].name)
    try:
        for name in opened.disk.list_directory(directory):
            opened.disk.remove(join(directory, name))
        opened.disk.remove_directory(directory)
    except FileMissingError:
        return len(due) > 1  # another thread was faster
    return len(due) > 1

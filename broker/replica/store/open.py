"""Opens a log directory: whose it is, which replicas are in it, and what a crash left there.

What is recognised: replicas, directories that wait for deletion, half-created ones (removed), and strays
(reported, left alone).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from metaquorum.broker.replica.disk_work import DamagedReplica, FoundDirectory, FoundReplica, LogSettings
from metaquorum.broker.replica.store.parts import (
    ExpectedIdentity,
    Opened,
    RemovedReplica,
    StoredReplica,
    StoreOptions,
    as_found,
    log_config,
)
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import Disk, Lock, join
from metaquorum.storage.errors import (
    CorruptFileError,
    CorruptLogError,
    DiskError,
    FileMissingError,
    StorageError,
)
from metaquorum.storage.files.meta_properties import FILE_NAME as META_FILE
from metaquorum.storage.files.meta_properties import load_meta_properties
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.segment import segment_bases, segment_name
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.partition.replica_directory import (
    KAFKA_RECOVERY_POINT_FILE,
    STRAY_SUFFIX,
    is_removed_name,
    load_high_watermarks,
    load_partition_metadata,
    parse_future_name,
    parse_replica_name,
    removed_name,
)


def open_directory(  # noqa: PLR0913
    disk: Disk,
    path: str,
    expected: ExpectedIdentity,
    on_warning: Callable[[str], None],
    *,
    rng: random.Random,
    settings: LogSettings,
    options: StoreOptions,
    locked: bool,
    first_incarnation: int,
    progress: Callable[[int, int], None],
) -> tuple[Opened | None, FoundDirectory]:
    """See `DirectoryStore.open`; if no store results, everything that was opened is closed again."""
    directory_id: bytes | None = None
    lock: Lock | None = None
    opened: Opened | None = None
    try:
        try:
            lock = None if locked else disk.lock(path)
            directory_id = _identity(disk, path, expected)
            opened = Opened(
                disk=disk,
                path=path,
                directory_id=directory_id,
                lock=lock,
                file_system=disk.file_system(path),
                pool=FilePool(disk, options.max_open_files, options.open_files),
                options=options,
                settings=settings,
                rng=rng,
                on_warning=on_warning,
            )
            found = _Opening(opened, first_incarnation, progress).run()
            return opened, found
        except (DiskError, FileMissingError, _Unreadable) as error:
            _close(opened, lock)
            return None, FoundDirectory(path=path, directory_id=directory_id, problem=str(error))
    except BaseException:
        _close(opened, lock)
        raise


NOT_REPLICAS = frozenset({METADATA_DIRECTORY, "lost+found"})
"""What may be beside replicas: the metadata log, and what file systems put into a fresh mount."""


class _Unreadable(StorageError):
    """A file of the directory itself that cannot be parsed."""


def _close(opened: Opened | None, lock: Lock | None) -> None:
    if opened is not None:
        for replica in opened.replicas.values():
            replica.log.close()
        opened.file_system.close()
    if lock is not None:
        lock.release()


def _identity(disk: Disk, path: str, expected: ExpectedIdentity) -> bytes:
    """The directory's id. Raises CorruptFileError for the directory of another broker, _Unreadable,
    DiskError."""
    file = join(path, META_FILE)
    try:
        identity = load_meta_properties(disk, path)
    except CorruptFileError as error:
        raise _Unreadable(str(error)) from error
    advice = "correct log.dirs, or format this directory for this broker"
    if identity.node_id != expected.node_id or identity.cluster_id != expected.cluster_id:
        raise CorruptFileError(
            file,
            f"says that the directory belongs to broker {identity.node_id} of cluster {identity.cluster_id}, "
            f"but this is broker {expected.node_id} of cluster {expected.cluster_id}",
            advice,
        )
    if identity.directory_id is None:
        raise _Unreadable(f"{file} has no directory.id; {advice}")
    if expected.directory_id is not None and identity.directory_id != expected.directory_id:
        raise CorruptFileError(
            file, "has a different directory.id than when the broker first read it", advice
        )
    return identity.directory_id


class _Opening:
    """The replicas of one directory being opened."""

    def __init__(self, opened: Opened, incarnation: int, progress: Callable[[int, int], None]) -> None:
        self._opened = opened
        self._disk = opened.disk
        self._path = opened.path
        self._warn = opened.on_warning
        self._incarnation = incarnation
        self._progress = progress
        self._unsynced: list[PartitionLog] = []
        self._damaged: dict[PartitionKey, DamagedReplica] = {}
        self._removed = False
        self._config = log_config(opened.settings, opened.options)
        self._high_watermarks: dict[tuple[str, int], int] = {}
        self._kafka_was_here = False

    def run(self) -> FoundDirectory:
        """Raises DiskError, FileMissingError."""
        self._load_offsets()
        self._kafka_was_here = self._disk.exists(join(self._path, KAFKA_RECOVERY_POINT_FILE))
        names = []
        for name in self._disk.list_directory(self._path):
            if is_removed_name(name):
                delay_ms = self._opened.settings.file_delete_delay_ms
                self._opened.removed.append(RemovedReplica(name=name, delay_ms=delay_ms))
            elif name.endswith(STRAY_SUFFIX):
                self._warn(
                    f"{join(self._path, name)} was set aside earlier and is ignored; remove it by hand"
                )
            elif name not in NOT_REPLICAS:
                names.append(name)
        # A future replica counts only if there is no replica yet.
        names.sort(key=lambda each: parse_future_name(each) is not None)
        replicas = []
        for done, name in enumerate(names, 1):
            found = self._open_replica(name)
            if found is not None:
                replicas.append(found)
            self._progress(done, len(names))
        self._settle()
        return FoundDirectory(
            path=self._path,
            directory_id=self._opened.directory_id,
            replicas=tuple(replicas),
            damaged=tuple(self._damaged.values()),
            total_bytes=self._disk.total_bytes(self._path),
            usable_bytes=self._disk.free_bytes(self._path),
            # The probe needs no file of its own: `_identity` has just read this one.
            ignores_case=self._disk.exists(join(self._path, META_FILE.upper())),
        )

    def _load_offsets(self) -> None:
        try:
            self._high_watermarks = load_high_watermarks(self._disk, self._path)
        except CorruptFileError as error:
            self._warn(str(error))
        try:
            self._opened.log_starts.load(self._disk, self._path)
        except CorruptFileError as error:
            self._warn(str(error))

    def _open_replica(self, name: str) -> FoundReplica | None:
        path = join(self._path, name)
        future = parse_future_name(name)
        parsed = parse_replica_name(name) or future
        if parsed is None or not self._disk.is_directory(path):
            if parsed is None and self._disk.is_directory(path):
                self._warn(
                    f"{path} does not have the name of a replica directory and is ignored; move it away"
                )
            return None
        names = self._disk.list_directory(path)
        topic_id = self._topic_id(path, names)
        if topic_id is None:
            return None
        topic, partition = parsed
        key = (topic_id, partition)
        if key in self._opened.replicas:
            other = self._opened.replicas[key].log.directory
            self._warn(f"{path} holds the same replica as {other} and is ignored; move one of them away")
            return None
        try:
            log = PartitionLog.load(
                self._disk,
                path,
                self._config,
                self._opened.pool,
                self._opened.file_system,
                self._warn,
                names=names,
                verify=self._kafka_was_here,
            )
        except (CorruptFileError, CorruptLogError) as error:
            if future is None:
                self._note_damage(path, name, names, key, str(error))
            else:
                self._give_up(name, str(error))
            return None
        self._opened.log_starts.apply((topic, partition), log)
        stored = as_found(log, self._high_watermarks.get((topic, partition), -1))
        self._opened.replicas[key] = StoredReplica(
            key=key,
            topic=topic,
            incarnation=self._incarnation,
            log=log,
            settings=self._opened.settings,
            size_bytes=stored.size_bytes,
            future=future is not None,
        )
        if log.needs_sync:
            self._unsynced.append(log)
        if not log.is_pointed:
            self._opened.unpointed[key] = self._opened.replicas[key]
        self._incarnation += 1
        return FoundReplica(
            key=key, topic=topic, incarnation=self._incarnation - 1, log=stored, future=future is not None
        )

    def _give_up(self, name: str, problem: str) -> None:
        """A damaged copy of a replica that is in another directory is of no use."""
        removed = removed_name(name, self._opened.rng)
        self._disk.rename(join(self._path, name), join(self._path, removed))
        delay_ms = self._opened.settings.file_delete_delay_ms
        self._opened.removed.append(RemovedReplica(name=removed, delay_ms=delay_ms))
        self._removed = True
        self._warn(f"{problem}; this unfinished copy of a replica is removed")

    def _note_damage(self, path: str, name: str, names: list[str], key: PartitionKey, problem: str) -> None:
        """One damaged log of one replica stops no other: only a failing disk makes the directory bad."""
        size = sum(self._disk.file_size(join(path, each)) for each in names)
        topic, _ = parse_replica_name(name) or ("", 0)
        self._damaged[key] = DamagedReplica(key=key, topic=topic, problem=problem, size_bytes=size)
        self._opened.damaged[key] = name

    def _topic_id(self, path: str, names: list[str]) -> bytes | None:
        """The replica's topic; None if it is not a replica. Removes one that a crash left incomplete."""
        problem = "has no partition.metadata"
        try:
            topic_id = load_partition_metadata(self._disk, path)
            if topic_id is not None:
                return topic_id
        except CorruptFileError as error:
            problem = str(error)
        bases = segment_bases(names)
        if any(self._disk.file_size(join(path, segment_name(base))) for base in bases) or len(bases) > 1:
            self._warn(f"{path}: {problem}; the directory has records and is not removed")
            return None
        for name in names:
            self._disk.remove(join(path, name))
        self._disk.remove_directory(path)
        self._removed = True
        self._warn(f"{path} is an incomplete replica without records: it is removed")
        return None

    def _settle(self) -> None:
        """Everything that was found is durable from here on."""
        files = [segment.pooled for log in self._unsynced for segment in log.segment_files()]
        names = [log.directory for log in self._unsynced]
        if self._removed:
            names.append(self._path)
        if files or names:
            self._opened.file_system.sync(files, names)
        for log in self._unsynced:
            log.needs_sync = False
        logs = [((replica.topic, replica.key[1]), replica.log) for replica in self._opened.replicas.values()]
        self._opened.log_starts.settle(self._disk, self._path, logs)
        if self._kafka_was_here:
            # Last: the recovery points that it invalidates are certainly gone.
            self._disk.remove(join(self._path, KAFKA_RECOVERY_POINT_FILE))
            self._disk.sync_directory(self._path)

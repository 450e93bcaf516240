"""Creation and removal of replicas in a log directory; a crash in between leaves nothing half done.

A crash during a creation leaves a directory without a readable `partition.metadata` and without records,
which opening removes, or a whole replica; during a removal it leaves the old name or the new one.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.broker.replica.disk_work import CreateReplica
from metaquorum.broker.replica.store.parts import Opened, RemovedReplica, StoredReplica, log_config
from metaquorum.broker.replica.store.sync import DirectorySync
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.disk.interface import join, name_of
from metaquorum.storage.errors import FileMissingError, StorageError
from metaquorum.storage.log.config import PARTITION_METADATA_FILE
from metaquorum.storage.log.segment import segment_bases
from metaquorum.storage.log.segment_index import INDEX_SUFFIX, index_name
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.partition.replica_directory import (
    STRAY_SUFFIX,
    encode_partition_metadata,
    future_name,
    removed_name,
    replica_name,
)


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

"""One log directory of a broker: carries out the work that the replica manager asks for, over a `Disk`.

Owns the replicas' logs of one directory, which of them have unsynced bytes, and the files of the directory
itself. Decides nothing about leaders, offsets or retention times, draws no randomness and reads no clock.

Threads: one thread (`io`) calls everything; `DirectorySync.run` may be called by another (`sync`), one at a
time; `execute` of a `ReadPartition` or `FindOffset` may be called by any other at any moment.
Every DiskError means that the directory is bad: the caller reports `DirectoryFailed` and calls `abandon`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.replica.events import (
    DataEvent,
    DirectoryMeasured,
    DiskWork,
    FoundDirectory,
    LogSettings,
    LogsSynced,
)
from storage.disk import Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedIdentity:
    """Whose directory it must be. `directory_id` None: any."""

    cluster_id: str
    node_id: int
    directory_id: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """`max_open_files`: how many segment files may be open at once (a bound that only files with unsynced
    bytes and running reads can pass). `many_files`: from so many files on, a sync is one of the whole file
    system where the kernel offers it."""

    max_open_files: int = 512
    many_files: int = 8
    producer_id_expiration_ms: int = 86_400_000


class DirectorySync:
    """What one sync of a directory is to make durable: taken on `io`, run on `sync`, noted on `io`."""

    def run(self) -> None:
        """Makes it durable. Raises DiskError: the directory is bad."""
        raise NotImplementedError


class DirectoryStore:
    """An open log directory. Make one with `open`."""

    directory_id: bytes
    path: str

    @staticmethod
    def open(
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

        None and a `FoundDirectory` with its `problem` where the directory cannot be used (an I/O error, an
        unreadable meta.properties, damage in a log). Raises LogDirectoryLockedError when another process has
        it, and CorruptFileError when it is another broker's or another cluster's: the broker must not start.
        `settings` hold until ChangeLogSettings tells a topic's own. `locked`: the caller holds the lock of
        this directory (the metadata log lies in it). Replicas get incarnations from `first_incarnation` on.
        `progress(done, of)` is called after every replica. `rng` names removed directories.
        """
        raise NotImplementedError

    def execute(self, work: DiskWork) -> list[DataEvent]:
        """Carries out one work item; what it brought. Raises DiskError. Work on a replica or an incarnation
        that this store does not have (any more) brings nothing."""
        raise NotImplementedError

    def execute_all(self, works: Sequence[DiskWork]) -> list[DataEvent]:
        """The same in order, but many creations and removals in a row share their syncs."""
        raise NotImplementedError

    def prepare_sync(self, *, checkpoint: bool = False) -> DirectorySync | None:
        """Everything appended since the last one; None: nothing was. With `checkpoint` recovery points and
        producers' snapshots are written too, so that less has to be verified after a crash: every now and
        then, never before an ack that somebody waits for."""
        raise NotImplementedError

    def sync_completed(self, sync: DirectorySync) -> LogsSynced:
        """Takes note that `sync.run()` returned."""
        raise NotImplementedError

    def measure(self) -> DirectoryMeasured:
        """Total and free bytes of the file system."""
        raise NotImplementedError

    def tick(self, now_ms: int) -> bool:
        """Deletes the files of one removed replica whose delay is over (monotonic clock); True: more are
        due. Call about once a second."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Closes all files without touching the disk otherwise; the lock is kept until `close`."""
        raise NotImplementedError

    def close(self, *, clean: bool) -> None:
        """Gives the directory back; with `clean` everything is synced and checkpointed before."""
        raise NotImplementedError

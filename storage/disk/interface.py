"""The interface through which storage uses a disk, and the one atomic write built on it.

All calls block. Paths are strings with "/" between names. A call raises DiskError if the disk fails and
FileMissingError if a file is missing.

Both implementations promise this durability and no more: file contents are durable after `DiskFile.sync`,
names (created, renamed, removed) after `sync_directory` of the directory that holds them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import Protocol

from metaquorum.storage.errors import FileMissingError


class Lock(Protocol):
    """Held from `Disk.lock` until `release`."""

    def release(self) -> None:
        """Releases the directory for another writer; a second call does nothing."""


class DiskFile(Protocol):
    """One open file."""

    @property
    def path(self) -> str:
        """The path that it was opened with."""

    def size(self) -> int:
        """Current size in bytes."""

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file."""

    def append(self, data: bytes) -> None:
        """Writes all of `data` at the end (page cache; not durable before `sync`)."""

    def truncate(self, size: int) -> None:
        """Truncates the file to `size` bytes (not durable before `sync`)."""

    def sync(self) -> None:
        """Makes contents and size durable. After a failure every later call fails too: the kernel may have
        dropped the dirty pages, so a second sync that succeeds would prove nothing."""

    def close(self) -> None:
        """Closes the file without a sync; a second call does nothing."""


class BackgroundSync(Protocol):
    """One sync at a time, which the disk runs while its caller continues. For one thread."""

    def fileno(self) -> int:
        """Becomes readable when the sync has ended. Spurious wake-ups are possible."""

    def begin(self, file: DiskFile) -> bool:
        """Begins `file.sync()`. Returns False, without effect, if the disk cannot take it now. Raises
        DiskError if an earlier sync of the file failed. Call `wait` for the previous sync first."""

    def ended(self) -> bool:
        """Whether `wait` returns at once. Until this is called, the descriptor stays readable."""

    def wait(self) -> None:
        """Returns when no sync is in progress. Raises the DiskError of the last one, at every call until
        the next `begin`."""

    def close(self) -> None:
        """Closes it; a second call does nothing. Call `wait` first."""


class FileSystem(Protocol):
    """The file system under one directory, held open so that it reports its own write-back errors too."""

    def sync(self, files: Sequence[DiskFile], directories: Sequence[str]) -> None:
        """Makes the contents of these files and the names in these directories durable: with one call for
        the whole file system if there are many and the system supports it, otherwise one by one. Skips
        files that were closed meanwhile. After a failure every later call fails too."""

    def close(self) -> None:
        """Closes it; a second call does nothing."""


class Mutex(Protocol):
    """As threading.Lock has it."""

    def acquire(self, blocking: bool = True) -> bool: ...

    def release(self) -> None: ...

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Disk(Protocol):
    """Blocking operations on directories and files."""

    def open_read(self, path: str) -> DiskFile:
        """An existing file, read-only."""

    def open_append(self, path: str) -> DiskFile:
        """A file for reading and appending, created if it is absent."""

    def exists(self, path: str) -> bool:
        """True for a file or a directory."""

    def is_directory(self, path: str) -> bool:
        """True for a directory."""

    def file_size(self, path: str) -> int:
        """Size of a file in bytes; it need not be open."""

    def modified_ms(self, path: str) -> int:
        """When a file was last written, in ms since 1970 by the file system's clock."""

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Has a file count as last written then. Not durable before the file is synced."""

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def make_directory(self, path: str) -> None:
        """Creates a directory and its parents; does nothing if it exists. Not durable before
        `sync_directory` of its parent."""

    def rename(self, source: str, target: str) -> None:
        """Moves a file within one directory, atomically replacing the target; or moves a directory with
        its contents to an unused name. Durable after `sync_directory` of the directory that holds both."""

    def remove(self, path: str) -> None:
        """Removes a file."""

    def remove_directory(self, path: str) -> None:
        """Removes an empty directory."""

    def sync_directory(self, path: str) -> None:
        """Makes the names in a directory durable."""

    def file_system(self, directory: str) -> FileSystem:
        """The file system that holds an existing directory."""

    def background_sync(self, directory: str) -> BackgroundSync | None:
        """Syncs files below an existing directory without a waiting thread; None if this disk cannot."""

    def lock(self, directory: str) -> Lock:
        """Takes the writer's lock of a directory (the file `.lock` in it). Raises LogDirectoryLockedError
        if another writer holds it."""

    def directory_key(self, path: str) -> Hashable:
        """Equal for two paths of one existing directory, whatever links lead to it."""

    def free_bytes(self, path: str) -> int:
        """Bytes that can still be written below this directory."""

    def total_bytes(self, path: str) -> int:
        """Bytes of the file system that holds this directory."""

    def mutex(self) -> Mutex:
        """A new mutex for the threads that use this disk; `with` holds it. Not reentrant."""


def join(directory: str, name: str) -> str:
    """`directory/name`, with one slash between."""
    return f"{directory}{name}" if directory.endswith("/") else f"{directory}/{name}"


def parent_of(path: str) -> str:
    """The directory part of a path; "." for a bare name, "/" for a name in the root."""
    stripped = path.rstrip("/")
    head, slash, _ = stripped.rpartition("/")
    return head or (slash or ".")


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2]


def make_durable_directory(disk: Disk, path: str) -> None:
    """Creates a directory and its parents; all their names are durable on return. Raises DiskError."""
    made = [path]
    while not disk.exists(parent_of(made[-1])):
        made.append(parent_of(made[-1]))
    disk.make_directory(path)
    for each in reversed(made):
        disk.sync_directory(parent_of(each))


def read_file(disk: Disk, path: str) -> bytes:
    """The contents of a small file. Raises FileMissingError or DiskError."""
    file = disk.open_read(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def remove_if_present(disk: Disk, path: str) -> bool:
    """Removes a file; returns False if it did not exist. Durable after the directory is synced."""
    try:
        disk.remove(path)
    except FileMissingError:
        return False
    return True


def write_atomically(disk: Disk, path: str, data: bytes) -> None:
    """Replaces a small file so that a crash leaves the old or the new content; the new is durable on return.

    Temporary name, sync, rename, directory sync, like Kafka's `Utils.atomicMoveWithFallback` and
    `CheckpointFile`. Raises DiskError; the caller must not continue as if the write had not happened.
    """
    temporary = path + ".tmp"
    file = disk.open_append(temporary)
    try:
        if file.size():
            file.truncate(0)
        file.append(data)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(parent_of(path))


STAGED_SUFFIX = ".new"
"""Marks a file that is written but not in place yet; if found later, it is a leftover of a crash."""


def staged_path(path: str, who: str) -> str:
    """Where writer `who` stages a file for `path`; several may do so at the same time."""
    return f"{path}.{who}{STAGED_SUFFIX}"


def place_staged(disk: Disk, path: str, who: str) -> None:
    """Gives a staged file, which must be synced, its final name. Durable after the directory is synced."""
    disk.rename(staged_path(path, who), path)

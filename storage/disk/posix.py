"""The real disk: `Disk` over the system's calls. With `kernel_sync`, `private` and `descriptors`, the only
module of storage that imports os.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from metaquorum import platforms
from metaquorum.platforms import OPEN_APPEND
from metaquorum.storage.disk.descriptors import DESCRIPTORS
from metaquorum.storage.disk.interface import BackgroundSync, DiskFile, Mutex, join, parent_of
from metaquorum.storage.disk.kernel_sync import KernelSync
from metaquorum.storage.errors import DiskError, FileMissingError, LogDirectoryLockedError

_ADVICE = {
    errno.ENOSPC: "no space left on the device; free some or move the directory, then start again",
    errno.EDQUOT: "the disk quota is used up; raise it or free space, then start again",
    errno.EROFS: "the file system is read-only; remount it for writing, then start again",
    errno.EACCES: "permission denied; give this user the rights on the directory",
    errno.EPERM: "operation not permitted; give this user the rights on the directory",
    errno.EIO: "the device reports an I/O error; check or replace the disk before starting again",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
    errno.ENFILE: "the machine has too many open files; raise its limit (fs.file-max)",
    errno.ENOTDIR: "a part of the path is a file, not a directory; correct the configured directory",
    errno.ENOTEMPTY: "the directory still holds files; move them away",
    errno.EISDIR: "a directory is where a file must be; move it away",
}

_NO_LOCKS = (
    "the file system has no locks, as some network drives, so two processes could write here: use a local"
    " disk"
)


def _open(path: str, flags: int) -> int:
    """A descriptor, if need be one of the reserve."""
    return DESCRIPTORS.use(lambda: os.open(platforms.native_path(path), flags, PRIVATE_FILE))


@contextmanager
def _translated(directory: str, operation: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _disk_error(error, directory, operation, path) from error


def _disk_error(error: OSError, directory: str, operation: str, path: str) -> DiskError | FileMissingError:
    if isinstance(error, FileNotFoundError):
        return FileMissingError(path)
    code = error.errno or 0
    reason = _ADVICE.get(code) or f"{os.strerror(code) if code else error}; check the directory and the disk"
    return DiskError(directory, f"{operation} of {path}", reason)


class PosixFile:
    """One open descriptor. For one thread at a time, but `sync` may run concurrently with `append` and
    `read_at`."""

    def __init__(self, path: str, descriptor: int, *, writable: bool) -> None:
        self._path = path
        self._directory = parent_of(path)
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._poisoned = False
        self._writable = writable

    @property
    def path(self) -> str:
        """The path that it was opened with."""
        return self._path

    def size(self) -> int:
        """Size in bytes; read again for a read-only file, since another process may be appending to it."""
        if not self._writable:
            with _translated(self._directory, "stat", self._path):
                self._size = os.fstat(self._descriptor).st_size
        return self._size

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`."""
        with _translated(self._directory, "read", self._path):
            data = platforms.read_at(self._descriptor, length, position)
            if len(data) == length or not data:
                return data
            parts = [data]
            got = len(data)
            while got < length:
                data = platforms.read_at(self._descriptor, length - got, position + got)
                if not data:
                    break
                parts.append(data)
                got += len(data)
            return b"".join(parts)

    def append(self, data: bytes) -> None:
        """Writes all of `data` at the end. After a failure the file may end in part of it."""
        view = memoryview(data)
        try:
            while view:
                written = platforms.write_at(self._descriptor, view, self._size)
                self._size += written
                view = view[written:]
        except OSError as error:
            raise _disk_error(error, self._directory, "write", self._path) from error

    def truncate(self, size: int) -> None:
        """Truncates the file to `size` bytes."""
        with _translated(self._directory, "truncate", self._path):
            os.ftruncate(self._descriptor, size)
            self._size = size

    def sync(self) -> None:
        """`platforms.sync_file`; never retried after a failure."""
        descriptor = self.to_sync()
        try:
            platforms.sync_file(descriptor)
        except OSError as error:
            self._poisoned = True
            raise _disk_error(error, self._directory, "sync", self._path) from error

    def to_sync(self) -> int:
        """The descriptor to sync. Raises DiskError if an earlier sync failed."""
        if self._poisoned:
            raise DiskError(
                self._directory,
                f"sync of {self._path}",
                "an earlier sync failed; stop, check the disk, start again",
            )
        return self._descriptor

    def synced_elsewhere(self, code: int) -> None:
        """The kernel has ended a sync of the descriptor with this errno (0 for success). Raises DiskError."""
        if code:
            self._poisoned = True
            with _translated(self._directory, "sync", self._path):
                raise OSError(code, os.strerror(code))

    def close(self) -> None:
        """Closes the descriptor."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with _translated(self._directory, "close", self._path):
                os.close(descriptor)


MANY_FILES = 8
"""From this many files and directories on, one syncfs(2) is cheaper than a sync of each."""

_syncfs: Callable[[int], int] | None = platforms.syncfs()


class PosixFileSystem:
    """A descriptor of the directory: syncfs(2) on it reports every write-back error since it was opened."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        with _translated(directory, "open", directory):
            self._descriptor = DESCRIPTORS.use(lambda: platforms.open_directory(directory))
        self._poisoned = False

    def sync(self, files: Sequence[DiskFile], directories: Sequence[str]) -> None:
        """syncfs from `MANY_FILES` on, where it exists; otherwise a sync of each."""
        if self._poisoned:
            raise DiskError(
                self._directory,
                f"sync of the file system of {self._directory}",
                "an earlier sync failed; stop, check the disk, start again",
            )
        try:
            if _syncfs is not None and len(files) + len(directories) >= MANY_FILES:
                self._sync_all(_syncfs)
                return
            for file in files:
                file.sync()
            for directory in directories:
                PosixDisk().sync_directory(directory)
        except DiskError:
            self._poisoned = True
            raise

    def _sync_all(self, call: Callable[[int], int]) -> None:
        with _translated(self._directory, "sync", f"the file system of {self._directory}"):
            if call(self._descriptor) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))

    def close(self) -> None:
        """Closes the descriptor."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class PosixLock:
    """A lock on `.lock`; the kernel releases it when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Closes the descriptor, which releases the lock. The file stays, as Kafka's does."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class PosixDisk:
    """`Disk` on the local file system. Holds no state: one instance may serve every directory and thread."""

    def open_read(self, path: str) -> PosixFile:
        """Opens an existing file read-only."""
        with _translated(parent_of(path), "open", path):
            descriptor = _open(path, platforms.OPEN_READ | platforms.NO_WAIT)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise DiskError(parent_of(path), f"open of {path}", "it is not a regular file; leave it out")
            return self._wrap(path, descriptor, writable=False)

    def open_append(self, path: str) -> PosixFile:
        """Opens or creates a file for reading and appending."""
        with _translated(parent_of(path), "open", path):
            return self._wrap(path, _open(path, platforms.OPEN_APPEND), writable=True)

    def _wrap(self, path: str, descriptor: int, *, writable: bool) -> PosixFile:
        try:
            return PosixFile(path, descriptor, writable=writable)
        except OSError:
            os.close(descriptor)
            raise

    def exists(self, path: str) -> bool:
        """True for a file or directory that this user can see."""
        return os.path.exists(platforms.native_path(path))

    def is_directory(self, path: str) -> bool:
        """True for a directory."""
        return os.path.isdir(platforms.native_path(path))

    def file_size(self, path: str) -> int:
        """Bytes in a file."""
        with _translated(parent_of(path), "stat", path):
            return os.stat(platforms.native_path(path)).st_size

    def modified_ms(self, path: str) -> int:
        """The file's mtime."""
        with _translated(parent_of(path), "stat", path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Sets the file's mtime."""
        with _translated(parent_of(path), "utime", path):
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        with _translated(path, "list", path):
            return sorted(DESCRIPTORS.use(lambda: os.listdir(platforms.native_path(path))))

    def make_directory(self, path: str) -> None:
        """mkdir -p. The caller's sync makes each new directory durable in its parent."""
        with _translated(parent_of(path), "mkdir", path):
            make_private_directory(platforms.native_path(path))

    def rename(self, source: str, target: str) -> None:
        """rename(2)."""
        with _translated(parent_of(source), "rename", source):
            os.replace(platforms.native_path(source), platforms.native_path(target))

    def remove(self, path: str) -> None:
        """unlink(2)."""
        with _translated(parent_of(path), "remove", path):
            os.unlink(platforms.native_path(path))

    def remove_directory(self, path: str) -> None:
        """rmdir(2)."""
        with _translated(parent_of(path), "remove", path):
            os.rmdir(platforms.native_path(path))

    def file_system(self, directory: str) -> PosixFileSystem:
        """Opens the directory."""
        return PosixFileSystem(directory)

    def background_sync(self, directory: str) -> BackgroundSync | None:
        """Linux AIO, if the system and the file system of `directory` support it."""
        return KernelSync.open(directory)

    def sync_directory(self, path: str) -> None:
        """A sync of the directory itself."""
        with _translated(path, "sync", path):
            DESCRIPTORS.use(lambda: platforms.sync_directory(path))

    def lock(self, directory: str) -> PosixLock:
        """A lock on `.lock` without waiting."""
        path = join(directory, ".lock")
        with _translated(directory, "lock", path):
            descriptor = _open(path, platforms.OPEN_APPEND)
            try:
                locked = platforms.lock_file(descriptor)
            except OSError as error:
                os.close(descriptor)
                if platforms.lacks_locks(error):
                    raise DiskError(directory, f"lock of {path}", _NO_LOCKS) from error
                raise
            if not locked:
                os.close(descriptor)
                raise LogDirectoryLockedError(directory)
            return PosixLock(descriptor)

    def directory_key(self, path: str) -> tuple[int, int]:
        """Device and inode."""
        with _translated(path, "stat", path):
            status = os.stat(platforms.native_path(path))
        return status.st_dev, status.st_ino

    def free_bytes(self, path: str) -> int:
        """Bytes free for this user."""
        with _translated(path, "statvfs", path):
            return platforms.space_of(path)[0]

    def total_bytes(self, path: str) -> int:
        """Bytes of the file system."""
        with _translated(path, "statvfs", path):
            return platforms.space_of(path)[1]

    def mutex(self) -> Mutex:
        """A threading.Lock."""
        return threading.Lock()


# Files and directories that only their user can read: logs hold credentials, and so do their copies.
# Existing files and directories keep theirs: an operator may have chosen them.

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700


def make_private_directory(path: str | Path) -> None:
    """mkdir -p; only the user can access each new directory (`os.makedirs` sets its mode on the last one
    only). Raises OSError."""
    missing = []
    at = os.path.abspath(path)
    while not os.path.lexists(at):
        missing.append(at)
        at = os.path.dirname(at)
    for one in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(one, PRIVATE_DIRECTORY)
    if not os.path.isdir(path):
        raise NotADirectoryError(20, os.strerror(20), str(path))


def private_file(path: str | Path) -> Path:
    """Returns the path of a file, which is created if absent; only the user can access a new one. Raises
    OSError."""
    os.close(os.open(path, OPEN_APPEND, PRIVATE_FILE))
    return Path(path)

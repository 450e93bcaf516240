"""The real disk: `Disk` over POSIX calls. With `kernel_sync` and `private`, the only module of storage that
imports os, and the only one that imports threading.

Owns the translation of errno into DiskError texts, and the flock. Does not know file formats.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from metaquorum.storage.disk.interface import BackgroundSync, DiskFile, join, parent_of
from metaquorum.storage.disk.kernel_sync import KernelSync
from metaquorum.storage.disk.private import PRIVATE_FILE, make_private_directory
from metaquorum.storage.errors import DiskError, FileMissingError, LogDirectoryLockedError

_ADVICE = {
    errno.ENOSPC: "no space left on the device; free some or move the directory, then start again",
    errno.EDQUOT: "the disk quota is used up; raise it or free space, then start again",
    errno.EROFS: "the file system is read-only; remount it for writing, then start again",
    errno.EACCES: "permission denied; give this user the rights on the directory",
    errno.EPERM: "operation not permitted; give this user the rights on the directory",
    errno.EIO: "the device reports an I/O error; check or replace the disk before starting again",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
    errno.ENOTDIR: "a part of the path is a file, not a directory; correct the configured directory",
    errno.ENOTEMPTY: "the directory still holds files; move them away",
    errno.EISDIR: "a directory is where a file must be; move it away",
}


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

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._directory = parent_of(path)
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._poisoned = False
        self._writable = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_RDWR)

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
            data = os.pread(self._descriptor, length, position)
            if len(data) == length or not data:
                return data
            parts = [data]
            got = len(data)
            while got < length:
                data = os.pread(self._descriptor, length - got, position + got)
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
                written = os.pwrite(self._descriptor, view, self._size)
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
        """fdatasync; never retried after a failure."""
        descriptor = self.to_sync()
        try:
            os.fdatasync(descriptor)
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

# Older kernels do not report write-back errors through syncfs(2).
_SYNCFS_REPORTS_ERRORS_FROM = (5, 8)


def _find_syncfs() -> Callable[[int], int] | None:
    """syncfs(2) of the C library; None if it is missing or cannot be trusted."""
    try:
        release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (ValueError, OSError, AttributeError):
        return None
    call.argtypes, call.restype = [ctypes.c_int], ctypes.c_int
    return call if os.uname().sysname == "Linux" and release >= _SYNCFS_REPORTS_ERRORS_FROM else None


_syncfs = _find_syncfs()


class PosixFileSystem:
    """A descriptor of the directory: syncfs(2) on it reports every write-back error since it was opened."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        with _translated(directory, "open", directory):
            self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._poisoned = False

    def sync(self, files: Sequence[DiskFile], directories: Sequence[str]) -> None:
        """syncfs from `MANY_FILES` on; otherwise fdatasync and fsync of each."""
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
    """A flock on `.lock`; the kernel releases it when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Closes the descriptor, which releases the flock. The file stays, as Kafka's does."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class PosixDisk:
    """`Disk` on the local file system. Holds no state: one instance may serve every directory and thread."""

    def open_read(self, path: str) -> PosixFile:
        """Opens an existing file read-only."""
        with _translated(parent_of(path), "open", path):
            return self._wrap(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def open_append(self, path: str) -> PosixFile:
        """Opens or creates a file for reading and appending."""
        with _translated(parent_of(path), "open", path):
            return self._wrap(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))

    @staticmethod
    def _wrap(path: str, descriptor: int) -> PosixFile:
        try:
            return PosixFile(path, descriptor)
        except OSError:
            os.close(descriptor)
            raise

    def exists(self, path: str) -> bool:
        """True for a file or directory that this user can see."""
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        """True for a directory."""
        return os.path.isdir(path)

    def file_size(self, path: str) -> int:
        """Bytes in a file."""
        with _translated(parent_of(path), "stat", path):
            return os.stat(path).st_size

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        with _translated(path, "list", path):
            return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        """mkdir -p. The caller's sync makes each new directory durable in its parent."""
        with _translated(parent_of(path), "mkdir", path):
            make_private_directory(path)

    def rename(self, source: str, target: str) -> None:
        """rename(2)."""
        with _translated(parent_of(source), "rename", source):
            os.replace(source, target)

    def remove(self, path: str) -> None:
        """unlink(2)."""
        with _translated(parent_of(path), "remove", path):
            os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """rmdir(2)."""
        with _translated(parent_of(path), "remove", path):
            os.rmdir(path)

    def file_system(self, directory: str) -> PosixFileSystem:
        """Opens the directory."""
        return PosixFileSystem(directory)

    def background_sync(self, directory: str) -> BackgroundSync | None:
        """Linux AIO, if the system and the file system of `directory` support it."""
        return KernelSync.open(directory)

    def sync_directory(self, path: str) -> None:
        """fsync of the directory itself."""
        with _translated(path, "sync", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def lock(self, directory: str) -> PosixLock:
        """flock on `.lock` without waiting."""
        path = join(directory, ".lock")
        with _translated(directory, "lock", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise LogDirectoryLockedError(directory) from None
                raise
            return PosixLock(descriptor)

    def free_bytes(self, path: str) -> int:
        """Bytes free for this user."""
        with _translated(path, "statvfs", path):
            status = os.statvfs(path)
            return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        """Bytes of the file system."""
        with _translated(path, "statvfs", path):
            status = os.statvfs(path)
            return status.f_blocks * status.f_frsize

    def mutex(self) -> AbstractContextManager[object]:
        """A threading.Lock."""
        return threading.Lock()

"""What a faulty disk returns: an open file, a file system to sync, a background sync, and a lock."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from metaquorum.storage.disk.interface import DiskFile, parent_of
from metaquorum.storage.errors import DiskError
from metaquorum.testing.faults import PowerLossError
from metaquorum.testing.inode import Inode


class DiskOfFiles(Protocol):
    """What they ask of the disk that returned them: chance, faults, room, and what one file cannot do."""

    rng: random.Random
    wall_ms: Callable[[], int]

    def begin(self, operation: str, directory: str, path: str) -> None: ...
    def room_bytes(self) -> int | None: ...
    def sync_paths(self, directory: str, files: Sequence[str], directories: Sequence[str]) -> None: ...
    def unlock(self, directory: str) -> None: ...


class FaultyFile:
    """An open file of a FaultyDisk."""

    def __init__(self, disk: DiskOfFiles, path: str, inode: Inode, *, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._writable = writable
        self._open = True

    @property
    def path(self) -> str:
        """The path it was opened with."""
        return self._path

    def size(self) -> int:
        """Current size in bytes, synced or not."""
        return len(self._inode.data)

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`."""
        self._begin("read")
        return bytes(memoryview(self._inode.data)[position : position + length])

    def append(self, data: bytes) -> None:
        """Appends; a full disk, an error or a power loss may leave only the first part. Raises DiskError."""
        self._writes("write")
        content = bytes(data)
        try:
            self._begin("write")
        except (PowerLossError, DiskError):
            kept = self._disk.rng.randrange(len(content) + 1)
            self._write(content[:kept])
            raise
        room = self._disk.room_bytes()
        self._write(content if room is None else content[:room])
        if room is not None and room < len(content):
            raise DiskError(
                parent_of(self._path), f"write of {self._path}", "no space left on the device; free some"
            )

    def _write(self, content: bytes) -> None:
        self._inode.data += content
        self._inode.dirty = True
        self._inode.modified_ms = self._disk.wall_ms()

    def truncate(self, size: int) -> None:
        """Cuts the file to `size` bytes, or extends it with zeros."""
        self._writes("truncate")
        self._begin("truncate")
        self._inode.truncate(size)
        self._inode.modified_ms = self._disk.wall_ms()

    def sync(self) -> None:
        """Makes the contents durable. If it fails, this and every later sync of the file raises DiskError."""
        self.refuse_after_failure()
        try:
            self._begin("sync")
        except DiskError:
            self._inode.poisoned = True
            raise
        self._inode.settle()

    def refuse_after_failure(self) -> None:
        """Raises DiskError if an earlier sync of the file failed, or if it is closed."""
        self._check_open()
        if self._inode.poisoned:
            raise DiskError(
                parent_of(self._path),
                f"sync of {self._path}",
                "an earlier sync failed; stop and check the disk",
            )

    def close(self) -> None:
        """Closes without a sync."""
        self._open = False

    def _writes(self, operation: str) -> None:
        self._check_open()
        if not self._writable:
            raise DiskError(
                parent_of(self._path), f"{operation} of {self._path}", "the file was opened for reading"
            )

    def _begin(self, operation: str) -> None:
        self._check_open()
        self._disk.begin(operation, parent_of(self._path), self._path)

    def _check_open(self) -> None:
        if not self._open:
            raise DiskError(parent_of(self._path), f"use of {self._path}", "the file is closed")


class FaultyBackgroundSync:
    """A sync that completes when waited for; a power loss before that finds nothing synced."""

    def __init__(self) -> None:
        self._file: FaultyFile | None = None
        self._failure: DiskError | None = None
        self._pipe = -1

    def fileno(self) -> int:
        """A descriptor that is always readable, since a wait never blocks."""
        if self._pipe < 0:
            self._pipe, writing = os.pipe()
            os.close(writing)  # a pipe at its end
        return self._pipe

    def begin(self, file: DiskFile) -> bool:
        """Remembers the file for `wait`. Raises DiskError if an earlier sync of it failed."""
        assert isinstance(file, FaultyFile) and self._file is None
        file.refuse_after_failure()
        self._file, self._failure = file, None
        return True

    def ended(self) -> bool:
        """Always True: a wait takes no time."""
        return True

    def wait(self) -> None:
        """Syncs the file, if there is one. Raises its DiskError, and again at every call until the next
        `begin`."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.sync()
            except DiskError as error:
                self._failure = error
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Closes the descriptor."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


class FaultyFileSystem:
    """The file system below one directory. A sync is one operation: a power loss during it has the effect of
    one before it."""

    def __init__(self, disk: DiskOfFiles, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._open = True
        self._poisoned = False

    def sync(self, files: Sequence[DiskFile], directories: Sequence[str]) -> None:
        """Makes exactly these files and directories durable. Once it failed, every later call raises
        DiskError."""
        if not self._open or self._poisoned:
            reason = "an earlier sync failed; stop and check the disk" if self._poisoned else "it was closed"
            raise DiskError(self._directory, f"sync of the file system of {self._directory}", reason)
        try:
            self._disk.sync_paths(self._directory, [file.path for file in files], directories)
        except DiskError:
            self._poisoned = True
            raise

    def close(self) -> None:
        """Closes it; every later sync raises DiskError."""
        self._open = False


class FaultyLock:
    """The lock of one directory."""

    def __init__(self, disk: DiskOfFiles, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._held = True

    def release(self) -> None:
        """Releases the lock; a repeated call does nothing."""
        if self._held:
            self._held = False
            self._disk.unlock(self._directory)

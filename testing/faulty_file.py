"""Files and names on a faulty disk: what is there now, what a power loss leaves, and what can go wrong."""

from __future__ import annotations

import os
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from metaquorum.storage.disk.interface import DiskFile, parent_of
from metaquorum.storage.errors import DiskError

# What can go wrong on a faulty disk: chances, injected errors, and the power loss.


class PowerLossError(Exception):
    """The power failed during this operation (see `FaultyDisk.crash_after`). `FaultyDisk.crash` returns what
    is left.

    Deliberately not a StorageError: code that handles disk errors must not handle this.
    """


class FaultProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The probability of each fault, from 0.0 to 1.0, and the cost of operations in milliseconds.

    At a power loss, `keep_name` is the probability that an unsynced create, rename or remove survives.
    Unsynced contents survive entirely with probability `keep_contents`, otherwise up to a random byte. After
    that byte, the file is filled with zeros (probability `zero_tail`) or random bytes (`garbage_tail`), both
    of random length up to the size it had, or ends there.

    `slow` adds `slow_ms` to an operation; a sync costs `sync_ms`. `capacity_bytes` None: the disk never fills
    up.
    """

    keep_name: float = 0.5
    keep_contents: float = 0.2
    zero_tail: float = 0.25
    garbage_tail: float = 0.25
    slow: float = 0.0
    slow_ms: int = 500
    sync_ms: int = 1
    capacity_bytes: int | None = None


@dataclass(slots=True)
class Injection:
    """An error for the operations below `directory`: after `after` of them have succeeded, `count` fail.

    `operation` None matches every operation, `count` None never ends. `reason` is that of the DiskError.
    """

    directory: str
    operation: str | None
    after: int
    count: int | None
    reason: str


# A file's contents and names on a faulty disk: what is there now, and what a power loss leaves.

NO_CLOCK_MS = 2**62
"""When files of a disk without a clock were written: none of them ever gets old."""


@dataclass(slots=True)
class Inode:
    """A file's contents.

    `data` is the current content; a sync copies nothing. `dirty`: changed since the last sync. `poisoned`: a
    sync failed, so later ones are refused. `modified_ms`: when it was last written.
    """

    data: bytearray = field(default_factory=bytearray)
    intact: int = 0
    """How many of the synced bytes no truncation has touched since."""
    cut: bytes = b""
    """The synced bytes behind those, which truncations have removed from `data`."""
    dirty: bool = False
    poisoned: bool = False
    modified_ms: int = NO_CLOCK_MS

    @classmethod
    def synced(cls, data: bytes, modified_ms: int) -> Inode:
        """A file that is durable as it is."""
        return cls(bytearray(data), len(data), modified_ms=modified_ms)

    @property
    def durable(self) -> bytes:
        """The content of the last sync."""
        return bytes(memoryview(self.data)[: self.intact]) + self.cut

    def settle(self) -> None:
        """Records a successful sync: the current content is durable."""
        self.intact, self.cut = len(self.data), b""
        self.dirty = False

    def truncate(self, size: int) -> None:
        """Cuts the content to `size` bytes, or extends it with zeros."""
        if size < self.intact:
            self.cut = bytes(memoryview(self.data)[size : self.intact]) + self.cut
            self.intact = size
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.dirty = True

    def flip(self, position: int, bit: int) -> None:
        """Flips a bit of the current and the durable content."""
        self.data[position] ^= 1 << bit
        behind = position - self.intact
        if 0 <= behind < len(self.cut):
            damaged = bytearray(self.cut)
            damaged[behind] ^= 1 << bit
            self.cut = bytes(damaged)


# (name removed or None, name set or None, inode): a rename is one step with both.
NameStep = tuple[str | None, str | None, "Inode | None"]


def normal_path(path: str) -> str:
    return path.rstrip("/") or "/"


def is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory if directory == "/" else directory + "/")


def _depth_first(path: str) -> tuple[int, str]:
    return len(path), path


def moved_path(path: str | None, source: str, target: str) -> str:
    """The path with its leading `source` replaced by `target`; unchanged if it is not below `source`. None
    becomes ""."""
    if path is None or not is_below(path, source):
        return path or ""
    return target + path[len(source) :]


# The names on a disk in memory: files and directories by path, and moves that are not durable yet.
#
# What is in a directory, and below it, is found without a look at the rest of the disk.

_ROOTS = ("/", ".")

Move = tuple[str, str | None]
"""A directory, and where it went; None: it was removed."""


class Names:
    """Files and directories. A path may be here without the directories above it, which are durable later."""

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.directories: set[str] = set(_ROOTS)
        self._inside: dict[str, dict[str, None]] = {}
        """By directory, whether it is here or not, each path in it that is here or has something below it."""

    def copy(self) -> Names:
        """The same names of the same files."""
        other = Names()
        other.files, other.directories = dict(self.files), set(self.directories)
        other._inside = {directory: dict(paths) for directory, paths in self._inside.items()}
        return other

    def put_file(self, path: str, inode: Inode) -> None:
        """Replaces a file of this name."""
        self.files[path] = inode
        self._link(path)

    def take_file(self, path: str) -> Inode | None:
        """Removes a name; returns the file that had it, or None."""
        inode = self.files.pop(path, None)
        self._unlink(path)
        return inode

    def put_directory(self, path: str) -> None:
        """Adds a directory, unless it is here."""
        if path not in self.directories:
            self.directories.add(path)
            self._link(path)

    def take_directory(self, path: str) -> None:
        """Removes the name of a directory, if it is here, but nothing that is in it."""
        self.directories.discard(path)
        self._unlink(path)

    def inside(self, directory: str) -> list[str]:
        """Files and directories in a directory."""
        return [path for path in self._inside.get(directory, ()) if self._is_here(path)]

    def below(self, path: str) -> Iterator[str]:
        """A path and all below it, without those that are not here."""
        left = [path]
        while left:
            one = left.pop()
            if self._is_here(one):
                yield one
            left.extend(self._inside.get(one, ()))

    def apply(self, gone: str | None, added: str | None, inode: Inode | None) -> None:
        """One step of a file's names (`NameStep`)."""
        if gone:
            self.take_file(gone)
        if added and inode is not None:
            self.put_file(added, inode)

    def move(self, source: str, target: str | None) -> None:
        """Moves a directory with its contents, or removes it (`target` None). Does nothing if `source` does
        not exist or `target` does, as when an earlier step did not survive."""
        if source not in self.directories or target in self.directories:
            return
        for path in tuple(self.below(source)):
            if path in self.directories:
                self.take_directory(path)
                if target is not None:
                    self.put_directory(moved_path(path, source, target))
            if path in self.files:
                inode = self.files[path]
                self.take_file(path)
                if target is not None:
                    self.put_file(moved_path(path, source, target), inode)

    def _is_here(self, path: str) -> bool:
        return path in self.files or path in self.directories

    def _link(self, path: str) -> None:
        while path not in _ROOTS:
            parent = parent_of(path)
            inside = self._inside.setdefault(parent, {})
            if path in inside:
                return
            inside[path] = None
            path = parent

    def _unlink(self, path: str) -> None:
        while path not in _ROOTS and not self._is_here(path) and path not in self._inside:
            parent = parent_of(path)
            inside = self._inside.get(parent, {})
            inside.pop(path, None)
            if inside:
                return
            self._inside.pop(parent, None)
            path = parent


class DirectoryMoves:
    """Moves and removals of directories that their parent's sync has yet to make durable, in order."""

    def __init__(self) -> None:
        self._moves: dict[int, Move] = {}
        self._by_parent: dict[str, list[int]] = {}
        self._by_target: dict[str, list[int]] = {}
        self._count = 0

    def __iter__(self) -> Iterator[Move]:
        return iter(self._moves.values())

    def __bool__(self) -> bool:
        return bool(self._moves)

    def add(self, source: str, target: str | None) -> None:
        """The newest one."""
        self._count += 1
        self._moves[self._count] = (source, target)
        self._by_parent.setdefault(parent_of(source), []).append(self._count)
        if target is not None:
            self._by_target.setdefault(target, []).append(self._count)

    def take(self, parent: str) -> list[Move]:
        """Removes and returns those of directories in `parent`."""
        taken = []
        for number in self._by_parent.pop(parent, ()):
            source, target = self._moves.pop(number)
            taken.append((source, target))
            if target is not None:
                self._by_target[target].remove(number)
                if not self._by_target[target]:
                    del self._by_target[target]
        return taken

    def durable_path(self, path: str) -> str:
        """Where a path of now is on the disk while moves of directories above it are not durable."""
        before = self._count + 1
        while self._by_target and (before := self._last_onto(path, before)):
            source, target = self._moves[before]
            path = moved_path(path, target or "", source)
        return path

    def _last_onto(self, path: str, before: int) -> int:
        """The last move, of those before this one, that put a directory where `path` or one above it is; 0:
        none."""
        last = 0
        while True:
            numbers = self._by_target.get(path)
            if numbers and (at := bisect_left(numbers, before)):
                last = max(last, numbers[at - 1])
            if path in _ROOTS or not path:
                return last
            path = parent_of(path)


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

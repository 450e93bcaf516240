"""A disk in memory for nodes with threads: `FaultyDisk` behind a lock, with a limit, and faults that are set
while it is used.

A fault waits outside the lock: a slow directory slows only those that use it.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, Protocol, TypeVar, assert_never

import msgspec

from metaquorum.platforms import slashed
from metaquorum.storage.disk.interface import Disk, DiskFile, Mutex, join, parent_of, read_file
from metaquorum.storage.errors import DiskError
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import (
    FaultProfile,
    FaultyFile,
    FaultyFileSystem,
    FaultyLock,
    PowerLossError,
    is_below,
)

T = TypeVar("T")

DiskFault = Callable[[str, str, int], None]
"""Gets an operation (as `FaultyDisk.inject` names them), its path, and how many bytes it writes. Returns, or
waits, or raises DiskError."""

NO_SPACE = "no space left on the disk in memory; give the cluster a larger one, or delete records"


def _runs_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class DiskCopy:
    """What was on a disk in memory. `disk` does not change."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.disk = disk


class MemoryDisk:
    """`Disk` of one node. `bytes_max`: its size. `faults` may change at any time. `wall_ms`: the clock of its
    files."""

    def __init__(self, rng: random.Random, bytes_max: int, wall_ms: Callable[[], int]) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.faults: tuple[DiskFault, ...] = ()
        self._lock = threading.Lock()
        self._ends = False
        self._lives = 0
        """How often the node was killed."""
        self._fault_changed = threading.Condition(self._lock)
        self._disk = FaultyDisk(rng, FaultProfile(sync_ms=0))
        self._disk.wall_ms = wall_ms

    # --- what survives

    def kill(self) -> None:
        """The node is being killed: whatever its threads have yet to do fails, until `killed`."""
        with self._fault_changed:
            self._ends = True
            self._lives += 1
            self._fault_changed.notify_all()

    def killed(self, *, power_lost: bool) -> None:
        """The node was killed: files that it has open cannot be used from now on. `power_lost`: what was not
        synced may be lost, too."""
        with self._lock:
            self._ends = False
            self._disk = self._disk.crash() if power_lost else self._disk.kill()
            self.used_bytes = self._disk.used_bytes()

    def copy(self) -> DiskCopy:
        """What is on it now."""
        with self._lock:
            return DiskCopy(self._disk.copy())

    def new(self) -> MemoryDisk:
        """An empty one of the same kind, without faults."""
        return MemoryDisk(self._disk.rng, self.bytes_max, self._disk.wall_ms)

    def replace(self, earlier: DiskCopy) -> None:
        """It has what an earlier copy has. Files that are open cannot be used from now on."""
        with self._lock:
            self._disk.kill()
            self._disk = earlier.disk.copy()
            self.used_bytes = self._disk.used_bytes()

    # --- for faults

    def wait(self, seconds: float, is_healed: Callable[[], bool]) -> None:
        """An operation takes so long, unless the fault heals or the node is killed. One on the loop does not,
        which all nodes share: what is written to the metadata log waits for its sync, on another thread."""
        if _runs_on_a_loop():
            return
        with self._fault_changed:
            lives = self._lives
            self._fault_changed.wait_for(lambda: is_healed() or self._ends or self._lives != lives, seconds)

    def fault_healed(self) -> None:
        """Operations that wait look at it."""
        with self._fault_changed:
            self._fault_changed.notify_all()

    # --- for files

    def run(self, operation: str, path: str, work: Callable[..., T], *arguments: object, size: int = 0) -> T:
        """One operation. Raises what a fault, or the disk, raises."""
        for fault in self.faults:
            fault(operation, path, size)
        try:
            with self._lock:
                if self._ends:
                    raise PowerLossError(f"the node is being killed, at {operation} of {path}")
                return work(*arguments)
        except PowerLossError as error:
            raise DiskError(parent_of(path), f"{operation} of {path}", "the node was killed") from error

    def check_room(self, path: str, size: int) -> None:
        """Raises DiskError if a file cannot have so many bytes more."""
        if size > 0 and self.used_bytes + size > self.bytes_max:
            raise DiskError(parent_of(path), f"write of {path}", NO_SPACE)

    # --- Disk

    def open_read(self, path: str) -> MemoryFile:
        """Opens an existing file read-only."""
        path = slashed(path)
        return MemoryFile(self, self.run("open", path, self._disk.open_read, path))

    def open_append(self, path: str) -> MemoryFile:
        """Opens or creates a file for reading and appending."""
        path = slashed(path)
        return MemoryFile(self, self.run("open", path, self._disk.open_append, path))

    def exists(self, path: str) -> bool:
        """True for a file or directory."""
        return self._disk.exists(slashed(path))

    def is_directory(self, path: str) -> bool:
        """True for a directory."""
        return self._disk.is_directory(slashed(path))

    def file_size(self, path: str) -> int:
        """Bytes in a file."""
        path = slashed(path)
        return self.run("list", path, self._disk.file_size, path)

    def modified_ms(self, path: str) -> int:
        """When the file was last written."""
        path = slashed(path)
        return self.run("list", path, self._disk.modified_ms, path)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Has the file count as last written then."""
        path = slashed(path)
        self.run("utime", path, self._disk.set_modified_ms, path, modified_ms)

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        path = slashed(path)
        return self.run("list", path, self._disk.list_directory, path)

    def make_directory(self, path: str) -> None:
        """Creates a directory and its missing parents."""
        path = slashed(path)
        self.run("mkdir", path, self._disk.make_directory, path)

    def rename(self, source: str, target: str) -> None:
        """Moves a file or a directory in one step."""
        source, target = slashed(source), slashed(target)
        self.run("rename", source, self._rename, source, target)

    def _rename(self, source: str, target: str) -> None:
        replaced = 0 if self._disk.is_directory(source) else self._size_of(target)
        self._disk.rename(source, target)
        self.used_bytes -= replaced

    def remove(self, path: str) -> None:
        """Removes a file."""
        path = slashed(path)
        self.run("remove", path, self._remove, path)

    def _remove(self, path: str) -> None:
        size = self._size_of(path)
        self._disk.remove(path)
        self.used_bytes -= size

    def _size_of(self, path: str) -> int:
        is_file = self._disk.exists(path) and not self._disk.is_directory(path)
        return self._disk.file_size(path) if is_file else 0

    def remove_directory(self, path: str) -> None:
        """Removes an empty directory."""
        path = slashed(path)
        self.run("remove", path, self._disk.remove_directory, path)

    def sync_directory(self, path: str) -> None:
        """Makes the names in a directory durable."""
        path = slashed(path)
        self.run("sync_directory", path, self._disk.sync_directory, path)

    def file_system(self, directory: str) -> MemoryFileSystem:
        """The part of this disk below a directory."""
        directory = slashed(directory)
        return MemoryFileSystem(
            self, directory, self.run("open", directory, self._disk.file_system, directory)
        )

    def background_sync(self, directory: str) -> None:
        """None: a sync takes no time."""

    def lock(self, directory: str) -> MemoryLock:
        """Takes the writer's lock of a directory."""
        directory = slashed(directory)
        return MemoryLock(self._lock, self.run("lock", directory, self._disk.lock, directory))

    def directory_key(self, path: str) -> Hashable:
        """The path: there are no links."""
        path = slashed(path)
        return self.run("list", path, self._disk.directory_key, path)

    def free_bytes(self, path: str) -> int:
        """Bytes that can still be written."""
        self.directory_key(path)
        return max(0, self.bytes_max - self.used_bytes)

    def total_bytes(self, path: str) -> int:
        """The size of the disk."""
        self.directory_key(path)
        return self.bytes_max

    def mutex(self) -> Mutex:
        """A threading.Lock."""
        return threading.Lock()


class MemoryFile:
    """An open file of a `MemoryDisk`."""

    __slots__ = ("_disk", "_file")

    def __init__(self, disk: MemoryDisk, file: FaultyFile) -> None:
        self._disk = disk
        self._file = file

    @property
    def path(self) -> str:
        """The path that it was opened with."""
        return self._file.path

    def size(self) -> int:
        """Size in bytes."""
        return self._file.size()

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`."""
        return self._disk.run("read", self.path, self._file.read_at, position, length)

    def append(self, data: bytes) -> None:
        """Writes all of `data` at the end, or nothing."""
        self._disk.run("write", self.path, self._append, data, size=len(data))

    def _append(self, data: bytes) -> None:
        self._disk.check_room(self.path, len(data))
        self._file.append(data)
        self._disk.used_bytes += len(data)

    def truncate(self, size: int) -> None:
        """Truncates the file to `size` bytes, or extends it with zeros."""
        self._disk.run("truncate", self.path, self._truncate, size)

    def _truncate(self, size: int) -> None:
        more = size - self._file.size()
        self._disk.check_room(self.path, more)
        self._file.truncate(size)
        self._disk.used_bytes += more

    def sync(self) -> None:
        """Makes the contents durable."""
        self._disk.run("sync", self.path, self._file.sync)

    def close(self) -> None:
        """Closes without a sync."""
        self._file.close()


class MemoryFileSystem:
    """The file system below one directory of a `MemoryDisk`."""

    __slots__ = ("_directory", "_disk", "_file_system")

    def __init__(self, disk: MemoryDisk, directory: str, file_system: FaultyFileSystem) -> None:
        self._disk = disk
        self._directory = directory
        self._file_system = file_system

    def sync(self, files: Sequence[DiskFile], directories: Sequence[str]) -> None:
        """Makes these files and directories durable."""
        below = [slashed(each) for each in directories]
        self._disk.run("sync", self._directory, self._file_system.sync, files, below)

    def close(self) -> None:
        """Closes it."""
        self._file_system.close()


class MemoryLock:
    """The lock of one directory."""

    __slots__ = ("_lock", "_mutex")

    def __init__(self, mutex: threading.Lock, lock: FaultyLock) -> None:
        self._mutex = mutex
        self._lock = lock

    def release(self) -> None:
        """Releases the lock, whatever the disk's faults; a repeated call does nothing."""
        with self._mutex:
            self._lock.release()


def copy_files(source: Disk, home: str, target: Disk, directory: str) -> None:
    """Copies the files of a node's metadata directory, with its metadata log, but no partitions."""
    target.make_directory(directory)
    for name in source.list_directory(home):
        path = join(home, name)
        if source.is_directory(path):
            if name == METADATA_DIRECTORY:
                copy_files(source, path, target, join(directory, name))
        elif name != ".lock":
            file = target.open_append(join(directory, name))
            file.append(read_file(source, path))
            file.close()


# Faults of a disk: each is a function that it calls before an operation.

_WRITES = frozenset({"write", "truncate", "sync", "sync_directory", "mkdir", "rename", "remove", "utime"})

_changing = threading.Lock()
"""Tests and chaos begin and heal faults in threads of their own."""

DiskKind = Literal["full", "read-only", "failing", "slow"]


class DiskFaultOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A fault below a directory. `value`: how many more bytes until a disk fails; the delay in s of a slow
    one."""

    kind: DiskKind
    directory: str
    value: float = 0


class BreakableDisk(Protocol):
    """`faults` may change at any time."""

    faults: tuple[DiskFault, ...]

    def wait(self, seconds: float, is_healed: Callable[[], bool]) -> None:
        """For a fault: an operation takes so long, unless it heals."""
        ...

    def fault_healed(self) -> None:
        """A fault is no longer in `faults`."""
        ...


def begin_disk_fault(disk: BreakableDisk, wanted: DiskFaultOrder) -> Callable[[], None]:
    """The fault is in force; returns what heals it."""
    fault = _made(wanted, disk)
    with _changing:
        disk.faults = (*disk.faults, fault)

    def heal() -> None:
        with _changing:
            disk.faults = tuple(each for each in disk.faults if each is not fault)
        disk.fault_healed()

    return heal


def _made(wanted: DiskFaultOrder, disk: BreakableDisk) -> DiskFault:
    match wanted.kind:
        case "full":
            return full(wanted.directory)
        case "read-only":
            return read_only(wanted.directory)
        case "failing":
            return failing(wanted.directory, int(wanted.value))
        case "slow":
            return slow(wanted.directory, wanted.value, disk)
        case _:
            assert_never(wanted.kind)


def full(directory: str) -> DiskFault:
    """No byte more can be written."""

    def fault(operation: str, path: str, size: int) -> None:
        if size and is_below(path, directory):
            raise DiskError(parent_of(path), f"{operation} of {path}", NO_SPACE)

    return fault


def failing(directory: str, after_bytes: int) -> DiskFault:
    """Every operation fails once this many more bytes have been written."""
    lock = threading.Lock()
    left = after_bytes

    def fault(operation: str, path: str, size: int) -> None:
        nonlocal left
        if not is_below(path, directory):
            return
        with lock:
            fails = left - size < 0 or left == 0
            left = 0 if fails else left - size
        if fails:
            raise DiskError(parent_of(path), f"{operation} of {path}", "the device reports an I/O error")

    return fault


def read_only(directory: str) -> DiskFault:
    """The file system was remounted without the right to write."""

    def fault(operation: str, path: str, size: int) -> None:
        if operation in _WRITES and is_below(path, directory):
            raise DiskError(parent_of(path), f"{operation} of {path}", "the file system is read-only")

    return fault


def slow(directory: str, delay_s: float, disk: BreakableDisk) -> DiskFault:
    """Every operation that changes something takes this much longer, until it is healed."""

    def fault(operation: str, path: str, size: int) -> None:
        if operation in _WRITES and is_below(path, directory):
            disk.wait(delay_s, lambda: fault not in disk.faults)

    return fault

"""A disk in memory that loses what was not synced, fails on demand, and reports what an operation would cost.

The model of durability that the tests and the simulator rely on: contents survive a power loss after `sync`
of the file, names after `sync_directory`. Every choice comes from the injected generator, so one seed
produces one history. One conformance suite runs on this and the real disk.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from metaquorum.storage.disk.interface import Mutex, join, name_of, parent_of
from metaquorum.storage.errors import DiskError, FileMissingError, LogDirectoryLockedError
from metaquorum.testing.faulty_file import (
    NO_CLOCK_MS,
    DirectoryMoves,
    FaultProfile,
    FaultyBackgroundSync,
    FaultyFile,
    FaultyFileSystem,
    FaultyLock,
    Injection,
    Inode,
    Names,
    NameStep,
    PowerLossError,
    _depth_first,
    is_below,
    moved_path,
    normal_path,
)


class FaultyDisk:
    """`Disk` in memory. `operations` counts those that change something, `last_cost_ms` is the cost of the
    last one. `wall_ms`: the clock of the files; without one, none of them ever gets old."""

    def __init__(self, rng: random.Random, profile: FaultProfile | None = None) -> None:
        self.rng = rng
        self.profile = profile or FaultProfile()
        self.operations = 0
        self.last_cost_ms = 0
        self._last_operation: int | None = None
        self.wall_ms: Callable[[], int] = lambda: NO_CLOCK_MS
        self._dead = False
        # `_names` and `_pending` go by the present names.
        self._names = Names()
        self._durable = Names()
        self._pending: dict[str, list[NameStep]] = {}
        self._moves = DirectoryMoves()
        self._locked: set[str] = set()
        self._injections: list[Injection] = []

    # --- faults

    @property
    def crash_after(self) -> int | None:
        """The operation after this many more raises PowerLossError; None: none does."""
        return None if self._last_operation is None else self._last_operation - self.operations

    @crash_after.setter
    def crash_after(self, operations: int | None) -> None:
        self._last_operation = None if operations is None else self.operations + operations

    def inject(
        self,
        directory: str,
        *,
        operation: str | None = None,
        after: int = 0,
        count: int | None = None,
        reason: str = "the device reports an I/O error",
    ) -> None:
        """Makes operations in and below `directory` raise DiskError: of the operations called `operation`
        (read, write, truncate, sync, open, rename, remove, list, mkdir, sync_directory, lock; None: all), the
        next `after` succeed and the `count` after them fail (None: all)."""
        self._injections.append(Injection(self._normal(directory), operation, after, count, reason))

    def heal(self) -> None:
        """Removes every injection. Files whose sync failed stay unusable until `kill` or `crash`."""
        self._injections.clear()

    def begin(self, operation: str, directory: str, path: str) -> None:
        """Counts one operation of this disk or its files. Raises DiskError or PowerLossError if it must
        fail."""
        if self._dead:
            raise PowerLossError("this disk lost power; use the one that crash() returned")
        slow = self.profile.slow and self.rng.random() < self.profile.slow
        base = self.profile.sync_ms if operation in ("sync", "sync_directory") else 0
        self.last_cost_ms = base + (self.profile.slow_ms if slow else 0)
        if operation not in ("read", "list", "lock"):
            self.operations += 1
            if self._last_operation is not None and self.operations > self._last_operation:
                self._dead = True
                raise PowerLossError(f"power lost during operation {self.operations} ({operation} of {path})")
        self._inject_error(operation, directory, path)

    def _inject_error(self, operation: str, directory: str, path: str) -> None:
        normal = self._normal(directory)
        for injection in self._injections:
            if injection.operation not in (None, operation) or not is_below(normal, injection.directory):
                continue
            if injection.after > 0:
                injection.after -= 1
            elif injection.count is None or injection.count > 0:
                injection.count = None if injection.count is None else injection.count - 1
                raise DiskError(directory, f"{operation} of {path}", injection.reason)

    def room_bytes(self) -> int | None:
        """Free bytes; None if the disk has no capacity limit."""
        if self.profile.capacity_bytes is None:
            return None
        return max(0, self.profile.capacity_bytes - self.used_bytes())

    def used_bytes(self) -> int:
        """Bytes in all files."""
        return sum(len(inode.data) for inode in self._names.files.values())

    def _normal(self, path: str) -> str:
        """The key of a path in the tables. A disk of a test may take two names for one."""
        return normal_path(path)

    # --- what survives

    def crash(self) -> FaultyDisk:
        """Power loss: returns a disk with what survived, all of it durable. This one is unusable
        afterwards."""
        self._dead = True
        kept = self._durable.copy()
        for steps in self._pending.values():
            for gone, added, inode in steps:
                if self.rng.random() < self.profile.keep_name:
                    kept.apply(self._durable_path(gone), self._durable_path(added), inode)
        self._keep_directories(kept)
        survivor = self.emptied()
        survivor.profile = replace(self.profile)
        survivor.wall_ms = self.wall_ms
        contents: dict[int, bytes] = {}
        for path in sorted(kept.files):
            inode = kept.files[path]
            if id(inode) not in contents:
                contents[id(inode)] = self._surviving_contents(inode)
            kept.put_file(path, Inode.synced(contents[id(inode)], inode.modified_ms))
        survivor._names, survivor._durable = kept, kept.copy()
        return survivor

    def copy(self) -> FaultyDisk:
        """Another disk with everything that is on this one, all of it durable: a backup."""
        other = self.emptied()
        other.wall_ms = self.wall_ms
        other._names = self._names.copy()
        for path, inode in self._names.files.items():
            other._names.put_file(path, Inode.synced(bytes(inode.data), inode.modified_ms))
        other._durable = other._names.copy()
        return other

    def emptied(self) -> FaultyDisk:
        """An empty disk of the same kind."""
        return type(self)(self.rng, self.profile)

    def kill(self) -> FaultyDisk:
        """The process ends but the machine does not: returns a disk with all that was written, synced or not,
        and without locks and injections. A file whose sync failed keeps its contents and can be synced
        again."""
        survivor = self.emptied()
        survivor.wall_ms = self.wall_ms
        survivor._names, survivor._durable = self._names, self._durable
        survivor._pending, survivor._moves = self._pending, self._moves
        for inode in self._names.files.values():
            inode.poisoned = False
        self._dead = True
        return survivor

    def _keep_directories(self, kept: Names) -> None:
        """Adds the directories, and applies the moves, that survive; drops files that are in none."""
        directories = self._names.directories
        present = {self._durable_path(one) for one in directories} if self._moves else directories
        for directory in sorted(present - kept.directories, key=_depth_first):
            if parent_of(directory) in kept.directories and self.rng.random() < self.profile.keep_name:
                kept.put_directory(directory)
        for source, target in self._moves:
            if self.rng.random() < self.profile.keep_name:
                kept.move(source, target)
        for path in [path for path in kept.files if parent_of(path) not in kept.directories]:
            kept.take_file(path)

    def _surviving_contents(self, inode: Inode) -> bytes:
        if not inode.dirty:
            return bytes(inode.data)
        if inode.cut and self.rng.random() < 0.5:
            return inode.durable  # the truncation, and what was written after it, did not reach the disk
        if self.rng.random() < self.profile.keep_contents:
            return bytes(inode.data)
        kept = self.rng.randint(inode.intact, max(inode.intact, len(inode.data)))
        rest = len(inode.data) - kept
        choice = self.rng.random()
        if choice < self.profile.zero_tail:
            tail = bytes(self.rng.randint(0, rest))
        elif choice < self.profile.zero_tail + self.profile.garbage_tail:
            tail = self.rng.randbytes(self.rng.randint(0, rest))
        else:
            tail = b""
        return bytes(inode.data[:kept]) + tail

    # --- Disk

    def open_read(self, path: str) -> FaultyFile:
        """Opens an existing file read-only."""
        self.begin("list", parent_of(path), path)
        return FaultyFile(self, path, self._inode(path), writable=False)

    def open_append(self, path: str) -> FaultyFile:
        """Opens a file for appending, or creates it; the name is durable after a sync of its directory."""
        normal = self._normal(path)
        directory = parent_of(normal)
        if normal in self._names.directories:
            raise DiskError(directory, f"open of {path}", "a directory is where a file must be; move it away")
        if directory not in self._names.directories:
            raise FileMissingError(path)
        self.begin("open", directory, path)
        if normal not in self._names.files:
            inode = Inode(modified_ms=self.wall_ms())
            self._names.put_file(normal, inode)
            self._pending.setdefault(directory, []).append((None, normal, inode))
        return FaultyFile(self, path, self._names.files[normal], writable=True)

    def exists(self, path: str) -> bool:
        """True for a file or directory."""
        return self._normal(path) in self._names.files or self._normal(path) in self._names.directories

    def is_directory(self, path: str) -> bool:
        """True for a directory."""
        return self._normal(path) in self._names.directories

    def file_size(self, path: str) -> int:
        """Bytes in a file."""
        return len(self._inode(path).data)

    def modified_ms(self, path: str) -> int:
        """When the file was last written."""
        return self._inode(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Has the file count as last written then."""
        self._inode(path).modified_ms = modified_ms

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        self.begin("list", path, path)
        normal = self._normal(path)
        if normal not in self._names.directories:
            raise FileMissingError(path)
        return sorted(map(name_of, self._names.inside(normal)))

    def make_directory(self, path: str) -> None:
        """Creates a directory and its missing parents; each name is durable after a sync of its parent."""
        normal = self._normal(path)
        self.begin("mkdir", parent_of(normal), path)
        missing = []
        while normal not in self._names.directories:
            if normal in self._names.files:
                raise DiskError(parent_of(normal), f"mkdir of {path}", "a part of the path is a file")
            missing.append(normal)
            normal = parent_of(normal)
        for directory in missing:
            self._names.put_directory(directory)

    def rename(self, source: str, target: str) -> None:
        """Moves a file or a directory in one step, within one directory."""
        old, new = self._normal(source), self._normal(target)
        if old in self._names.directories:
            self._rename_directory(old, new)
            return
        inode = self._inode(source)
        self.begin("rename", parent_of(old), source)
        self._names.take_file(old)
        self._names.put_file(new, inode)
        self._pending.setdefault(parent_of(new), []).append((old, new, inode))

    def remove(self, path: str) -> None:
        """Removes a file."""
        normal = self._normal(path)
        self._inode(path)
        self.begin("remove", parent_of(normal), path)
        self._names.take_file(normal)
        self._pending.setdefault(parent_of(normal), []).append((normal, None, None))

    def _rename_directory(self, old: str, new: str) -> None:
        self.begin("rename", parent_of(old), old)
        if new in self._names.directories or new in self._names.files:
            raise DiskError(parent_of(old), f"rename of {old}", f"{new} exists; move it away")
        if any(one in self._pending for one in self._names.below(old)):
            self._pending = {
                moved_path(directory, old, new): [
                    (moved_path(gone, old, new), moved_path(added, old, new), inode)
                    for gone, added, inode in steps
                ]
                for directory, steps in self._pending.items()
            }
        self._names.move(old, new)
        self._moves.add(old, new)

    def remove_directory(self, path: str) -> None:
        """Removes an empty directory."""
        normal = self._normal(path)
        if normal not in self._names.directories:
            raise FileMissingError(path)
        self.begin("remove", parent_of(normal), path)
        if self._names.inside(normal):
            raise DiskError(
                parent_of(normal), f"remove of {path}", "the directory still holds files; move them away"
            )
        self._names.take_directory(normal)
        self._pending.pop(normal, None)
        self._moves.add(normal, None)

    def sync_directory(self, path: str) -> None:
        """Makes the names in a directory durable."""
        normal = self._normal(path)
        if normal not in self._names.directories:
            raise FileMissingError(path)
        self.begin("sync_directory", path, path)
        self._sync_names(normal)

    def _sync_names(self, normal: str) -> None:
        for gone, added, inode in self._pending.pop(normal, ()):
            self._durable.apply(self._durable_path(gone), self._durable_path(added), inode)
        inside = [one for one in self._names.inside(normal) if one in self._names.directories]
        if self._moves:
            for directory in inside:
                self._durable.put_directory(self._moves.durable_path(directory))
            for source, target in self._moves.take(normal):
                self._durable.move(source, target)
        for one in inside:
            self._durable.put_directory(one)

    def _durable_path(self, path: str | None) -> str:
        return self._moves.durable_path(path) if path else ""

    def sync_paths(self, directory: str, files: Sequence[str], directories: Sequence[str]) -> None:
        """Syncs files and directories in one operation, for FaultyFileSystem. Skips files that were
        removed."""
        self.begin("sync", directory, directory)
        inodes = [
            self._names.files[self._normal(path)] for path in files if self._normal(path) in self._names.files
        ]
        for inode in inodes:
            if inode.poisoned:
                raise DiskError(directory, f"sync of {directory}", "an earlier sync failed; check the disk")
        for inode in inodes:
            inode.settle()
        for path in directories:
            if self._normal(path) in self._names.directories:
                self._sync_names(self._normal(path))

    def file_system(self, directory: str) -> FaultyFileSystem:
        """The part of this disk below a directory."""
        if not self.is_directory(directory):
            raise FileMissingError(directory)
        return FaultyFileSystem(self, directory)

    def background_sync(self, directory: str) -> FaultyBackgroundSync:
        """A background sync; it completes when waited for."""
        return FaultyBackgroundSync()

    def lock(self, directory: str) -> FaultyLock:
        """Takes the writer's lock of a directory. Raises LogDirectoryLockedError if it is held."""
        normal = self._normal(directory)
        if normal not in self._names.directories:
            raise FileMissingError(join(directory, ".lock"))
        self.begin("lock", directory, directory)
        if normal in self._locked:
            raise LogDirectoryLockedError(directory)
        self._locked.add(normal)
        return FaultyLock(self, normal)

    def unlock(self, directory: str) -> None:
        """Releases a directory's lock, for FaultyLock."""
        self._locked.discard(directory)

    def directory_key(self, path: str) -> str:
        """The path: there are no links."""
        if not self.is_directory(path):
            raise FileMissingError(path)
        return self._normal(path)

    def free_bytes(self, path: str) -> int:
        """Free bytes; 1 TiB if the disk has no capacity limit."""
        if not self.is_directory(path):
            raise FileMissingError(path)
        room = self.room_bytes()
        return 1 << 40 if room is None else room

    def total_bytes(self, path: str) -> int:
        """The capacity in bytes; 2 TiB if there is no limit."""
        if not self.is_directory(path):
            raise FileMissingError(path)
        return self.profile.capacity_bytes or 1 << 41

    def mutex(self) -> Mutex:
        """A mutex that does nothing: one thread uses this disk."""
        return _Alone()

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Flips a bit of the current and the durable contents, as a failing medium does."""
        self._inode(path).flip(position, bit)

    def _inode(self, path: str) -> Inode:
        inode = self._names.files.get(self._normal(path))
        if inode is None and parent_of(self._normal(path)) in self._names.files:
            raise DiskError(parent_of(path), f"use of {path}", "a part of the path is a file")
        if inode is None:
            raise FileMissingError(path)
        return inode


class _Alone:
    """The mutex of the only thread."""

    def acquire(self, blocking: bool = True) -> bool:
        return True

    def release(self) -> None:
        return

    def __enter__(self) -> None:
        return

    def __exit__(self, *exception: object) -> None:
        return

"""Files that are open only while they are needed: thousands of logs, a bounded number of descriptors.

When a file is opened and closed, and which files may not be closed: those in use, and those with bytes that
no sync has covered, because only the open descriptor reports a failed write-back.

Threads: any thread may use any file; only one at a time appends to a file or truncates it, as `DiskFile`
requires.
"""

from __future__ import annotations

from collections import OrderedDict

from metaquorum.storage.disk.interface import Disk, DiskFile, parent_of, remove_if_present, staged_path
from metaquorum.storage.errors import DiskError, FileMissingError


class OpenFiles:
    """The bound of all pools of a process. A directory may have what the others do not use: at the bound a
    clean idle file is closed of the pool that has most, which never waits for another directory's disk."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a pool needs at least 1 file, not {limit}")
        self.limit = limit
        self._pools: list[FilePool] = []

    def add(self, pool: FilePool) -> None:
        """A directory was opened."""
        self._pools = [*self._pools, pool]

    @property
    def are_too_many(self) -> bool:
        """True if a file must be closed before another is opened."""
        return sum(map(len, self._pools)) >= self.limit

    def take_from_others(self, pool: FilePool, *, larger: bool) -> bool:
        """Closes a file of another pool, `larger`: of one that has more; False if none can be closed at
        once."""
        others = [each for each in self._pools if each is not pool and (len(each) > len(pool) or not larger)]
        return any(each.give_up_one() for each in sorted(others, key=len, reverse=True))


class FilePool:
    """Keeps at most `limit` files open, and more only while all of them are in use. `shared`: the bound of
    all pools of the process; None: there is no other pool."""

    def __init__(self, disk: Disk, limit: int, shared: OpenFiles | None = None) -> None:
        self.limit = limit
        self._disk = disk
        self._open: OrderedDict[PooledFile, None] = OrderedDict()
        self._mutex = disk.mutex()
        self._shared = shared or OpenFiles(limit)
        self._shared.add(self)

    def __len__(self) -> int:
        return len(self._open)

    def file(self, path: str, *, size: int | None = None, writable: bool = True) -> PooledFile:
        """A file of this pool, not opened yet; a file for appending is created at its first use. `size` is
        its size, if the caller knows it; otherwise it is read from the disk, which may raise
        FileMissingError."""
        found = self._disk.file_size(path) if size is None else size
        return PooledFile(self, path, found, writable, exists=size is None)

    def staged(self, path: str, data: bytes, who: str) -> PooledFile:
        """`data` in a new file beside `path`, not durable; after a sync, `place_staged` gives it its final
        name."""
        beside = staged_path(path, who)
        remove_if_present(self._disk, beside)
        file = self.file(beside, size=0)
        file.may_vanish = True
        file.append(data)
        # It may be closed before its sync, which opens it again or syncs the whole file system.
        file.begin_sync()
        return file

    def enter(self, file: PooledFile) -> DiskFile:
        """The open file, which stays open until `leave`. Raises DiskError or FileMissingError."""
        with self._mutex:
            return self._enter(file)

    def enter_to_sync(self, file: PooledFile) -> DiskFile | None:
        """Like `enter`; None for a file that was removed meanwhile and needs no sync."""
        with self._mutex:
            if file.closed:
                return None
            try:
                return self._enter(file)
            except FileMissingError:
                if file.may_vanish:
                    return None
                raise

    def _enter(self, file: PooledFile) -> DiskFile:
        opened = file.opened
        if opened is None:
            if file.closed:
                raise DiskError(parent_of(file.path), f"use of {file.path}", "the file is closed")
            self._make_room()
            if file.was_opened:
                self._disk.file_size(file.path)  # a removed file must not be recreated
            opened = (self._disk.open_append if file.writable else self._disk.open_read)(file.path)
            file.opened, file.was_opened = opened, True
            self._open[file] = None
        else:
            self._open.move_to_end(file)
        file.users += 1
        return opened

    def leave(self, file: PooledFile) -> None:
        """The counterpart of `enter`."""
        with self._mutex:
            file.users -= 1
            if file.closed and not file.users:
                self._close(file)

    def retire(self, file: PooledFile) -> None:
        """Closes a file for good once its last user has left."""
        with self._mutex:
            file.closed = True
            if not file.users:
                self._close(file)

    def give_up_one(self) -> bool:
        """Closes a clean idle file for another pool; False if there is none or this pool is busy."""
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            idle = self._idle(dirty=False)
            if idle is not None:
                self._close(idle)
            return idle is not None
        finally:
            self._mutex.release()

    def _idle(self, *, dirty: bool) -> PooledFile | None:
        return next((file for file in self._open if not file.users and (dirty or not file.dirty)), None)

    def _make_room(self) -> None:
        if len(self._open) < self.limit and not self._shared.are_too_many:
            return
        is_shared = len(self._open) < self.limit
        if is_shared and self._shared.take_from_others(self, larger=True):
            return
        idle = self._idle(dirty=False)
        if idle is None and is_shared and self._shared.take_from_others(self, larger=False):
            return
        if idle is None:
            idle = self._idle(dirty=True)
            if idle is None or idle.opened is None:
                return
            idle.opened.sync()
            idle.dirty = False
        self._close(idle)

    def _close(self, file: PooledFile) -> None:
        found, file.opened = file.opened, None
        self._open.pop(file, None)
        if found is not None:
            found.close()


class PooledFile:
    """A `DiskFile` that is opened when it is used. `size` is tracked here: no one else appends to it."""

    __slots__ = (
        "_pool",
        "_size",
        "closed",
        "dirty",
        "may_vanish",
        "opened",
        "path",
        "users",
        "was_opened",
        "writable",
    )

    def __init__(self, pool: FilePool, path: str, size: int, writable: bool, *, exists: bool) -> None:
        self._pool = pool
        self._size = size
        self.path = path
        self.writable = writable
        self.opened: DiskFile | None = None
        self.users = 0
        self.dirty = False
        self.closed = False
        self.was_opened = exists
        self.may_vanish = False

    def size(self) -> int:
        """Size in bytes; opens nothing."""
        return self._size

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`."""
        file = self._pool.enter(self)
        try:
            return file.read_at(position, length)
        finally:
            self._pool.leave(self)

    def hold(self) -> None:
        """Keeps it open until `release`, even if it is closed for good meanwhile."""
        self._pool.enter(self)

    def release(self) -> None:
        """The counterpart of `hold`."""
        self._pool.leave(self)

    def read_held(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`, between `hold` and `release`."""
        if self.opened is None:
            raise DiskError(parent_of(self.path), f"use of {self.path}", "the file is not held open")
        return self.opened.read_at(position, length)

    def append(self, data: bytes) -> None:
        """Appends, and keeps the file open until a sync."""
        file = self._pool.enter(self)
        try:
            self.dirty = True
            file.append(data)
            self._size += len(data)
        finally:
            # A concurrent sync may not have covered it.
            self.dirty = True
            self._pool.leave(self)

    def truncate(self, size: int) -> None:
        """Truncates the file, and keeps it open until a sync."""
        file = self._pool.enter(self)
        try:
            self.dirty = True
            file.truncate(size)
            self._size = size
        finally:
            self.dirty = True
            self._pool.leave(self)

    def sync(self) -> None:
        """Makes it durable. Does nothing if the file is closed for good (it was removed)."""
        file = self._pool.enter_to_sync(self)
        if file is None:
            return
        try:
            self.dirty = False
            file.sync()
        except BaseException:
            self.dirty = True
            raise
        finally:
            self._pool.leave(self)

    def begin_sync(self) -> None:
        """A sync of the whole file system is about to cover every byte that is in the file now."""
        self.dirty = False

    def failed_sync(self) -> None:
        """That sync failed: the file must not be closed as if it were synced."""
        self.dirty = True

    def close(self) -> None:
        """Closes it for good, without a sync; a second call does nothing."""
        self._pool.retire(self)

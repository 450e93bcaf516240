"""A log directory's disk, watched: which call runs on which thread, and since when."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from threading import get_ident
from typing import Protocol, TypeVar

from msgspec import Struct

from metaquorum.lines import one_line
from metaquorum.storage.disk.interface import Disk, DiskFile, FileSystem, Lock, Mutex, join
from metaquorum.storage.errors import FileMissingError, StorageError

T = TypeVar("T")

Observe = Callable[[str, float], None]
"""Called after every call (of nested calls: the outer one), on the thread that made it, with the operation
and its seconds."""


class Faults(Protocol):
    """The faults that tests inject into a disk."""

    def check(self, operation: str, path: str) -> None:
        """Returns, or raises DiskError, or does not return for a while."""


class RunningCall(Struct, frozen=True):
    """`since_s` on the monotonic clock."""

    since_s: float
    operation: str
    path: str


class DiskWatch:
    """The running calls of one directory. Any thread begins and ends its own; the loop looks."""

    def __init__(self, observe: Observe | None = None, faults: Faults | None = None) -> None:
        self._running: dict[int, RunningCall] = {}
        self._observe = observe
        self._faults = faults

    def run(self, operation: str, path: str, work: Callable[..., T], *arguments: object) -> T:
        """The call itself, with a time stamp. Of nested calls only the inner one is seen while it runs."""
        since_s, thread, running = time.monotonic(), get_ident(), self._running
        outer = running.get(thread)
        running[thread] = RunningCall(since_s, operation, path)
        try:
            if self._faults is not None:
                self._faults.check(operation, path)
            return work(*arguments)
        finally:
            if outer is None:
                del running[thread]
            else:
                running[thread] = outer
            if self._observe is not None and outer is None:
                self._observe(operation, time.monotonic() - since_s)

    def longest(self) -> RunningCall | None:
        """The call that has run for longest; None if none runs."""
        return min(self._running.copy().values(), key=lambda each: each.since_s, default=None)


class WatchedFile:
    """One open file of a watched disk."""

    __slots__ = ("_file", "_watch")

    def __init__(self, file: DiskFile, watch: DiskWatch) -> None:
        self._file = file
        self._watch = watch

    @property
    def path(self) -> str:
        return self._file.path

    def size(self) -> int:
        return self._file.size()

    def read_at(self, position: int, length: int) -> bytes:
        return self._watch.run("read", self._file.path, self._file.read_at, position, length)

    def append(self, data: bytes) -> None:
        self._watch.run("write", self._file.path, self._file.append, data)

    def truncate(self, size: int) -> None:
        self._watch.run("truncate", self._file.path, self._file.truncate, size)

    def sync(self) -> None:
        self._watch.run("sync", self._file.path, self._file.sync)

    def close(self) -> None:
        self._watch.run("close", self._file.path, self._file.close)


class WatchedFileSystem:
    """The file system of a watched disk. Its sync may sync watched files one by one: a nested call."""

    __slots__ = ("_directory", "_file_system", "_watch")

    def __init__(self, file_system: FileSystem, directory: str, watch: DiskWatch) -> None:
        self._file_system = file_system
        self._directory = directory
        self._watch = watch

    def sync(self, files: Sequence[DiskFile], directories: Sequence[str]) -> None:
        self._watch.run("sync", self._directory, self._file_system.sync, files, directories)

    def close(self) -> None:
        self._file_system.close()


class WatchedDisk:
    """`Disk` with a time stamp in `watch` for every call."""

    def __init__(self, disk: Disk, watch: DiskWatch) -> None:
        self._disk = disk
        self._watch = watch

    def open_read(self, path: str) -> DiskFile:
        return WatchedFile(self._watch.run("open", path, self._disk.open_read, path), self._watch)

    def open_append(self, path: str) -> DiskFile:
        return WatchedFile(self._watch.run("open", path, self._disk.open_append, path), self._watch)

    def exists(self, path: str) -> bool:
        return self._watch.run("stat", path, self._disk.exists, path)

    def is_directory(self, path: str) -> bool:
        return self._watch.run("stat", path, self._disk.is_directory, path)

    def file_size(self, path: str) -> int:
        return self._watch.run("stat", path, self._disk.file_size, path)

    def modified_ms(self, path: str) -> int:
        return self._watch.run("stat", path, self._disk.modified_ms, path)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self._watch.run("utime", path, self._disk.set_modified_ms, path, modified_ms)

    def list_directory(self, path: str) -> list[str]:
        return self._watch.run("list", path, self._disk.list_directory, path)

    def make_directory(self, path: str) -> None:
        self._watch.run("mkdir", path, self._disk.make_directory, path)

    def rename(self, source: str, target: str) -> None:
        self._watch.run("rename", source, self._disk.rename, source, target)

    def remove(self, path: str) -> None:
        self._watch.run("remove", path, self._disk.remove, path)

    def remove_directory(self, path: str) -> None:
        self._watch.run("remove", path, self._disk.remove_directory, path)

    def sync_directory(self, path: str) -> None:
        self._watch.run("sync", path, self._disk.sync_directory, path)

    def file_system(self, directory: str) -> FileSystem:
        inner = self._watch.run("open", directory, self._disk.file_system, directory)
        return WatchedFileSystem(inner, directory, self._watch)

    def background_sync(self, directory: str) -> None:
        """None: what runs on no thread cannot be watched."""

    def lock(self, directory: str) -> Lock:
        return self._watch.run("lock", directory, self._disk.lock, directory)

    def directory_key(self, path: str) -> Hashable:
        return self._watch.run("stat", path, self._disk.directory_key, path)

    def free_bytes(self, path: str) -> int:
        return self._watch.run("statvfs", path, self._disk.free_bytes, path)

    def total_bytes(self, path: str) -> int:
        return self._watch.run("statvfs", path, self._disk.total_bytes, path)

    def mutex(self) -> Mutex:
        return self._disk.mutex()


# Finds out that a log directory cannot be used if no operation reports it: the probe, the clock of hangs.

PROBE_FILE = ".probe"
END_LOOK_S = 0.02
_CONTENT = b"metaquorum writes this file to see whether the directory can be used\n"


class DirectoryProbe:
    """Creates, syncs and renames a file in a directory every `interval_s`, on a thread of its own, until it
    fails once; `failed` is called on that thread."""

    def __init__(
        self, disk: Disk, directory: str, *, interval_s: float, failed: Callable[[str], None]
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._interval_s = interval_s
        self._failed = failed
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"probe {self._directory}", daemon=True).start()

    def end(self) -> None:
        """No probe starts after this; one that hangs is left behind."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                probe(self._disk, self._directory)
            except FileMissingError:
                # The general advice, to format a directory, is wrong for one that was here a moment ago.
                self._report(f"{self._directory} has disappeared: mount its disk, or restore it")
                return
            except StorageError as error:
                self._report(one_line(error))
                return

    def _report(self, problem: str) -> None:
        if not self._ended.is_set():
            self._failed(problem)


def probe(disk: Disk, directory: str) -> None:
    """Probes once. Raises a StorageError if a file cannot be created, synced or renamed."""
    path = join(directory, PROBE_FILE)
    file = disk.open_append(f"{path}.tmp")
    try:
        if not file.size():
            file.append(_CONTENT)
        file.sync()
    finally:
        file.close()
    disk.rename(f"{path}.tmp", path)


class HangClock:
    """How long the longest call of one directory has run while this process was awake to see it.

    A process that was paused meanwhile, or a loop that was late, proves nothing about a disk: between two
    looks at most `look_max_s` counts.
    """

    def __init__(self, watch: DiskWatch, *, timeout_s: float, look_max_s: float) -> None:
        self._watch = watch
        self._timeout_s = timeout_s
        self._look_max_s = look_max_s
        self._seen: RunningCall | None = None
        self._seen_for_s = 0.0
        self._looked_s = 0.0

    async def running_call_hangs(self) -> bool:
        """Waits for the end of the call that runs now, at most until it has hung."""
        loop, call = asyncio.get_running_loop(), self._watch.longest()
        while call is not None and self._watch.longest() is call:
            if self.look(loop.time()) is not None:
                return True
            await asyncio.sleep(END_LOOK_S)
        return False

    def look(self, now_s: float) -> str | None:
        """One line about a call that hangs, or None."""
        call = self._watch.longest()
        if call is None or call is not self._seen:
            self._seen_for_s = 0.0
        else:
            self._seen_for_s += min(now_s - self._looked_s, self._look_max_s)
        self._seen, self._looked_s = call, now_s
        if call is None or self._seen_for_s < self._timeout_s:
            return None
        return (
            f"{call.operation} of {call.path} has not returned for {self._timeout_s * 1000:.0f} ms"
            " (log.dir.hang.timeout.ms); check the disk"
        )

"""The real disk of a node in a process of its own, with faults as those of a disk in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from metaquorum.storage.disk.interface import DiskFile
from metaquorum.storage.disk.posix import PosixDisk, PosixFile, PosixFileSystem
from metaquorum.testing.memory_disk import DiskFault


class BreakablePosixDisk(PosixDisk):
    """`faults` may change at any time; files that are open meet them, too."""

    def __init__(self) -> None:
        self.faults: tuple[DiskFault, ...] = ()
        self._fault_changed = threading.Condition()

    def wait(self, seconds: float, is_healed: Callable[[], bool]) -> None:
        """See `BreakableDisk`."""
        with self._fault_changed:
            self._fault_changed.wait_for(is_healed, seconds)

    def fault_healed(self) -> None:
        with self._fault_changed:
            self._fault_changed.notify_all()

    def meet(self, operation: str, path: str, size: int = 0) -> None:
        """Raises DiskError, or waits, as the faults have it."""
        for fault in self.faults:
            fault(operation, path, size)

    def _wrap(self, path: str, descriptor: int, *, writable: bool) -> PosixFile:
        return _BreakableFile(self, path, descriptor, writable=writable)

    def open_read(self, path: str) -> PosixFile:
        """As `PosixDisk` does, like all methods."""
        self.meet("open", path)
        return super().open_read(path)

    def open_append(self, path: str) -> PosixFile:
        self.meet("open", path)
        return super().open_append(path)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.meet("utime", path)
        super().set_modified_ms(path, modified_ms)

    def list_directory(self, path: str) -> list[str]:
        self.meet("list", path)
        return super().list_directory(path)

    def make_directory(self, path: str) -> None:
        self.meet("mkdir", path)
        super().make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.meet("rename", source)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.meet("remove", path)
        super().remove(path)

    def remove_directory(self, path: str) -> None:
        self.meet("remove", path)
        super().remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self.meet("sync_directory", path)
        super().sync_directory(path)

    def file_system(self, directory: str) -> PosixFileSystem:
        return _BreakableFileSystem(self, directory)


class _BreakableFile(PosixFile):
    def __init__(self, disk: BreakablePosixDisk, path: str, descriptor: int, *, writable: bool) -> None:
        super().__init__(path, descriptor, writable=writable)
        self._disk = disk

    def read_at(self, position: int, length: int) -> bytes:
        self._disk.meet("read", self.path)
        return super().read_at(position, length)

    def append(self, data: bytes) -> None:
        self._disk.meet("write", self.path, len(data))
        super().append(data)

    def truncate(self, size: int) -> None:
        self._disk.meet("truncate", self.path)
        super().truncate(size)

    def to_sync(self) -> int:
        self._disk.meet("sync", self.path)
        return super().to_sync()


class _BreakableFileSystem(PosixFileSystem):
    def __init__(self, disk: BreakablePosixDisk, directory: str) -> None:
        super().__init__(directory)
        self._disk = disk
        self._of = directory

    def sync(self, files: Sequence[DiskFile], directories: Sequence[str]) -> None:
        """As `PosixFileSystem` does."""
        self._disk.meet("sync", self._of)
        super().sync(files, directories)

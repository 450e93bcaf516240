"""`Disk` over whatever holds the logs: paths on this machine, everything else through pyarrow, read only.

Owns listing and reading of stores. A listing is remembered for the life of the object, so that looking at a
tree of logs costs one request per folder; a new object sees what is there now.
"""

from __future__ import annotations

from typing import Any

from metaquorum.pipeline.stores.address import is_remote
from metaquorum.pipeline.stores.remote import in_one_line, opened
from metaquorum.storage.disk.interface import DiskFile, join, parent_of
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import DiskError, FileMissingError

READ_AHEAD_BYTES = 8 * 1024 * 1024
_READ_ONLY = "logs in a store are only read"


class RemoteFile:
    """One object, read in pieces of READ_AHEAD_BYTES. Raises DiskError where it changes meanwhile."""

    def __init__(self, place: str) -> None:
        self._place = place
        with in_one_line("open", place):
            self._system, self._path = opened(place)
            self._seen = self._look()
            self._handle = self._system.open_input_file(self._path)
        self._start, self._buffer = 0, b""

    def _look(self) -> tuple[int, int]:
        info = self._system.get_file_info(self._path)
        if not info.is_file:
            raise FileMissingError(self._place)
        return info.size, info.mtime_ns or 0

    @property
    def path(self) -> str:
        """The address it was opened by."""
        return self._place

    def size(self) -> int:
        """Bytes in the object when it was opened."""
        return self._seen[0]

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`."""
        at = position - self._start
        if at < 0 or at + length > len(self._buffer):
            wanted = min(max(length, READ_AHEAD_BYTES), max(0, self.size() - position))
            with in_one_line("read", self._place):
                self._buffer = self._handle.read_at(wanted, position) if wanted else b""
                self._start, at = position, 0
                if self._look() != self._seen:
                    raise DiskError(
                        parent_of(self._place),
                        f"read of {self._place}",
                        "the object changed while it was read; run again when its upload has ended",
                    )
        return self._buffer[at : at + length]

    def append(self, data: bytes) -> None:
        raise DiskError(parent_of(self._place), f"write of {self._place}", _READ_ONLY)

    def truncate(self, size: int) -> None:
        raise DiskError(parent_of(self._place), f"truncate of {self._place}", _READ_ONLY)

    def sync(self) -> None:
        raise DiskError(parent_of(self._place), f"sync of {self._place}", _READ_ONLY)

    def close(self) -> None:
        """Gives the connection back."""
        self._handle.close()


class StoreDisk(PosixDisk):
    """`Disk` for reading, of paths and of addresses alike."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def _info(self, place: str) -> Any:
        """pyarrow's FileInfo. A bucket that is not there is an error, not an absent file."""
        place = place.rstrip("/")
        if place not in self._known:
            with in_one_line("look", place):
                system, path = opened(place)
                found = system.get_file_info(path)
                if found.type.name == "NotFound":
                    _require_bucket(system, path)
                self._known[place] = found
        return self._known[place]

    def open_read(self, path: str) -> DiskFile:  # type: ignore[override]
        """A file or an object."""
        return RemoteFile(path) if is_remote(path) else super().open_read(path)

    def exists(self, path: str) -> bool:
        """True for a file, an object or a prefix of some."""
        return self._info(path).type.name != "NotFound" if is_remote(path) else super().exists(path)

    def is_directory(self, path: str) -> bool:
        """True for a directory or a prefix."""
        return self._info(path).type.name == "Directory" if is_remote(path) else super().is_directory(path)

    def file_size(self, path: str) -> int:
        """Bytes in a file or an object."""
        if not is_remote(path):
            return super().file_size(path)
        if not self._info(path).is_file:
            raise FileMissingError(path)
        return int(self._info(path).size)

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory or below a prefix, sorted."""
        if not is_remote(path):
            return super().list_directory(path)
        from pyarrow import fs

        with in_one_line("list", path):
            system, inner = opened(path.rstrip("/"))
            found = system.get_file_info(fs.FileSelector(inner))
        for info in found:
            self._known[join(path, info.base_name)] = info
        return sorted(info.base_name for info in found if info.base_name)


def _require_bucket(system: Any, path: str) -> None:
    bucket = path.strip("/").partition("/")[0]
    if bucket and system.type_name in ("s3", "gcs", "abfs"):
        found = system.get_file_info(bucket)
        if found.type.name == "NotFound":
            raise OSError(f"bucket {bucket} does not exist")

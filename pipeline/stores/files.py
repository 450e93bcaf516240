"""Read-only files: objects in a store, and files packed in an archive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from metaquorum.pipeline.stores.remote import in_one_line, opened
from metaquorum.platforms import read_at
from metaquorum.storage.disk.interface import parent_of
from metaquorum.storage.errors import DiskError, FileMissingError

READ_AHEAD_BYTES = 8 * 1024 * 1024
_READ_ONLY = "logs in a store or an archive are only read"


class ReadOnlyFile(ABC):
    """A file that is read in pieces of READ_AHEAD_BYTES."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._start, self._buffer = 0, b""

    @property
    def path(self) -> str:
        """The place by which it was opened."""
        return self._address

    @abstractmethod
    def size(self) -> int:
        """Its size in bytes when it was opened."""

    @abstractmethod
    def _load(self, position: int, length: int) -> bytes:
        """`length` bytes from `position`, all of which exist."""

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`."""
        start = position - self._start
        if start < 0 or start + length > len(self._buffer):
            wanted = min(max(length, READ_AHEAD_BYTES), max(0, self.size() - position))
            self._buffer = self._load(position, wanted) if wanted else b""
            self._start, start = position, 0
        return self._buffer[start : start + length]

    def append(self, data: bytes) -> None:
        raise DiskError(parent_of(self._address), f"write of {self._address}", _READ_ONLY)

    def truncate(self, size: int) -> None:
        raise DiskError(parent_of(self._address), f"truncate of {self._address}", _READ_ONLY)

    def sync(self) -> None:
        raise DiskError(parent_of(self._address), f"sync of {self._address}", _READ_ONLY)

    @abstractmethod
    def close(self) -> None:
        """Releases its resources."""


class RemoteFile(ReadOnlyFile):
    """One object. Raises DiskError if it changes meanwhile."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        with in_one_line("open", address):
            self._system, self._path = opened(address)
            self._seen = self._look()
            self._handle = self._system.open_input_file(self._path)

    def _look(self) -> tuple[int, int]:
        info = self._system.get_file_info(self._path)
        if not info.is_file:
            raise FileMissingError(self._address)
        return info.size, info.mtime_ns or 0

    def size(self) -> int:
        return self._seen[0]

    def _load(self, position: int, length: int) -> bytes:
        with in_one_line("read", self._address):
            data = bytes(self._handle.read_at(length, position))
            if self._look() != self._seen:
                raise DiskError(
                    parent_of(self._address),
                    f"read of {self._address}",
                    "the object changed while it was read; run again when its upload is complete",
                )
        return data

    def close(self) -> None:
        self._handle.close()


class PackedFile(ReadOnlyFile):
    """`size` bytes from byte `start` on of an open file, which others share."""

    def __init__(self, address: str, handle: Any, start: int, size: int) -> None:
        super().__init__(address)
        self._handle, self._first, self._size = handle, start, size

    def size(self) -> int:
        return self._size

    def _load(self, position: int, length: int) -> bytes:
        return read_at(self._handle.fileno(), length, self._first + position)

    def close(self) -> None:
        """Does nothing: others still read the open file."""

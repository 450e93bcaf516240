"""A faulty disk with only what macOS has: no sync in the background, and one sync per file."""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.storage.disk.interface import DiskFile
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import FaultyFileSystem


class PlainDisk(FaultyDisk):
    """A power loss may come between the syncs of two files."""

    def background_sync(self, directory: str) -> None:  # type: ignore[override]
        """None."""

    def file_system(self, directory: str) -> FaultyFileSystem:
        return _OneByOne(self, directory)


class _OneByOne(FaultyFileSystem):
    def __init__(self, disk: FaultyDisk, directory: str) -> None:
        super().__init__(disk, directory)
        self._names = disk

    def sync(self, files: Sequence[DiskFile], directories: Sequence[str]) -> None:
        for file in files:
            super().sync([file], [])
        for each in directories:
            super().sync([], [each])

"""`Disk` for reading on this machine, where an archive appears as a directory.

Owns which paths lead into an archive. Knows nothing of blocks and index, which `opened` reads, and does not
write archives: `write` does.
"""

from __future__ import annotations

from metaquorum.storage.archive.format import SUFFIX
from metaquorum.storage.archive.opened import LogArchive
from metaquorum.storage.disk.interface import DiskFile
from metaquorum.storage.disk.posix import PosixDisk


def archive_in(path: str) -> str | None:
    """The archive that a path is or leads into; None if there is none."""
    at, disk = path.rstrip("/"), PosixDisk()
    while at:
        if at.endswith(SUFFIX) and disk.exists(at) and not disk.is_directory(at):
            return at
        at = at.rpartition("/")[0]
    return None


def disk_for(path: str) -> PosixDisk:
    """The disk to read a path with. Raises CorruptFileError for an archive that cannot be used."""
    archive = archive_in(path)
    return PosixDisk() if archive is None else LogArchiveDisk(archive)


class LogArchiveDisk(PosixDisk):
    """This machine's disk; below the path of one archive, that archive's contents."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._archive = LogArchive(super().open_read(path))

    def _inner(self, path: str) -> str | None:
        if path.rstrip("/") == self._path:
            return ""
        return path[len(self._path) + 1 :].rstrip("/") if path.startswith(self._path + "/") else None

    def open_read(self, path: str) -> DiskFile:  # type: ignore[override]
        """An existing file, in the archive or not."""
        inner = self._inner(path)
        return super().open_read(path) if inner is None else self._archive.open(inner)

    def exists(self, path: str) -> bool:
        """True for a file or a directory."""
        inner = self._inner(path)
        if inner is None:
            return super().exists(path)
        return inner in self._archive.files or inner in self._archive.folders

    def is_directory(self, path: str) -> bool:
        """True for a directory, and for the archive."""
        inner = self._inner(path)
        return super().is_directory(path) if inner is None else inner in self._archive.folders

    def file_size(self, path: str) -> int:
        """Bytes in a file."""
        inner = self._inner(path)
        return super().file_size(path) if inner is None else self._archive.open(inner).size()

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        inner = self._inner(path)
        return super().list_directory(path) if inner is None else sorted(self._archive.folders.get(inner, ()))

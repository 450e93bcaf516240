"""The read-only `Disk` of the pipeline: paths on this machine, archives, and stores through pyarrow.

Remembers a listing for the life of the object, so that a search for logs costs one request per folder, or a
few for the whole tree (`look_below`); a new object sees changes.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import IO, Any

from metaquorum.pipeline.stores.address import is_remote
from metaquorum.pipeline.stores.remote import PackedFile, RemoteFile, in_one_line, opened
from metaquorum.storage.archive import SUFFIX, LogArchive
from metaquorum.storage.disk.interface import DiskFile, join, name_of, parent_of
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import DiskError, FileMissingError

# Logs in archives: a tar file, or one of `metaquorum log archive`, is a directory; a gzip file has its own
# name.
#
# A compressed archive is unpacked once per process, into a file without a name, which disappears with the
# process.

OPEN_ARCHIVES = 16
"""The number of archives that a process keeps unpacked."""
GZIP = ".gz"
_SUFFIX = re.compile(rf"\.(?:tar(?:\.gz)?|tgz|{SUFFIX[1:]})(?=/|$)", re.IGNORECASE)
_OF_LOGS = (".log", ".deleted", ".checkpoint", ".properties", "quorum-state", "-checkpoint")
"""Ends of the names of files to unpack: other files may be large."""


class Archive:
    """Files by their names inside: (first byte, bytes) in `handle`."""

    def __init__(self, address: str) -> None:
        self.path = address
        self.files: dict[str, tuple[int, int]] = {}
        self.folders: dict[str, set[str]] = {"": set()}
        with _in_one_line(address):
            self.handle: IO[bytes] = self._plain() if address.lower().endswith(".tar") else self._unpacked()

    def _plain(self) -> IO[bytes]:
        """An uncompressed tar file, which is read directly."""
        handle: IO[bytes] = _raw(self.path)
        with tarfile.open(fileobj=handle, mode="r:") as tar:
            for member in tar:
                if member.isfile() and not member.issparse():
                    self._add(member.name, member.offset_data, member.size)
        return handle

    def _unpacked(self) -> IO[bytes]:
        spool = _nameless()
        with closing(_raw(self.path)) as raw, tarfile.open(fileobj=raw, mode="r|gz") as tar:
            for member in tar:
                source = tar.extractfile(member) if member.isfile() else None
                if source is not None and member.name.endswith(_OF_LOGS):
                    start = spool.tell()
                    shutil.copyfileobj(source, spool)
                    self._add(member.name, start, spool.tell() - start)
        spool.flush()
        return spool

    def _add(self, name: str, start: int, size: int) -> None:
        parts = [part for part in name.split("/") if part not in ("", ".", "..")]
        self.files["/".join(parts)] = (start, size)
        for depth, part in enumerate(parts):
            self.folders.setdefault("/".join(parts[:depth]), set()).add(part)

    def open(self, inner: str) -> PackedFile:
        """Opens a file by its name inside."""
        if inner not in self.files:
            raise FileMissingError(join(self.path, inner))
        return PackedFile(join(self.path, inner), self.handle, *self.files[inner])


def into_archive(path: str) -> tuple[Archive | LogArchive, str] | None:
    """The archive that a path leads into, and the name inside ("": the archive itself); None if it leads into
    none. Raises DiskError or CorruptFileError for one that cannot be read."""
    for match in _SUFFIX.finditer(path):
        holder = path[: match.end()]
        seen = _look(holder)
        if seen is not None:
            return _archive(holder, *seen), path[match.end() :].strip("/")
    return None


def is_archive(path: str) -> bool:
    """Whether a path is an archive itself, by its name."""
    return any(match.end() == len(path) for match in _SUFFIX.finditer(path))


def unzipped(path: str) -> PackedFile | None:
    """The content of the gzip file with this name plus .gz; None if there is none."""
    if path.endswith(GZIP) or is_archive(path + GZIP):
        return None
    seen = _look(path + GZIP)
    if seen is None:
        return None
    handle = _spooled(path + GZIP, *seen)
    return PackedFile(path, handle, 0, os.fstat(handle.fileno()).st_size)


def holder_of(path: str) -> str:
    """The file that really contains what is at a path."""
    found = into_archive(path)
    if found is not None:
        return found[0].path
    return path + GZIP if not os.path.exists(path) and _look(path + GZIP) is not None else path


@lru_cache(maxsize=OPEN_ARCHIVES)
def _archive(address: str, size: int, changed_ns: int) -> Archive | LogArchive:
    if address.lower().endswith(SUFFIX):
        return LogArchive(RemoteFile(address) if is_remote(address) else PosixDisk().open_read(address))
    return Archive(address)


@lru_cache(maxsize=OPEN_ARCHIVES)
def _spooled(address: str, size: int, changed_ns: int) -> IO[bytes]:
    spool = _nameless()
    with _in_one_line(address), closing(_raw(address)) as raw, gzip.open(raw) as source:
        shutil.copyfileobj(source, spool)
    spool.flush()
    return spool


def _look(address: str) -> tuple[int, int] | None:
    """(bytes, time of the last change in ns) of a file; None if there is none."""
    if is_remote(address):
        with in_one_line("look", address):
            system, inner = opened(address)
            info = system.get_file_info(inner)
        return (info.size, info.mtime_ns or 0) if info.is_file else None
    try:
        found = os.stat(address)
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if os.path.isfile(address) else None


def _nameless() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="metaquorum-")


def _raw(address: str) -> Any:
    """Opens the packed file itself. One in a store is copied here first."""
    if not is_remote(address):
        return open(address, "rb")
    spool, remote = _nameless(), RemoteFile(address)
    with closing(remote):
        at = 0
        while data := remote.read_at(at, min(1 << 20, remote.size() - at)):
            spool.write(data)
            at += len(data)
    spool.seek(0)
    return spool


@contextmanager
def _in_one_line(address: str) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DiskError(
            parent_of(address),
            f"unpacking of {address}",
            f"it is not a complete archive ({why}); copy it again, or unpack it and give the directory",
        ) from error


class StoreDisk(PosixDisk):
    """A `Disk` for reading paths, archives and addresses."""

    def __init__(self) -> None:
        self._infos: dict[str, Any] = {}
        self._listed: dict[str, list[str]] = {}

    def look_below(self, path: str) -> None:
        """Lists a whole tree of a store at once: S3 returns a thousand objects per request, where a listing
        by folder needs a request each. Later calls about that tree need no request."""
        if not is_remote(path):
            return
        from pyarrow import fs

        root = path.rstrip("/")
        with in_one_line("list", path):
            system, inner = opened(root)
            found = system.get_file_info(fs.FileSelector(inner, recursive=True))
        names: dict[str, set[str]] = {root: set()}
        for info in found:
            path_below = root + info.path.rstrip("/")[len(inner.rstrip("/")) :]
            self._infos[path_below] = info
            if not info.is_file:
                names.setdefault(path_below, set())
            while path_below != root:
                above = parent_of(path_below)
                names.setdefault(above, set()).add(name_of(path_below))
                path_below = above
        for path_below, inside in names.items():
            self._listed[path_below] = sorted(inside)
            if path_below not in self._infos:
                self._infos[path_below] = fs.FileInfo(path_below, fs.FileType.Directory)

    def stamp(self, path: str) -> tuple[int, int] | None:
        """(bytes, time of the last change in ns) of a file, as a listing shows them; of a packed file, those
        of its archive. None: no such file."""
        packed = into_archive(path)
        if packed is not None:
            holder = packed[0].path if packed[1] in packed[0].files else None
        else:
            holder = next((at for at in (path, path + GZIP) if self._is_there(at)), None)
        if holder is None:
            return None
        if is_remote(holder):
            info = self._info(holder)
            return info.size or 0, info.mtime_ns or 0
        found = os.stat(holder)
        return found.st_size, found.st_mtime_ns

    def _info(self, address: str) -> Any:
        """pyarrow's FileInfo. A bucket that does not exist is an error, not an absent file."""
        address = address.rstrip("/")
        if address not in self._infos:
            if name_of(address) not in self._listed.get(parent_of(address), (name_of(address),)):
                from pyarrow import fs

                return fs.FileInfo(address, fs.FileType.NotFound)
            with in_one_line("look", address):
                system, path = opened(address)
                found = system.get_file_info(path)
                if found.type.name == "NotFound":
                    _require_bucket(system, path)
                self._infos[address] = found
        return self._infos[address]

    def _is_there(self, path: str) -> bool:
        """Whether there is a file or directory of exactly this name."""
        return self._info(path).type.name != "NotFound" if is_remote(path) else super().exists(path)

    def open_read(self, path: str) -> DiskFile:  # type: ignore[override]
        """Opens a file, an object, or a packed file."""
        packed = into_archive(path)
        if packed is not None:
            return packed[0].open(packed[1])
        if not self._is_there(path):
            found = unzipped(path)
            if found is not None:
                return found
        return RemoteFile(path) if is_remote(path) else super().open_read(path)

    def exists(self, path: str) -> bool:
        """True for a file, an object or a prefix of objects, packed or not."""
        packed = into_archive(path)
        if packed is not None:
            archive, inner = packed
            return inner in archive.files or inner in archive.folders
        return self._is_there(path) or (not is_archive(path + GZIP) and self._is_there(path + GZIP))

    def is_directory(self, path: str) -> bool:
        """True for a directory, a prefix, or an archive."""
        packed = into_archive(path)
        if packed is not None:
            return packed[1] in packed[0].folders
        return self._info(path).type.name == "Directory" if is_remote(path) else super().is_directory(path)

    def file_size(self, path: str) -> int:
        """The size of a file or an object in bytes, unpacked."""
        if into_archive(path) is not None or not self._is_there(path):
            file = self.open_read(path)
            size = file.size()
            file.close()
            return size
        if not is_remote(path):
            return super().file_size(path)
        if not self._info(path).is_file:
            raise FileMissingError(path)
        return int(self._info(path).size)

    def list_directory(self, path: str) -> list[str]:
        """Sorted names in a directory, below a prefix or in an archive. Packed files are without .gz."""
        packed = into_archive(path)
        if packed is not None:
            return sorted(packed[0].folders.get(packed[1], ()))
        names = self._names(path)
        return sorted({name if is_archive(name) else name.removesuffix(GZIP) for name in names})

    def _names(self, path: str) -> list[str]:
        if not is_remote(path):
            return super().list_directory(path)
        path = path.rstrip("/")
        if path not in self._listed:
            from pyarrow import fs

            with in_one_line("list", path):
                system, inner = opened(path)
                found = system.get_file_info(fs.FileSelector(inner))
            for info in found:
                self._infos[join(path, info.base_name)] = info
            self._listed[path] = [info.base_name for info in found if info.base_name]
        return self._listed[path]


def _require_bucket(system: Any, path: str) -> None:
    bucket = path.strip("/").partition("/")[0]
    if bucket and system.type_name in ("s3", "gcs", "abfs"):
        found = system.get_file_info(bucket)
        if found.type.name == "NotFound":
            raise OSError(f"bucket {bucket} does not exist")

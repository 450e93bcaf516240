"""Logs in archives: a tar file, or one of `metaquorum log archive`, is a directory;
a gzip file has its own name.

A compressed archive is unpacked once per process, into a file without a name, which disappears with the
process.
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
from metaquorum.pipeline.stores.files import PackedFile, RemoteFile
from metaquorum.pipeline.stores.remote import in_one_line, opened
from metaquorum.storage.archive import SUFFIX, LogArchive
from metaquorum.storage.disk.interface import join, parent_of
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import DiskError, FileMissingError

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

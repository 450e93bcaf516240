"""Opens the logs at a path of this machine, for the log commands."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shutil
import stat
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import click

from metaquorum import platforms
from metaquorum.cli.errors import Failure, print_problem
from metaquorum.cli.interrupts import terminated_in_order
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.log import Item, MetadataLog, ReadBatch, damage_line, decode_item
from metaquorum.metadata.inspect.log.log import open_log as open_on_disk
from metaquorum.metadata.inspect.log.metadata_only import refuse_other_logs
from metaquorum.metadata.inspect.nodes.nodes import find_logs, most_complete, require_one_quorum, short_names
from metaquorum.platforms import slashed
from metaquorum.storage.archive import archive_in, disk_for
from metaquorum.storage.disk.interface import Disk, join
from metaquorum.storage.disk.posix import PosixDisk, PosixFile, make_private_directory, private_file
from metaquorum.storage.errors import NotALogError
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.snapshots import BOOTSTRAP_FILE, parse_snapshot_name
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.reader import LogReader
from metaquorum.storage.log.segment import parse_segment_name

MAX_BYTES = 16 << 30
"""Limit of what one archive may unpack to, metadata logs only."""
SPARE_BYTES = 64 << 20
"""Space to keep free on the disk."""
MAX_MEMBERS = 1_000_000

_PIECE_BYTES = 1 << 20
_ENCRYPTED = 1
_ARCHIVE = re.compile(r".*\.(tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz)|gz|zip)", re.IGNORECASE)
_INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex", ".snapshot")
_BROKEN = (tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, zipfile.BadZipFile)


def is_archive(path: str) -> bool:
    """Whether a path is a file that `open_archive` opens."""
    return _ARCHIVE.fullmatch(path) is not None and os.path.isfile(path)


class ArchiveDisk(PosixDisk):
    """This machine's disk, except that the unpacked files appear under the archive's path: messages name the
    archive and the place in it."""

    def __init__(self, archive: str, directory: str) -> None:
        self._archive = archive
        self._directory = directory

    def _real(self, path: str) -> str:
        if path == self._archive or path.startswith(self._archive + "/"):
            return self._directory + path[len(self._archive) :]
        return path

    def open_read(self, path: str) -> PosixFile:
        return super().open_read(self._real(path))

    def exists(self, path: str) -> bool:
        return super().exists(self._real(path))

    def is_directory(self, path: str) -> bool:
        return super().is_directory(self._real(path))

    def file_size(self, path: str) -> int:
        return super().file_size(self._real(path))

    def list_directory(self, path: str) -> list[str]:
        return super().list_directory(self._real(path))


def open_archive(path: str) -> ArchiveDisk:
    """The archive at `path` as a directory of that name, until the command ends. Raises Failure."""
    resources: ExitStack | click.Context | None = click.get_current_context(silent=True)
    resources = ExitStack() if resources is None else resources
    directory = _enter(resources)
    _unpack(path, directory)
    return ArchiveDisk(path, directory)


def _enter(resources: ExitStack | click.Context) -> str:
    if isinstance(resources, ExitStack):
        return resources.enter_context(temporary_directory("archive"))
    return resources.with_resource(temporary_directory("archive"))


def _unpack(archive: str, directory: str) -> None:
    taker = _Taker(archive, directory)
    try:
        if archive.lower().endswith(".zip"):
            _unpack_zip(archive, taker)
            taker.require_some()
            return
        try:
            packed = tarfile.open(archive, mode="r|*")  # noqa: SIM115 -- entered below
        except tarfile.ReadError:
            _unpack_one(archive, taker)
            return
        with packed:
            for number, member in enumerate(packed):
                if number >= MAX_MEMBERS:
                    raise Failure(
                        f"{archive} holds more than {MAX_MEMBERS} names; unpack the part that you need"
                    )
                _refuse_unsafe(archive, member)
                if not member.isfile():
                    continue
                content = packed.extractfile(member)
                if content is not None:
                    taker.take(member.name, content, member.size)
    except _BROKEN as error:
        raise Failure(
            f"{archive} is not a complete archive ({error}); copy it again, or unpack it by hand"
        ) from error
    taker.require_some()


def _unpack_zip(archive: str, taker: _Taker) -> None:
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        if len(members) > MAX_MEMBERS:
            raise Failure(f"{archive} holds more than {MAX_MEMBERS} names; unpack the part that you need")
        for member in members:
            _refuse_outside(archive, member.filename)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise Failure(
                    f"{archive} holds a link, {member.filename!r}; it is not read: pack the files themselves"
                )
            if member.flag_bits & _ENCRYPTED:
                raise Failure(f"{archive} is encrypted; unpack it and give the directory")
            if not member.is_dir():
                with packed.open(member) as content:
                    taker.take(member.filename, content, member.file_size)


def _refuse_outside(archive: str, name: str) -> None:
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise Failure(f"{archive} holds {name!r}, a path outside the archive; it is not read")


def _refuse_unsafe(archive: str, member: tarfile.TarInfo) -> None:
    _refuse_outside(archive, member.name)
    if member.issym() or member.islnk():
        raise Failure(
            f"{archive} holds a link, {member.name!r}; it is not read: pack the files themselves (tar "
            "--dereference --hard-dereference)"
        )
    if not (member.isfile() or member.isdir()):
        raise Failure(
            f"{archive} holds {member.name!r}, which is neither a file nor a directory; it is not read"
        )


def _unpack_one(archive: str, taker: _Taker) -> None:
    """Unpacks a single gzip file, under its name without .gz."""
    name = os.path.basename(archive)[: -len(".gz")]
    if not archive.lower().endswith(".gz") or not _is_of_log(name):
        raise Failure(
            f"{archive} is not a tar archive, and its name is not a segment's or checkpoint's name plus "
            ".gz (00000000000000000000.log.gz)"
        )
    with gzip.open(archive) as content:
        taker.take(f"{METADATA_DIRECTORY}/{name}", content, 0)


class _Taker:
    """Writes the files of metadata logs to the private directory, while there is room."""

    def __init__(self, archive: str, directory: str) -> None:
        self._archive = archive
        self._directory = Path(directory)
        self._written_bytes = 0
        self._logs = 0

    def take(self, name: str, content: IO[bytes] | gzip.GzipFile, size_bytes: int) -> None:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        inside = len(parts) > 1 and parts[-2] == METADATA_DIRECTORY
        if not parts or not (inside or _is_of_log(parts[-1])):
            return
        target = self._directory.joinpath(*parts)
        if inside and parts[-1].endswith(_INDEX_SUFFIXES):
            self._make(target)  # its name alone shows that the segment existed
            return
        self._require_room(size_bytes)
        self._make(target)
        is_segment = parse_segment_name(parts[-1]) is not None
        with target.open("wb") as file:
            while piece := content.read(_PIECE_BYTES):
                self._require_room(len(piece))
                file.write(piece)
                self._written_bytes += len(piece)
                if is_segment and not inside and file.tell() == len(piece):
                    file.flush()
                    if not _is_metadata(str(target)):
                        break
            else:
                self._logs += is_segment or parse_snapshot_name(parts[-1]) is not None
                return
        self._written_bytes -= target.stat().st_size
        target.unlink()

    def require_some(self) -> None:
        if not self._logs:
            raise Failure(
                f"{self._archive} holds no metadata log; pack a node's directory or its {METADATA_DIRECTORY}"
            )

    def _make(self, target: Path) -> None:
        make_private_directory(target.parent)
        private_file(target)

    def _require_room(self, more_bytes: int) -> None:
        wanted = self._written_bytes + more_bytes
        if wanted > MAX_BYTES:
            raise Failure(
                f"the metadata logs in {self._archive} are larger than {MAX_BYTES >> 30} GiB; unpack it "
                "and give the directory"
            )
        if shutil.disk_usage(self._directory).free - more_bytes < SPARE_BYTES:
            raise Failure(
                f"{self._archive} does not fit into {tempfile.gettempdir()}: set TMPDIR to a directory on "
                "a larger disk, or unpack it and give the directory"
            )


def _is_of_log(name: str) -> bool:
    return (
        parse_segment_name(name) is not None
        or parse_snapshot_name(name) is not None
        or name in (META_PROPERTIES, BOOTSTRAP_FILE)
    )


def _is_metadata(path: str) -> bool:
    """Whether the first bytes of a segment are those of a metadata log."""
    try:
        refuse_other_logs(MetadataLog(PosixDisk(), path))
    except NotALogError:
        return False
    return True


_LOCK = ".lock"
_FILES = "files"


@contextmanager
def temporary_directory(purpose: str) -> Iterator[str]:
    """An empty directory that only this user can read, removed however the command ends. `purpose`: a word
    in its name.

    The process locks a file in it. The system frees the lock however the process ends, and the next command
    removes what is left of a killed one.
    """
    prefix = f"metaquorum-{purpose}-"
    with terminated_in_order(), ExitStack() as ending:
        lock = None
        while lock is None:
            home = tempfile.mkdtemp(prefix=prefix)
            ending.callback(shutil.rmtree, home, ignore_errors=True)
            lock = _locked(home)
        ending.callback(os.close, lock)
        _remove_left(prefix, os.stat(home).st_uid)
        files = os.path.join(home, _FILES)
        os.mkdir(files, 0o700)
        yield files


def _locked(home: str) -> int | None:
    """The locked file of a new directory; None if another process took it for one that was left."""
    path = os.path.join(home, _LOCK)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if platforms.lock_file(lock) and os.path.exists(path):
            return lock
    except OSError:  # without locks no process removes what another one made
        return lock
    os.close(lock)
    return None


def _remove_left(prefix: str, user: int) -> None:
    """Removes this user's directories that no process has locked."""
    for entry in os.scandir(tempfile.gettempdir()):
        with suppress(OSError):
            if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_uid != user:
                continue
            path = os.path.join(entry.path, _LOCK)
            lock = os.open(path, os.O_RDWR)
            try:
                if not platforms.lock_file(lock):
                    continue
                with suppress(PermissionError):  # Windows keeps the names of open files
                    os.unlink(path)
            finally:
                os.close(lock)
            shutil.rmtree(entry.path, ignore_errors=True)


__all__ = [
    "Item",
    "MetadataLog",
    "ReadBatch",
    "ReadProgress",
    "damage_line",
    "decode_item",
    "is_packed",
    "items",
    "logs_at",
    "open_path",
    "open_paths",
    "open_reader",
]

NAMES = "metaquorum.cli.log.input.source.names"
"""Key in a context's `meta`: what messages call the log at a path, by path, if not that path."""
BEFORE_OPENING = "metaquorum.cli.log.input.source.before_opening"
"""Key in a context's `meta`: a function that copies the log of a running cluster. It is called when a log is
first opened: by then, a command has refused options that do not fit."""
_SHOWN_FROM_BYTES = 2 << 20
"""`check` takes a few seconds for this size. What is done within _INTERVAL_S shows no progress."""
_INTERVAL_S = 0.2


def open_path(path: str, *, progress: bool = True) -> MetadataLog:
    """The log at a path. Of several nodes' logs the most complete one, which it reports on standard error.
    `progress`: shows on a terminal how far a large log was read.

    Raises InspectError, NotALogError if there is no metadata log, Failure for an
    archive that cannot be opened.
    """
    logs = logs_at(path)
    log = logs[0]
    if len(logs) > 1:
        require_one_quorum(logs, path)
        log = most_complete(logs)
        names = short_names(logs)
        chosen = names[logs.index(log)]
        print_problem(
            f"{path} holds the logs of {len(logs)} nodes ({', '.join(names)}); this is the log "
            f"of {chosen}, which has the newest end; give another node's directory to see its log"
        )
    return _with_progress(log) if progress else log


def open_paths(paths: Sequence[str]) -> list[MetadataLog]:
    """Every log at the paths, each once; of directories and archives with several nodes, all."""
    found = {log.path: log for path in paths for log in logs_at(path)}
    return [_with_progress(log) for log in found.values()]


def logs_at(path: str) -> list[MetadataLog]:
    """The log at a path, or those of the nodes below it. Raises as `open_path` does."""
    fetch_first()
    given = path
    path, disk = _disk_of(path)
    if is_archive(path):
        return _found(open_archive(path), path)
    if not disk.exists(path):
        raise InspectError(f"{path} does not exist; check the path")
    try:
        log = open_on_disk(disk, path)
    except NotALogError:
        if not disk.is_directory(path):
            raise
        logs = find_logs(disk, path)
        archives = [one for name in disk.list_directory(path) if is_packed(one := join(path, name))]
        logs = logs or [log for one in archives for log in logs_at(one)]
        if not logs:
            raise
        return logs
    refuse_other_logs(log)
    log.name = _names().get(given, log.path)
    return [log]


def _names() -> Mapping[str, str]:
    context = click.get_current_context(silent=True)
    return {} if context is None else context.meta.get(NAMES, {})


def fetch_first() -> None:
    """Copies the log of a running cluster, if the command reads one and has not opened it yet. Raises
    Failure."""
    context = click.get_current_context(silent=True)
    prepare = None if context is None else context.meta.pop(BEFORE_OPENING, None)
    if prepare is not None:
        prepare()


def _disk_of(path: str) -> tuple[str, Disk]:
    """A path as it is read, and the disk to read it with. Addresses of object stores are read through the
    pipeline's file systems."""
    if "://" not in path:
        path = slashed(path)
        return path, disk_for(path)
    from metaquorum.pipeline.stores.address import PathError, address, is_remote
    from metaquorum.pipeline.stores.disk import StoreDisk

    try:
        path = address(path)
    except PathError as error:
        raise InspectError(str(error)) from None
    disk = StoreDisk()
    if is_remote(path):
        disk.look_below(path)
    return path, disk


def is_packed(path: str) -> bool:
    """Whether a path is an archive, ours or another."""
    return is_archive(path) or archive_in(path) is not None


def _found(disk: Disk, path: str) -> list[MetadataLog]:
    logs = find_logs(disk, path)
    if not logs:
        raise NotALogError(path, "holds no metadata log")
    return logs


def _with_progress(log: MetadataLog) -> MetadataLog:
    if sys.stderr.isatty():
        size_bytes = log.size_bytes()
        if size_bytes >= _SHOWN_FROM_BYTES:
            log.on_read = ReadProgress(log.path, size_bytes)
    return log


class ReadProgress:
    """Called with the bytes of each batch that was read. Redraws its line at most five times per second."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self._name = name
        self._size_bytes = size_bytes
        self._done_bytes = 0
        self._shown_s = time.monotonic()
        self._drawn = False

    def __call__(self, read_bytes: int) -> None:
        self._done_bytes += read_bytes
        now_s = time.monotonic()
        if now_s - self._shown_s < _INTERVAL_S:
            return
        self._shown_s = now_s
        self._drawn = True
        percent = min(100, 100 * self._done_bytes // max(1, self._size_bytes))
        sys.stderr.write(f"\r{percent:3d} % of {self._name} ({self._done_bytes >> 20} MiB)\x1b[K")
        sys.stderr.flush()

    def clear(self) -> None:
        """Removes the line before other output."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


def items(path: str) -> Iterator[Item]:
    """Everything that the log at `path` holds now, with damage between the readable parts."""
    return open_path(path, progress=False).items()


def open_reader(path: str, start_offset: int | None = None) -> LogReader:
    """A tolerant reader that can follow the log. The caller closes it."""
    return LogReader(disk_for(path), path, tolerant=True, start_offset=start_offset)

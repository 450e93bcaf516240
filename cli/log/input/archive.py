"""Opens archives of nodes' directories for one command, as streams: .tar, .tar.gz, .zip, .gz of a file."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import click

from metaquorum.cli.errors import Failure
from metaquorum.cli.log.input.temporary import temporary_directory
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.metadata_only import refuse_other_logs
from metaquorum.storage.disk.posix import PosixDisk, PosixFile, make_private_directory, private_file
from metaquorum.storage.errors import NotALogError
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.snapshots import BOOTSTRAP_FILE, parse_snapshot_name
from metaquorum.storage.log.config import METADATA_DIRECTORY
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

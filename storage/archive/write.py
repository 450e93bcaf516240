"""Archives on a disk: written and read back before they get their final name, and extracted again.

Owns the staged names, and that a crash leaves no incomplete archive or directory under the requested name: at
most a staged one beside it (`staged_path`), which `leftovers` finds. Only reads sources, and does not know
the layout of an archive: `packer` and `opened` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from metaquorum.storage.archive.format import ArchiveIndex
from metaquorum.storage.archive.opened import LogArchive
from metaquorum.storage.archive.packer import Packer
from metaquorum.storage.archive.pieces import SeenPieces
from metaquorum.storage.disk.interface import (
    STAGED_SUFFIX,
    Disk,
    join,
    name_of,
    parent_of,
    place_staged,
    remove_if_present,
    staged_path,
)
from metaquorum.storage.errors import FileMissingError, StorageError
from metaquorum.storage.files.snapshots import parse_snapshot_name
from metaquorum.storage.log.segment import parse_segment_name


class ArchiveSource(NamedTuple):
    """A file to archive, and its path in the archive."""

    disk: Disk
    path: str
    name: str


class Packed(NamedTuple):
    """The result of packing. `gone` are files that were removed meanwhile, as a running node may do."""

    holds: ArchiveIndex
    stored_bytes: int
    gone: list[str]


def pack(append: Callable[[bytes], None], sources: Iterable[ArchiveSource]) -> Packed:
    """Packs files into an archive; `append` takes its bytes in order. Raises StorageError.

    Segments come first, node by node; then snapshots, those with the same name together.
    """
    packer = Packer(append)
    gone: list[str] = []
    kind, seen = "", SeenPieces()
    for source in sorted(sources, key=_order):
        if _kind(source) != kind:
            kind, seen = _kind(source), SeenPieces()
        try:
            file = source.disk.open_read(source.path)
        except FileMissingError:
            gone.append(source.path)
            continue
        try:
            packer.add(source.name, file, seen, parse_segment_name(name_of(source.name)))
        finally:
            file.close()
    return Packed(packer.finish(), packer.stored_bytes, gone)


def _kind(source: ArchiveSource) -> str:
    """The kind of a file: files of one kind may hold the same batches."""
    name = name_of(source.name)
    if parse_segment_name(name) is not None:
        return "log"
    return name if parse_snapshot_name(name) is not None else "other"


def _order(source: ArchiveSource) -> tuple[int, str, str]:
    kind = _kind(source)
    place = {"log": 0, "other": 2}.get(kind, 1)
    return place, kind if place == 1 else "", source.name


def write_archive(disk: Disk, target: str, sources: Iterable[ArchiveSource], who: str) -> Packed:
    """Makes the archive `target`, which must not exist; `who` distinguishes concurrent writers. Raises
    StorageError, after which nothing is left."""
    _refuse_existing(disk, target)
    staged = staged_path(target, who)
    with _removed_on_failure(lambda: [staged], disk):
        file = disk.open_append(staged)
        try:
            file.truncate(0)
            packed = pack(file.append, sources)
            file.sync()
        finally:
            file.close()
        written = LogArchive(disk.open_read(staged))
        try:
            written.verify()
        finally:
            written.close()
        _refuse_existing(disk, target)
        place_staged(disk, target, who)
    disk.sync_directory(parent_of(target))
    return packed


def extract_archive(archive: LogArchive, disk: Disk, target: str, who: str) -> None:
    """Makes the directory `target`, absent or empty, with every file of an archive unchanged. Raises
    StorageError, after which nothing is left."""
    if disk.exists(target):
        if not disk.is_directory(target) or disk.list_directory(target):
            raise StorageError(f"{target} already exists and is not empty; give a new directory")
        disk.remove_directory(target)
    staged = staged_path(target, who)
    made: list[str] = []
    with _removed_on_failure(lambda: made, disk):
        for folder in sorted(archive.folders):
            made.insert(0, join(staged, folder) if folder else staged)
            disk.make_directory(made[0])
        for one in archive.index.files:
            made.insert(0, join(staged, one.name))
            file = disk.open_append(made[0])
            try:
                for part in archive.contents(one):
                    file.append(part)
                file.sync()
            finally:
                file.close()
        for folder in sorted(archive.folders, reverse=True):
            disk.sync_directory(join(staged, folder) if folder else staged)
        disk.rename(staged, target)
    disk.sync_directory(parent_of(target))


def leftovers(disk: Disk, target: str) -> list[tuple[str, str]]:
    """(path, writer) of staged archives for `target`."""
    folder, name = parent_of(target), name_of(target)
    found = [one for one in disk.list_directory(folder) if one.startswith(name + ".")]
    return [
        (join(folder, one), one[len(name) + 1 : -len(STAGED_SUFFIX)])
        for one in found
        if one.endswith(STAGED_SUFFIX) and not disk.is_directory(join(folder, one))
    ]


def _refuse_existing(disk: Disk, target: str) -> None:
    if disk.exists(target):
        raise StorageError(f"{target} already exists; give the name of a new file")


@contextmanager
def _removed_on_failure(made: Callable[[], list[str]], disk: Disk) -> Iterator[None]:
    """On failure or interruption, removes what was made, newest first."""
    try:
        yield
    except BaseException:
        for path in made():
            with suppress(StorageError):
                if disk.exists(path) and disk.is_directory(path):
                    disk.remove_directory(path)
                else:
                    remove_if_present(disk, path)
        raise

"""Archives on a disk: written and read back before they get their final name, and extracted again.

The staged names, and that a crash leaves no incomplete archive or directory under the requested name: at most
a staged one beside it (`staged_path`), which `leftovers` finds. Only reads sources, and does not know the
layout of an archive: `packer` and `opened` do.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b, sha256
from typing import NamedTuple

from metaquorum.storage.archive import (
    BLOCK_BYTES,
    ArchivedFile,
    ArchiveIndex,
    Block,
    Extent,
    IndexedPart,
    LogArchive,
    encode_block,
    encode_end,
    encode_head,
)
from metaquorum.storage.batches.batch import batch_problem, parse_header
from metaquorum.storage.batches.format import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, MAGIC, BatchHeader
from metaquorum.storage.disk.interface import (
    STAGED_SUFFIX,
    Disk,
    DiskFile,
    join,
    name_of,
    parent_of,
    place_staged,
    remove_if_present,
    staged_path,
)
from metaquorum.storage.errors import FileMissingError, StorageError
from metaquorum.storage.files.snapshots import parse_snapshot_name
from metaquorum.storage.log.recovery import MAX_READABLE_BATCH_BYTES, find_valid_batch
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
    """Packs files into an archive; `append` takes its bytes in order. Raises StorageError, also for a log of
    which nothing is left.

    Segments come first, node by node; then snapshots, those with the same name together.
    """
    packer = Packer(append)
    gone: list[str] = []
    lost: dict[str, str] = {}
    kept: set[str] = set()
    kind, seen = "", SeenPieces()
    for source in sorted(sources, key=_order):
        if _kind(source) != kind:
            kind, seen = _kind(source), SeenPieces()
        try:
            file = source.disk.open_read(source.path)
        except FileMissingError:
            gone.append(source.path)
            if kind != "other":
                lost[parent_of(source.name)] = parent_of(source.path)
            continue
        try:
            packer.add(source.name, file, seen, parse_segment_name(name_of(source.name)))
        finally:
            file.close()
        if kind != "other":
            kept.add(parent_of(source.name))
    for name, path in lost.items():
        if name not in kept:
            raise StorageError(
                f"every segment and snapshot in {path} was removed while it was read; check that it is the"
                " directory of a node that runs, and archive it again"
            )
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
    refuse_existing(disk, target)
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
        refuse_existing(disk, target)
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
        for entry in archive.index.files:
            made.insert(0, join(staged, entry.name))
            file = disk.open_append(made[0])
            try:
                for part in archive.contents(entry):
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


def refuse_existing(disk: Disk, target: str) -> None:
    """Raises StorageError."""
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


# Making an archive: files are added one by one, and what the content already has is not stored again.
# Writes through an append function, so that the same code can compute the size of an archive; it knows no
# target file, which `write` owns. Two archives of the same files are identical byte for byte.

PART_BYTES = 128 << 10
"""A reader that starts in the middle of a segment unpacks about this much, which takes no noticeable time."""


class Packer:
    """One archive in the making."""

    def __init__(self, append: Callable[[bytes], None]) -> None:
        """`append` takes the bytes of the archive in order."""
        self._append = append
        self._blocks: list[Block] = []
        self._files: list[ArchivedFile] = []
        self._buffer = bytearray()
        self.content_bytes = 0
        self.stored_bytes = 0
        self._write(encode_head())

    def _write(self, data: bytes) -> None:
        self._append(data)
        self.stored_bytes += len(data)

    def add(self, name: str, file: DiskFile, seen: SeenPieces, base_offset: int | None = None) -> None:
        """Adds a file at its current length. `seen` has the pieces of earlier files of the same kind;
        `base_offset` is a segment's, from its name."""
        size = file.size()
        digest = sha256()
        extents: list[Extent] = []
        parts = _SegmentParts(base_offset)
        for piece in pieces(file, size):
            digest.update(piece.data)
            key, stored = seen.find(piece)
            if stored is None:
                stored = self._store(piece.data)
                seen.note(piece, key, stored)
            _extend(extents, stored, len(piece.data))
            parts.take(piece)
        self._files.append(
            ArchivedFile(
                name=name,
                size=sum(at.length for at in extents),
                sha256=digest.hexdigest(),
                extents=extents,
                parts=parts.parts,
                linked_bytes=parts.linked_bytes,
                end_offset=parts.end_offset,
            )
        )

    def _store(self, data: bytes) -> int:
        start = self.content_bytes
        self._buffer += data
        self.content_bytes += len(data)
        while len(self._buffer) >= BLOCK_BYTES:
            self._end_block(BLOCK_BYTES)
        return start

    def _end_block(self, size: int) -> None:
        block, stored = encode_block(bytes(self._buffer[:size]))
        del self._buffer[:size]
        self._blocks.append(block)
        self._write(stored)

    def finish(self) -> ArchiveIndex:
        """Writes the rest; returns the index."""
        if self._buffer:
            self._end_block(len(self._buffer))
        index = ArchiveIndex(blocks=self._blocks, files=self._files)
        self._write(encode_end(index, self.stored_bytes))
        return index


def _extend(extents: list[Extent], start: int, length: int) -> None:
    if extents and extents[-1].start + extents[-1].length == start:
        extents[-1] = Extent(extents[-1].start, extents[-1].length + length)
    else:
        extents.append(Extent(start, length))


class _SegmentParts:
    """The parts of a segment, as far as its headers lead without a break."""

    def __init__(self, base_offset: int | None) -> None:
        self.parts: list[IndexedPart] = []
        self.end_offset: int | None = None
        self.linked_bytes = 0
        self._expected = base_offset
        self._epoch = 0

    def take(self, piece: FilePiece) -> None:
        header = piece.header
        if header is None or self._expected is None or self._breaks(header):
            self._expected = None
            return
        times = header.base_timestamp_ms, header.max_timestamp_ms
        low, high = min(times), max(times)
        if not self.parts or piece.position - self.parts[-1].position >= PART_BYTES:
            self.parts.append(IndexedPart(piece.position, self._expected, self._epoch, low, high))
        last = self.parts[-1]
        self.parts[-1] = last._replace(first_ms=min(last.first_ms, low), last_ms=max(last.last_ms, high))
        self.linked_bytes = piece.position + len(piece.data)
        self._expected = self.end_offset = header.next_offset
        self._epoch = header.leader_epoch

    def _breaks(self, header: BatchHeader) -> bool:
        return (
            header.base_offset != self._expected
            or header.next_offset <= header.base_offset
            or header.leader_epoch < self._epoch
        )


# Splits a file of a log at its batches, and finds where the same batches were seen before.
# Whatever the bytes are, the pieces of a file together are the file: bytes that are not a whole batch
# with a correct CRC form pieces of their own.

WINDOW_BYTES = 1 << 20
RAW_BYTES = 64 << 10
"""The largest piece of bytes that are not a batch."""
MAX_RUNS = 1_000
"""The most parts of rising offsets that are searched; a log has one, plus one per divergence."""

_DIGEST_BYTES = 16


class FilePiece(NamedTuple):
    """Bytes of a file from `position` on; `header` is their batch's header, or None if they are not a
    batch."""

    position: int
    data: bytes
    header: BatchHeader | None


def pieces(file: DiskFile, size: int) -> Iterator[FilePiece]:
    """The first `size` bytes of a file, in order; the file may grow meanwhile."""
    position = 0
    window, start = b"", 0
    while position < size:
        if position + HEADER_BYTES > start + len(window):
            window, start = file.read_at(position, min(WINDOW_BYTES, size - position)), position
        position_in_window = position - start
        length = _batch_bytes(window, position_in_window)
        if 0 < length <= size - position and position_in_window + length > len(window):
            window, start, position_in_window = file.read_at(position, max(length, WINDOW_BYTES)), position, 0
        if length and length <= size - position:
            data = window[position_in_window : position_in_window + length]
            if batch_problem(data, 0, check_count=False) is None:
                yield FilePiece(position, data, parse_header(data))
                position += length
                continue
        found = find_valid_batch(file, position + 1, 0)
        end = size if found is None else min(size, found[0])
        for position_in_window in range(position, end, RAW_BYTES):
            yield FilePiece(
                position_in_window,
                file.read_at(position_in_window, min(RAW_BYTES, end - position_in_window)),
                None,
            )
        position = end


def _batch_bytes(window: bytes, position: int) -> int:
    """Size of the batch at this position, from its length field; 0 if none begins there."""
    if len(window) - position < HEADER_BYTES or window[position + 16] != MAGIC:
        return 0
    length = int.from_bytes(window[position + 8 : position + 12], "big", signed=True) + LENGTH_OVERHEAD_BYTES
    return length if HEADER_BYTES <= length <= MAX_READABLE_BATCH_BYTES else 0


class _Run:
    """Batches with rising base offsets: 32 bytes for each."""

    def __init__(self) -> None:
        self.bases = array("q")
        self.places = array("q")
        self.digests = bytearray()

    def find(self, base_offset: int, digest: bytes) -> int | None:
        """The place of a batch if it is here; the digest covers its bytes, which include its offset."""
        at = bisect_left(self.bases, base_offset)
        known = self.digests[at * _DIGEST_BYTES : (at + 1) * _DIGEST_BYTES]
        return self.places[at] if known == digest else None


class SeenPieces:
    """Where the pieces of a log's files are in the content of an archive."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._raw: dict[bytes, int] = {}

    def find(self, piece: FilePiece) -> tuple[bytes, int | None]:
        """The digest of a piece, and its place if it was noted."""
        digest = blake2b(piece.data, digest_size=_DIGEST_BYTES).digest()
        if piece.header is None:
            return digest, self._raw.get(digest)
        base_offset = piece.header.base_offset
        for run in self._runs:
            if run.bases[-1] >= base_offset:
                place = run.find(base_offset, digest)
                if place is not None:
                    return digest, place
        return digest, None

    def note(self, piece: FilePiece, digest: bytes, start: int) -> None:
        """Records that a piece is in the content from `start` on."""
        if piece.header is None:
            self._raw[digest] = start
            return
        base_offset = piece.header.base_offset
        if not self._runs or self._runs[-1].bases[-1] >= base_offset:
            if len(self._runs) >= MAX_RUNS:
                return
            self._runs.append(_Run())
        run = self._runs[-1]
        run.bases.append(base_offset)
        run.places.append(start)
        run.digests += digest

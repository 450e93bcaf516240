"""Archives of metadata logs: one file with the files of several nodes; what they share is stored once.

Files are read by name, and any of their bytes, unpacked one block at a time; every block is checked. A
segment's offsets and times come from the index.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256
from itertools import accumulate
from typing import Any, NamedTuple

import cramjam
import msgspec
import numpy as np
from crc32c import crc32c

from metaquorum.storage.disk.interface import DiskFile, join, parent_of
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import CorruptFileError, DiskError, FileMissingError

CACHED_BLOCKS = 8


class LogArchive:
    """An open archive. `folders` has the names in each folder; "" is the archive itself."""

    def __init__(self, file: DiskFile) -> None:
        """Takes ownership of the file. Raises CorruptFileError, DiskError."""
        self._file = file
        self.path = file.path
        size = file.size()
        check_head(self.path, file.read_at(0, HEAD.size))
        tail = decode_tail(self.path, size, file.read_at(max(0, size - TAIL.size), TAIL.size))
        stored = file.read_at(tail.position, tail.stored_bytes)
        self.index: ArchiveIndex = decode_index(self.path, tail, stored)
        self.stored_bytes = size
        sizes = (block.stored_bytes for block in self.index.blocks)
        self._positions = list(accumulate(sizes, initial=HEAD.size))
        contents = (block.content_bytes for block in self.index.blocks)
        self._starts = list(accumulate(contents, initial=0))
        self._cached: OrderedDict[int, bytes] = OrderedDict()
        self.files = {one.name: one for one in self.index.files}
        self.folders: dict[str, set[str]] = {"": set()}
        for name in self.files:
            parts = name.split("/")
            for depth, part in enumerate(parts):
                self.folders.setdefault("/".join(parts[:depth]), set()).add(part)

    def open(self, name: str) -> FileInArchive:
        """A file by its name. Raises FileMissingError."""
        if name not in self.files:
            raise FileMissingError(join(self.path, name))
        return FileInArchive(self, self.files[name])

    def content(self, start: int, length: int) -> Iterator[bytes]:
        """Bytes of the content, in chunks."""
        while length > 0:
            number = bisect_right(self._starts, start) - 1
            at = start - self._starts[number]
            part = self._block(number)[at : at + length]
            yield part
            start, length = start + len(part), length - len(part)

    def _block(self, number: int) -> bytes:
        known = self._cached.get(number)
        if known is not None:
            self._cached.move_to_end(number)
            return known
        block, position = self.index.blocks[number], self._positions[number]
        stored = self._file.read_at(position, block.stored_bytes)
        content = self._cached[number] = decode_block(self.path, position, block, stored)
        if len(self._cached) > CACHED_BLOCKS:
            self._cached.popitem(last=False)
        return content

    def verify(self) -> None:
        """Reads every file, and so every block. Raises CorruptFileError."""
        for one in self.index.files:
            for _ in self.contents(one):
                pass

    def contents(self, file: ArchivedFile) -> Iterator[bytes]:
        """A file in chunks. Raises CorruptFileError at its end if its checksum does not match."""
        digest = sha256()
        for extent in file.extents:
            for part in self.content(extent.start, extent.length):
                digest.update(part)
                yield part
        if digest.hexdigest() != file.sha256:
            raise CorruptFileError(
                join(self.path, file.name),
                "is not what was archived",
                "copy the archive again, or restore it",
            )

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class FileInArchive:
    """`DiskFile` for reading a file in an archive."""

    def __init__(self, archive: LogArchive, file: ArchivedFile) -> None:
        self._archive, self._entry = archive, file
        self._starts = list(accumulate((at.length for at in file.extents), initial=0))

    @property
    def path(self) -> str:
        return join(self._archive.path, self._entry.name)

    def size(self) -> int:
        """Size in bytes."""
        return self._entry.size

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`."""
        end = min(position + length, self._entry.size)
        parts: list[bytes] = []
        number = bisect_right(self._starts, position) - 1
        while position < end:
            extent, start = self._entry.extents[number], self._starts[number]
            wanted = min(end, start + extent.length) - position
            parts += self._archive.content(extent.start + position - start, wanted)
            position += wanted
            number += 1
        return b"".join(parts)

    def place_before(self, offset: int) -> tuple[int, int, int] | None:
        """See `PlacedFile`."""
        parts = self._entry.parts
        at = bisect_right(parts, offset, key=lambda one: one.offset) - 1
        return None if at < 0 else (parts[at].position, parts[at].offset, parts[at].epoch)

    def times(self) -> tuple[int, int] | None:
        """The lowest and highest timestamps in a segment (Unix ms); None if damage may hide others."""
        parts = self._entry.parts
        if not parts or self._entry.linked_bytes != self._entry.size:
            return None
        return min(one.first_ms for one in parts), max(one.last_ms for one in parts)

    def append(self, data: bytes) -> None:
        self._refuse("write")

    def truncate(self, size: int) -> None:
        self._refuse("truncate")

    def sync(self) -> None:
        self._refuse("sync")

    def _refuse(self, operation: str) -> None:
        raise DiskError(parent_of(self.path), f"{operation} of {self.path}", "archives are only read")

    def close(self) -> None:
        """Does nothing: other files still read the archive."""


# The bytes of an archive: head, blocks, index, tail.
#
#     head   8 bytes "MQARCHIV", u32 version
#     blocks zstd, each a part of the content: what the files hold, with shared parts stored once
#     index  zstd of JSON: `ArchiveIndex`
#     tail   u64 position of the index, u32 its size, u32 its unpacked size, u32 its CRC-32C,
#            u32 CRC-32C of the 20 bytes before, 8 bytes "MQARCEND"
#
# Numbers are big-endian.

VERSION = 1
"""The version of the format that is written. Older versions can be read."""
SUFFIX = ".mqa"
HEAD_MAGIC, TAIL_MAGIC = b"MQARCHIV", b"MQARCEND"
HEAD = struct.Struct(">8sI")
TAIL = struct.Struct(">QIIII8s")
BLOCK_BYTES = 4 << 20
"""Content bytes in every block written, except the last. A reader accepts up to MAX_BLOCK_BYTES."""
MAX_BLOCK_BYTES = 64 << 20
MAX_INDEX_BYTES = 1 << 30
LEVEL = 12
"""The zstd level: higher levels take several times as long and save a few percent."""

_CRC_AT = 20
_COPY = "copy it again, or restore it"


class Block(NamedTuple):
    """A part of the content: its size in the archive, its unpacked size, and the CRC-32C of the stored
    bytes."""

    stored_bytes: int
    content_bytes: int
    crc: int


class Extent(NamedTuple):
    """`length` bytes of the content from `start` on."""

    start: int
    length: int


class IndexedPart(NamedTuple):
    """Batches of a segment from byte `position` to the next part: the first offset, the leader epoch
    before it, and the lowest and highest timestamps (Unix ms; -1 if a batch has none). The headers before
    `position` lead there without a break."""

    position: int
    offset: int
    epoch: int
    first_ms: int
    last_ms: int


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file by its path in the archive. For a segment, the parts cover its first `linked_bytes`
    bytes, and `end_offset` is the offset after their last batch."""

    name: str
    size: int
    sha256: str
    extents: list[Extent]
    parts: list[IndexedPart] = msgspec.field(default_factory=list, name="stretches")
    linked_bytes: int = 0
    end_offset: int | None = None


class ArchiveIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The files and blocks of an archive."""

    blocks: list[Block]
    files: list[ArchivedFile]


class ArchiveTail(NamedTuple):
    """Position and sizes of the index."""

    position: int
    stored_bytes: int
    content_bytes: int
    crc: int


def encode_head() -> bytes:
    return HEAD.pack(HEAD_MAGIC, VERSION)


def check_head(file: str, head: bytes) -> None:
    """Raises CorruptFileError if the file is not an archive, or its version is unknown."""
    if len(head) < HEAD.size or not head.startswith(HEAD_MAGIC):
        raise CorruptFileError(file, "this is not an archive of `metaquorum log archive`", "check the path")
    _, version = HEAD.unpack(head)
    if not 1 <= version <= VERSION:
        raise CorruptFileError(
            file, f"is an archive of format {version}, and this release reads up to {VERSION}", "upgrade"
        )


def encode_block(content: bytes) -> tuple[Block, bytes]:
    """Returns a block and its bytes."""
    stored = bytes(cramjam.zstd.compress(content, level=LEVEL))
    return Block(len(stored), len(content), crc32c(stored)), stored


def decode_block(file: str, position: int, block: Block, stored: bytes) -> bytes:
    """Returns the content of a block. Raises CorruptFileError with its position in the archive."""
    content = _unpacked(stored, block.content_bytes) if crc32c(stored) == block.crc else None
    if content is None:
        raise CorruptFileError(file, f"the block at byte {position} is damaged", _COPY)
    return content


def encode_end(index: ArchiveIndex, position: int) -> bytes:
    """Returns index and tail, which begin at byte `position` of the archive."""
    content = msgspec.json.encode(index)
    stored = bytes(cramjam.zstd.compress(content, level=LEVEL))
    numbers = TAIL.pack(position, len(stored), len(content), crc32c(stored), 0, b"")[:_CRC_AT]
    return stored + numbers + struct.pack(">I8s", crc32c(numbers), TAIL_MAGIC)


def decode_tail(file: str, size: int, tail: bytes) -> ArchiveTail:
    """Locates the index from the last bytes of an archive of `size` bytes. Raises CorruptFileError."""
    if len(tail) < TAIL.size or not tail.endswith(TAIL_MAGIC):
        raise CorruptFileError(file, f"the archive is cut off: it has no end after {size} bytes", _COPY)
    position, stored_bytes, content_bytes, crc, own_crc, _ = TAIL.unpack(tail)
    whole = position + stored_bytes + TAIL.size == size and content_bytes <= MAX_INDEX_BYTES
    if crc32c(tail[:_CRC_AT]) != own_crc or not whole:
        raise CorruptFileError(file, "the end of the archive is damaged", _COPY)
    return ArchiveTail(position, stored_bytes, content_bytes, crc)


def decode_index(file: str, tail: ArchiveTail, stored: bytes) -> ArchiveIndex:
    """Returns the index, checked for consistency and against the size. Raises CorruptFileError."""
    content = _unpacked(stored, tail.content_bytes) if crc32c(stored) == tail.crc else None
    if content is None:
        raise CorruptFileError(file, "the index of the archive is damaged", _COPY)
    try:
        index = msgspec.json.decode(content, type=ArchiveIndex)
    except msgspec.DecodeError as error:
        raise CorruptFileError(file, f"the index of the archive cannot be read ({error})", _COPY) from error
    problem = _problem(index, tail.position)
    if problem is not None:
        raise CorruptFileError(file, f"the index of the archive contradicts itself: {problem}", _COPY)
    return index


def _problem(index: ArchiveIndex, end: int) -> str | None:
    if HEAD.size + sum(block.stored_bytes for block in index.blocks) != end:
        return "its blocks do not fill the archive"
    if any(not 0 < block.content_bytes <= MAX_BLOCK_BYTES for block in index.blocks):
        return "a block has a size that none can have"
    content_bytes = sum(block.content_bytes for block in index.blocks)
    for file in index.files:
        parts = file.name.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\0" in file.name:
            return f"{file.name!r} is outside the archive"
        inside = all(0 <= at.start <= at.start + at.length <= content_bytes for at in file.extents)
        if not inside or sum(at.length for at in file.extents) != file.size:
            return f"{file.name} has other places than bytes"
    names = [file.name for file in index.files]
    return None if len(set(names)) == len(names) else "two files have one name"


def _unpacked(stored: bytes, content_bytes: int) -> bytes | None:
    """Unpacks zstd; None if the result does not have this many bytes."""
    out: Any = np.empty(content_bytes, dtype=np.uint8)
    try:
        found = cramjam.zstd.decompress_into(stored, out)
    except cramjam.DecompressionError:
        return None
    return out.tobytes() if found == content_bytes else None


# `Disk` for reading on this machine, where an archive appears as a directory.


def archive_in(path: str) -> str | None:
    """The archive that a path is or leads into; None if there is none."""
    parent, disk = path.rstrip("/"), PosixDisk()
    while parent:
        if parent.endswith(SUFFIX) and disk.exists(parent) and not disk.is_directory(parent):
            return parent
        parent = parent.rpartition("/")[0]
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

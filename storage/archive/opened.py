"""Reading an archive: its files by name, and any of their bytes, unpacked one block at a time.

Owns the archive's open file and a few blocks in memory, and checks every block that it reads. Does not parse
batches: a segment's offsets and times come from the index.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256
from itertools import accumulate

from metaquorum.storage.archive.format import (
    HEAD,
    TAIL,
    ArchivedFile,
    ArchiveIndex,
    check_head,
    decode_block,
    decode_index,
    decode_tail,
)
from metaquorum.storage.disk.interface import DiskFile, join, parent_of
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

    def contents(self, one: ArchivedFile) -> Iterator[bytes]:
        """A file in chunks. Raises CorruptFileError at its end if its checksum does not match."""
        digest = sha256()
        for extent in one.extents:
            for part in self.content(extent.start, extent.length):
                digest.update(part)
                yield part
        if digest.hexdigest() != one.sha256:
            raise CorruptFileError(
                join(self.path, one.name), "is not what was archived", "copy the archive again, or restore it"
            )

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class FileInArchive:
    """`DiskFile` for reading a file in an archive."""

    def __init__(self, archive: LogArchive, one: ArchivedFile) -> None:
        self._archive, self._one = archive, one
        self._starts = list(accumulate((at.length for at in one.extents), initial=0))

    @property
    def path(self) -> str:
        return join(self._archive.path, self._one.name)

    def size(self) -> int:
        """Size in bytes."""
        return self._one.size

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`."""
        end = min(position + length, self._one.size)
        parts: list[bytes] = []
        number = bisect_right(self._starts, position) - 1
        while position < end:
            extent, start = self._one.extents[number], self._starts[number]
            wanted = min(end, start + extent.length) - position
            parts += self._archive.content(extent.start + position - start, wanted)
            position += wanted
            number += 1
        return b"".join(parts)

    def place_before(self, offset: int) -> tuple[int, int, int] | None:
        """See `PlacedFile`."""
        stretches = self._one.stretches
        at = bisect_right(stretches, offset, key=lambda one: one.offset) - 1
        return None if at < 0 else (stretches[at].position, stretches[at].offset, stretches[at].epoch)

    def times(self) -> tuple[int, int] | None:
        """The lowest and highest timestamps in a segment (Unix ms); None if damage may hide others."""
        stretches = self._one.stretches
        if not stretches or self._one.linked_bytes != self._one.size:
            return None
        return min(one.first_ms for one in stretches), max(one.last_ms for one in stretches)

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

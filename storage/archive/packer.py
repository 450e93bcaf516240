"""Making an archive: files are added one by one, and what the content already has is not stored again.

Owns the content, its blocks and the index. Writes through an append function, so that the same code can
compute the size of an archive; it knows no target file, which `write` owns. Two archives of the same files
are identical byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from metaquorum.storage.archive.format import (
    BLOCK_BYTES,
    ArchivedFile,
    ArchiveIndex,
    Block,
    Extent,
    IndexedStretch,
    encode_block,
    encode_end,
    encode_head,
)
from metaquorum.storage.archive.pieces import FilePiece, SeenPieces, pieces
from metaquorum.storage.batches.format import BatchHeader
from metaquorum.storage.disk.interface import DiskFile

STRETCH_BYTES = 128 << 10
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
        stretches = _Stretches(base_offset)
        for piece in pieces(file, size):
            digest.update(piece.data)
            key, place = seen.find(piece)
            if place is None:
                place = self._store(piece.data)
                seen.note(piece, key, place)
            _extend(extents, place, len(piece.data))
            stretches.take(piece)
        self._files.append(
            ArchivedFile(
                name=name,
                size=sum(at.length for at in extents),
                sha256=digest.hexdigest(),
                extents=extents,
                stretches=stretches.found,
                linked_bytes=stretches.linked_bytes,
                end_offset=stretches.end_offset,
            )
        )

    def _store(self, data: bytes) -> int:
        place = self.content_bytes
        self._buffer += data
        self.content_bytes += len(data)
        while len(self._buffer) >= BLOCK_BYTES:
            self._end_block(BLOCK_BYTES)
        return place

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


def _extend(extents: list[Extent], place: int, length: int) -> None:
    if extents and extents[-1].start + extents[-1].length == place:
        extents[-1] = Extent(extents[-1].start, extents[-1].length + length)
    else:
        extents.append(Extent(place, length))


class _Stretches:
    """The stretches of a segment, as far as its headers lead without a break."""

    def __init__(self, base_offset: int | None) -> None:
        self.found: list[IndexedStretch] = []
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
        if not self.found or piece.position - self.found[-1].position >= STRETCH_BYTES:
            self.found.append(IndexedStretch(piece.position, self._expected, self._epoch, low, high))
        last = self.found[-1]
        self.found[-1] = last._replace(first_ms=min(last.first_ms, low), last_ms=max(last.last_ms, high))
        self.linked_bytes = piece.position + len(piece.data)
        self._expected = self.end_offset = header.next_offset
        self._epoch = header.leader_epoch

    def _breaks(self, header: BatchHeader) -> bool:
        return (
            header.base_offset != self._expected
            or header.next_offset <= header.base_offset
            or header.leader_epoch < self._epoch
        )

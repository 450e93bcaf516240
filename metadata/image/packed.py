"""An image whose partitions are compressed: for states that are kept and rarely looked at.

Chunks that did not change since an image that was packed before are stored once. Unpacking shares the chunks
that are still in use somewhere.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import cramjam
import msgspec
import numpy as np

from metaquorum.metadata.image.chunk import CHUNK_ROWS, Chunk, IntArray
from metaquorum.metadata.image.columns import PartitionColumns
from metaquorum.metadata.image.image import MetadataImage
from metaquorum.metadata.image.topics import TopicsImage

_LEVEL = 1
"""The zstd level: columns of small numbers shrink to a tenth, and higher levels save little more."""


class _PackedChunk:
    """A chunk in compressed form, and its rows as long as an image has them."""

    __slots__ = ("_in_use", "_isr_width", "_replica_width", "_rows", "stored")

    def __init__(self, chunk: Chunk) -> None:
        self._rows, self._replica_width, self._isr_width = (
            len(chunk.data),
            chunk.replica_width,
            chunk.isr_width,
        )
        self.stored = bytes(cramjam.zstd.compress(chunk.data.tobytes(), level=_LEVEL))
        self._in_use: weakref.ref[IntArray] = weakref.ref(chunk.data)

    def is_of(self, chunk: Chunk) -> bool:
        return self._in_use() is chunk.data

    def chunk(self) -> Chunk:
        data = self._in_use()
        if data is None:
            raw: Any = np.empty(self._rows * CHUNK_ROWS, dtype=np.int32)
            cramjam.zstd.decompress_into(self.stored, raw.view(np.uint8))
            data = raw.reshape(self._rows, CHUNK_ROWS)
            data.flags.writeable = False
            self._in_use = weakref.ref(data)
        return Chunk(data, self._replica_width, self._isr_width)


class PackedImage(msgspec.Struct, frozen=True, eq=False):
    """`rest` is the image without rows of partitions."""

    rest: MetadataImage
    chunks: tuple[_PackedChunk, ...]

    def unpacked(self) -> MetadataImage:
        """The image."""
        return _with_chunks(self.rest, [each.chunk() for each in self.chunks])

    def bytes_beside(self, other: PackedImage | None) -> int:
        """The size of the chunks that `other` does not share, in bytes."""
        theirs = () if other is None else other.chunks
        shared = sum(len(one.stored) for one, two in zip(self.chunks, theirs, strict=False) if one is two)
        return sum(len(each.stored) for each in self.chunks) - shared


def loaded_bytes(images: Iterable[MetadataImage]) -> int:
    """The size of the partitions of some images in bytes; what they share counts once."""
    rows = {id(chunk.data): chunk.data.nbytes for image in images for chunk in image.topics.columns.chunks}
    return sum(rows.values())


def packed(image: MetadataImage, before: PackedImage | None = None) -> PackedImage:
    """An image in compressed form. What it shares with the one that `before` was made from, or that was
    unpacked from it, is shared here, too."""
    theirs = () if before is None else before.chunks
    chunks = image.topics.columns.chunks
    made = [
        theirs[at] if at < len(theirs) and theirs[at].is_of(chunk) else _PackedChunk(chunk)
        for at, chunk in enumerate(chunks)
    ]
    return PackedImage(_with_chunks(image, []), tuple(made))


def _with_chunks(image: MetadataImage, chunks: list[Chunk]) -> MetadataImage:
    topics, columns = image.topics, image.topics.columns
    made = PartitionColumns(
        columns.directories,
        chunks=chunks,
        rare=columns.rare,
        free=columns.free,
        row_limit=columns.row_limit,
        count=columns.count,
        replica_counts=columns.replica_counts,
    )
    return msgspec.structs.replace(
        image, topics=TopicsImage(made, topics.by_id, topics.by_name, topics.by_slot, topics.next_slot)
    )

"""The bytes of an archive: head, blocks, index, tail.

    head   8 bytes "MQARCHIV", u32 version
    blocks zstd, each a part of the content: what the files hold, with shared parts stored once
    index  zstd of JSON: `ArchiveIndex`
    tail   u64 position of the index, u32 its size, u32 its unpacked size, u32 its CRC-32C,
           u32 CRC-32C of the 20 bytes before, 8 bytes "MQARCEND"

Numbers are big-endian. Owns the layout and its checks. Knows bytes only: `opened` reads files with it,
`packer` makes them.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import cramjam
import msgspec
import numpy as np
from crc32c import crc32c

from metaquorum.storage.errors import CorruptFileError

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
    """A stretch of the content: its size in the archive, its unpacked size, and the CRC-32C of the stored
    bytes."""

    stored_bytes: int
    content_bytes: int
    crc: int


class Extent(NamedTuple):
    """`length` bytes of the content from `start` on."""

    start: int
    length: int


class IndexedStretch(NamedTuple):
    """Batches of a segment from byte `position` to the next stretch: the first offset, the leader epoch
    before it, and the lowest and highest timestamps (Unix ms; -1 if a batch has none). The headers before
    `position` lead there without a break."""

    position: int
    offset: int
    epoch: int
    first_ms: int
    last_ms: int


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file by its path in the archive. For a segment, the stretches cover its first `linked_bytes`
    bytes, and `end_offset` is the offset after their last batch."""

    name: str
    size: int
    sha256: str
    extents: list[Extent]
    stretches: list[IndexedStretch] = []
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

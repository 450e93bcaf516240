"""Splits a file of a log at its batches, and finds where the same batches were seen before.

Whatever the bytes are, the pieces of a file together are the file: bytes that are not a whole batch with a
correct CRC form pieces of their own. Knows batches by their headers only.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from metaquorum.storage.batches.batch import batch_problem, parse_header
from metaquorum.storage.batches.format import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, MAGIC, BatchHeader
from metaquorum.storage.disk.interface import DiskFile
from metaquorum.storage.log.recovery import MAX_READABLE_BATCH_BYTES, find_valid_batch

WINDOW_BYTES = 1 << 20
RAW_BYTES = 64 << 10
"""The largest piece of bytes that are not a batch."""
MAX_RUNS = 1_000
"""The most stretches of rising offsets that are searched; a log has one, plus one per divergence."""

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
        at = position - start
        length = _batch_bytes(window, at)
        if 0 < length <= size - position and at + length > len(window):
            window, start, at = file.read_at(position, max(length, WINDOW_BYTES)), position, 0
        if length and length <= size - position:
            data = window[at : at + length]
            if batch_problem(data, 0, check_count=False) is None:
                yield FilePiece(position, data, parse_header(data))
                position += length
                continue
        found = find_valid_batch(file, position + 1, 0)
        end = size if found is None else min(size, found[0])
        for at in range(position, end, RAW_BYTES):
            yield FilePiece(at, file.read_at(at, min(RAW_BYTES, end - at)), None)
        position = end


def _batch_bytes(window: bytes, at: int) -> int:
    """Size of the batch at this position, from its length field; 0 if none begins there."""
    if len(window) - at < HEADER_BYTES or window[at + 16] != MAGIC:
        return 0
    length = int.from_bytes(window[at + 8 : at + 12], "big", signed=True) + LENGTH_OVERHEAD_BYTES
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

    def note(self, piece: FilePiece, digest: bytes, place: int) -> None:
        """Records that a piece is in the content from `place` on."""
        if piece.header is None:
            self._raw[digest] = place
            return
        base_offset = piece.header.base_offset
        if not self._runs or self._runs[-1].bases[-1] >= base_offset:
            if len(self._runs) >= MAX_RUNS:
                return
            self._runs.append(_Run())
        run = self._runs[-1]
        run.bases.append(base_offset)
        run.places.append(place)
        run.digests += digest

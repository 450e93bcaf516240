"""Reads a piece of a log: the batches from one place of a file to another, with damage between them.

Owns the definition of a piece, which driver and executors share. Does not choose pieces (`cut` does)
and does not decode records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.log.reader import Damage, LogReader


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes `position` to `end` (None: the file's end) of `file`, which begin with the batch at `offset`. Its
    records from `from_offset` to below `to_offset` (None: all) are selected. `checkpoint`: a snapshot, whose
    records count from 0. The bytes may be in another file, `read_from`, which starts at byte `shift` of
    `file`; then `position` and `end` are bytes of that file."""

    cluster: str
    node_id: int | None
    file: str
    position: int = 0
    offset: int | None = None
    end: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    checkpoint: bool = False
    read_from: str = ""
    shift: int = 0

    @property
    def path(self) -> str:
        """The file to read."""
        return self.read_from or self.file


class DamagedError(Exception):
    """Selected records are damaged. The text names file, byte and offset."""


class PieceReader(LogReader):
    """A tolerant reader that starts in the middle of a file, at a batch boundary."""

    def __init__(self, disk: Disk, piece: Piece) -> None:
        super().__init__(disk, piece.path, tolerant=True, start_offset=piece.from_offset)
        self._position = piece.position
        if piece.offset is not None:
            self._expected = piece.offset


def read_piece(disk: Disk, piece: Piece) -> Iterator[RecordBatch | Damage]:
    """The piece's batches. A batch that contains `from_offset` or `to_offset` is whole."""
    reader = PieceReader(disk, piece)
    try:
        for item in reader:
            if piece.end is not None and item.position >= piece.end:
                return
            last = piece.to_offset
            if isinstance(item, RecordBatch) and last is not None and item.header.base_offset >= last:
                return
            yield _told(item, piece) if piece.read_from else item
    finally:
        reader.close()


def _told(item: RecordBatch | Damage, piece: Piece) -> RecordBatch | Damage:
    """The item with its place in `file`."""
    position = item.position + piece.shift
    if isinstance(item, RecordBatch):
        return item._replace(file=piece.file, position=position)
    return replace(item, file=piece.file, position=position)


def undamaged(items: Iterable[RecordBatch | Damage], start: int, end: int) -> Iterator[RecordBatch | Damage]:
    """The same items. Raises DamagedError for damage to records at offsets from `start` to below `end`."""
    for item in items:
        if isinstance(item, Damage) and start <= item.offset < end:
            raise DamagedError(f"{item.file} at byte {item.position} (offset {item.offset}): {item.reason}")
        yield item

"""Many records as columns, for use where a sequence of records is expected.

Owns the two bulk forms that decisions write, and sequences that mix them with single records. Code that looks
at a single record gets an object created for it; the appender requests the bytes. Knows no image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from metaquorum.metadata.columnar.encode import framed_value
from metaquorum.metadata.columnar.rows import ChangedRows, NewRows, change_values, framed, partition_values
from metaquorum.metadata.features import record_version_for, write_version
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import (
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
)


class ChangedPartitions:
    """PartitionChangeRecords of one shape."""

    __slots__ = ("_rows",)

    def __init__(self, rows: ChangedRows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows.indexes)

    def records(self) -> list[Record]:
        """One object each, in order."""
        topics, indexes, isr, leader = self._rows
        raw = topics.tobytes()
        none = [None] * len(indexes)
        isrs = none if isr is None else [tuple(members) for members in isr.tolist()]
        leaders = none if leader is None else leader.tolist()
        return [
            PartitionChangeRecord(index, raw[16 * at : 16 * at + 16], isr=isrs[at], leader=leaders[at])
            for at, index in enumerate(indexes.tolist())
        ]

    def framed(self, first_place: int, metadata_version: int) -> bytes:
        """The records' bytes in a batch, from place `first_place` on."""
        version = record_version_for(PartitionChangeRecord, metadata_version)
        return framed(change_values(self._rows, version), first_place)


class NewPartitionRows:
    """PartitionRecords of one topic: every replica is in sync, and the first one leads."""

    __slots__ = ("_rows",)

    def __init__(self, rows: NewRows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows.indexes)

    def records(self) -> list[Record]:
        """One object each, in order."""
        rows = self._rows
        topic_id, width = rows.topic.tobytes(), rows.replicas.shape[1]
        raw = b"" if rows.directories is None else rows.directories.tobytes()
        ids = [raw[at : at + 16] for at in range(0, len(raw), 16)]
        made: list[Record] = []
        for at, (index, replicas) in enumerate(
            zip(rows.indexes.tolist(), rows.replicas.tolist(), strict=True)
        ):
            held = tuple(replicas)
            directories = tuple(ids[at * width : (at + 1) * width])
            made.append(
                PartitionRecord(
                    partition_id=index,
                    topic_id=topic_id,
                    replicas=held,
                    isr=held,
                    leader=held[0],
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=directories,
                )
            )
        return made

    def framed(self, first_place: int, metadata_version: int) -> bytes:
        """The records' bytes in a batch, from place `first_place` on."""
        version = record_version_for(PartitionRecord, metadata_version)
        return framed(partition_values(self._rows, version), first_place)


Bulk = ChangedPartitions | NewPartitionRows


class RecordPieces(Sequence[Record]):
    """Records and bulks in write order. Immutable."""

    __slots__ = ("_count", "_made", "pieces")

    def __init__(self, pieces: Iterable[Record | Bulk]) -> None:
        self.pieces = tuple(pieces)
        self._count = sum(len(piece) if isinstance(piece, Bulk) else 1 for piece in self.pieces)
        self._made: tuple[Record, ...] | None = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records())

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Record, ...]: ...
    def __getitem__(self, at: int | slice) -> Record | tuple[Record, ...]:
        return self._records()[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._records() == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def _records(self) -> tuple[Record, ...]:
        if self._made is None:
            made: list[Record] = []
            for piece in self.pieces:
                made += piece.records() if isinstance(piece, Bulk) else (piece,)
            self._made = tuple(made)
        return self._made

    def body(self, metadata_version: int) -> bytes:
        """The records section of the batch that holds them. Raises ValueError for a FeatureLevelRecord, which
        may change the level for the other records."""
        parts: list[bytes] = []
        place = 0
        for piece in self.pieces:
            if isinstance(piece, Bulk):
                parts.append(piece.framed(place, metadata_version))
                place += len(piece)
                continue
            if isinstance(piece, FeatureLevelRecord):
                raise ValueError("a feature level cannot be written together with bulks of partitions")
            parts.append(framed_value(place, encode(piece, write_version(piece, metadata_version))))
            place += 1
        return b"".join(parts)


def in_pieces(pieces: Sequence[Record | Bulk]) -> Sequence[Record]:
    """The pieces as a sequence of records; a tuple if there is no bulk among them."""
    records = tuple([piece for piece in pieces if not isinstance(piece, Bulk)])
    return records if len(records) == len(pieces) else RecordPieces(pieces)

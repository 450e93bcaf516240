"""Encodes many partition rows at once as the PartitionRecords of one batch.

The counterpart of `frames` and `partitions`; a property test compares it with the per-record encoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar import partition_records
from metaquorum.metadata.columnar.partition_records import FRAME_BYTES, record_dtype
from metaquorum.metadata.features import record_version_for, write_version
from metaquorum.metadata.image.chunk import (
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PARTITION_EPOCH,
)
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import (
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
)
from metaquorum.storage.batches.format import encode_varint
from metaquorum.storage.batches.places import Places

IntArray = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]

LONGEST_LIST = 0x7E
"""Longest list whose length fits one byte of the compact array."""


class PartitionRowsToWrite(NamedTuple):
    """Rows of the usual shape: their places among the batch's records, topic ids (rows, 2), a block in a
    chunk's layout with the given replica width, and directory ids (rows, replica width, 2)."""

    places: Places
    topics: Words
    block: IntArray
    replica_width: int
    directories: Words


def encode_records(values: dict[int, bytes], rows: PartitionRowsToWrite, version: int) -> bytes:
    """The records section of a batch that holds `rows` and, at the places that are its keys, `values`.

    All places together are 0, 1, 2 ... without gaps; `version` is that of PartitionRecord.
    """
    count = len(values) + len(rows.places)
    framed = {place: framed_value(place, value) for place, value in values.items()}
    sizes = np.zeros(count, dtype=np.int64)
    for number, record in framed.items():
        sizes[number] = len(record)
    groups = _groups(rows, version)
    for where, template, _ in groups:
        sizes[rows.places[where]] = len(template)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    out = np.empty(int(ends[-1]), dtype=np.uint8)
    for number, record in framed.items():
        start = int(starts[number])
        out[start : start + len(record)] = np.frombuffer(record, dtype=np.uint8)
    for where, template, value_at in groups:
        _scatter(out, starts[rows.places[where]], _fill(rows, where, template, value_at, version))
    return out.tobytes()


def framed_value(offset_delta: int, value: bytes) -> bytes:
    """One record of a batch: a null key, no headers, the batch's timestamp."""
    head = b"\0\0" + encode_varint(offset_delta) + b"\x01" + encode_varint(len(value))
    return encode_varint(len(head) + len(value) + 1) + head + value + b"\0"


def _groups(rows: PartitionRowsToWrite, version: int) -> list[tuple[Places, bytes, int]]:
    """Rows that have one record length and layout: (rows, record template, where the value starts)."""
    n_replicas, n_isr = rows.block[N_REPLICAS].astype(np.int64), rows.block[N_ISR].astype(np.int64)
    # Sizes of the places as varints; no batch has so many partitions that one takes four bytes.
    widths = 1 + (rows.places >= 1 << 6) + (rows.places >= 1 << 13)
    shapes = (widths << 16) | (n_replicas << 8) | n_isr
    groups = []
    for shape in np.unique(shapes).tolist():
        where = np.flatnonzero(shapes == shape)
        replicas, isr = shape >> 8 & 0xFF, shape & 0xFF
        value = value_template(version, replicas, isr)
        # Start with a placeholder of the same width; its bytes are overwritten row by row.
        stand_in = int(rows.places[where[0]])
        record = framed_value(stand_in, value)
        groups.append((where, record, len(record) - 1 - len(value)))
    return groups


def value_template(version: int, replicas: int, isr: int) -> bytes:
    """A framed PartitionRecord with its list lengths set and zeros for everything else."""
    directories = bytes((replicas + 1,)) + bytes(16 * replicas) if version else b""
    return b"".join(
        (
            bytes((1, 3, version)) + bytes(4 + 16),
            bytes((replicas + 1,)) + bytes(4 * replicas),
            bytes((isr + 1,)) + bytes(4 * isr),
            b"\x01\x01" + bytes(12) + directories + b"\0",
        )
    )


def _fill(
    rows: PartitionRowsToWrite, where: Places, template: bytes, value_at: int, version: int
) -> npt.NDArray[np.uint8]:
    """The records of one group, (rows, record length)."""
    out = np.empty((len(where), len(template)), dtype=np.uint8)
    out[:] = np.frombuffer(template, dtype=np.uint8)
    put_places(out, rows.places[where])
    block = rows.block[:, where]
    replicas, isr = int(block[N_REPLICAS, 0]), int(block[N_ISR, 0])
    dtype = record_dtype(int(version > 0), replicas, isr)
    raw: Any = np.ndarray(
        shape=(len(where),), dtype=dtype, buffer=out.data, offset=value_at, strides=(len(template),)
    )
    raw["index"], raw["topic"] = block[INDEX], rows.topics[where]
    raw["leader"], raw["leader_epoch"] = block[LEADER], block[LEADER_EPOCH]
    raw["partition_epoch"] = block[PARTITION_EPOCH]
    if replicas:
        raw["replicas"] = block[LISTS : LISTS + replicas].T
        if version:
            raw["directories"] = rows.directories[where, :replicas]
    if isr:
        start = LISTS + 2 * rows.replica_width
        raw["isr"] = block[start : start + isr].T
    return out


def put_places(out: npt.NDArray[np.uint8], places: Places) -> None:
    """Writes each record's offset delta, the only part of its frame that differs."""
    length_width = 1
    while out[0, length_width - 1] & 0x80:
        length_width += 1
    delta_start = length_width + 2
    zigzag = places << 1
    width = len(encode_varint(int(places[0])))
    for byte in range(width):
        more = 0x80 if byte < width - 1 else 0
        out[:, delta_start + byte] = zigzag >> 7 * byte & 0x7F | more


def _scatter(out: npt.NDArray[np.uint8], starts: Places, records: npt.NDArray[np.uint8]) -> None:
    length = records.shape[1]
    target: Any = np.ndarray(
        shape=(len(out) - length + 1,), dtype=f"V{length}", buffer=out.data, strides=(1,)
    )
    target[starts] = records.view(f"V{length}").ravel()


# The bytes of many partition records of one shape, without an object per record.
# `frames`, `partitions` and `changes` read what this writes; property tests compare it with the per-
# record encoder.

Bytes = npt.NDArray[np.uint8]

_FRAME_VERSION = 1
_ISR_TAG, _LEADER_TAG = 0, 1
ISR_MAX = 31
"""The longest ISR whose tagged field has a length of one byte."""


class ChangedRows(NamedTuple):
    """Changes of one shape: `isr` is (rows, n), `leader` (rows); a field that is None does not change."""

    topics: Words
    indexes: IntArray
    isr: IntArray | None
    leader: IntArray | None


class NewRows(NamedTuple):
    """Partitions of one topic with lists of one length: `replicas` (rows, n), all in sync, the first one
    leads; `directories` (rows, n, 2), used from PartitionRecord version 1 on."""

    topic: Words
    indexes: IntArray
    replicas: IntArray
    directories: Words | None


def change_values(rows: ChangedRows, version: int) -> Bytes:
    """The framed values of PartitionChangeRecords, (rows, bytes)."""
    body = b""
    fields: dict[str, tuple[Any, int]] = {
        "index": (np.dtype(">i4"), FRAME_BYTES),
        "topic": (np.dtype((np.uint64, (2,))), FRAME_BYTES + 4),
    }
    tags_start = FRAME_BYTES + 4 + 16 + 1
    if rows.isr is not None:
        n_isr = rows.isr.shape[1]
        if not 0 < n_isr <= ISR_MAX:
            raise ValueError(f"an ISR of {n_isr} members is unusual: encode such records one by one")
        fields["isr"] = (np.dtype((">i4", (n_isr,))), tags_start + 3)
        body += bytes((_ISR_TAG, 1 + 4 * n_isr, n_isr + 1)) + bytes(4 * n_isr)
    if rows.leader is not None:
        fields["leader"] = (np.dtype(">i4"), tags_start + len(body) + 2)
        body += bytes((_LEADER_TAG, 4)) + bytes(4)
    tags = (rows.isr is not None) + (rows.leader is not None)
    template = (
        bytes((_FRAME_VERSION, partition_records.CHANGE_API_KEY, version)) + bytes(20) + bytes((tags,)) + body
    )
    values, raw = _filled(template, len(rows.indexes), _dtype(fields, len(template)))
    raw["index"], raw["topic"] = rows.indexes, rows.topics
    if rows.isr is not None:
        raw["isr"] = rows.isr
    if rows.leader is not None:
        raw["leader"] = rows.leader
    return values


def partition_values(rows: NewRows, version: int) -> Bytes:
    """The framed values of PartitionRecords, (rows, bytes); epochs are 0."""
    width = rows.replicas.shape[1]
    template = value_template(version, width, width)
    values, raw = _filled(template, len(rows.indexes), record_dtype(int(version > 0), width, width))
    raw["index"], raw["topic"] = rows.indexes, rows.topic
    raw["leader"] = rows.replicas[:, 0]
    raw["replicas"] = raw["isr"] = rows.replicas
    if version:
        if rows.directories is None:
            raise ValueError(f"PartitionRecord version {version} has directories: give them")
        raw["directories"] = rows.directories
    return values


def framed(values: Bytes, first_place: int) -> bytes:
    """`values` (rows, bytes) as the records of a batch at `first_place` and the places after it."""
    count, length = values.shape
    low, pieces = 0, []
    while low < count:
        number = first_place + low
        width = len(encode_varint(number))
        high = min(count, (1 << 7 * width - 1) - first_place)
        head = b"\0\0" + encode_varint(number) + b"\x01" + encode_varint(length)
        head = encode_varint(len(head) + length + 1) + head
        out = np.zeros((high - low, len(head) + length + 1), dtype=np.uint8)
        out[:, : len(head)] = np.frombuffer(head, dtype=np.uint8)
        put_places(out, np.arange(number, first_place + high, dtype=np.int64))
        out[:, len(head) : -1] = values[low:high]
        pieces.append(out.tobytes())
        low = high
    return b"".join(pieces)


def topic_words(topic_ids: list[bytes]) -> Words:
    """Ids as rows of two native 64-bit words, (ids, 2)."""
    return np.frombuffer(b"".join(topic_ids), dtype=np.uint64).reshape(-1, 2)


def _dtype(fields: dict[str, tuple[Any, int]], size: int) -> np.dtype[Any]:
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for kind, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": size,
        }
    )


def _filled(template: bytes, count: int, dtype: np.dtype[Any]) -> tuple[Bytes, Any]:
    """`count` copies of `template`, as bytes and as a structure over them."""
    values = np.empty((count, len(template)), dtype=np.uint8)
    values[:] = np.frombuffer(template, dtype=np.uint8)
    return values, values.reshape(-1).view(dtype)


# Many records as columns, for use where a sequence of records is expected.
# Code that looks at a single record gets an object created for it; the appender requests the bytes.


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
        for row, (index, replicas) in enumerate(
            zip(rows.indexes.tolist(), rows.replicas.tolist(), strict=True)
        ):
            held = tuple(replicas)
            directories = tuple(ids[row * width : (row + 1) * width])
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
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Record, ...]: ...
    def __getitem__(self, index: int | slice) -> Record | tuple[Record, ...]:
        return self._records()[index]

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
        count = 0
        for piece in self.pieces:
            if isinstance(piece, Bulk):
                parts.append(piece.framed(count, metadata_version))
                count += len(piece)
                continue
            if isinstance(piece, FeatureLevelRecord):
                raise ValueError("a feature level cannot be written together with bulks of partitions")
            parts.append(framed_value(count, encode(piece, write_version(piece, metadata_version))))
            count += 1
        return b"".join(parts)


def in_pieces(pieces: Sequence[Record | Bulk]) -> Sequence[Record]:
    """The pieces as a sequence of records; a tuple if there is no bulk among them."""
    records = tuple([piece for piece in pieces if not isinstance(piece, Bulk)])
    return records if len(records) == len(pieces) else RecordPieces(pieces)

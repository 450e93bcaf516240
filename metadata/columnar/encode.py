"""Encodes many partition rows at once as the PartitionRecords of one batch.

Owns the bytes of records inside a batch when most of them are PartitionRecords of the usual shape; the others
are passed as framed values. Does not choose the rows or make the batch's header: its caller does, such as
`snapshot`. The counterpart of `frames` and `partitions`; a property test compares it with the per-record
encoder.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.partitions import record_dtype
from metaquorum.metadata.image.chunk import (
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PARTITION_EPOCH,
)
from metaquorum.storage.batches.places import Places
from metaquorum.storage.batches.varint import encode_varint

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
    for place, record in framed.items():
        sizes[place] = len(record)
    groups = _groups(rows, version)
    for where, template, _ in groups:
        sizes[rows.places[where]] = len(template)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    out = np.empty(int(ends[-1]), dtype=np.uint8)
    for place, record in framed.items():
        start = int(starts[place])
        out[start : start + len(record)] = np.frombuffer(record, dtype=np.uint8)
    for where, template, value_at in groups:
        _scatter(out, starts[rows.places[where]], _fill(rows, where, template, value_at, version))
    return out.tobytes()


def framed_value(place: int, value: bytes) -> bytes:
    """One record of a batch: a null key, no headers, the batch's timestamp."""
    head = b"\0\0" + encode_varint(place) + b"\x01" + encode_varint(len(value))
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
    at = length_width + 2
    zigzag = places << 1
    width = len(encode_varint(int(places[0])))
    for byte in range(width):
        more = 0x80 if byte < width - 1 else 0
        out[:, at + byte] = zigzag >> 7 * byte & 0x7F | more


def _scatter(out: npt.NDArray[np.uint8], starts: Places, records: npt.NDArray[np.uint8]) -> None:
    length = records.shape[1]
    target: Any = np.ndarray(
        shape=(len(out) - length + 1,), dtype=f"V{length}", buffer=out.data, strides=(1,)
    )
    target[starts] = records.view(f"V{length}").ravel()

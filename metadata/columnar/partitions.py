"""Decodes many PartitionRecords at once into the columns of an image.

Owns the byte layout of PartitionRecord versions 0 to 2 for the usual shape: no adding or removing replicas,
no tagged fields. Rows of any other shape are returned to the caller, which decodes them one by one. Does not
write to an image or look into one: `apply` does.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.frames import FRAME_BYTES, Frames, gather
from metaquorum.metadata.image.chunk import (
    FLAGS,
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PADDING,
    PARTITION_EPOCH,
)
from metaquorum.metadata.image.directories import DirectoryTable
from metaquorum.metadata.image.types import MIGRATING
from metaquorum.storage.batches.places import Places

IntArray = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]

API_KEY = 3
_FIRST_LIST = FRAME_BYTES + 4 + 16
_LAST_VERSION = 2


class PartitionRows(NamedTuple):
    """Decoded rows: record numbers, topic ids as two words each, and a block in a chunk's layout (columns,
    rows), with TOPIC not filled in."""

    records: Places
    topics: Words
    block: IntArray
    replica_width: int
    isr_width: int


def decode_partitions(
    frames: Frames, records: Places, table: DirectoryTable
) -> tuple[PartitionRows, npt.NDArray[np.bool_]]:
    """The rows of PartitionRecords `records` that have the usual shape, and which of `records` do not."""
    shapes, usual = record_shapes(frames, records)
    fast = records[usual]
    shapes = shapes[usual]
    kinds = np.unique(shapes).tolist() if len(shapes) and (shapes != shapes[0]).any() else shapes[:1].tolist()
    width = max(((kind >> 8) & 0xFF for kind in kinds), default=0)
    isr_width = max((kind & 0xFF for kind in kinds), default=0)
    block = np.full((LISTS + 2 * width + isr_width, len(fast)), PADDING, dtype=np.int32)
    topics = np.empty((len(fast), 2), dtype=np.uint64)
    block[FLAGS] = 0
    for kind in kinds:
        where: Any = slice(None) if len(kinds) == 1 else np.flatnonzero(shapes == kind)
        _fill(frames, fast[where], kind, _Target(block, topics, width, where), table)
    return PartitionRows(fast, topics, block, width, isr_width), ~usual


def record_shapes(frames: Frames, records: Places) -> tuple[Places, npt.NDArray[np.bool_]]:
    """A number for each record's shape (has directories, replicas, ISR), and whether it is usual."""
    octets, last = frames.octets, len(frames.octets) - 1
    starts, lengths = frames.starts[records], frames.lengths[records]
    versions = frames.versions[records]
    has_directories = (versions > 0).astype(np.int64)
    replicas = octets[np.minimum(starts + _FIRST_LIST, last)].astype(np.int64) - 1
    at_isr = starts + _FIRST_LIST + 1 + 4 * replicas
    isr = octets[np.minimum(at_isr, last)].astype(np.int64) - 1
    after = np.minimum(at_isr + 1 + 4 * isr, last - 16)
    expected = _FIRST_LIST + 17 + 4 * (replicas + isr) + has_directories * (1 + 16 * replicas)
    usual = (lengths == expected) & (versions <= _LAST_VERSION)
    usual &= (replicas >= 0) & (replicas < 0x7F) & (isr >= 0) & (isr < 0x7F)
    usual &= (octets[after] == 1) & (octets[after + 1] == 1) & (octets[starts + lengths - 1] == 0)
    usual &= (has_directories == 0) | (octets[after + 14] == replicas + 1)
    return has_directories << 16 | replicas << 8 | isr, usual


@lru_cache(maxsize=256)
def record_dtype(has_directories: int, replicas: int, isr: int) -> np.dtype[Any]:
    """The layout of a framed PartitionRecord with lists of the given lengths."""
    at_isr = _FIRST_LIST + 1 + 4 * replicas
    after = at_isr + 1 + 4 * isr + 2
    fields: dict[str, tuple[Any, int]] = {
        "index": (np.dtype(">i4"), FRAME_BYTES),
        "topic": (np.dtype((np.uint64, (2,))), FRAME_BYTES + 4),
        "leader": (np.dtype(">i4"), after),
        "leader_epoch": (np.dtype(">i4"), after + 4),
        "partition_epoch": (np.dtype(">i4"), after + 8),
    }
    if replicas:
        fields["replicas"] = (np.dtype((">i4", (replicas,))), _FIRST_LIST + 1)
        if has_directories:
            fields["directories"] = (np.dtype((np.uint64, (replicas, 2))), after + 13)
    if isr:
        fields["isr"] = (np.dtype((">i4", (isr,))), at_isr + 1)
    size = after + 12 + has_directories * (1 + 16 * replicas) + 1
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for kind, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": size,
        }
    )


class _Target(NamedTuple):
    """The destination of rows of one shape: the block, its replica width, and which of its columns."""

    block: IntArray
    topics: Words
    width: int
    where: Any


def _fill(frames: Frames, records: Places, kind: int, target: _Target, table: DirectoryTable) -> None:
    has_directories, replicas, isr = kind >> 16, kind >> 8 & 0xFF, kind & 0xFF
    dtype = record_dtype(has_directories, replicas, isr)
    rows = gather(frames, frames.starts[records], dtype.itemsize, dtype)
    block, topics, width, where = target
    topics[where] = rows["topic"]
    block[INDEX, where] = rows["index"]
    block[LEADER, where] = rows["leader"]
    block[LEADER_EPOCH, where] = rows["leader_epoch"]
    block[PARTITION_EPOCH, where] = rows["partition_epoch"]
    block[N_REPLICAS, where] = replicas
    block[N_ISR, where] = isr
    if replicas:
        block[LISTS : LISTS + replicas, where] = rows["replicas"].T
        start = LISTS + width
        if has_directories:
            codes = table.codes_of(rows["directories"].reshape(-1, 2))
            block[start : start + replicas, where] = codes.reshape(-1, replicas).T
        else:
            block[start : start + replicas, where] = table.code(MIGRATING)
    if isr:
        start = LISTS + 2 * width
        block[start : start + isr, where] = rows["isr"].T

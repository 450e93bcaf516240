"""A chunk: CHUNK_ROWS partition rows in one int32 array, and the meaning of its columns.

Owns the layout. Its shape is (columns, CHUNK_ROWS), so that a copy is one memcpy and a scan reads contiguous
memory. Lists are padded to the widest list of the chunk; directories are stored as codes. Knows no images and
no sharing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
RowArray = npt.NDArray[np.int64]

CHUNK_SHIFT = 9
CHUNK_ROWS = 1 << CHUNK_SHIFT
"""Small enough that copying one chunk costs microseconds, large enough that scans run in numpy."""
CHUNK_MASK = CHUNK_ROWS - 1
TOPIC = 0
INDEX = 1
LEADER = 2
LEADER_EPOCH = 3
PARTITION_EPOCH = 4
N_REPLICAS = 5
N_ISR = 6
FLAGS = 7
LISTS = 8
"""First list column: replicas, then directories (same width), then ISR."""

PADDING = -1
RECOVERING_FLAG = 1
RARE_FLAG = 2
"""The row has an entry in the sparse map of rare fields."""


class Chunk:
    """CHUNK_ROWS rows. Frozen chunks are read-only for numpy, so a stray write raises ValueError."""

    __slots__ = ("data", "isr_width", "replica_width")

    def __init__(self, data: IntArray, replica_width: int, isr_width: int) -> None:
        self.data = data
        self.replica_width = replica_width
        self.isr_width = isr_width

    @property
    def isr_start(self) -> int:
        return LISTS + 2 * self.replica_width

    def copy(self) -> Chunk:
        return Chunk(self.data.copy(), self.replica_width, self.isr_width)

    def widened(self, replica_width: int, isr_width: int) -> Chunk:
        """A copy whose lists have room for at least the given lengths."""
        wide = new_chunk(max(replica_width, self.replica_width), max(isr_width, self.isr_width))
        old, new, width = self.data, wide.data, self.replica_width
        new[: LISTS + width] = old[: LISTS + width]
        directories = LISTS + wide.replica_width
        new[directories : directories + width] = old[LISTS + width : LISTS + 2 * width]
        new[wide.isr_start : wide.isr_start + self.isr_width] = old[self.isr_start :]
        return wide


def new_chunk(replica_width: int, isr_width: int) -> Chunk:
    columns = LISTS + 2 * replica_width + isr_width
    return Chunk(np.full((columns, CHUNK_ROWS), PADDING, dtype=np.int32), replica_width, isr_width)

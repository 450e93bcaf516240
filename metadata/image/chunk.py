"""A chunk: CHUNK_ROWS partition rows in one int32 array, and the meaning of its columns.

Its shape is (columns, CHUNK_ROWS), so that a copy is one memcpy and a scan reads contiguous memory. Lists are
padded to the widest list of the chunk; directories are stored as codes.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec
import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image.types import TopicInfo

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


# A topic in the image, and in which rows its partitions are.
# Runs: consecutive partition indexes in consecutive rows, merged where they meet.

Run = tuple[int, int, int]
"""(first partition index, count, first row): consecutive indexes in consecutive rows."""


class TopicEntry(msgspec.Struct, frozen=True, gc=False):
    """A topic, its number in the TOPIC column, and the rows of its partitions by index. Like the topic, part
    of no reference cycle."""

    info: TopicInfo
    slot: int
    runs: tuple[Run, ...] = ()

    @property
    def partition_count(self) -> int:
        return sum(count for _, count, _ in self.runs)

    def row_of(self, index: int) -> int:
        """The row of partition `index`; -1 if it does not exist."""
        runs = self.runs
        if len(runs) == 1:
            first, count, row = runs[0]
        else:
            at = bisect_right(runs, index, key=_first_index) - 1
            if at < 0:
                return -1
            first, count, row = runs[at]
        within = index - first
        return row + within if 0 <= within < count else -1

    def rows(self) -> RowArray:
        """Every row of the topic, by ascending partition index."""
        if not self.runs:
            return np.empty(0, dtype=np.int64)
        return np.concatenate([np.arange(row, row + count, dtype=np.int64) for _, count, row in self.runs])


def _first_index(run: Run) -> int:
    return run[0]


def with_run(runs: tuple[Run, ...], run: Run) -> tuple[Run, ...] | None:
    """`runs` with `run` added and neighbours merged; None if `runs` already has one of its indexes."""
    first, count, row = run
    if not runs:
        return (run,)
    position = bisect_right(runs, first, key=_first_index)
    if position and runs[position - 1][0] + runs[position - 1][1] > first:
        return None
    if position < len(runs) and first + count > runs[position][0]:
        return None
    before, after = runs[:position], runs[position:]
    if before and before[-1][0] + before[-1][1] == first and before[-1][2] + before[-1][1] == row:
        first, count, row = before[-1][0], before[-1][1] + count, before[-1][2]
        before = before[:-1]
    if after and first + count == after[0][0] and row + count == after[0][2]:
        count += after[0][1]
        after = after[1:]
    return (*before, (first, count, row), *after)

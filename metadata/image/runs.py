"""A topic in the image, and in which rows its partitions are.

Owns runs: consecutive partition indexes in consecutive rows, merged where they meet. Does not know what is in
a row: `columns` does.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec
import numpy as np

from metaquorum.metadata.image.chunk import RowArray
from metaquorum.metadata.image.types import TopicInfo

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
    at = bisect_right(runs, first, key=_first_index)
    if at and runs[at - 1][0] + runs[at - 1][1] > first:
        return None
    if at < len(runs) and first + count > runs[at][0]:
        return None
    before, after = runs[:at], runs[at:]
    if before and before[-1][0] + before[-1][1] == first and before[-1][2] + before[-1][1] == row:
        first, count, row = before[-1][0], before[-1][1] + count, before[-1][2]
        before = before[:-1]
    if after and first + count == after[0][0] and row + count == after[0][2]:
        count += after[0][1]
        after = after[1:]
    return (*before, (first, count, row), *after)

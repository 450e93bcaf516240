"""Counts partitions of an image with some property, repeatedly along a log.

The memory of the last count, chunk by chunk, so that counting again costs only what changed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from metaquorum.metadata.image.chunk import LEADER, N_ISR, N_REPLICAS, TOPIC, Chunk
from metaquorum.metadata.image.columns import PartitionColumns
from metaquorum.metadata.image.types import NO_LEADER


class ChunkCounts:
    """Counts rows by a function of a chunk."""

    __slots__ = ("_by_chunk", "_count", "_last")

    def __init__(self, count: Callable[[Chunk], int]) -> None:
        self._count = count
        self._last: PartitionColumns | None = None
        self._by_chunk: list[int] = []

    def total(self, columns: PartitionColumns) -> int:
        """The number over all chunks of `columns`."""
        last, counts = self._last, self._by_chunk
        if last is None:
            counts = [self._count(chunk) for chunk in columns.chunks]
        elif last is not columns:
            old, counts = counts, counts[: len(columns.chunks)]
            counts += [0] * (len(columns.chunks) - len(old))
            for at in columns.differing_chunks(last):
                if at < len(counts):
                    counts[at] = self._count(columns.chunks[at])
        self._last, self._by_chunk = columns, counts
        return sum(counts)


def leaderless(chunk: Chunk) -> int:
    """Partitions without a leader."""
    data = chunk.data
    return int(np.count_nonzero((data[LEADER] == NO_LEADER) & (data[TOPIC] >= 0)))


def under_replicated(chunk: Chunk) -> int:
    """Partitions with a replica that is not in the ISR."""
    data = chunk.data
    return int(np.count_nonzero((data[N_ISR] != data[N_REPLICAS]) & (data[TOPIC] >= 0)))

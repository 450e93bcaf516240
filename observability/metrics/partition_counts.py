"""Counts over all partitions of an image, cached by chunk: only changed chunks are counted again.

An image shares every unchanged chunk with the one before it, and a chunk is never modified, so that its
identity tells whether a count is still valid. The cache keeps the chunks of the last counted image alive
until the next count.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image import TopicsImage
from metaquorum.metadata.image.chunk import LEADER, LISTS, N_ISR, N_REPLICAS, TOPIC, Chunk

SLICE_MS = 1.0
"""How long to count before the loop gets a turn; a chunk takes about 10 us."""

CHUNKS_PER_LOOK = 16
"""Number of chunks between two checks of the clock."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one image's partitions."""

    leaderless: int = 0
    """Without a leader."""
    not_preferred: int = 0
    """The leader is not the first replica; leaderless ones count, as in Kafka."""
    under_replicated: int = 0
    """The ISR is smaller than the replica set."""


class PartitionCounts:
    """Call `count` before you read `latest`."""

    def __init__(self) -> None:
        self.latest = Counts()
        self._chunks: list[Chunk] = []
        self._counted = np.zeros((3, 0), dtype=np.int64)
        self._topics: TopicsImage | None = None

    async def count(self, topics: TopicsImage) -> None:
        """Updates `latest` to `topics`, in slices of a millisecond."""
        if topics is self._topics:
            return
        begun = time.perf_counter()
        chunks = topics.columns.chunks
        self._resize(len(chunks))
        seen = self._chunks
        changed = [index for index, chunk in enumerate(chunks) if seen[index] is not chunk]
        for done, index in enumerate(changed):
            seen[index] = chunks[index]
            self._counted[:, index] = count_chunk(chunks[index])
            if done % CHUNKS_PER_LOOK == 0 and (time.perf_counter() - begun) * 1000 >= SLICE_MS:
                await asyncio.sleep(0)
                begun = time.perf_counter()
        leaderless, not_preferred, under_replicated = self._counted.sum(axis=1).tolist()
        self.latest = Counts(
            leaderless=leaderless, not_preferred=not_preferred, under_replicated=under_replicated
        )
        self._topics = topics

    def _resize(self, length: int) -> None:
        """Makes room for `length` chunks; new ones are not counted yet."""
        old = self._counted
        if length != len(self._chunks):
            kept = min(length, len(self._chunks))
            self._counted = np.zeros((3, length), dtype=np.int64)
            self._counted[:, :kept] = old[:, :kept]
            self._chunks = self._chunks[:kept] + [_NO_CHUNK] * (length - kept)


_NO_CHUNK = Chunk(np.zeros((LISTS, 0), dtype=np.int32), 0, 0)


def count_chunk(chunk: Chunk) -> npt.NDArray[np.int64]:
    """(leaderless, not preferred, under-replicated) partitions of one chunk."""
    data = chunk.data
    live = data[TOPIC] >= 0
    leader = data[LEADER]
    preferred = data[LISTS] if chunk.replica_width else leader
    return np.array(
        (
            np.count_nonzero((leader < 0) & live),
            np.count_nonzero((leader != preferred) & live),
            np.count_nonzero((data[N_ISR] < data[N_REPLICAS]) & live),
        ),
        dtype=np.int64,
    )

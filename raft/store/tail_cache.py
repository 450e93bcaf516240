"""The newest batches of the metadata log in memory, which followers and the node's own replica mostly read.

Owns the bound on their memory. Only a cache: knows no file, and what it does not hold is in the log.
"""

from __future__ import annotations

from bisect import bisect_right

from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.parsed import Batches

HEADER_MEMORY_BYTES = 300
"""Approximate memory of a parsed header, apart from its batch's bytes."""


class TailCache:
    """The newest batches of a log, contiguous, up to a number of bytes including their headers. Knows no
    file."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bases: list[int] = []
        self._batches: list[RecordBatch] = []
        self._size = 0
        self._end_offset = 0
        self._joined: tuple[int, int, Batches] | None = None

    def append(self, batches: Batches) -> None:
        """Adds whole batches; batches that do not follow the newest one restart the cache."""
        if batches.base_offset != self._end_offset:
            self.clear()
        for batch in batches.split():
            self._bases.append(batch.header.base_offset)
            self._batches.append(batch)
        self._end_offset = batches.next_offset
        self._size += len(batches.data) + HEADER_MEMORY_BYTES * len(batches.headers)
        if self._size > self._max_bytes:
            self._shrink()

    def _shrink(self) -> None:
        """Shrinks to half at once, so that the cost is spread over many appends."""
        count = 0
        while self._size > self._max_bytes // 2:
            self._size -= len(self._batches[count].data) + HEADER_MEMORY_BYTES
            count += 1
        del self._bases[:count]
        del self._batches[:count]

    def read(self, from_offset: int, to_offset: int, max_bytes: int) -> Batches | None:
        """Like `ReplicaStore.read_log`; None if the batches are not all here."""
        if not self._bases or from_offset < self._bases[0] or from_offset >= self._end_offset:
            return None
        first = bisect_right(self._bases, from_offset) - 1
        last, size = first, len(self._batches[first].data)
        for index in range(first + 1, len(self._bases)):
            size += len(self._batches[index].data)
            if self._bases[index] >= to_offset or size > max_bytes:
                break
            last = index
        # Hundreds of brokers request the same batches at once: they all share one copy.
        low, high = self._bases[first], self._bases[last]
        if self._joined is None or self._joined[:2] != (low, high):
            self._joined = (low, high, Batches.joined(self._batches[first : last + 1]))
        return self._joined[2]

    def clear(self) -> None:
        self._bases.clear()
        self._batches.clear()
        self._joined = None
        self._size = 0

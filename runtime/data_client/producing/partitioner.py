"""Which partition a message goes to: by its key as Kafka's default partitioner, without one to one at a time.

Pure. Source: Kafka's `Utils.murmur2` and `BuiltInPartitioner` (KIP-480, KIP-794): a keyless message sticks
to a partition until about a batch's worth of bytes went there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_M = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash, signed as Java has it."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    for i in range(0, length & ~3, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k ^= k >> 24
        k = k * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if length & 3:
        h ^= int.from_bytes(data[length & ~3 :], "little")
        h = h * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h & 0x80000000 else h


def partition_of(key: bytes, partitions: int) -> int:
    """Where Kafka's default partitioner puts this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartition:
    """The partition of a topic's keyless messages."""

    __slots__ = ("_bytes", "_current", "_rng", "_switch_bytes")

    def __init__(self, rng: random.Random, switch_bytes: int) -> None:
        self._rng = rng
        self._switch_bytes = switch_bytes
        self._current = -1
        self._bytes = 0

    def choose(self, partitions: int, led: Sequence[int]) -> int:
        """The partition for the next message; one with a leader where there is any."""
        if self._bytes >= self._switch_bytes or self._current not in led:
            choices = [each for each in led if each != self._current] or list(led) or list(range(partitions))
            self._current = self._rng.choice(choices)
            self._bytes = 0
        return self._current

    def note(self, size_bytes: int) -> None:
        """Counts the bytes that went to the present partition."""
        self._bytes += size_bytes

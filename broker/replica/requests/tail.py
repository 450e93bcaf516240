"""The newest batches of partitions that this broker leads, in memory: reads at the end of a log need no disk.

Only a cache: what it does not hold is in the log. The manager passes on what leaders append, and when to
forget.
"""

from __future__ import annotations

from collections import deque

from metaquorum.metadata.requests.data import PartitionKey

BATCH_MAX_BYTES = 2 * 1024 * 1024
"""A larger batch is not worth the room of all the others."""

FORGOTTEN_MAX = 64
"""The number of forgotten batches whose entries are kept before they are cleared."""


class _Kept:
    __slots__ = ("base_offset", "data", "key", "next_offset")

    def __init__(self, key: PartitionKey, base_offset: int, next_offset: int, data: bytes) -> None:
        self.key = key
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.data = data


class Tail:
    """Batches by (partition, base offset), at most `max_bytes` of them; 0 turns it off."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: dict[PartitionKey, dict[int, _Kept]] = {}
        self._order: deque[_Kept] = deque()
        self._forgotten = 0
        self.kept_bytes = 0

    def note(self, key: PartitionKey, base_offset: int, next_offset: int, data: bytes) -> None:
        """`data` (one batch, as stored) is appended to the partition at `base_offset`."""
        if len(data) > min(BATCH_MAX_BYTES, self._max_bytes):
            return
        kept = _Kept(key, base_offset, next_offset, data)
        self._batches.setdefault(key, {})[base_offset] = kept
        self._order.append(kept)
        self.kept_bytes += len(data)
        while self.kept_bytes > self._max_bytes:
            self._forget_oldest()

    def holds(self, key: PartitionKey, offset: int) -> bool:
        """Whether `read` finds something there."""
        return offset in self._batches.get(key, ())

    def read(self, key: PartitionKey, from_offset: int, to_offset: int, max_bytes: int) -> bytes | None:
        """Whole batches from the one that begins at `from_offset`, none that extends beyond `to_offset`, at
        least one. None: read the log."""
        batches = self._batches.get(key)
        if batches is None:
            return None
        chosen: list[bytes] = []
        next_offset, size = from_offset, 0
        while next_offset < to_offset:
            kept = batches.get(next_offset)
            if kept is None or kept.next_offset > to_offset:
                break
            if chosen and size + len(kept.data) > max_bytes:
                break
            chosen.append(kept.data)
            size += len(kept.data)
            next_offset = kept.next_offset
        if not chosen:
            return None
        return chosen[0] if len(chosen) == 1 else b"".join(chosen)

    def forget(self, key: PartitionKey) -> None:
        """The partition is no longer led, its log was cut and offsets may get another meaning, or records are
        gone from it: what was compacted must not be read again."""
        gone = self._batches.pop(key, None)
        if gone is None:
            return
        for kept in gone.values():
            self.kept_bytes -= len(kept.data)
            kept.data = b""
        self._forgotten += len(gone)
        if self._forgotten > FORGOTTEN_MAX and 2 * self._forgotten > len(self._order):
            self._order = deque(kept for kept in self._order if kept.data)
            self._forgotten = 0

    def _forget_oldest(self) -> None:
        kept = self._order.popleft()
        if not kept.data:
            self._forgotten -= 1
            return
        batches = self._batches[kept.key]
        del batches[kept.base_offset]
        self.kept_bytes -= len(kept.data)
        if not batches:
            del self._batches[kept.key]

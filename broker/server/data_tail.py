"""The newest records of one directory's partitions in memory: what followers and readers at the end ask for.

Owns which bytes are kept, and for how long: those that were appended and not yet pushed out by newer ones. A
read is answered from here only where the answer is the one that the disk would give, so whoever asks cannot
tell. Kept on the loop, where it saves a thread's turn and a copy for each read.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field

from broker.replica.events import AppendPartition, LogAppended, ReadPartition
from broker.replica.messages import PartitionKey

TAIL_MAX_BYTES = 16 * 1024 * 1024
"""Kept for one directory. A follower that is further behind is served from the page cache."""

TAIL_MAX_APPENDS = 16_384
"""The same as a number of appends, for those of a few bytes."""

_BASE_OFFSET = struct.Struct(">q")


@dataclass(slots=True)
class _Tail:
    """Consecutive appends of one incarnation: `ends[i]` is where `data[i]` ends, `first` where data[0]
    begins. `written`: appends that were handed to the disk and not reported yet."""

    incarnation: int
    first: int = -1
    data: deque[bytes] = field(default_factory=deque)
    ends: deque[int] = field(default_factory=deque)
    written: deque[bytes] = field(default_factory=deque)


class TailCache:
    """Told of every append when it is handed over and when it is reported, and of what ends a tail."""

    def __init__(self, max_bytes: int = TAIL_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._tails: dict[PartitionKey, _Tail] = {}
        self._order: deque[_Tail] = deque()
        self.size_bytes = 0

    def handed_over(self, work: AppendPartition) -> None:
        tail = self._tails.get(work.key)
        if tail is None or tail.incarnation != work.incarnation:
            self.forget(work.key)
            tail = self._tails[work.key] = _Tail(work.incarnation)
        tail.written.append(work.data)

    def appended(self, event: LogAppended) -> None:
        """The oldest append of the partition that was handed over is in its log."""
        tail = self._tails.get(event.key)
        if tail is None or tail.incarnation != event.incarnation or not tail.written:
            return
        data = tail.written.popleft()
        if not tail.data:
            tail.first = _BASE_OFFSET.unpack_from(data)[0]
        tail.data.append(data)
        tail.ends.append(event.end_offset)
        self._order.append(tail)
        self.size_bytes += len(data)
        while self.size_bytes > self._max_bytes or len(self._order) > TAIL_MAX_APPENDS:
            self._drop_oldest()

    def forget(self, key: PartitionKey) -> None:
        """The partition's log is not what it was: cut, created anew, gone."""
        tail = self._tails.pop(key, None)
        if tail is not None:
            self.size_bytes -= sum(map(len, tail.data))
            # Its places in the order stay, and find nothing to drop.
            tail.data.clear()
            tail.ends.clear()

    def read(self, work: ReadPartition) -> bytes | None:
        """Whole appends from exactly `from_offset` on, as many as fit; None: ask the disk."""
        tail = self._tails.get(work.key)
        if tail is None or tail.incarnation != work.incarnation or not tail.data:
            return None
        at = 0
        if work.from_offset != tail.first:
            # Almost always the newest appends are asked for.
            at = len(tail.ends)
            while at and tail.ends[at - 1] > work.from_offset:
                at -= 1
            if not at or tail.ends[at - 1] != work.from_offset:
                return None
        parts: list[bytes] = []
        left = work.max_bytes
        while at < len(tail.data) and tail.ends[at] <= work.to_offset and len(tail.data[at]) <= left:
            parts.append(tail.data[at])
            left -= len(tail.data[at])
            at += 1
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _drop_oldest(self) -> None:
        tail = self._order.popleft()
        if tail.data:
            self.size_bytes -= len(tail.data.popleft())
            tail.first = tail.ends.popleft()

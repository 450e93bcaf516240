"""Linearizable reads in progress: requested from Raft, confirmed, and waiting for what they must see.

Owns their order and their number. Knows no image: the server adds the answer.
"""

from __future__ import annotations

from collections import deque


class ReadQueue:
    """A read is begun, confirmed for an offset (or failed), and served when all below it is applied."""

    def __init__(self) -> None:
        self._keys: dict[int, int] = {}
        self._ready: deque[tuple[int, int]] = deque()
        self._last_token = 0

    def __len__(self) -> int:
        return len(self._keys) + len(self._ready)

    def begin(self, key: int) -> int:
        """The token under which Raft confirms the read of request `key`."""
        self._last_token += 1
        self._keys[self._last_token] = key
        return self._last_token

    def confirm(self, token: int, offset: int) -> None:
        """The read may be served once everything below `offset` is applied."""
        self._ready.append((offset, self._keys.pop(token)))

    def fail(self, token: int) -> int:
        """The request key of a read that will not be confirmed."""
        return self._keys.pop(token)

    def take(self, applied_offset: int) -> list[int]:
        """Request keys of the reads that can be served now, in the order of their confirmation."""
        keys: list[int] = []
        while self._ready and self._ready[0][0] <= applied_offset:
            keys.append(self._ready.popleft()[1])
        return keys

    def drop_ready(self) -> list[int]:
        """Leadership is lost: keys of what was confirmed and not served. Raft fails the others."""
        keys = [key for _, key in self._ready]
        self._ready.clear()
        return keys

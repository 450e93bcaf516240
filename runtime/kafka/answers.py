"""The order of the responses on one connection (as in Kafka, that of the requests).

Owns the bounds on requests in progress. Knows no socket: `outgoing` sends what leaves, and `pending_requests`
waits for handlers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from metaquorum.wire.primitives import Buffer

Chunks = list[Buffer]


class AnswerQueue:
    """Requests in progress on one connection. A response leaves once all earlier ones have; `left` is then
    called with the size of its request in bytes."""

    def __init__(self, *, max_requests: int, max_bytes: int, left: Callable[[int], object]) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._left = left
        self._first = 0
        self._sizes: deque[int] = deque()
        self._done: dict[int, Chunks] = {}
        self.bytes_under_way = 0

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def has_room(self) -> bool:
        """True if another request may begin. A request larger than the bound of bytes may begin if it is the
        only one."""
        return len(self._sizes) < self._max_requests and (
            not self._sizes or self.bytes_under_way < self._max_bytes
        )

    def begin(self, size: int) -> int:
        """Adds a request of `size` bytes; returns its place."""
        self._sizes.append(size)
        self.bytes_under_way += size
        return self._first + len(self._sizes) - 1

    def finish(self, place: int, chunks: Chunks) -> Chunks:
        """Notes the response to the request at `place` (empty for none); returns the chunks that can leave
        now."""
        if place != self._first:
            self._done[place] = chunks
            return []
        self._leave()
        while self._done and self._first in self._done:
            chunks = chunks + self._done.pop(self._first)
            self._leave()
        return chunks

    def drop(self) -> None:
        """The connection has ended: forgets all requests."""
        self._first += len(self._sizes)
        self._sizes.clear()
        self._done.clear()
        self.bytes_under_way = 0

    def _leave(self) -> None:
        size = self._sizes.popleft()
        self._first += 1
        self.bytes_under_way -= size
        self._left(size)

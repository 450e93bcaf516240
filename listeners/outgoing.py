"""What a connection sends: no more at a time than its transport takes, all responses of one step together.

Each send is a system call, and often gives the processor to the receiver. A transport accepts any amount of
data, and over TLS encrypts it at once; this module limits that, and counts bytes until they have left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from metaquorum.listeners.answers import Chunks
from metaquorum.network.sending import write_all
from metaquorum.node.scheduler import StepEnd
from metaquorum.wire.primitives import Buffer

GATHERED_MAX_BYTES = 64 * 1024
"""A larger response leaves at once: its client can work on it meanwhile."""
WRITTEN_MAX_BYTES, PAUSES_AT_BYTES = 256 * 1024, 64 * 1024
"""The most bytes passed to a transport at a time, and the most that it may hold without pausing its
writer."""


class Outgoing:
    """The bytes that leave one connection, in order. `sent` is called with the number of bytes that have
    left."""

    def __init__(self, transport: asyncio.Transport, sent: Callable[[int], object]) -> None:
        transport.set_write_buffer_limits(high=PAUSES_AT_BYTES)
        self._transport, self._sent = transport, sent
        self._queue: deque[Buffer] = deque()
        self._is_paused = self._ends = False
        self._written_bytes = 0

    @property
    def is_blocked(self) -> bool:
        """True while the client has not taken what was sent to it."""
        return self._is_paused or bool(self._queue)

    def write(self, chunks: Chunks) -> None:
        size = sum(map(len, chunks))
        if size <= WRITTEN_MAX_BYTES and not (self._is_paused or self._queue):
            self._put(chunks, size)
            return
        self._queue.extend(chunks)
        self._pump()

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._left()
        self._pump()

    def close(self) -> None:
        """Closes the transport once everything has left."""
        self._ends = True
        self._pump()

    def drop(self) -> None:
        """The connection has closed: drops references, because a TLS transport keeps its protocol forever."""
        self._queue.clear()
        self._sent = _nowhere
        del self._transport

    def _pump(self) -> None:
        queue = self._queue
        while queue and not self._is_paused:
            chunks: Chunks = []
            size = 0
            while queue and size < WRITTEN_MAX_BYTES:
                chunk = queue.popleft()
                room = WRITTEN_MAX_BYTES - size
                if len(chunk) > room:
                    whole = memoryview(chunk)
                    chunk = whole[:room]
                    queue.appendleft(whole[room:])
                chunks.append(chunk)
                size += len(chunk)
            self._put(chunks, size)
        if self._ends and not queue:
            self._transport.close()

    def _put(self, chunks: Chunks, size: int) -> None:
        self._written_bytes += size
        write_all(self._transport, chunks)
        if not self._is_paused:
            self._left()

    def _left(self) -> None:
        size, self._written_bytes = self._written_bytes, 0
        self._sent(size)


class StepResponses:
    """Collects the responses of one connection during a step, and passes them to `send` in order."""

    __slots__ = ("_chunks", "_send", "_step_end")

    def __init__(self, step_end: StepEnd, send: Callable[[Chunks], object]) -> None:
        self._step_end = step_end
        self._send = send
        self._chunks: Chunks = []

    def put(self, chunks: Chunks) -> None:
        step_end = self._step_end
        if step_end.gathers and sum(map(len, chunks)) <= GATHERED_MAX_BYTES:
            if not self._chunks:
                step_end.add(self)
            self._chunks += chunks
        elif self._chunks:
            self._chunks += chunks
            self.flush()
        else:
            self._send(chunks)

    def flush(self) -> None:
        """Sends what was collected."""
        chunks, self._chunks = self._chunks, []
        if chunks:
            self._send(chunks)

    def drop(self) -> None:
        """The connection has closed: sends nothing more."""
        self._chunks = []
        self._send = _nowhere


def _nowhere(anything: object) -> None:
    return

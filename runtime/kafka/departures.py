"""What a connection sends while the driver takes a step leaves together when the step has ended.

Owns what waits until then. Each send is a system call, and often gives the processor to the receiver.
"""

from __future__ import annotations

from collections.abc import Callable

from metaquorum.runtime.driver.step_end import StepEnd
from metaquorum.runtime.kafka.answers import Chunks

GATHERED_MAX_BYTES = 64 * 1024
"""A larger answer leaves at once: its client has something to do meanwhile."""


class Departing:
    """What one connection sends, with `send`, in the order in which it is put here."""

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
        """Sends what waits, if anything does."""
        chunks, self._chunks = self._chunks, []
        if chunks:
            self._send(chunks)

    def drop(self) -> None:
        """The connection is gone: nothing leaves any more."""
        self._chunks = []
        self._send = _nowhere


def _nowhere(chunks: Chunks) -> None:
    return

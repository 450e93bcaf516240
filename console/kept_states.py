"""States along a log within a memory limit: any moment is replayed from one that is not far before it.

Partitions are compressed, and what did not change between neighbours is kept once.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from metaquorum.metadata.image.packed import PackedImage, packed
from metaquorum.metadata.inspect.walk.states import FoundState, LogPart
from metaquorum.metadata.replay import ReplayState

SMALL_BYTES = 1 << 16
"""What a kept state costs besides its partitions, roughly."""


class _Kept(msgspec.Struct, eq=False):
    """A state; its `cost_bytes` beside the one before it, and what dropping it frees (None: not known)."""

    offset: int
    rest: FoundState
    image: PackedImage
    pending: PackedImage | None
    cost_bytes: int = 0
    frees_bytes: int | None = None

    def state(self) -> FoundState:
        """The state as it was."""
        state = ReplayState(self.image.unpacked())
        if self.pending is not None and (transaction := self.rest.state.transaction) is not None:
            pending = msgspec.structs.replace(transaction, pending=self.pending.unpacked())
            state = ReplayState(state.image, pending)
        return replace(self.rest, state=state)

    def bytes_beside(self, other: _Kept | None) -> int:
        """What it needs beside one that is kept anyway."""
        own = SMALL_BYTES + self.image.bytes_beside(None if other is None else other.image)
        return own + (0 if self.pending is None else self.pending.bytes_beside(self.image))


def _kept(state: FoundState, before: _Kept | None) -> _Kept:
    image = packed(state.image, None if before is None else before.image)
    transaction, pending = state.state.transaction, None
    if transaction is not None:
        pending = packed(transaction.pending, image)
        transaction = msgspec.structs.replace(transaction, pending=pending.rest)
    rest = replace(state, state=ReplayState(image.rest, transaction))
    return _Kept(state.end_offset, rest, image, pending)


class KeptStates:
    """States of one log by offset. Methods may be called from several threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._reserved_bytes = 0
        self._states: list[_Kept] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._states)

    @property
    def cost_bytes(self) -> int:
        """What all of them need."""
        return sum(each.cost_bytes for each in self._states)

    def add(self, state: FoundState) -> None:
        """Keeps a state and, if memory is short, drops those without which least is replayed."""
        before = self._newest(state.end_offset)
        if before is not None and before.offset == state.end_offset:
            return
        made = _kept(state, before)
        with self._lock:
            at = bisect_left(self._states, made.offset, key=lambda kept: kept.offset)
            self._states.insert(at, made)
            self._weigh(at)
            self._fit()

    def reserve(self, size_bytes: int) -> None:
        """Leaves so much of the limit to what is kept besides."""
        with self._lock:
            self._reserved_bytes = size_bytes
            self._fit()

    def parts(self, ranges: Iterable[tuple[int, int]]) -> list[LogPart]:
        """Parts of the log that hold all of these ranges of offsets, whose starts ascend; no parts overlap.
        Ranges before the first state are left out."""
        with self._lock:
            states = [kept for kept in self._states if kept.rest.state.transaction is None]
        made: list[tuple[_Kept, int]] = []
        for start, end in ranges:
            at = bisect_right(states, start, key=lambda kept: kept.offset)
            if not at:
                continue
            begun = states[at - 1]
            if made and begun.offset <= made[-1][1]:
                begun = made.pop()[0]
            made.append((begun, end))
        return [LogPart(begun=begun.state, end_offset=end) for begun, end in made]

    def up_to(self, offset: int, above: int) -> FoundState | None:
        """The newest state up to an offset; None if none is after `above`."""
        near = self._newest(offset)
        return None if near is None or near.offset <= above else near.state()

    def _newest(self, offset: int) -> _Kept | None:
        with self._lock:
            at = bisect_right(self._states, offset, key=lambda kept: kept.offset)
            return self._states[at - 1] if at else None

    def _weigh(self, number: int) -> None:
        """What the state with this number costs, and the one after it; their neighbours' worth changes."""
        for index in range(number, min(number + 2, len(self._states))):
            before = self._states[index - 1] if index else None
            self._states[index].cost_bytes = self._states[index].bytes_beside(before)
        for kept in self._states[max(0, number - 1) : number + 2]:
            kept.frees_bytes = None

    def _fit(self) -> None:
        while len(self._states) > 2 and self.cost_bytes + self._reserved_bytes > self._limit_bytes:
            self._drop()

    def _drop(self) -> None:
        """Drops one. The first and the last stay: nothing replaces them."""
        at = min(range(1, len(self._states) - 1), key=self._loss)
        del self._states[at]
        self._weigh(at)

    def _loss(self, number: int) -> float:
        """By how much replays get longer without a state, for each byte that this frees: moments behind it
        begin at the one before it."""
        before, kept, behind = self._states[number - 1 : number + 2]
        if kept.frees_bytes is None:
            kept.frees_bytes = kept.cost_bytes + behind.cost_bytes - behind.bytes_beside(before)
        farther = (kept.offset - before.offset) * (behind.offset - kept.offset)
        return farther / max(1, kept.frees_bytes)

"""When a node writes a snapshot, and where it ends: after some number of bytes or some time (KIP-630).

Owns both limits, and that one is written at a time. Knows no files: a written or fetched snapshot is reported
as a position.
"""

from __future__ import annotations

from metaquorum.metadata.replay import ReplayState
from metaquorum.storage.types import LogPosition


class SnapshotPolicy:
    """`last_offset`: the end of the newest snapshot on this node, 0 if none. `interval_ms`: 0 disables
    snapshots by age. `in_progress`: the snapshot being written."""

    def __init__(self, *, max_bytes: int, interval_ms: int, last_offset: int, now_ms: int) -> None:
        self.last_offset = last_offset
        self.in_progress: LogPosition | None = None
        self._max_bytes = max_bytes
        self._interval_ms = interval_ms
        self._last_ms = now_ms
        self._bytes = 0

    def replayed(self, size_bytes: int) -> None:
        """Adds batches of `size_bytes` to the committed state."""
        self._bytes += size_bytes

    def cut(self, state: ReplayState, now_ms: int) -> LogPosition | None:
        """The end of the snapshot to write now, if one is due; it is then in progress.

        The committed `state` ends at a batch boundary at or below the high watermark, and its epoch is that
        of the record before its end. Inside a metadata transaction there is no such place, so the snapshot
        waits for the transaction's end.
        """
        if not self._may_cut(state):
            return None
        old = self._interval_ms > 0 and now_ms >= self._last_ms + self._interval_ms
        if not old and self._bytes < self._max_bytes:
            return None
        place = state.image.provenance
        self.in_progress = LogPosition(place.epoch, place.offset)
        self._begin_anew(now_ms)
        return self.in_progress

    def written(self, position: LogPosition) -> bool:
        """A snapshot is durable. Returns False if a newer one was fetched in the meantime."""
        if self.in_progress == position:
            self.in_progress = None
        if position.offset <= self.last_offset:
            return False
        self.last_offset = position.offset
        return True

    def loaded(self, position: LogPosition, now_ms: int) -> None:
        """A fetched snapshot replaced the log before it."""
        self.last_offset = max(self.last_offset, position.offset)
        self._begin_anew(now_ms)

    def next_deadline_ms(self, state: ReplayState) -> int | None:
        """The time by which `cut` must be called if `state` does not change."""
        if self._interval_ms <= 0 or not self._may_cut(state):
            return None
        return self._last_ms + self._interval_ms

    def _may_cut(self, state: ReplayState) -> bool:
        new = state.image.provenance.offset > self.last_offset
        return new and self.in_progress is None and state.transaction is None

    def _begin_anew(self, now_ms: int) -> None:
        self._last_ms = now_ms
        self._bytes = 0

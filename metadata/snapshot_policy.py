"""When a node writes a snapshot, and where it ends: after so many bytes or so much time (KIP-630).

One is written at a time. Knows no files: that a snapshot is written, or was fetched, comes as a position.
"""

from __future__ import annotations

from metaquorum.metadata.replay import ReplayState
from metaquorum.storage.types import LogPosition


class SnapshotPolicy:
    """`last_offset`: the end of the newest snapshot that this node has, 0 for none. `interval_ms` 0: never
    for its age. `in_progress`: what is being written."""

    def __init__(self, *, max_bytes: int, interval_ms: int, last_offset: int, now_ms: int) -> None:
        self.last_offset = last_offset
        self.in_progress: LogPosition | None = None
        self._max_bytes = max_bytes
        self._interval_ms = interval_ms
        self._last_ms = now_ms
        self._bytes = 0

    def replayed(self, size_bytes: int) -> None:
        """Batches of `size_bytes` went into the committed state."""
        self._bytes += size_bytes

    def cut(self, state: ReplayState, now_ms: int) -> LogPosition | None:
        """The end of the snapshot to write now, if one is due; it is in progress then.

        The committed `state` ends at a batch boundary at or below the high watermark, and its epoch is that
        of the record before its end. Inside a metadata transaction there is no such place: a snapshot waits
        for its end.
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
        """A snapshot is durable. False: a newer one was fetched meanwhile."""
        if self.in_progress == position:
            self.in_progress = None
        if position.offset <= self.last_offset:
            return False
        self.last_offset = position.offset
        return True

    def loaded(self, position: LogPosition, now_ms: int) -> None:
        """A fetched snapshot took the place of the log before it."""
        self.last_offset = max(self.last_offset, position.offset)
        self._begin_anew(now_ms)

    def next_deadline_ms(self, state: ReplayState) -> int | None:
        """When `cut` must be asked at the latest, if `state` stays as it is."""
        if self._interval_ms <= 0 or not self._may_cut(state):
            return None
        return self._last_ms + self._interval_ms

    def _may_cut(self, state: ReplayState) -> bool:
        new = state.image.provenance.offset > self.last_offset
        return new and self.in_progress is None and state.transaction is None

    def _begin_anew(self, now_ms: int) -> None:
        self._last_ms = now_ms
        self._bytes = 0

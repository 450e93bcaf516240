"""What the times of batches show: silences, and clocks that jump or run backwards."""

from __future__ import annotations

from collections.abc import Iterator

from metaquorum.metadata.inspect.changes.change_steps import BatchChanges
from metaquorum.metadata.inspect.log.clock import JUMP_MS, LEAP_MS
from metaquorum.metadata.inspect.log.points import utc_text
from metaquorum.metadata.inspect.timeline.event_groups import Grouped, duration
from metaquorum.metadata.records.control import LeaderChangeMessage
from metaquorum.metadata.records.types import NoOpRecord

GAP_MS = 5_000
"""Silence between two batches that is reported if the log has NoOp records: an active controller writes one
every 500 ms by default (KIP-835)."""


class TimeEvents:
    """Feed it every batch, or stretch of batches, in log order."""

    def __init__(self, gap_ms: int, last_ms: int | None) -> None:
        """`last_ms` is the time of the record before the first batch, if known."""
        self._gap_ms = gap_ms
        self._last_ms = last_ms
        self.silence_ms: int | None = None
        """Before the last batch: None if unknown, -1 if the clocks cannot be compared."""
        self._is_odd = self._is_moved = False
        self._idle_records = False

    def lose(self) -> None:
        """Records are lost: the time of the last write is unknown."""
        self._last_ms = None

    def batch(self, changes: BatchChanges, stamp_ms: int) -> Iterator[Grouped]:
        """Gaps in time, if silence means something, and clocks that jump or ran backwards."""
        off_ms = stamp_ms - changes.time_ms
        was_odd, self._is_odd = self._is_odd, abs(off_ms) >= JUMP_MS
        last, now, offset = self._last_ms, changes.time_ms, changes.base_offset
        if self._is_odd and not was_odd:
            yield _jump(offset, stamp_ms, off_ms, now)
        was_moved, self._is_moved = self._is_moved, off_ms != 0
        self.silence_ms = _silence_ms(last, now, was_moved or self._is_moved)
        if last is not None and last >= 0 and now >= 0:
            if self._idle_records and now - last > self._gap_ms:
                text = f"nothing was written for {duration(now - last)}; {_reason(changes)}"
                yield Grouped(offset, "gap in time", "quorum", text, "warning", None, (), span_ms=now - last)
            elif now < last:
                text = f"the time of this batch is {duration(last - now)} before that of the one before it"
                yield Grouped(offset, "time ran backwards", "quorum", text, "detail", None, ())
        self._idle_records = self._idle_records or any(
            isinstance(record, NoOpRecord) for _, record in changes.records
        )
        self._last_ms = now

    def stretch(self, last: list[tuple[int, int]], *, is_idle: bool) -> None:
        """Batches that are all as odd as the one before them, each soon after the previous one; `last` has
        the times and timestamps of the last two."""
        self._idle_records = self._idle_records or is_idle
        for now, stamp_ms in last:
            was_moved, self._is_moved = self._is_moved, now != stamp_ms
            self.silence_ms = _silence_ms(self._last_ms, now, was_moved or self._is_moved)
            self._last_ms = now


def _silence_ms(last: int | None, now: int, is_moved: bool) -> int | None:
    """Between two writes; the clocks of two leaders cannot be compared where one was corrected."""
    return None if last is None else -1 if is_moved else now - last


def _reason(changes: BatchChanges) -> str:
    """The meaning of a silence before a batch: if no election ends it, the same controller writes again."""
    if any(isinstance(record, LeaderChangeMessage) for _, record in changes.records):
        return "a live controller writes even when idle"
    return f"the controller of epoch {changes.epoch} paused, or its clock was set"


def _jump(offset: int, stamp_ms: int, off_ms: int, time_ms: int) -> Grouped:
    way = "ahead of" if off_ms > 0 else "behind"
    text = (
        f"the batch is stamped {utc_text(stamp_ms)}, {duration(abs(off_ms))} {way} the clock of the log:"
        f" it is counted as {utc_text(time_ms)}"
    )
    severity = "warning" if abs(off_ms) >= LEAP_MS else "detail"
    return Grouped(offset, "clock jumped", "quorum", text, severity, None, ())

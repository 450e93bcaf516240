"""What the times of batches show: silences, and clocks that jump or run backwards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from metaquorum.metadata.inspect.changes.change_steps import BatchChanges
from metaquorum.metadata.inspect.log.clock import JUMP_MS, MISLEADING_MS, Longs
from metaquorum.metadata.inspect.log.points import utc_text
from metaquorum.metadata.inspect.timeline.event_groups import Grouped, duration
from metaquorum.metadata.records.control import LeaderChangeMessage
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.storage.log.runs import BatchRun

GAP_MS = 5_000
"""Silence between two batches that is reported if the log has NoOp records: an active controller writes one
every 500 ms by default (KIP-835)."""


class TimeEvents:
    """Feed it every batch, or run of batches, in log order."""

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
                yield _gap(offset, now - last, _reason(changes))
            elif now < last:
                yield _ran_backwards(offset, last - now)
        self._idle_records = self._idle_records or any(
            isinstance(record, NoOpRecord) for _, record in changes.records
        )
        self._last_ms = now

    def batches(self, run: BatchRun, times: Longs, first_no_op: int | None) -> list[tuple[int, Grouped]]:
        """The same for batches that are all as odd as the one before them, with their numbers. `times` are
        theirs, and `first_no_op` is the first of them that has a NoOpRecord."""
        before = np.append(np.int64(-1 if self._last_ms is None else self._last_ms), times[:-1])
        step = times - before
        both_known = (before >= 0) & (times >= 0)
        gaps = both_known & (step > self._gap_ms)
        if not self._idle_records:
            gaps[: len(times) if first_no_op is None else first_no_op + 1] = False
        offsets, epochs = run.offsets.tolist(), run.epochs()
        events = [
            (at, _gap(offsets[at], int(step[at]), _paused(int(epochs[at]))))
            if gaps[at]
            else (at, _ran_backwards(offsets[at], -int(step[at])))
            for at in np.flatnonzero(gaps | (both_known & (step < 0))).tolist()
        ]
        self._idle_records = self._idle_records or first_no_op is not None
        moved = (times != run.timestamps_ms())[-2:].any() or (len(times) == 1 and self._is_moved)
        last_ms = self._last_ms if len(times) == 1 else int(before[-1])
        self._last_ms = int(times[-1])
        self.silence_ms = _silence_ms(last_ms, self._last_ms, bool(moved))
        self._is_moved = bool(times[-1] != run.timestamps_ms()[-1])
        return events


def _silence_ms(last: int | None, now: int, is_moved: bool) -> int | None:
    """Between two writes; the clocks of two leaders cannot be compared where one was corrected."""
    return None if last is None else -1 if is_moved else now - last


def _reason(changes: BatchChanges) -> str:
    """The meaning of a silence before a batch: if no election ends it, the same controller writes again."""
    if any(isinstance(record, LeaderChangeMessage) for _, record in changes.records):
        return "a live controller writes even when idle"
    return _paused(changes.epoch)


def _paused(epoch: int) -> str:
    return f"the controller of epoch {epoch} paused, or its clock was set"


def _gap(offset: int, span_ms: int, reason: str) -> Grouped:
    text = f"nothing was written for {duration(span_ms)}; {reason}"
    return Grouped(offset, "gap in time", "quorum", text, "warning", None, (), span_ms=span_ms)


def _ran_backwards(offset: int, by_ms: int) -> Grouped:
    text = f"the time of this batch is {duration(by_ms)} before that of the one before it"
    return Grouped(offset, "time ran backwards", "quorum", text, "detail", None, ())


def _jump(offset: int, stamp_ms: int, off_ms: int, time_ms: int) -> Grouped:
    way = "ahead of" if off_ms > 0 else "behind"
    text = (
        f"the batch is stamped {utc_text(stamp_ms)}, {duration(abs(off_ms))} {way} the clock of the log:"
        f" it is counted as {utc_text(time_ms)}"
    )
    severity = "warning" if abs(off_ms) >= MISLEADING_MS else "detail"
    return Grouped(offset, "clock jumped", "quorum", text, severity, None, ())

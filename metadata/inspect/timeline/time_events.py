"""What the times of batches show: silences, and clocks that jump or run backwards."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np

from metaquorum.metadata.image import BROKER_RESOURCE, MetadataImage
from metaquorum.metadata.image.types import ConfigResource
from metaquorum.metadata.inspect.changes.change_steps import BatchChanges
from metaquorum.metadata.inspect.changes.changes import MIN_INSYNC_REPLICAS
from metaquorum.metadata.inspect.log.clock import JUMP_MS, MISLEADING_MS, Longs, clock_of
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import utc_text
from metaquorum.metadata.inspect.timeline.event_groups import Grouped, count, duration
from metaquorum.metadata.inspect.walk.rewrite import NO_OP
from metaquorum.metadata.records.control import LeaderChangeMessage
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.errors import BatchError
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


# What a summary must know of a log besides its events, such as its idle write interval and its end.

IDLE_INTERVALS = 10
"""After this many intervals without a record, silence counts as a gap: a slow disk and a
long pause skip a few."""
_SAMPLE = 2_000
"""Maximum number of batches, from the log's first one on, used to find the interval."""


def idle_interval_ms(log: MetadataLog) -> int | None:
    """How long an idle controller waits before it writes a NoOpRecord (metadata.max.idle.interval.ms), by the
    median of its intervals. None for a log without NoOpRecords, in which silence means nothing."""
    steps: list[int] = []
    last: int | None = None
    batches = (found for found in log.batches() if isinstance(found, RecordBatch))
    for number, batch in enumerate(batches):
        if number >= _SAMPLE:
            break
        time_ms = batch.header.max_timestamp_ms
        if _is_idle(batch):
            if last is not None and time_ms > last:
                steps.append(time_ms - last)
            last = time_ms
        else:
            last = None
    return int(median(steps)) if steps else None


def gap_ms(interval_ms: int | None) -> int:
    """Silence of this length, derived from the interval, means that the quorum had no leader."""
    return GAP_MS if interval_ms is None else max(GAP_MS, IDLE_INTERVALS * interval_ms)


def last_time_ms(log: MetadataLog) -> int | None:
    """The time of the log's last batch, Unix ms, by the log's clock; None if it has no batch."""
    last = log.last_header()
    return None if last is None else clock_of(log).time_ms(last.base_offset, last.max_timestamp_ms)


def cannot_decide(
    *,
    image: MetadataImage,
    interval_ms: int | None,
    uncertain: int,
    gaps: int,
    names_who: bool,
    has_records: bool,
    may_lack_votes: bool,
) -> list[str]:
    """What the log does not show, in lines for people, the most important first. With `may_lack_votes`, this
    is the log of one of several voters, and its last records may be on no other voter."""
    lines = []
    if not has_records:
        lines.append("what happened: no record is here")
    elif interval_ms is None:
        lines.append("whether there were times without a leader: idle controllers wrote nothing")
    if gaps:
        lines.append(f"what happened in the {count(gaps, 'gap') if gaps > 1 else 'gap'}: nothing was written")
    if uncertain:
        lines.append(f"whether {count(uncertain, 'fence')} followed a clean shutdown or missed heartbeats")
    if not _has_default_min_isr(image):
        lines.append("min.insync.replicas in brokers' files: taken as 1 unless a record sets it")
    if may_lack_votes and has_records:
        lines.append("whether its last records were committed: compare the other nodes' logs")
    hidden = "heartbeats, lag, and what clients saw"
    lines.append(hidden if names_who else f"who asked for a change; {hidden}")
    return lines


def _has_default_min_isr(image: MetadataImage) -> bool:
    return MIN_INSYNC_REPLICAS in (image.configs.get(ConfigResource(BROKER_RESOURCE, "")) or {})


def _is_idle(batch: RecordBatch) -> bool:
    if batch.header.is_control or batch.header.records_count != 1:
        return False
    try:
        return batch.records()[0].value == NO_OP
    except (BatchError, IndexError):
        return False

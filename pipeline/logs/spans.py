"""Cuts a cluster's history at snapshots into parts that are replayed in parallel.

Owns the choice of the snapshots. Knows histories, not files; replaying and joining the parts
is `pipeline.ingest.parts`'.
"""

from __future__ import annotations

import math

import msgspec

from metaquorum.pipeline.logs.spine import Spine, SpineRun
from metaquorum.pipeline.logs.survey import LogSurvey

SPAN_RECORDS = 100_000
"""Least number of records in a part. To join a part takes as long as to replay about a quarter of these, and
parts are joined one after another. So the parts of a longer history grow with the square root of its length:
then replay on many executors and joining take about the same time."""
MAX_SPANS = 64


class HistorySpan(msgspec.Struct, frozen=True):
    """Offsets `start` to below `end`. All but the first begin at the end of a snapshot of `log` and `epoch`.
    `elected`: the offset where that epoch began, None if no log has it."""

    start: int
    end: int
    log: LogSurvey | None = None
    epoch: int = -1
    elected: int | None = None


def spans_of(spine: Spine, low: int, high: int, span_records: int = SPAN_RECORDS) -> list[HistorySpan]:
    """The parts from offset `low` to `high` of a history. Empty if the history is too short or has holes."""
    runs = list(spine.runs())
    start = max(low, runs[0].start)
    if len(runs) > 1 or high - start < 2 * span_records:
        return []
    length = high - start
    span_records = max(span_records, math.isqrt(span_records // 4 * length), math.ceil(length / MAX_SPANS))
    known = spine.snapshots(runs[0].start, runs[0].end)
    if runs[0].start > 0 and not low:  # the state before the first one is unknown
        known = [at for at in known if at[1] > known[0][1]]
    places: list[tuple[LogSurvey, int, int]] = []
    for at in known:
        before = places[-1][1] if places else start
        if at[1] - before >= span_records and high - at[1] >= span_records:
            places.append(at)
    if not places:
        return []
    ends = [*(offset for _, offset, _ in places), high]
    spans = [HistorySpan(start, ends[0])]
    for (log, offset, epoch), end in zip(places, ends[1:], strict=True):
        spans.append(HistorySpan(offset, end, log, epoch, _elected(spine, offset)))
    return spans


def part_of(run: SpineRun, end: int) -> SpineRun:
    """A run up to offset `end`."""
    kept = [msgspec.structs.replace(at, end=min(at.end, end)) for at in run.stretches if at.start < end]
    return SpineRun(kept, [at for at in run.snapshots if at[1] <= end])


def _elected(spine: Spine, offset: int) -> int | None:
    """The first offset of the epoch of the record before `offset`, in the log that is read there."""
    for stretch in spine.stretches:
        if stretch.start < offset <= stretch.end:
            begun = [start for _, start in stretch.log.epochs if start < offset]
            return begun[-1] if begun and begun[-1] >= stretch.start else None
    return None

"""Where a long history is cut: at snapshots, into parts that grow with the root of its length."""

from __future__ import annotations

import math

import pytest

from metaquorum.pipeline.logs.merged import HistorySection, MergedHistory
from metaquorum.pipeline.logs.pieces import MAX_SPANS, SPAN_RECORDS, HistorySpan, spans_of
from metaquorum.pipeline.logs.places import LogPlace
from metaquorum.pipeline.logs.survey import LogSurvey

PLACE = LogPlace(path="/logs/n1/__cluster_metadata-0", cluster="c", node_id=1)


def history(end: int, *, every: int, start: int = 0) -> MergedHistory:
    """Offsets `start` to `end` of one log in one epoch, with a snapshot at each `every` offsets."""
    snapshots = [(offset, 5) for offset in range(start or every, end, every)]
    log = LogSurvey(
        location=PLACE,
        start_offset=start,
        end_offset=end,
        epochs=[(5, start)],
        segments=[],
        sums={},
        snapshots=snapshots,
        records=end - start,
    )
    return MergedHistory("c", [HistorySection(log, start, end)], [], [log])


def lengths(spans: list[HistorySpan]) -> list[int]:
    return [span.end - span.start for span in spans]


@pytest.mark.parametrize("times", [1, 4, 25, 100, 6_400])
def test_parts_of_a_longer_history_grow_with_the_root_of_its_length(times: int) -> None:
    records = 4 * SPAN_RECORDS * times
    spans = spans_of(history(records, every=10_000), 0, records)
    assert [span.start for span in spans] == [0, *[span.end for span in spans[:-1]]], "without a hole"
    assert spans[-1].end == records
    least = max(SPAN_RECORDS * math.isqrt(times), records // MAX_SPANS)
    assert len(spans) == records // least <= MAX_SPANS
    assert all(length == least for length in lengths(spans)[:-1]), "snapshots lie closer than that"
    assert lengths(spans)[-1] >= least


@pytest.mark.parametrize("records", [1, SPAN_RECORDS, 2 * SPAN_RECORDS - 1])
def test_a_history_of_less_than_two_parts_is_not_cut(records: int) -> None:
    assert spans_of(history(records, every=1_000), 0, records) == []


def test_two_parts_are_the_least() -> None:
    assert lengths(spans_of(history(2 * SPAN_RECORDS, every=1_000), 0, 2 * SPAN_RECORDS)) == [
        SPAN_RECORDS,
        SPAN_RECORDS,
    ]


def test_a_part_begins_with_the_state_of_the_snapshot_at_its_start() -> None:
    merged = history(1_000_000, every=10_000)
    first, *others = spans_of(merged, 0, 1_000_000)
    assert (first.log, first.epoch, first.elected) == (None, -1, None)
    assert others
    assert all((span.log, span.epoch, span.elected) == (merged.logs[0], 5, 0) for span in others)


def test_only_what_is_new_is_cut() -> None:
    spans = spans_of(history(1_000_000, every=10_000), 600_000, 1_000_000)
    assert lengths(spans) == [100_000] * 4
    assert spans[0].start == 600_000


def test_a_trimmed_history_is_not_cut_at_the_snapshot_that_it_begins_with() -> None:
    spans = spans_of(history(2_010_000, every=10_000, start=1_000_000), 0, 2_010_000)
    assert spans[0].start == 1_000_000
    assert min(lengths(spans)) >= SPAN_RECORDS


def test_a_history_without_snapshots_stays_whole() -> None:
    assert spans_of(history(1_000_000, every=2_000_000), 0, 1_000_000) == []


def test_a_history_with_a_hole_stays_whole() -> None:
    merged = history(1_000_000, every=10_000)
    log = merged.logs[0]
    holed = MergedHistory(
        "c", [HistorySection(log, 0, 400_000), HistorySection(log, 500_000, 1_000_000)], [], [log]
    )
    assert spans_of(holed, 0, 1_000_000) == []

"""Clocks, days, quantiles and buckets."""

from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from metaquorum.pipeline.intervals.daily_sums import quantile
from metaquorum.pipeline.intervals.moments import DAY_MS, MAX_JUMP_MS, MAX_TIME_MS, BatchClock, days


@given(st.integers(0, 10 * DAY_MS), st.integers(0, 10 * DAY_MS))
def test_days_fill_a_span_exactly(start: int, length: int) -> None:
    parts = list(days(start, start + length))
    assert sum(span for _, span in parts) == length
    assert [day for day, _ in parts] == sorted({day for day, _ in parts})
    assert all(0 < span <= DAY_MS for _, span in parts)


def test_a_clock_ignores_what_is_no_time_and_never_goes_back() -> None:
    clock = BatchClock()
    assert clock.moment(0, -1)[:3] == (0, None, -1)
    assert clock.moment(1, 5000)[:3] == (1, 5000, 5000)
    assert clock.moment(2, 4000)[:3] == (2, 4000, 5000)
    assert clock.moment(3, MAX_TIME_MS + 1)[:3] == (3, None, 5000)
    assert clock.moment(4, 5001 + MAX_JUMP_MS)[:3] == (4, 5001 + MAX_JUMP_MS, 5000)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=40))
def test_quantiles_are_those_of_the_single_values(values: list[int]) -> None:
    counts = {value: values.count(value) for value in values}
    expected = statistics.quantiles(values, n=20, method="inclusive")
    found = [quantile(counts, share) for share in (0.5, 0.95)]
    assert [round(at or 0, 6) for at in found] == [round(expected[9], 6), round(expected[18], 6)]


def test_there_is_no_quantile_of_nothing() -> None:
    assert quantile({}, 0.5) is None

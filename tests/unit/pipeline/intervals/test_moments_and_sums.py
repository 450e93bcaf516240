"""Clocks, days, quantiles and buckets."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.pipeline.intervals.moments import DAY_MS, MAX_JUMP_MS, MAX_TIME_MS, BatchClock, days
from metaquorum.pipeline.intervals.tables.availability import (
    DailySums,
    add_sums,
    difference_of,
    quantile,
    sums_row,
)
from metaquorum.pipeline.tables import FAILOVER_BOUNDS_MS, PARTITION_COLUMNS, TABLES


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


def sums(**counts: Any) -> st.SearchStrategy[DailySums]:
    fields = {name: st.integers(0, 9) for name in DailySums.__struct_fields__}
    durations = st.dictionaries(st.integers(0, 2 * FAILOVER_BOUNDS_MS[-1]), st.integers(1, 3), max_size=6)
    return st.builds(DailySums, **(fields | {"durations": durations} | counts))


@given(sums(), sums())
def test_a_difference_is_what_is_added(before: DailySums, more: DailySums) -> None:
    now = msgspec.structs.replace(before, durations=dict(before.durations))
    add_sums(now, more)
    assert difference_of(now, before) == (more if more != DailySums() else None)


@given(sums(), sums())
def test_a_row_of_a_day_has_its_sums_by_name(cell: DailySums, whole: DailySums) -> None:
    """The cluster's time is that of the whole; every duration is in the bucket that ends at or above it."""
    names = [column.name for column in TABLES["availability"].columns if column.name not in PARTITION_COLUMNS]
    row = dict(zip(names, sums_row("rack", "r", cell, whole), strict=True))
    for name in DailySums.__struct_fields__:
        source = whole if name in ("observed_ms", "unobserved_ms", "off_ms") else cell
        if name.endswith("_ms"):
            assert row.pop(name.replace("_ms", "_seconds")) == getattr(source, name) / 1000
        elif name != "durations":
            assert row.pop(name) == getattr(source, name)
    single = sorted(at for at, n in cell.durations.items() for _ in range(n))
    buckets = np.searchsorted(FAILOVER_BOUNDS_MS, single)
    assert row == {
        "scope": "rack",
        "id": "r",
        "failover_ms_p50": pytest.approx(np.quantile(single, 0.5)) if single else None,
        "failover_ms_p95": pytest.approx(np.quantile(single, 0.95)) if single else None,
        "failover_ms_max": single[-1] if single else None,
        "failover_ms_histogram": np.bincount(buckets, minlength=len(FAILOVER_BOUNDS_MS) + 1).tolist(),
    }

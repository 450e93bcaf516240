"""Bursts of events, against their definition."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from hypothesis import given
from hypothesis import strategies as st

from metaquorum.pipeline.audit.facts import bursts


@given(st.lists(st.integers(0, 40), max_size=14).map(sorted), st.integers(1, 5), st.integers(0, 20))
def test_a_burst_goes_on_while_its_neighbors_are_within_the_window(
    times: list[int], least: int, window_ms: int
) -> None:
    events = list(enumerate(times))
    groups = [events[at : at + least] for at in range(len(events) - least + 1)]
    expected: list[list[tuple[int, int]]] = []
    goes_on = False
    for group in groups:
        is_near = group[-1][1] - group[0][1] <= window_ms
        if is_near and goes_on:
            expected[-1].append(group[-1])
        elif is_near:
            expected.append(list(group))
        goes_on = is_near
    assert list(bursts(events, least, window_ms, lambda event: event[1])) == expected

"""The time that durations are measured by: it never falls, and no single wrong stamp moves it for good."""

from __future__ import annotations

import pytest

from metaquorum.pipeline.intervals.moments import DAY_MS, LONG_STEP_MS, MAX_JUMP_MS, BatchClock

SIX_YEARS = 6 * 365 * DAY_MS
T0 = 1_795_000_000_000


def times(*stamps: int) -> list[int]:
    clock = BatchClock()
    return [clock.moment(at, T0 + stamp).now_ms - T0 for at, stamp in enumerate(stamps)]


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [
        ([0, 10, 20], [0, 10, 20]),
        ([0, 10, 5, 20], [0, 10, 10, 20]),
        ([0, 10, SIX_YEARS, 20, 30], [0, 10, 10, 20, 30]),  # one batch six years ahead
        ([0, 10, SIX_YEARS, 20, SIX_YEARS, 30], [0, 10, 10, 20, 20, 30]),  # and another one
        ([0, SIX_YEARS, SIX_YEARS + 5], [0, 0, SIX_YEARS + 5]),  # set for good: the next batch confirms it
        ([0, LONG_STEP_MS - 1], [0, LONG_STEP_MS - 1]),
        ([0, MAX_JUMP_MS + 1, MAX_JUMP_MS + 2, 5], [0, 0, 0, 5]),  # over ten years are never counted
        ([0, -SIX_YEARS, 5], [0, 0, 5]),
    ],
)
def test_one_wrong_stamp_does_not_move_the_time(stamps: list[int], expected: list[int]) -> None:
    assert times(*stamps) == expected


def test_a_stamp_keeps_its_own_time_beside_it() -> None:
    clock = BatchClock()
    clock.moment(0, T0)
    odd = clock.moment(1, T0 + SIX_YEARS)
    assert (odd.time_ms, odd.now_ms) == (T0 + SIX_YEARS, T0)
    assert clock.moment(2, -1).time_ms is None

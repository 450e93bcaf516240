"""Majority maths, by cases that were worked out by hand."""

from __future__ import annotations

import pytest

from metaquorum.raft.voters import cannot_win, has_majority, majority, majority_value


@pytest.mark.parametrize(("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_majority(voters: int, needed: int) -> None:
    assert majority(voters) == needed


def test_only_voters_count() -> None:
    assert has_majority({1, 2}, {1, 2, 3})
    assert not has_majority({1, 8, 9}, {1, 2, 3})
    assert not has_majority([1, 1, 1], {1, 2, 3})


def test_lost_when_the_rest_is_no_majority() -> None:
    assert not cannot_win({2}, {1, 2, 3})
    assert cannot_win({2, 3}, {1, 2, 3})
    assert not cannot_win({8, 9}, {1, 2, 3})
    assert cannot_win({2, 3}, {1, 2, 3, 4})


@pytest.mark.parametrize(
    ("values", "reached"),
    [
        ([7], 7),
        ([5, 9], 5),
        ([9, 5, 1], 5),
        ([9, None, 1], 1),
        ([9, None, None], None),
        ([9, 9, 3, 2], 3),
        ([], None),
    ],
)
def test_majority_value(values: list[int | None], reached: int | None) -> None:
    assert majority_value(values) == reached

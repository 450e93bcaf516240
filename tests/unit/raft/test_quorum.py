"""Majority maths, by cases that were worked out by hand."""

from __future__ import annotations

import pytest

from metaquorum.raft.voters import has_majority, majority


@pytest.mark.parametrize(("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_majority(voters: int, needed: int) -> None:
    assert majority(voters) == needed


def test_only_voters_count() -> None:
    assert has_majority({1, 2}, {1, 2, 3})
    assert not has_majority({1, 8, 9}, {1, 2, 3})
    assert not has_majority([1, 1, 1], {1, 2, 3})

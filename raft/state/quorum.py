"""Majority arithmetic over voter ids.

Owns what counts as a majority. Knows no roles, no messages and no log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


def majority(voter_count: int) -> int:
    """The smallest number of voters for which any two sets share a member."""
    return voter_count // 2 + 1


def has_majority(granted: Collection[int], voter_ids: Collection[int]) -> bool:
    """True if more than half of `voter_ids` are in `granted`; ids of nodes that are not voters do not
    count."""
    return len(set(granted) & set(voter_ids)) >= majority(len(voter_ids))


def cannot_win(rejected: Collection[int], voter_ids: Collection[int]) -> bool:
    """True if the voters that have not refused are not a majority."""
    return len(set(voter_ids) - set(rejected)) < majority(len(voter_ids))


def majority_value(values: Iterable[int | None]) -> int | None:
    """The largest value that a majority has reached, one value per voter; None is below every value."""
    ordered = sorted([-1 if value is None else value for value in values], reverse=True)
    if not ordered:
        return None
    reached = ordered[majority(len(ordered)) - 1]
    return None if reached < 0 else reached

"""Committed records that were lost, told from the bounds and logs of several directories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaquorum.metadata.inspect.nodes.lost import Holding, find_losses
from metaquorum.metadata.records.control import Voter
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition

VOTERS = (3000, 3001, 3002)


def node(
    node_id: int, known: LogPosition, epochs: tuple[tuple[int, int], ...], end: int, start: int = 0
) -> Holding:
    return Holding(
        path=f"controller-{node_id}",
        node_id=node_id,
        known=known,
        start_offset=start,
        end_offset=end,
        epochs=EpochTable(epochs),
    )


KNOWS = node(3000, LogPosition(1, 20), ((1, 0),), 21)


@pytest.mark.parametrize(
    ("others", "certain"),
    [
        # A second leader committed other records, before and behind what was known.
        ([node(3001, LogPosition(2, 18), ((1, 0), (2, 15)), 18)], True),
        ([node(3001, LogPosition(2, 30), ((1, 0), (2, 15)), 30)], True),
        # Two of three end earlier: lost, if they were all stopped.
        ([node(3001, LogPosition(1, 14), ((1, 0),), 15), node(3002, LogPosition(1, 9), ((1, 0),), 9)], False),
    ],
)
def test_a_loss_is_named_with_who_knows_and_who_has_it_not(others: list[Holding], certain: bool) -> None:
    loss = find_losses([KNOWS, *others], VOTERS)[0]
    assert (loss.path, loss.offset, loss.certain) == ("controller-3000", 20, certain)
    assert loss.missing == tuple(other.path for other in others)
    assert "`metaquorum log salvage`" in str(loss) and "controller-3001" in str(loss)


@pytest.mark.parametrize(
    "others",
    [
        [],
        # One that lags; one with a longer tail; one that was trimmed; one far ahead.
        [node(3001, LogPosition(1, 14), ((1, 0),), 15)],
        [node(3001, LogPosition(1, 14), ((1, 0),), 40), node(3002, LogPosition(1, 19), ((1, 0),), 20)],
        [node(3001, LogPosition(2, 70), ((2, 60),), 71, start=60)],
        [node(3001, LogPosition(3, 70), ((1, 0), (2, 20), (3, 60)), 71)],
    ],
)
def test_no_loss_where_all_can_be_one_log(others: list[Holding]) -> None:
    assert find_losses([KNOWS, *others], VOTERS) == []


def test_a_log_that_lost_what_its_own_node_knew() -> None:
    (loss,) = find_losses([node(3000, LogPosition(1, 20), ((1, 0),), 12)])
    assert loss.certain and "to be committed, but its log ends earlier" in str(loss)


def of(node_id: int, directory: int) -> Voter:
    return Voter(node_id, bytes([directory]) * 16)


@pytest.mark.parametrize(
    ("voters", "directories", "is_lost"),
    [
        # By the set in force, not by the configured ids: 3001 and 3002 of four lack it.
        ([of(3000, 1), of(3001, 2), of(3002, 3), of(3003, 4)], (1, 2, 3), True),
        # They are two of five.
        ([of(3000, 1), of(3001, 2), of(3002, 3), of(3003, 4), of(3004, 5)], (1, 2, 3), False),
        # 3002 has another directory than the voter of its id: what that one holds is not known.
        ([of(3000, 1), of(3001, 2), of(3002, 9)], (1, 2, 3), False),
        ([of(3000, 1), of(3001, 2), of(3002, 3)], (1, 2, 3), True),
        # A directory without an id may be the voter's.
        ([of(3000, 1), of(3001, 2), of(3002, 9)], (1, 2, None), True),
    ],
)
def test_a_majority_is_one_of_the_voter_set_in_force(
    voters: list[Voter], directories: tuple[int | None, ...], is_lost: bool
) -> None:
    logs = [KNOWS, *(node(node_id, LogPosition(1, 9), ((1, 0),), 9) for node_id in (3001, 3002))]
    ids = [None if one is None else bytes([one]) * 16 for one in directories]
    held = [replace(one, directory_id=own, voters=tuple(voters)) for one, own in zip(logs, ids, strict=True)]
    assert [(loss.path, loss.certain) for loss in find_losses(held, VOTERS)] == (
        [("controller-3000", False)] if is_lost else []
    )

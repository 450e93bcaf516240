"""Committed records that were lost, told from the bounds and logs of several directories."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.log.quorum import VoterSets
from metaquorum.metadata.inspect.nodes.lost import Holding, find_losses, holding, known_committed
from metaquorum.metadata.records.control import Voter
from metaquorum.storage.files.known_committed import FILE_NAME as KNOWN_FILE
from metaquorum.storage.files.known_committed import NOTHING
from metaquorum.storage.files.known_committed import encode as encode_known
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition
from tests.unit.metadata.made_logs import add_snapshot, make_node, memory_disk, write

VOTERS = (3000, 3001, 3002)


def node(
    node_id: int, known: LogPosition, epochs: tuple[tuple[int, int], ...], end: int, start: int = 0
) -> Holding:
    return Holding(
        path=f"controller-{node_id}",
        node_id=node_id,
        committed=known,
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


@pytest.mark.parametrize(
    ("node_id", "directory", "is_voter"),
    [
        (3, 7, True),
        (3, None, True),
        (3, 0, True),
        (3, 8, False),
        (2, 7, False),
        (4, 7, False),
        (None, 7, False),
    ],
)
def test_a_directory_is_a_voters_by_its_id_and_directory(
    node_id: int | None, directory: int | None, is_voter: bool
) -> None:
    own = None if directory is None else bytes([directory]) * 16
    held = replace(KNOWS, node_id=node_id, directory_id=own)
    assert held.is_voter(of(3, 7)) == is_voter
    assert held.is_voter(of(3, 0)) == (node_id == 3), "a voter whose directory is not known"


@pytest.mark.parametrize(
    ("position", "here"),
    [
        (LogPosition(1, 9), True),
        (LogPosition(9, 10), True),
        (LogPosition(1, 11), False),
        (LogPosition(2, 11), True),
        (LogPosition(2, 20), True),
        (LogPosition(3, 20), False),
        (LogPosition(3, 21), True),
        (LogPosition(3, 30), True),
        (LogPosition(3, 31), False),
    ],
)
def test_a_log_holds_what_is_in_it_with_its_epoch_and_what_is_before_it(
    position: LogPosition, here: bool
) -> None:
    assert node(1, position, ((2, 10), (3, 20)), 30, start=10).holds(position) == here


def test_each_node_that_knows_of_a_loss_names_it() -> None:
    lost_its_own = node(3001, LogPosition(1, 15), ((1, 0),), 12)
    knows_nothing = node(3002, LogPosition(0, 0), (), 0)
    found = find_losses([lost_its_own, KNOWS, knows_nothing], VOTERS)
    assert [(loss.path, loss.offset, loss.missing, loss.certain) for loss in found] == [
        ("controller-3001", 15, ("controller-3001",), True),
        ("controller-3000", 20, ("controller-3001", "controller-3002"), False),
    ]
    assert "do not have all" in str(found[1]) and "all of them were stopped" in str(found[1])


@pytest.mark.parametrize(
    ("known", "certain"),
    [
        (LogPosition(1, 20), True),
        (LogPosition(1, 19), None),
        (LogPosition(1, 21), True),
        (LogPosition(2, 12), True),
        (LogPosition(0, 12), None),
    ],
)
def test_two_bounds_contradict_where_the_other_reaches_as_far_or_is_of_a_later_epoch(
    known: LogPosition, certain: bool | None
) -> None:
    other = node(3001, known, ((1, 0), (2, 11)), 22)
    found = [loss for loss in find_losses([KNOWS, other]) if loss.path == KNOWS.path]
    assert [loss.certain for loss in found] == ([] if certain is None else [certain])


@pytest.mark.parametrize(
    ("voters", "is_lost"), [((3000, 3001), True), ((3000, 3001, 3002), False), ((), False)]
)
def test_half_of_the_voters_is_no_majority(voters: tuple[int, ...], is_lost: bool) -> None:
    behind = node(3001, LogPosition(1, 9), ((1, 0),), 9)
    assert bool(find_losses([KNOWS, behind], voters)) == is_lost
    assert not find_losses([KNOWS, replace(behind, node_id=9)], voters)


def test_what_a_directory_says_of_itself() -> None:
    disk = memory_disk()
    made = make_node(disk, node_id=3001)
    add_snapshot(made, 12)
    log = made.log
    table = EpochTable(((1, 0),))
    plain = holding(log, 9, table)
    assert (plain.path, plain.node_id, plain.directory_id) == (
        log.path,
        3001,
        b"made" + (3001).to_bytes(12, "big"),
    )
    assert (plain.committed, plain.start_offset, plain.end_offset, plain.epochs) == (NOTHING, 0, 12, table)
    assert (plain.voters, holding(log, 13, table).end_offset) == ((), 13)
    write(disk, f"{log.directory}/{KNOWN_FILE}", encode_known(LogPosition(2, 7)))
    sets = VoterSets(log)
    sets._sets.update({5: (of(1, 1),), 8: (of(2, 2),)})
    told = holding(log, 9, table, sets)
    assert (told.committed, told.voters) == (LogPosition(2, 7), (of(1, 1),))
    write(disk, f"{log.directory}/{KNOWN_FILE}", b"garbage\n")
    assert known_committed(log) == NOTHING
    segment = open_log(disk, f"{log.directory}/{0:020}.log")
    assert known_committed(segment) == NOTHING and holding(segment, 9, table).end_offset == 9

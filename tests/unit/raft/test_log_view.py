"""Divergence, truncation and the need for a snapshot, against a reference that holds one epoch a record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.raft.config import RecoveredLog
from metaquorum.raft.errors import RaftInvariantError
from metaquorum.raft.log_view import LogView
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition


def view(epochs: list[int], start: int = 0, snapshots: tuple[LogPosition, ...] = ()) -> LogView:
    table = EpochTable()
    for snapshot in snapshots:
        if snapshot.offset == start:
            table = EpochTable.reset(snapshot)
    for index, epoch in enumerate(epochs):
        table = table.append(epoch, start + index)
    return LogView(
        RecoveredLog(
            epochs=table.entries,
            log_start_offset=start,
            log_end_offset=start + len(epochs),
            snapshots=snapshots,
        )
    )


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """A leader's and a follower's log as Raft can make them: (offset, epoch) equal means equal before too."""
    common = sorted(draw(st.lists(st.integers(1, 3), max_size=8)))
    floor = common[-1] if common else 1
    leader = sorted(draw(st.lists(st.integers(floor, 9).filter(lambda e: e % 2 == 0), max_size=6)))
    follower = sorted(draw(st.lists(st.integers(floor, 9).filter(lambda e: e % 2 == 1), max_size=6)))
    # After the common part the two hold different epochs, but for a longer run of the last common one.
    run = draw(st.integers(0, 3)) if common else 0
    if draw(st.booleans()):
        return common + leader, common + [floor] * run + [e for e in follower if e > floor]
    return common + [floor] * run + [e for e in leader if e > floor], common + [
        e for e in follower if e > floor
    ]


@given(two_logs())
def test_truncation_converges_on_the_common_prefix(logs: tuple[list[int], list[int]]) -> None:
    leader_epochs, follower_epochs = logs
    leader, follower = view(leader_epochs), view(follower_epochs)
    common = 0
    while (
        common < min(len(leader_epochs), len(follower_epochs))
        and leader_epochs[common] == follower_epochs[common]
    ):
        common += 1
    for _ in range(len(follower_epochs) + 2):
        end = follower.end_position
        diverging = leader.divergence(end.offset, end.epoch)
        if diverging is None:
            break
        cut = follower.truncation_offset(diverging)
        assert common <= cut < follower.end_offset, "each answer cuts something, and nothing that is common"
        follower.truncate(cut)
    assert follower.end_offset == common


def test_figure_7_answers() -> None:
    leader = view([1, 1, 1, 4, 4, 5, 5, 6, 6, 6])
    assert leader.divergence(9, 6) is None
    assert leader.divergence(7, 4) == LogPosition(4, 5)
    assert leader.divergence(11, 3) == LogPosition(1, 3)
    assert leader.divergence(12, 6) == LogPosition(6, 10)
    assert leader.divergence(0, 0) is None


def test_a_snapshot_is_needed_below_the_start_and_for_epochs_that_the_table_forgot() -> None:
    log = view([4, 4, 5], start=100, snapshots=(LogPosition(3, 100), LogPosition(4, 102)))
    assert log.snapshot_needed(99, 3)
    assert log.snapshot_needed(101, 2)
    assert not log.snapshot_needed(101, 3), "it is cut to where that epoch ends here"
    assert log.divergence(101, 3) == LogPosition(3, 100)
    assert not log.snapshot_needed(102, 4)
    assert not log.snapshot_needed(100, 3), "the end of a snapshot that this node has is known"
    assert log.divergence(100, 3) is None
    assert log.epoch_before(100) == 3
    assert log.epoch_before(103) == 5
    empty = view([], start=100, snapshots=(LogPosition(3, 100),))
    assert empty.snapshot_needed(103, 2)
    assert not empty.snapshot_needed(103, 3)
    assert empty.divergence(103, 3) == empty.divergence(103, 5) == LogPosition(3, 100)
    whole = view([4, 4, 5])
    assert not whole.snapshot_needed(0, 0)
    assert not whole.snapshot_needed(2, 1), "a log from 0 on serves everyone by truncation"
    assert whole.divergence(2, 1) == LogPosition(0, 0)


@pytest.mark.parametrize(
    ("epoch", "offset", "lacks"),
    [
        (1, 8, False),
        (2, 9, False),
        (2, 8, True),  # the record there is of another epoch
        (1, 9, True),
        (2, 10, True),
        (3, 7, False),  # what precedes the log is only known to be committed
        (9, 5, False),
    ],
)
def test_a_log_lacks_what_it_ends_before_or_holds_from_another_epoch(
    epoch: int, offset: int, lacks: bool
) -> None:
    assert view([1, 2], start=7).lacks(LogPosition(epoch, offset)) is lacks


def test_what_is_committed_after_a_start() -> None:
    assert view([1, 1]).high_watermark == -1
    assert view([1, 1], snapshots=(LogPosition(1, 1),)).high_watermark == 1
    assert view([4], start=7).high_watermark == 7


def test_committed_records_are_never_taken_back() -> None:
    log = view([1, 1, 2])
    log.high_watermark = 2
    with pytest.raises(RaftInvariantError, match="below the high watermark 2"):
        log.truncate(1)
    with pytest.raises(RaftInvariantError, match="below the high watermark 2"):
        log.reset(LogPosition(1, 1))
    log.truncate(2)
    assert (log.end_offset, log.epochs.entries) == (2, ((1, 0),))
    log.reset(LogPosition(3, 9))
    assert (log.start_offset, log.end_offset, log.synced_offset, log.high_watermark) == (9, 9, 9, 9)
    assert log.end_position == LogPosition(3, 9)


def test_syncs_count_up_to_the_end_and_never_fall() -> None:
    log = view([1, 1])
    log.append(2, 2, 6)
    log.synced(4)
    log.synced(3)
    assert log.synced_offset == 4
    log.synced(99)
    assert log.synced_offset == 6
    log.truncate(2)
    assert log.synced_offset == 2


def test_trim_forgets_epochs() -> None:
    log = view([1, 1, 2, 2], snapshots=(LogPosition(2, 3),))
    log.trim(3)
    assert (log.start_offset, log.epochs.entries) == (3, ((2, 3),))
    log.trim(1)
    assert log.start_offset == 3


@pytest.mark.parametrize("start", [0, 7])
def test_the_record_before_an_offset_is_of_the_epoch_that_covers_it(start: int) -> None:
    """Before the first of all there is none: epoch 0. Before a log that starts late it is the snapshot's."""
    snapshots = (LogPosition(3, 7),) if start else ()
    log = view([4, 4, 6], start, snapshots)
    assert [log.epoch_before(start + at) for at in range(4)] == [3 if start else 0, 4, 4, 6]
    assert log.end_position == LogPosition(6, start + 3)
    assert view([], start, snapshots).end_position == LogPosition(3 if start else 0, start)

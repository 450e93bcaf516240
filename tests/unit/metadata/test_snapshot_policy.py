"""When a snapshot is due and where it ends."""

from __future__ import annotations

import pytest

from metaquorum.metadata.image import MetadataImage, Provenance
from metaquorum.metadata.replay import OpenTransaction, ReplayState
from metaquorum.metadata.replica import SnapshotPolicy
from metaquorum.storage.types import LogPosition

HOUR_MS = 3_600_000


def policy_of(*, max_bytes: int = 1_000, interval_ms: int = HOUR_MS, last_offset: int = 5) -> SnapshotPolicy:
    return SnapshotPolicy(max_bytes=max_bytes, interval_ms=interval_ms, last_offset=last_offset, now_ms=0)


def state_at(offset: int, epoch: int = 3) -> ReplayState:
    return ReplayState(MetadataImage().with_provenance(Provenance(offset, epoch, 0)))


def test_by_size_it_is_due_with_the_byte_that_makes_it_full() -> None:
    policy = policy_of()
    policy.replayed(999)
    assert policy.cut(state_at(10), 1) is None
    policy.replayed(1)
    assert policy.cut(state_at(10), 1) == LogPosition(3, 10)
    policy.written(LogPosition(3, 10))
    assert policy.cut(state_at(11), 1) is None, "the bytes count anew"


def test_by_age_it_is_due_at_its_deadline_when_there_is_something_new() -> None:
    policy = policy_of()
    assert policy.next_deadline_ms(state_at(5)) is None and policy.cut(state_at(5), 2 * HOUR_MS) is None
    assert policy.next_deadline_ms(state_at(6)) == HOUR_MS
    assert policy.cut(state_at(6), HOUR_MS - 1) is None
    assert policy.cut(state_at(6), HOUR_MS) == LogPosition(3, 6)
    assert policy.next_deadline_ms(state_at(7)) is None, "one is in progress"
    policy.written(LogPosition(3, 6))
    assert policy.next_deadline_ms(state_at(7)) == 2 * HOUR_MS


def test_with_an_interval_of_zero_no_age_makes_it_due() -> None:
    policy = policy_of(interval_ms=0)
    assert policy.next_deadline_ms(state_at(6)) is None
    assert policy.cut(state_at(6), 1_000 * HOUR_MS) is None
    policy.replayed(1_000)
    assert policy.cut(state_at(6), 1_000 * HOUR_MS) == LogPosition(3, 6)


def test_inside_a_transaction_it_waits_for_the_end() -> None:
    policy = policy_of()
    policy.replayed(5_000)
    begun = OpenTransaction(begin_offset=6, name=None, pending=state_at(9).image)
    inside = ReplayState(state_at(6).image, begun)
    assert policy.cut(inside, 2 * HOUR_MS) is None and policy.next_deadline_ms(inside) is None
    assert policy.cut(state_at(9), 2 * HOUR_MS) == LogPosition(3, 9)


@pytest.mark.parametrize(
    ("written", "ended", "counts"),
    [((3, 10), True, True), ((3, 9), False, True), ((4, 10), False, True), ((3, 5), False, False)],
)
def test_only_the_snapshot_that_was_asked_for_ends_the_wait_for_it(
    written: tuple[int, int], ended: bool, counts: bool
) -> None:
    policy = policy_of()
    policy.in_progress = LogPosition(3, 10)
    assert policy.written(LogPosition(*written)) == counts
    assert (policy.in_progress is None) == ended


def test_a_fetched_snapshot_counts_as_the_newest_unless_it_is_older() -> None:
    policy = policy_of()
    policy.replayed(5_000)
    policy.loaded(LogPosition(4, 20), HOUR_MS)
    assert policy.last_offset == 20 and policy.cut(state_at(21, 4), HOUR_MS) is None
    assert policy.next_deadline_ms(state_at(21, 4)) == 2 * HOUR_MS
    policy.loaded(LogPosition(4, 15), HOUR_MS)
    assert policy.last_offset == 20

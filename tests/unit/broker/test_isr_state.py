"""The ISR as one leader keeps it, by itself: who counts, until when, and what an answer changes. Broker 2
leads, so that followers have lower and higher ids."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.broker.replica.partition.isr import IsrState
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import RECOVERING, PartitionInfo
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.partitions import AlteredPartition, IsrMember, PartitionAlteration
from tests.unit.broker.replica_world import KnownBrokers

TOPIC = b"t" * 16
LAG, TIMEOUT, BACKOFF = 1_000, 100, 50
CONFIG = ReplicaConfig(
    broker_id=2,
    replica_lag_time_max_ms=LAG,
    controller_request_timeout_ms=TIMEOUT,
    replica_fetch_backoff_ms=BACKOFF,
)
END = 10


def info(**changes: Any) -> PartitionInfo:
    fields: dict[str, Any] = {
        "topic_id": TOPIC,
        "index": 0,
        "replicas": (1, 2, 3),
        "leader": 2,
        "leader_epoch": 0,
        "partition_epoch": 0,
        "leader_recovery_state": 0,
    }
    fields |= changes
    return PartitionInfo(**fields, directories=(bytes(16),) * len(fields["replicas"]))


def state(*isr: int, now: int = 0) -> IsrState:
    made = IsrState(CONFIG, KnownBrokers())
    made.update(info(isr=isr), now_ms=now)
    return made


def fetched(isr: IsrState, broker: int, now: int, offset: int = END, end: int = END) -> None:
    isr.followers[broker].fetched(offset, leader_end=end, epoch=100 + broker, now_ms=now)


def proposed(isr: IsrState, now: int, floor: int = END, end: int = END) -> PartitionAlteration | None:
    return isr.propose(leader_end=end, floor=floor, now_ms=now)


def ids(sent: PartitionAlteration | None) -> list[int] | None:
    return None if sent is None else [each.broker_id for each in sent.isr]


def answer(
    isr: IsrState,
    sent: PartitionAlteration | None,
    now: int,
    error: ErrorCode = ErrorCode.NONE,
    *,
    members: tuple[int, ...] = (),
    epoch: int = 1,
    message: str | None = None,
) -> str | None:
    assert sent is not None
    result = AlteredPartition(
        topic_id=TOPIC,
        partition=0,
        error=error,
        message=message,
        leader=2,
        leader_epoch=0,
        partition_epoch=epoch,
        isr=members,
    )
    return isr.answered(sent, result, now_ms=now)


def test_members_are_named_with_their_epochs_whatever_their_ids() -> None:
    isr = state(2)
    for broker in (1, 3):
        fetched(isr, broker, 5)
    isr.followers[3].epoch = -1
    sent = proposed(isr, 5)
    assert sent is not None
    expected = ((2, 102), (1, 101), (3, None))
    assert sent.isr == tuple(IsrMember(broker_id=one, broker_epoch=epoch) for one, epoch in expected)
    assert (sent.leader_epoch, sent.partition_epoch, sent.partition) == (0, 0, 0)


@pytest.mark.parametrize(
    ("acknowledged", "floor", "age", "joins"),
    [
        (END, END, 0, True),
        (END, END, LAG, True),
        (END, END, LAG + 1, False),
        (END - 1, END, 0, False),
        (END, END - 1, 0, True),
        (END, END + 1, 0, False),
    ],
)
def test_who_joins(acknowledged: int, floor: int, age: int, joins: bool) -> None:
    isr = state(2, now=50_000)
    fetched(isr, 1, 50_000)
    isr.followers[1].acknowledged = acknowledged
    assert isr.may_join(1, floor=floor, now_ms=50_000 + age) is joins
    assert not isr.may_join(2, floor=0, now_ms=50_000)
    assert not isr.may_join(9, floor=0, now_ms=50_000)
    assert isr.awaited(1, isr.followers[1], now_ms=50_000 + age) is (age <= LAG)
    assert ids(proposed(isr, 50_000 + age, floor)) == ([2, 1] if joins else None)


@pytest.mark.parametrize(
    ("acknowledged", "age", "leaves"),
    [(END, 9 * LAG, False), (END - 1, LAG, False), (END - 1, LAG + 1, True)],
)
def test_who_leaves(acknowledged: int, age: int, leaves: bool) -> None:
    isr = state(1, 2, now=50_000)
    isr.followers[1].acknowledged = acknowledged
    assert isr.out_of_sync(leader_end=END, now_ms=50_000 + age) == ([1] if leaves else [])


def test_progress_counts_what_was_reached_and_when() -> None:
    """(offset asked for, the leader's end, time of the fetch, caught up as of)"""
    isr = state(2, now=0)
    one = isr.followers[1]
    never = one.caught_up_ms
    for offset, end, now, caught in (
        (3, 5, 10, never),
        (4, 7, 20, never),
        (7, 9, 30, 20),
        (8, 11, 40, 20),
        (9, 11, 50, 20),
        (11, 11, 60, 60),
        (11, 12, 70, 60),
        (12, 11, 80, 80),
        (11, 12, 75, 80),
    ):
        fetched(isr, 1, now, offset, end)
        assert one.caught_up_ms == caught, (offset, end)
        assert (one.acknowledged, one.fetched_ms) == (offset, now)
    one.held_all(90)
    assert one.caught_up_ms == 90
    one.held_all(85)
    assert one.caught_up_ms == 90
    isr.followers[3].held_all(90)
    assert isr.followers[3].caught_up_ms == never, "it has not fetched from this leader"


def test_who_left_begins_anew_whether_an_answer_or_metadata_took_it_out() -> None:
    for how in ("answer", "metadata"):
        isr = state(1, 2, 3)
        for broker in (1, 3):
            fetched(isr, broker, 10)
        fetched(isr, 1, 20, END, END + 5)
        if how == "answer":
            sent = proposed(isr, 9 * LAG, end=END + 5)
            assert ids(sent) == [2]
            answer(isr, sent, 9 * LAG, members=(2, 3))
        else:
            isr.update(info(isr=(2, 3), partition_epoch=1), now_ms=9 * LAG)
        one = isr.followers[1]
        assert (isr.committed, one.left_ms) == ((2, 3), 9 * LAG)
        assert one.caught_up_ms == one.fetched_ms == isr.followers[1].fetched_ms < 0
        one.held_all(9 * LAG)
        assert one.caught_up_ms < 0
        # A fetch that was on its way then has reached what the leader had before: that proves nothing.
        fetched(isr, 1, 9 * LAG + 1, END + 5, END + 9)
        assert one.caught_up_ms < 0
        assert isr.followers[3].left_ms < 0


def test_a_replica_that_is_removed_with_its_membership_is_nobodys() -> None:
    isr = state(1, 2, 3)
    isr.update(info(replicas=(2, 3), isr=(2, 3), partition_epoch=1), now_ms=5)
    assert (list(isr.followers), isr.committed, isr.maximal) == ([3], (2, 3), {2, 3})
    isr.update(info(isr=(1, 3), partition_epoch=2), now_ms=6)
    assert isr.committed == (1, 3)


def test_a_new_epoch_gives_members_the_lags_time_and_forgets_the_rest() -> None:
    isr = state(1, 2)
    for broker in (1, 3):
        fetched(isr, broker, 5)
    isr.update(info(isr=(1, 2), leader_epoch=1), now_ms=70)
    assert isr.followers[1].caught_up_ms == 70 and isr.followers[1].epoch is None
    assert isr.followers[3].caught_up_ms < 0 and isr.followers[3].epoch is None
    isr.update(info(isr=(1, 2), leader_epoch=1, partition_epoch=1), now_ms=90)
    assert isr.followers[1].caught_up_ms == 70


@pytest.mark.parametrize(("epoch", "settles"), [(0, True), (1, True), (-1, False)])
def test_an_answer_of_this_partition_epoch_or_a_newer_one_counts(epoch: int, settles: bool) -> None:
    isr = state(2)
    fetched(isr, 1, 5)
    sent = proposed(isr, 5)
    assert isr.maximal == {1, 2}
    assert answer(isr, sent, 6, members=(2,), epoch=epoch) is None
    assert (isr.is_proposing, isr.maximal) == ((False, {2}) if settles else (True, {1, 2}))
    assert isr.partition_epoch == (max(epoch, 0) if settles else 0)


def test_only_newer_metadata_settles_a_proposal() -> None:
    isr = state(2)
    fetched(isr, 1, 5)
    assert ids(proposed(isr, 5)) == [2, 1]
    isr.update(info(isr=(2,)), now_ms=6)
    assert isr.is_proposing
    isr.update(info(isr=(2,), partition_epoch=1), now_ms=7)
    assert not isr.is_proposing and isr.maximal == {2}
    assert ids(proposed(isr, 7)) == [2, 1]
    isr.update(info(isr=(2,), partition_epoch=1, leader_epoch=1), now_ms=8)
    assert not isr.is_proposing


def test_who_is_ineligible_is_tried_again_after_a_while_though_it_fetches_at_once() -> None:
    isr = state(2)
    fetched(isr, 1, 5)
    said = answer(isr, proposed(isr, 5), 6, ErrorCode.INELIGIBLE_REPLICA, message="its disk")
    assert said == "the ISR [2, 1] was refused: INELIGIBLE_REPLICA, its disk"
    assert isr.followers[1].left_ms == 6 and isr.followers[3].left_ms < 0
    fetched(isr, 1, 7)
    assert proposed(isr, 6 + BACKOFF - 1) is None
    assert ids(proposed(isr, 6 + BACKOFF)) == [2, 1]


def test_members_of_a_copy_under_way_count_until_it_must_have_arrived() -> None:
    isr = state(2)
    fetched(isr, 1, 5)
    sent = proposed(isr, 5)
    assert isr.answered(sent, ApiError(ErrorCode.NETWORK_EXCEPTION, ""), now_ms=6) is None  # type: ignore[arg-type]
    assert not isr.release_held(10**9), "there is nothing to give up yet"
    assert proposed(isr, 7) is sent and isr.held_until_ms is None
    said = answer(isr, sent, 8, ErrorCode.OPERATION_NOT_ATTEMPTED)
    assert said == "the ISR [2, 1] was refused: OPERATION_NOT_ATTEMPTED"
    until = 8 + 2 * TIMEOUT
    assert (isr.held_until_ms, isr.maximal) == (until, {1, 2})
    assert not isr.release_held(until - 1) and isr.maximal == {1, 2}
    assert isr.release_held(until) and isr.maximal == {2}
    assert isr.held_until_ms is None and not isr.release_held(until + 1)


def test_a_proposal_that_was_sent_once_leaves_nothing_behind_when_it_is_refused() -> None:
    isr = state(2)
    fetched(isr, 1, 5)
    answer(isr, proposed(isr, 5), 8, ErrorCode.OPERATION_NOT_ATTEMPTED)
    assert (isr.held_until_ms, isr.maximal, isr.is_proposing) == (None, {2}, False)


def test_an_answer_to_another_proposal_changes_nothing() -> None:
    isr = state(2)
    fetched(isr, 1, 5)
    sent = proposed(isr, 5)
    assert sent is not None
    other = replace(sent, partition_epoch=9)
    assert answer(isr, other, 6, ErrorCode.INELIGIBLE_REPLICA) is None
    assert isr.is_proposing
    assert answer(isr, sent, 6, ErrorCode.NOT_CONTROLLER) == "the ISR [2, 1] was refused: NOT_CONTROLLER"
    assert proposed(isr, 6) is sent, "its outcome is unknown: the same again"


def test_a_leader_that_recovers_says_so_even_alone() -> None:
    isr = IsrState(CONFIG, KnownBrokers())
    isr.update(info(isr=(2,), leader_recovery_state=RECOVERING), now_ms=0)
    assert isr.recovering
    sent = proposed(isr, 0)
    assert ids(sent) == [2]
    answer(isr, sent, 1, members=(2,))
    assert not isr.recovering and proposed(isr, 2) is None

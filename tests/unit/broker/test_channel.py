"""The way to the active controller: who is asked next, when, and one request in flight per kind."""

from __future__ import annotations

import random
from unittest import mock

import pytest

from metaquorum.broker.channel import ControllerChannel, Farewell, NoAnswer, RequestKind, SendToController
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from tests.controllers import channel, channel_of, reported, unanswered

REQUEST = AllocateProducerIdsRequest(broker_id=4, broker_epoch=9)
LAST = BrokerHeartbeatRequest(broker_id=4, broker_epoch=9, applied_offset=1, want_shutdown=True)
TIMEOUT_MS = 1_000


def at(current: int, *voters: int) -> ControllerChannel:
    made = channel(*voters)
    made.current = current
    return made


def not_active(hint: int | None = None) -> ApiError:
    return ApiError(ErrorCode.NOT_CONTROLLER, "not me", hint)


def fail(kind: RequestKind, outcome: ApiError | NoAnswer, now_ms: int = 0) -> SendToController:
    """Sends a request that ends like this."""
    sent = kind.send(now_ms, REQUEST)
    ended = kind.end(sent.target, sent.correlation_id)
    assert ended is not None
    kind.fails(now_ms, ended, outcome)
    return sent


# ---- who is asked


@pytest.mark.parametrize(
    ("leader", "asked", "following"),
    [(None, 1, 2), (None, 3, 1), (3, 1, 3), (2, 1, 2), (1, 1, 2), (3, 3, 1), (9, 2, 9), (None, 7, 1)],
)
def test_after_no_answer_the_leader_is_asked_or_else_the_next_voter(
    leader: int | None, asked: int, following: int
) -> None:
    made = at(asked)
    made.leader_known(0, leader)
    made.current = asked
    made.useless(asked)
    assert made.current == following
    if leader == asked:  # what was known of it is forgotten: it is not asked again at once
        made.useless(following)
        assert made.current != leader


def test_a_hint_is_followed_at_once() -> None:
    made = at(1)
    kind = made.kind(TIMEOUT_MS)
    fail(kind, not_active(3))
    assert kind.is_ready(0) and kind.send(0, REQUEST).target == 3


@pytest.mark.parametrize("hint", [None, 9, 1])
def test_a_hint_that_names_nobody_else_costs_a_wait_and_another_voter_is_asked(hint: int | None) -> None:
    made = at(1)
    kind = made.kind(TIMEOUT_MS)
    fail(kind, not_active(hint))
    assert not kind.is_ready(0) and kind.is_ready(50)
    assert kind.send(50, REQUEST).target == 2


def test_controllers_that_name_each_other_are_followed_once_per_voter() -> None:
    made = at(1)
    kind = made.kind(TIMEOUT_MS)
    for hint in (2, 1, 2):
        fail(kind, not_active(hint))
        assert kind.is_ready(0) and made.current == hint
    fail(kind, not_active(1))
    assert not kind.is_ready(0), "otherwise this is a busy loop"
    fail(kind, not_active(2), 50)
    assert kind.is_ready(50), "after the wait hints count from the beginning"


def test_what_one_kind_learns_of_the_controllers_holds_for_all() -> None:
    made = at(1)
    heartbeats, ids = made.kind(TIMEOUT_MS), made.kind(TIMEOUT_MS)
    fail(ids, not_active(3))
    assert heartbeats.send(0, LAST).target == 3


def test_a_kind_whose_controller_another_kind_has_left_asks_the_new_one_at_once() -> None:
    made = at(1)
    heartbeats, ids = made.kind(TIMEOUT_MS), made.kind(TIMEOUT_MS)
    sent = heartbeats.send(0, LAST)
    fail(ids, not_active(3))
    ended = heartbeats.end(sent.target, sent.correlation_id)
    assert ended is not None
    heartbeats.fails(0, ended, not_active(None))
    assert made.current == 3 and heartbeats.is_ready(0)


def test_no_answer_of_a_controller_that_was_left_already_moves_nothing() -> None:
    made = at(1)
    slow, ids = made.kind(TIMEOUT_MS), made.kind(TIMEOUT_MS)
    slow.send(0, REQUEST)
    fail(ids, not_active(3))
    late = slow.end_late(TIMEOUT_MS)
    assert late is not None
    slow.unanswered(TIMEOUT_MS, late)
    assert made.current == 3


def test_a_refusal_of_the_active_controller_keeps_it() -> None:
    made = at(2)
    kind = made.kind(TIMEOUT_MS)
    fail(kind, ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "busy"))
    assert made.current == 2 and not kind.is_ready(0)


def test_the_leader_of_the_log_is_asked_soon_after_failures() -> None:
    made = at(1)
    kind, fresh = made.kind(TIMEOUT_MS), made.kind(TIMEOUT_MS)
    for _ in range(9):
        fail(kind, NoAnswer("gone"), kind.next_send_ms)
    now_ms = kind.next_send_ms - 400
    assert not kind.is_ready(now_ms + 50)
    made.leader_known(now_ms, 3 if made.current != 3 else 2)
    assert kind.is_ready(now_ms + 50) and fresh.next_send_ms == 0


def test_voters_of_the_log_replace_the_configured_ones() -> None:
    made = at(1)
    made.voters_are((7, 8))
    kind = made.kind(TIMEOUT_MS)
    fail(kind, NoAnswer("gone"))
    assert made.current == 7
    made.voters_are(())
    fail(kind, NoAnswer("gone"), 50)
    assert made.current == 8, "an empty set says nothing"


def test_without_controllers_there_is_no_channel() -> None:
    with pytest.raises(ValueError, match=r"controller\.quorum\.voters"):
        channel_of((), random.Random(0))


# ---- when


@pytest.mark.parametrize(
    ("failures", "longest", "shortest"),
    [(1, 50, 25), (2, 100, 50), (3, 200, 100), (5, 800, 400), (6, 1000, 500), (20, 1000, 500)],
)
def test_waits_grow_with_the_failures_in_a_row(failures: int, longest: int, shortest: int) -> None:
    for drawn, wait_ms in ((lambda below: 0, longest), (lambda below: below - 1, shortest)):
        rng = random.Random()
        with mock.patch.object(rng, "randrange", drawn):
            kind = channel_of((1, 2), rng).kind(TIMEOUT_MS)
            kind.failures = failures - 1
            kind.count_failure(10_000)
        assert kind.next_deadline_ms(waits=True) == 10_000 + wait_ms
        assert not kind.is_ready(10_000 + wait_ms - 1) and kind.is_ready(10_000 + wait_ms)


def test_a_useful_answer_ends_the_waits() -> None:
    kind = channel().kind(TIMEOUT_MS)
    for _ in range(5):
        fail(kind, NoAnswer("gone"), kind.next_send_ms)
    sent = kind.send(kind.next_send_ms, REQUEST)
    assert kind.failures == 5
    assert kind.end(sent.target, sent.correlation_id) is not None
    kind.succeeded()
    assert kind.is_ready(0)
    fail(kind, NoAnswer("gone"), 10_000)
    assert kind.is_ready(10_050), "the first wait again"


def test_failures_of_one_kind_do_not_delay_another() -> None:
    made = channel()
    kind, other = made.kind(TIMEOUT_MS), made.kind(TIMEOUT_MS)
    fail(kind, NoAnswer("gone"))
    assert not kind.is_ready(0) and other.is_ready(0)


# ---- one in flight


def test_one_request_of_a_kind_is_in_flight_until_its_report_or_its_time_is_up() -> None:
    kind = channel().kind(TIMEOUT_MS)
    sent = kind.send(100, REQUEST)
    assert sent.timeout_ms == TIMEOUT_MS
    assert not kind.is_ready(100 + TIMEOUT_MS) and kind.next_deadline_ms(waits=True) == 100 + TIMEOUT_MS
    assert kind.end_late(99 + TIMEOUT_MS) is None
    assert kind.end_late(100 + TIMEOUT_MS) is not None and kind.is_ready(100 + TIMEOUT_MS)
    assert kind.end(sent.target, sent.correlation_id) is None, "its report comes too late"


def test_a_report_counts_for_its_own_request_only() -> None:
    made = channel()
    kind, other = made.kind(TIMEOUT_MS), made.kind(TIMEOUT_MS)
    sent, others = kind.send(0, REQUEST), other.send(0, LAST)
    assert sent.correlation_id != others.correlation_id
    assert kind.end(others.target, others.correlation_id) is None
    assert kind.end(sent.target + 1, sent.correlation_id) is None
    assert not kind.is_ready(0)
    assert kind.end(sent.target, sent.correlation_id) is not None and not other.is_ready(0)


def test_after_a_new_start_the_request_in_flight_no_longer_counts() -> None:
    kind = channel().kind(TIMEOUT_MS)
    sent = kind.send(0, REQUEST)
    kind.start_over(10)
    assert kind.is_ready(10) and kind.end(sent.target, sent.correlation_id) is None
    kind.start_over(20)
    assert not kind.is_ready(20), "the second time in a row it waits"


# ---- the last heartbeat


def leave(made: ControllerChannel, timeout_ms: int = 2_000) -> Farewell:
    return Farewell(made, LAST, now_ms=0, timeout_ms=timeout_ms)


def asked(farewell: Farewell, now_ms: int) -> SendToController:
    step = farewell.step(now_ms)
    assert isinstance(step, SendToController), step
    return step


def test_the_last_heartbeat_is_sent_until_a_controller_takes_it() -> None:
    made = at(1)
    farewell = leave(made)
    first = asked(farewell, 0)
    assert (first.target, first.request, first.timeout_ms) == (1, LAST, 500)
    farewell.reported(500, unanswered(first))
    wait_ms = farewell.step(500)
    assert isinstance(wait_ms, int) and 0 < wait_ms <= 50
    second = asked(farewell, 500 + wait_ms)
    assert second.target == 2
    farewell.reported(600, reported(second, not_active(3)))
    third = asked(farewell, 600)
    assert third.target == 3
    farewell.reported(601, reported(third, AllocateProducerIdsResponse(first_id=0, count=1)))
    assert farewell.accepted and farewell.step(601) is None


def test_the_last_heartbeat_ends_with_a_refusal_or_its_time() -> None:
    farewell = leave(at(1))
    refusal = ApiError(ErrorCode.STALE_BROKER_EPOCH, "another process")
    farewell.reported(1, reported(asked(farewell, 0), refusal))
    assert farewell.step(1) is None and not farewell.accepted and farewell.refusal == refusal
    farewell = leave(at(1), 300)
    farewell.reported(290, unanswered(asked(farewell, 0)))
    wait_ms = farewell.step(290)
    assert wait_ms == 10, "never past the end"
    assert farewell.step(300) is None and not farewell.accepted

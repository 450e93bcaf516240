"""Leases: when they run out, and when they must not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from metaquorum.controller.brokers.sessions import ARRIVAL_DRAIN_MS, LOOP_GAP_MS, Session, Sessions

TIMEOUT = 9_000
LAG = 30_000


def opened(sessions: Sessions, broker_id: int, broker_epoch: int, now_ms: int) -> Session:
    sessions.put(broker_id, sessions.fresh(broker_epoch, now_ms))
    return session_of(sessions, broker_id)


def touched(sessions: Sessions, broker_id: int, broker_epoch: int, arrived_ms: int) -> Session:
    sessions.put(broker_id, sessions.touched(broker_id, broker_epoch, arrived_ms))
    return session_of(sessions, broker_id)


def session_of(sessions: Sessions, broker_id: int) -> Session:
    session = sessions.get(broker_id)
    assert session is not None
    return session


def quiet(sessions: Sessions, now_ms: int) -> list[int]:
    """A drained turn of the loop at `now_ms`, without a gap before it."""
    sessions.note_input(now_ms - 1)
    sessions.expired(now_ms - 1, 0)
    sessions.note_input(now_ms)
    sessions.note_drained(now_ms)
    return sessions.expired(now_ms, 100)


def busy_until(sessions: Sessions, start_ms: int, end_ms: int) -> None:
    for now_ms in range(start_ms, end_ms, 100):
        sessions.note_input(now_ms)


def test_a_session_expires_at_its_deadline_and_not_before() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    opened(sessions, 1, 5, 1_000)
    busy_until(sessions, 1_000, 10_000)
    assert quiet(sessions, 9_999) == []
    assert sessions.next_deadline_ms() == 10_000
    assert quiet(sessions, 10_000) == [1]
    assert quiet(sessions, 10_001) == []
    assert sessions.remaining_ms(1, 10_000) == 0


def test_expiry_is_in_the_order_of_deadlines() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    for broker_id, at in ((1, 300), (2, 100), (3, 200)):
        opened(sessions, broker_id, 1, at)
    busy_until(sessions, 100, 9_400)
    assert quiet(sessions, 9_400) == [2, 3, 1]


def test_a_heartbeat_renews_from_its_arrival_not_from_when_it_is_handled() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    opened(sessions, 1, 5, 1_000)
    session = touched(sessions, 1, 5, 3_000)
    assert session.deadline_ms == 12_000
    assert touched(sessions, 1, 5, 2_000).deadline_ms == 12_000  # an older arrival takes nothing away
    busy_until(sessions, 1_000, 10_500)
    assert quiet(sessions, 10_500) == []
    busy_until(sessions, 10_500, 12_000)
    assert quiet(sessions, 12_000) == [1]


def test_one_heap_entry_a_broker_whatever_happens() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    for turn in range(50):
        opened(sessions, 1, turn, turn)
        touched(sessions, 1, turn, turn + 1)
        sessions.put(1, session_of(sessions, 1).closed())
        touched(sessions, 1, turn, turn + 2)
    assert len(sessions._heap) == 1


def test_what_arrived_before_the_deadline_and_is_not_handled_yet_keeps_the_session() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    opened(sessions, 1, 5, 1_000)
    busy_until(sessions, 1_000, 10_400)
    # The inbox was never empty; requests that arrived up to 9_990 have been handled by 10_400.
    sessions.note_arrival(9_990)
    sessions.note_input(10_400)
    assert sessions.expired(10_400, 100) == []
    sessions.note_arrival(10_000)
    assert sessions.expired(10_400, 100) == [1]


def test_after_a_gap_nothing_expires_until_arrivals_are_drained_and_time_has_passed() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    opened(sessions, 1, 5, 1_000)
    sessions.note_input(1_000)
    after = 20_000
    sessions.note_input(after)
    sessions.note_drained(after)
    assert sessions.expired(after, 100) == []
    assert sessions.next_deadline_ms() == after + LOOP_GAP_MS // 2
    sessions.note_input(after + LOOP_GAP_MS)
    assert sessions.expired(after + ARRIVAL_DRAIN_MS - 1, 100) == []
    # Time has passed and the inbox is not drained since: nothing.
    sessions.note_input(after + ARRIVAL_DRAIN_MS)
    assert sessions.expired(after + ARRIVAL_DRAIN_MS, 100) == [1]


def test_a_heartbeat_that_waited_out_the_gap_saves_its_session() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    opened(sessions, 1, 5, 1_000)
    sessions.note_input(1_000)
    sessions.note_input(20_000)
    touched(sessions, 1, 5, 20_001)
    sessions.note_input(20_000 + ARRIVAL_DRAIN_MS)
    sessions.note_drained(20_000 + ARRIVAL_DRAIN_MS)
    assert sessions.expired(20_000 + ARRIVAL_DRAIN_MS, 100) == []


def test_a_short_pause_is_no_gap() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    opened(sessions, 1, 5, 1_000)
    busy_until(sessions, 1_000, 9_900)
    sessions.note_input(9_900)
    sessions.note_input(9_900 + LOOP_GAP_MS)
    sessions.note_drained(9_900 + LOOP_GAP_MS)
    assert sessions.expired(9_900 + LOOP_GAP_MS, 100) == [1]


def test_standing_still_counts_only_while_behind() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    session = opened(sessions, 1, 5, 0)
    session = session.with_applied(100, 100, 0)
    session = session.with_applied(100, 100, 40_000)  # caught up: may stand
    assert not sessions.stands_still(session, 80_000)
    session = session.with_applied(100, 101, 50_000)
    assert not sessions.stands_still(session, 50_000 + LAG - 1)
    assert sessions.stands_still(session, 50_000 + LAG)
    session = session.with_applied(101, 200, 81_000)  # progress, however small
    assert not sessions.stands_still(session, 200_000)


def test_a_closed_lease_is_over_at_once_and_remembers_what_the_broker_must_apply() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    session = opened(sessions, 1, 5, 0)
    sessions.put(1, replace(session, unfence_from_offset=77).closed())
    assert sessions.remaining_ms(1, 1) == 0
    assert touched(sessions, 1, 5, 10).unfence_from_offset == 77
    assert sessions.remaining_ms(1, 10) == TIMEOUT
    assert touched(sessions, 1, 6, 20).unfence_from_offset == 0


@pytest.mark.parametrize("idle_ms", [250, 251, 500, 60_000])
@pytest.mark.parametrize("phase_ms", range(0, 500, 50))
def test_whoever_is_silent_expires_in_a_loop_that_idles(idle_ms: int, phase_ms: int) -> None:
    """It wakes up for its deadlines and once in `idle_ms`, and for nothing else: no broker is heard of."""
    sessions = Sessions(TIMEOUT, LAG)
    opened(sessions, 1, 5, 1_000)
    now_ms, wakes_ms, found = 1_000, 1_000 + phase_ms, []
    while not found and now_ms < 30_000:
        due_ms = sessions.next_deadline_ms()
        assert due_ms is not None
        now_ms = max(now_ms, min(due_ms, wakes_ms))
        wakes_ms += idle_ms if now_ms >= wakes_ms else 0
        sessions.note_input(now_ms)
        sessions.note_drained(now_ms)
        found = sessions.expired(now_ms, 100)
    assert found == [1]
    assert 1_000 + TIMEOUT <= now_ms <= 1_000 + TIMEOUT + LOOP_GAP_MS + 2 * ARRIVAL_DRAIN_MS


def test_a_pause_while_a_gap_is_made_up_for_is_a_gap_too() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    opened(sessions, 1, 5, 1_000)
    sessions.note_input(1_000)
    for now_ms in (10_000, 10_100, 10_301):
        sessions.note_input(now_ms)
        sessions.note_drained(now_ms)
        assert sessions.expired(now_ms, 100) == []
    assert quiet(sessions, 10_301 + ARRIVAL_DRAIN_MS - 1) == []

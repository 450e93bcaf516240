"""Leases: when they run out, and when they must not."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from metaquorum.controller.brokers.sessions import BrokerHeartbeatState, Sessions

TIMEOUT = 9_000
LAG = 30_000


def opened(sessions: Sessions, broker_id: int, broker_epoch: int, now_ms: int) -> BrokerHeartbeatState:
    sessions.put(broker_id, sessions.fresh(broker_epoch, now_ms))
    return session_of(sessions, broker_id)


def touched(sessions: Sessions, broker_id: int, broker_epoch: int, arrived_ms: int) -> BrokerHeartbeatState:
    sessions.put(broker_id, sessions.touched(broker_id, broker_epoch, arrived_ms))
    return session_of(sessions, broker_id)


def session_of(sessions: Sessions, broker_id: int) -> BrokerHeartbeatState:
    session = sessions.get(broker_id)
    assert session is not None
    return session


def quiet(sessions: Sessions, now_ms: int) -> list[int]:
    """The sessions that expire in a drained step at `now_ms`."""
    sessions.note_time(now_ms, drained=True)
    return expired(sessions, now_ms)


def expired(sessions: Sessions, now_ms: int) -> list[int]:
    due = sessions.overdue(now_ms, 100)
    assert sessions.overdue(now_ms, 100) == due, "a look changes nothing"
    for broker_id in due:
        sessions.expire(broker_id)
    return due


def test_a_session_expires_at_its_deadline_and_not_before() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    opened(sessions, 1, 5, 1_000)
    assert quiet(sessions, 9_999) == []
    assert sessions.next_deadline_ms() == 10_000
    assert quiet(sessions, 10_000) == [1]
    assert quiet(sessions, 10_001) == []
    assert sessions.remaining_ms(1, 10_000) == 0


def test_with_leadership_everything_is_forgotten_that_was_known_of_brokers() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    for broker_id in range(3):
        opened(sessions, broker_id, 5, 1_000)
    sessions.fencing[1] = 5
    sessions.failing[2] = frozenset([b"d" * 16])
    sessions.recreated[b"t" * 16, 0, 2] = b"d" * 16
    assert {
        name for name, value in vars(sessions).items() if value != vars(Sessions(TIMEOUT, LAG))[name]
    } == {
        *("fencing", "failing", "recreated", "_sessions", "_heap", "_queued"),
    }
    sessions.clear()
    assert vars(sessions) == vars(Sessions(TIMEOUT, LAG))


def test_expiry_is_in_the_order_of_deadlines() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    for broker_id, at in ((1, 300), (2, 100), (3, 200)):
        opened(sessions, broker_id, 1, at)
    assert quiet(sessions, 9_400) == [2, 3, 1]


def test_a_heartbeat_renews_from_its_arrival_not_from_when_it_is_handled() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    opened(sessions, 1, 5, 1_000)
    session = touched(sessions, 1, 5, 3_000)
    assert session.deadline_ms == 12_000
    assert touched(sessions, 1, 5, 2_000).deadline_ms == 12_000  # an older arrival takes nothing away
    assert quiet(sessions, 10_500) == []
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
    # The inbox was never empty; requests that arrived up to 9_990 have been handled by 10_400.
    sessions.note_arrival(9_990)
    sessions.note_time(10_400, drained=False)
    assert expired(sessions, 10_400) == []
    sessions.note_arrival(10_000)
    sessions.note_time(10_400, drained=False)
    assert expired(sessions, 10_400) == [1]


def test_only_so_many_sessions_expire_in_a_step_and_the_rest_at_once_after_it() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    for broker_id in range(5):
        opened(sessions, broker_id, 1, 1_000)
    sessions.note_time(10_000, drained=True)
    assert sessions.overdue(10_000, 2) == [0, 1]
    sessions.expire(0)
    sessions.expire(1)
    assert sessions.overdue(10_000, 2) == [2, 3] and sessions.next_deadline_ms() == 0
    sessions.note_gap(10_400)
    assert sessions.overdue(10_399, 2) == [] and sessions.next_deadline_ms() == 10_400
    # A heartbeat renews an overdue session, and a broker that is gone has none.
    touched(sessions, 2, 1, 10_399)
    sessions.forget(3)
    assert expired(sessions, 10_400) == [4]
    assert sessions.next_deadline_ms() == 19_399


def test_an_inbox_that_is_empty_before_the_gap_is_made_up_for_proves_nothing() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    opened(sessions, 1, 5, 1_000)
    sessions.note_gap(20_250)
    sessions.note_time(20_100, drained=True)
    sessions.note_time(20_250, drained=False)
    assert expired(sessions, 20_250) == []
    sessions.note_time(20_251, drained=True)
    assert expired(sessions, 20_251) == [1]


def test_after_a_gap_nobody_expires_until_it_is_made_up_for() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    opened(sessions, 1, 5, 1_000)
    sessions.note_gap(20_250)
    assert quiet(sessions, 20_249) == []
    assert sessions.next_deadline_ms() == 20_250
    assert quiet(sessions, 20_250) == [1]


def test_a_heartbeat_that_waited_out_the_gap_saves_its_session() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    opened(sessions, 1, 5, 1_000)
    opened(sessions, 2, 6, 1_000)
    sessions.note_gap(20_250)
    touched(sessions, 1, 5, 20_001)
    assert quiet(sessions, 20_250) == [2]


def test_standing_still_counts_only_while_behind() -> None:
    sessions = Sessions(TIMEOUT, LAG)
    session = opened(sessions, 1, 5, 0)
    session = session.with_applied(100, 100, 0)
    session = session.with_applied(100, 100, 40_000)  # caught up: may stand
    assert not sessions.is_paused(session, 80_000)
    session = session.with_applied(100, 101, 50_000)
    assert not sessions.is_paused(session, 50_000 + LAG - 1)
    assert sessions.is_paused(session, 50_000 + LAG)
    session = session.with_applied(101, 200, 81_000)  # progress, however small
    assert not sessions.is_paused(session, 200_000)


def test_a_clock_that_is_set_forward_makes_no_broker_silent_or_late() -> None:
    """Every time of a session moves with it."""
    sessions = Sessions(TIMEOUT, LAG)
    sessions.put(1, replace(sessions.fresh(5, 100), standing_since_ms=150))
    sessions.put(2, sessions.fresh(6, 200))
    before = {broker_id: asdict(session_of(sessions, broker_id)) for broker_id in (1, 2)}
    sessions.carry(50_000)
    for broker_id, fields in before.items():
        times = {name: at + 50_000 for name, at in fields.items() if name.endswith("_ms") and at is not None}
        assert asdict(session_of(sessions, broker_id)) == fields | times
    assert quiet(sessions, 50_099 + TIMEOUT) == [] and quiet(sessions, 50_100 + TIMEOUT) == [1]


def test_of_a_broker_that_has_sent_nothing_yet_no_setting_is_known() -> None:
    """0 would say that it runs an earlier release."""
    sessions = Sessions(TIMEOUT, LAG)
    sessions.put(1, replace(sessions.fresh(5, 100), min_insync_replicas=2))
    sessions.put(2, sessions.unheard(6, 100))
    assert sessions.min_insync_replicas() == {1: 2}
    touched(sessions, 2, 6, 101)
    assert sessions.min_insync_replicas() == {1: 2, 2: 0}


def test_a_closed_lease_is_over_at_once_and_the_next_one_has_what_the_broker_last_reported() -> None:
    """And what it must apply. What it asked for under the closed lease is over."""
    sessions = Sessions(TIMEOUT, LAG)
    kept = {"applied_offset": 50, "standing_since_ms": 3, "min_insync_replicas": 2, "unfence_from_offset": 77}
    before = replace(sessions.fresh(5, 0), moves_end_offset=60, should_shut_down=True, was_heard=False)
    sessions.put(1, replace(before, **kept).closed())
    assert sessions.remaining_ms(1, 1) == 0
    assert touched(sessions, 1, 5, 10) == replace(sessions.fresh(5, 10), **kept)
    assert sessions.remaining_ms(1, 10) == TIMEOUT
    assert touched(sessions, 1, 6, 20) == sessions.fresh(6, 20)

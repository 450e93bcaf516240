"""The broker state machine: every edge of the table, every pair that is no edge, and K9 as written."""

from __future__ import annotations

import itertools

import pytest

from metaquorum.controller.active.brokers import (
    TRANSITIONS,
    BrokerEvent,
    heartbeat_event,
    transition,
)
from metaquorum.metadata.errors import InvariantViolation
from metaquorum.metadata.requests.status import BrokerControlState

S, E = BrokerControlState, BrokerEvent

# S2.37 and K9, written down a second time, by state.
EXPECTED = {
    S.UNREGISTERED: {E.REGISTERED: S.FENCED},
    S.FENCED: {
        E.REGISTERED: S.FENCED,
        E.AMENDED: S.FENCED,
        E.UNREGISTERED: S.UNREGISTERED,
        E.CAUGHT_UP: S.ACTIVE,
        E.BEHIND: S.FENCED,
        E.WANTS_FENCE: S.FENCED,
        E.WANTS_IMMEDIATE_SHUTDOWN: S.SHUTDOWN,
    },
    S.ACTIVE: {
        E.REGISTERED: S.FENCED,
        E.AMENDED: S.ACTIVE,
        E.UNREGISTERED: S.UNREGISTERED,
        E.LEASE_LOST: S.FENCED,
        E.CAUGHT_UP: S.ACTIVE,
        E.BEHIND: S.ACTIVE,
        E.WANTS_FENCE: S.FENCED,
        E.WANTS_SHUTDOWN_LEADING: S.CONTROLLED_SHUTDOWN,
        E.WANTS_SHUTDOWN_LEADERLESS: S.SHUTDOWN,
        E.WANTS_IMMEDIATE_SHUTDOWN: S.SHUTDOWN,
    },
    S.CONTROLLED_SHUTDOWN: {
        E.REGISTERED: S.FENCED,
        E.AMENDED: S.ACTIVE,
        E.UNREGISTERED: S.UNREGISTERED,
        E.LEASE_LOST: S.FENCED,
        E.LEADERS_REMAIN: S.CONTROLLED_SHUTDOWN,
        E.MOVES_UNSEEN: S.CONTROLLED_SHUTDOWN,
        E.MOVES_SEEN: S.SHUTDOWN,
    },
    S.SHUTDOWN: {
        E.REGISTERED: S.FENCED,
        E.AMENDED: S.FENCED,
        E.UNREGISTERED: S.UNREGISTERED,
        E.CAUGHT_UP: S.ACTIVE,
        E.BEHIND: S.FENCED,
        E.WANTS_FENCE: S.FENCED,
        E.WANTS_IMMEDIATE_SHUTDOWN: S.SHUTDOWN,
    },
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, E)))
def test_every_pair_is_an_edge_or_refused(state: BrokerControlState, event: BrokerEvent) -> None:
    after = EXPECTED[state].get(event)
    if after is None:
        with pytest.raises(InvariantViolation, match=event.value[:20]):
            transition(state, event)
    else:
        assert transition(state, event) is after


def test_the_table_has_no_other_edge() -> None:
    assert {(s, e): a for s, edges in EXPECTED.items() for e, a in edges.items()} == TRANSITIONS


@pytest.mark.parametrize("state", [S.FENCED, S.ACTIVE, S.CONTROLLED_SHUTDOWN, S.SHUTDOWN])
@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=5)))
def test_every_heartbeat_of_a_registered_broker_is_an_edge(
    state: BrokerControlState, flags: tuple[bool, ...]
) -> None:
    fence, shutdown, caught_up, leads, seen = flags
    event = heartbeat_event(
        state,
        want_fence=fence,
        want_shutdown=shutdown,
        caught_up=caught_up,
        leads=lambda: leads,
        moves_seen=lambda: seen,
    )
    after = transition(state, event)
    assert after is k9(state, fence, shutdown, caught_up, leads, seen)


def k9(state: S, fence: bool, shutdown: bool, caught_up: bool, leads: bool, seen: bool) -> S:
    """The requirement, line by line."""
    if state in {S.FENCED, S.SHUTDOWN}:
        if shutdown:
            return S.SHUTDOWN
        return S.ACTIVE if not fence and caught_up else S.FENCED
    if state is S.ACTIVE:
        if fence:
            return S.SHUTDOWN if shutdown else S.FENCED
        if shutdown:
            return S.CONTROLLED_SHUTDOWN if leads else S.SHUTDOWN
        return S.ACTIVE
    return S.SHUTDOWN if not leads and seen else S.CONTROLLED_SHUTDOWN


def test_leaderships_are_counted_only_where_they_decide() -> None:
    def never() -> bool:
        raise AssertionError("asked")

    for state in (S.FENCED, S.ACTIVE):
        event = heartbeat_event(
            state, want_fence=False, want_shutdown=False, caught_up=True, leads=never, moves_seen=never
        )
        assert event is E.CAUGHT_UP

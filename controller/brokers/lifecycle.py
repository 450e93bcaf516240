"""A broker's states as the active controller sees them, and the transitions between them, as a table.

Owns the table: every possible change of a broker's state is a row of `TRANSITIONS` (S2.37, K9); anything else
is refused. Knows no image, no sessions and no records: `brokers.py` carries the transitions out.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from metaquorum.metadata.errors import InvariantViolation
from metaquorum.metadata.requests.controller_status import BrokerControlState


class BrokerEvent(Enum):
    """The meaning of a request, a heartbeat or the clock for one broker."""

    REGISTERED = "a new incarnation registered"
    AMENDED = "the same incarnation registered again"
    UNREGISTERED = "an operator removed the registration"
    LEASE_LOST = "no heartbeat for the session timeout, or no progress for the lag timeout"
    CAUGHT_UP = "heartbeat: has applied its own registration, wants to run"
    BEHIND = "heartbeat: has not applied its own registration, wants to run"
    WANTS_FENCE = "heartbeat: wants to be fenced"
    WANTS_SHUTDOWN_LEADING = "heartbeat: wants to shut down, leads partitions"
    WANTS_SHUTDOWN_LEADERLESS = "heartbeat: wants to shut down, leads nothing"
    WANTS_IMMEDIATE_SHUTDOWN = "heartbeat: wants to be fenced and to shut down"
    LEADERS_REMAIN = "heartbeat: still leads partitions"
    MOVES_UNSEEN = "heartbeat: leads nothing, but an active broker has not applied the moves yet"
    MOVES_SEEN = "heartbeat: leads nothing, and every active broker has applied the moves"


_S, _E = BrokerControlState, BrokerEvent

TRANSITIONS: dict[tuple[BrokerControlState, BrokerEvent], BrokerControlState] = {
    (_S.UNREGISTERED, _E.REGISTERED): _S.FENCED,
    (_S.FENCED, _E.REGISTERED): _S.FENCED,
    (_S.ACTIVE, _E.REGISTERED): _S.FENCED,
    (_S.CONTROLLED_SHUTDOWN, _E.REGISTERED): _S.FENCED,
    (_S.SHUTDOWN, _E.REGISTERED): _S.FENCED,
    (_S.FENCED, _E.AMENDED): _S.FENCED,
    (_S.ACTIVE, _E.AMENDED): _S.ACTIVE,
    (_S.CONTROLLED_SHUTDOWN, _E.AMENDED): _S.ACTIVE,
    (_S.SHUTDOWN, _E.AMENDED): _S.FENCED,
    (_S.FENCED, _E.UNREGISTERED): _S.UNREGISTERED,
    (_S.ACTIVE, _E.UNREGISTERED): _S.UNREGISTERED,
    (_S.CONTROLLED_SHUTDOWN, _E.UNREGISTERED): _S.UNREGISTERED,
    (_S.SHUTDOWN, _E.UNREGISTERED): _S.UNREGISTERED,
    (_S.ACTIVE, _E.LEASE_LOST): _S.FENCED,
    (_S.CONTROLLED_SHUTDOWN, _E.LEASE_LOST): _S.FENCED,
    (_S.FENCED, _E.CAUGHT_UP): _S.ACTIVE,
    (_S.FENCED, _E.BEHIND): _S.FENCED,
    (_S.FENCED, _E.WANTS_FENCE): _S.FENCED,
    (_S.FENCED, _E.WANTS_IMMEDIATE_SHUTDOWN): _S.SHUTDOWN,
    (_S.ACTIVE, _E.CAUGHT_UP): _S.ACTIVE,
    (_S.ACTIVE, _E.BEHIND): _S.ACTIVE,
    (_S.ACTIVE, _E.WANTS_FENCE): _S.FENCED,
    (_S.ACTIVE, _E.WANTS_SHUTDOWN_LEADING): _S.CONTROLLED_SHUTDOWN,
    (_S.ACTIVE, _E.WANTS_SHUTDOWN_LEADERLESS): _S.SHUTDOWN,
    (_S.ACTIVE, _E.WANTS_IMMEDIATE_SHUTDOWN): _S.SHUTDOWN,
    (_S.CONTROLLED_SHUTDOWN, _E.LEADERS_REMAIN): _S.CONTROLLED_SHUTDOWN,
    (_S.CONTROLLED_SHUTDOWN, _E.MOVES_UNSEEN): _S.CONTROLLED_SHUTDOWN,
    (_S.CONTROLLED_SHUTDOWN, _E.MOVES_SEEN): _S.SHUTDOWN,
    (_S.SHUTDOWN, _E.CAUGHT_UP): _S.ACTIVE,
    (_S.SHUTDOWN, _E.BEHIND): _S.FENCED,
    (_S.SHUTDOWN, _E.WANTS_FENCE): _S.FENCED,
    (_S.SHUTDOWN, _E.WANTS_IMMEDIATE_SHUTDOWN): _S.SHUTDOWN,
}
"""SHUTDOWN is FENCED with a promise: a broker that keeps sending heartbeats, instead of stopping, is fenced
as before."""


def transition(state: BrokerControlState, event: BrokerEvent) -> BrokerControlState:
    """The state after `event`. Raises InvariantViolation if the table has no such edge."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise InvariantViolation(f"a broker in state '{state.value}' cannot take the event: {event.value}")
    return after


def heartbeat_event(
    state: BrokerControlState,
    *,
    want_fence: bool,
    want_shutdown: bool,
    caught_up: bool,
    leads: Callable[[], bool],
    moves_seen: Callable[[], bool],
) -> BrokerEvent:
    """What a heartbeat means in `state` (K9). `leads` and `moves_seen` are called only where they decide."""
    if state is BrokerControlState.CONTROLLED_SHUTDOWN:
        # Its request is known; a delayed heartbeat from before must not change it.
        if leads():
            return BrokerEvent.LEADERS_REMAIN
        return BrokerEvent.MOVES_SEEN if moves_seen() else BrokerEvent.MOVES_UNSEEN
    if want_shutdown:
        if want_fence or state is not BrokerControlState.ACTIVE:
            return BrokerEvent.WANTS_IMMEDIATE_SHUTDOWN
        return BrokerEvent.WANTS_SHUTDOWN_LEADING if leads() else BrokerEvent.WANTS_SHUTDOWN_LEADERLESS
    if want_fence:
        return BrokerEvent.WANTS_FENCE
    return BrokerEvent.CAUGHT_UP if caught_up else BrokerEvent.BEHIND

"""Every edge and every non-edge of the broker's transition table, and the document made from it."""

from __future__ import annotations

from itertools import product

import pytest

from metaquorum.broker.lifecycle import (
    TRANSITIONS,
    Trigger,
    next_state,
    render_document,
)
from metaquorum.metadata.errors import InvariantViolation
from metaquorum.metadata.requests.status import BrokerState, ProcessState
from tests.unit.generated import keep_generated

NOT, STARTING, RECOVERY = BrokerState.NOT_RUNNING, BrokerState.STARTING, BrokerState.RECOVERY
RUNNING, FENCED, DOWN = BrokerState.RUNNING, BrokerState.FENCED, BrokerState.SHUTTING_DOWN
PENDING, PENDING_FENCED = BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.PENDING_SHUTDOWN_FENCED

# Written by hand, apart from the table that the code uses: two people must agree on an edge.
EDGES = {
    (NOT, Trigger.STARTED): STARTING,
    (NOT, Trigger.SHUTDOWN_REQUESTED): DOWN,
    (STARTING, Trigger.REGISTERED): RECOVERY,
    (STARTING, Trigger.SHUTDOWN_REQUESTED): DOWN,
    (STARTING, Trigger.REFUSED): DOWN,
    (RECOVERY, Trigger.ADMITTED): RUNNING,
    (RECOVERY, Trigger.FENCED_BY_ANSWER): RECOVERY,
    (RECOVERY, Trigger.LEASE_ENDED): STARTING,
    (RECOVERY, Trigger.REGISTRATION_LOST): STARTING,
    (RECOVERY, Trigger.SHUTDOWN_REQUESTED): DOWN,
    (RUNNING, Trigger.ADMITTED): RUNNING,
    (RUNNING, Trigger.FENCED_BY_ANSWER): FENCED,
    (RUNNING, Trigger.LEASE_ENDED): FENCED,
    (RUNNING, Trigger.REGISTRATION_LOST): FENCED,
    (RUNNING, Trigger.SHUTDOWN_REQUESTED): PENDING,
    (FENCED, Trigger.REGISTERED): FENCED,
    (FENCED, Trigger.ADMITTED): RUNNING,
    (FENCED, Trigger.FENCED_BY_ANSWER): FENCED,
    (FENCED, Trigger.LEASE_ENDED): FENCED,
    (FENCED, Trigger.REGISTRATION_LOST): FENCED,
    (FENCED, Trigger.SHUTDOWN_REQUESTED): DOWN,
    (FENCED, Trigger.REFUSED): DOWN,
    (PENDING, Trigger.ADMITTED): PENDING,
    (PENDING, Trigger.FENCED_BY_ANSWER): PENDING_FENCED,
    (PENDING, Trigger.LEASE_ENDED): PENDING_FENCED,
    (PENDING, Trigger.REGISTRATION_LOST): PENDING_FENCED,
    (PENDING, Trigger.SHUTDOWN_REQUESTED): PENDING,
    (PENDING, Trigger.SHUTDOWN_GRANTED): DOWN,
    (PENDING, Trigger.SHUTDOWN_TIMED_OUT): DOWN,
    (PENDING_FENCED, Trigger.REGISTERED): PENDING_FENCED,
    (PENDING_FENCED, Trigger.ADMITTED): PENDING,
    (PENDING_FENCED, Trigger.FENCED_BY_ANSWER): PENDING_FENCED,
    (PENDING_FENCED, Trigger.LEASE_ENDED): PENDING_FENCED,
    (PENDING_FENCED, Trigger.REGISTRATION_LOST): PENDING_FENCED,
    (PENDING_FENCED, Trigger.SHUTDOWN_REQUESTED): PENDING_FENCED,
    (PENDING_FENCED, Trigger.SHUTDOWN_GRANTED): DOWN,
    (PENDING_FENCED, Trigger.SHUTDOWN_TIMED_OUT): DOWN,
    (PENDING_FENCED, Trigger.REFUSED): DOWN,
} | {(state, Trigger.FAILED): DOWN for state in BrokerState if state is not DOWN}

NON_EDGES = [pair for pair in product(BrokerState, Trigger) if pair not in EDGES]


@pytest.mark.parametrize(("state", "trigger"), EDGES, ids=lambda part: part.name)
def test_edge(state: BrokerState, trigger: Trigger) -> None:
    assert next_state(state, trigger) is EDGES[state, trigger]


@pytest.mark.parametrize(("state", "trigger"), NON_EDGES, ids=lambda part: part.name)
def test_non_edge_is_refused(state: BrokerState, trigger: Trigger) -> None:
    with pytest.raises(InvariantViolation, match=f"{state.name} must not see {trigger.name}"):
        next_state(state, trigger)


def test_the_table_has_no_edge_beyond_these() -> None:
    assert {(state, trigger) for state, edges in TRANSITIONS.items() for trigger in edges} == set(EDGES)


def test_process_states_have_kafkas_numbers() -> None:
    assert {state.name: state.value for state in ProcessState} == {
        "NOT_RUNNING": 0,
        "STARTING": 1,
        "RECOVERY": 2,
        "RUNNING": 3,
        "PENDING_CONTROLLED_SHUTDOWN": 6,
        "SHUTTING_DOWN": 7,
    }


def test_only_an_answer_of_the_controller_makes_a_broker_serve() -> None:
    into_service = {
        trigger for (state, trigger), following in EDGES.items() if following.serves and not state.serves
    }
    assert into_service == {Trigger.ADMITTED}


def test_serving_states() -> None:
    assert {state for state in BrokerState if state.serves} == {RUNNING, PENDING}


def test_every_state_is_reached_and_leads_to_the_end() -> None:
    reached = {NOT}
    while more := {to for (state, _), to in EDGES.items() if state in reached} - reached:
        reached |= more
    assert reached == set(BrokerState)
    assert all(any(state is s and to is DOWN for (s, _), to in EDGES.items()) for state in reached - {DOWN})


def test_the_document_is_what_the_table_makes() -> None:
    keep_generated("broker-lifecycle.md", render_document())

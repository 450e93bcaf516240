"""The table of transitions between the states of a broker process (KIP-631, S2.37)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from metaquorum.metadata.errors import InvariantViolation
from metaquorum.metadata.requests.status import BrokerState

_S = BrokerState


class Trigger(Enum):
    """What can move a broker from one state to another. The value is the line that the document prints."""

    STARTED = "the process starts"
    REGISTERED = "the active controller accepts the registration"
    ADMITTED = (
        "a heartbeat is answered with 'not fenced' within the lease, and the broker has applied its own "
        "registration"
    )
    FENCED_BY_ANSWER = "a heartbeat is answered with 'fenced'"
    LEASE_ENDED = "the lease ends"
    REGISTRATION_LOST = "STALE_BROKER_EPOCH or BROKER_ID_NOT_REGISTERED"
    SHUTDOWN_REQUESTED = "SIGTERM or Ctrl-C"
    SHUTDOWN_GRANTED = "a heartbeat is answered with 'shut down'"
    SHUTDOWN_TIMED_OUT = "controlled.shutdown.timeout.ms is over"
    REFUSED = (
        "the registration is refused permanently, or until initial.broker.registration.timeout.ms is over"
    )
    FAILED = "a record of the metadata log cannot be applied"


_T = Trigger

TRANSITIONS: Mapping[BrokerState, Mapping[Trigger, BrokerState]] = MappingProxyType(
    {
        _S.NOT_RUNNING: MappingProxyType(
            {
                _T.STARTED: _S.STARTING,
                _T.SHUTDOWN_REQUESTED: _S.SHUTTING_DOWN,
                _T.FAILED: _S.SHUTTING_DOWN,
            }
        ),
        _S.STARTING: MappingProxyType(
            {
                _T.REGISTERED: _S.RECOVERY,
                _T.SHUTDOWN_REQUESTED: _S.SHUTTING_DOWN,
                _T.REFUSED: _S.SHUTTING_DOWN,
                _T.FAILED: _S.SHUTTING_DOWN,
            }
        ),
        _S.RECOVERY: MappingProxyType(
            {
                _T.ADMITTED: _S.RUNNING,
                _T.FENCED_BY_ANSWER: _S.RECOVERY,
                _T.LEASE_ENDED: _S.STARTING,
                _T.REGISTRATION_LOST: _S.STARTING,
                _T.SHUTDOWN_REQUESTED: _S.SHUTTING_DOWN,
                _T.FAILED: _S.SHUTTING_DOWN,
            }
        ),
        _S.RUNNING: MappingProxyType(
            {
                _T.ADMITTED: _S.RUNNING,
                _T.FENCED_BY_ANSWER: _S.FENCED,
                _T.LEASE_ENDED: _S.FENCED,
                _T.REGISTRATION_LOST: _S.FENCED,
                _T.SHUTDOWN_REQUESTED: _S.PENDING_CONTROLLED_SHUTDOWN,
                _T.FAILED: _S.SHUTTING_DOWN,
            }
        ),
        _S.FENCED: MappingProxyType(
            {
                _T.REGISTERED: _S.FENCED,
                _T.ADMITTED: _S.RUNNING,
                _T.FENCED_BY_ANSWER: _S.FENCED,
                _T.LEASE_ENDED: _S.FENCED,
                _T.REGISTRATION_LOST: _S.FENCED,
                _T.SHUTDOWN_REQUESTED: _S.SHUTTING_DOWN,
                _T.REFUSED: _S.SHUTTING_DOWN,
                _T.FAILED: _S.SHUTTING_DOWN,
            }
        ),
        _S.PENDING_CONTROLLED_SHUTDOWN: MappingProxyType(
            {
                _T.ADMITTED: _S.PENDING_CONTROLLED_SHUTDOWN,
                _T.FENCED_BY_ANSWER: _S.PENDING_SHUTDOWN_FENCED,
                _T.LEASE_ENDED: _S.PENDING_SHUTDOWN_FENCED,
                _T.REGISTRATION_LOST: _S.PENDING_SHUTDOWN_FENCED,
                _T.SHUTDOWN_REQUESTED: _S.PENDING_CONTROLLED_SHUTDOWN,
                _T.SHUTDOWN_GRANTED: _S.SHUTTING_DOWN,
                _T.SHUTDOWN_TIMED_OUT: _S.SHUTTING_DOWN,
                _T.FAILED: _S.SHUTTING_DOWN,
            }
        ),
        _S.PENDING_SHUTDOWN_FENCED: MappingProxyType(
            {
                _T.REGISTERED: _S.PENDING_SHUTDOWN_FENCED,
                _T.ADMITTED: _S.PENDING_CONTROLLED_SHUTDOWN,
                _T.FENCED_BY_ANSWER: _S.PENDING_SHUTDOWN_FENCED,
                _T.LEASE_ENDED: _S.PENDING_SHUTDOWN_FENCED,
                _T.REGISTRATION_LOST: _S.PENDING_SHUTDOWN_FENCED,
                _T.SHUTDOWN_REQUESTED: _S.PENDING_SHUTDOWN_FENCED,
                _T.SHUTDOWN_GRANTED: _S.SHUTTING_DOWN,
                _T.SHUTDOWN_TIMED_OUT: _S.SHUTTING_DOWN,
                _T.REFUSED: _S.SHUTTING_DOWN,
                _T.FAILED: _S.SHUTTING_DOWN,
            }
        ),
        _S.SHUTTING_DOWN: MappingProxyType({}),
    }
)


def next_state(state: BrokerState, trigger: Trigger) -> BrokerState:
    """The state after `trigger`. Raises InvariantViolation if the table has no such edge."""
    following = TRANSITIONS[state].get(trigger)
    if following is None:
        raise InvariantViolation(
            f"a broker in state {state.name} must not see {trigger.name}: report this with the broker's log"
        )
    return following


def _diagram() -> str:
    """A Mermaid state diagram of every transition: one arrow per pair of states and four triggers."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> NOT_RUNNING"]
    for state, edges in TRANSITIONS.items():
        arrows: dict[BrokerState, list[str]] = {}
        for trigger, following in edges.items():
            arrows.setdefault(following, []).append(trigger.name)
        for to, names in arrows.items():
            for at in range(0, len(names), 4):
                lines.append(f"    {state.name} --> {to.name}: {', '.join(names[at : at + 4])}")
    return "\n".join([*lines, "    SHUTTING_DOWN --> [*]", "```"])


def render_document() -> str:
    """The generated part of `docs/broker-lifecycle.md`: states and transitions, as Markdown."""
    states = "\n".join(
        f"- {state.name} ({state.process_state.value}): {state.meaning}" for state in BrokerState
    )
    return f"States, with Kafka's numbers:\n\n{states}\n\n{_diagram()}\n"
